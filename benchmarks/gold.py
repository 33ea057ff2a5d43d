"""Does every gold answer of the public data verify when it is the response?

    python -m benchmarks.gold --data-dir DIR [--out FILE] [--only PART ...] [--workers N]

Runs `rlvr score` on each file of DIR, under both rules, with the rows as they are and responses that hold the gold
answer in the task's own format: the text of `answer` (Knights & Knaves), an equation that solves the puzzle
(Countdown), the values as they are written (HiTab), a box (GSM8K, mathematics). Such a box holds the gold answer's own
spelling, which needs no algebra, so mathematics is scored once more with a name in front, `y=...`, where the gold
answer is neither prose nor a relation: all but plain numbers have to be parsed then. Prints a Markdown table and, by
cause, the answers that do not verify; FILE gets each of them as a line of JSON.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.hostile_texts import response, written_answer
from rlvr_cli.config.load import choose_task
from rlvr_cli.tasks import Task

# By the first folder of a file; `train` and `math` hold mathematics.
TASKS = {"kk": "kk", "countdown": "countdown", "hitab": "hitab", "gsm8k": "gsm8k", "math": "math", "train": "math"}
NOT_ROWS = ("tables.jsonl.gz",)
RULES = ("paper", "strict")
_DELIMITER = re.compile(r"(?<!\\)\$|\\[()\[\]]")
_RELATION = re.compile(r"[=<>]|\\(?:leq?|geq?|leqslant|geqslant|neq?|in|approx|equiv|perp|to|sim|simeq)(?![A-Za-z])")


def files(folder: Path) -> Iterator[tuple[str, Path]]:
    """The task and the path of each file of rows."""
    for path in sorted(folder.glob("*/*.jsonl*")):
        if path.parent.name in TASKS and path.name not in NOT_ROWS:
            yield TASKS[path.parent.name], path


def rows(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def answered(name: str, row: dict[str, Any], *, named: bool) -> str:
    """A response to the row's problem that holds the gold answer."""
    if name == "kk":
        return f"So. </think> <answer> {row['answer']} </answer>"
    if name in ("math", "gsm8k"):
        answer = str(row["answer"])
        return rf"So \boxed{{y={_DELIMITER.sub(' ', answer).strip()}}}" if named else rf"So \boxed{{{answer}}}"
    if name == "hitab":
        return response(choose(name), "So.", f"<answer> {written_answer(row['answer'])} </answer>")
    task = choose(name)
    solutions = task.solutions(task.problem_from(row, "row"))
    assert solutions is not None
    return next(solutions)


@cache
def choose(name: str) -> Task:
    config = choose_task(name)
    return config.for_model("logic_rl")


def scored(name: str, pairs: list[dict[str, Any]], rule: str, workers: int, folder: Path) -> list[dict[str, Any]]:
    """The verdicts of `rlvr score` on ``pairs``."""
    source, target = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    options = ["--task", name, "--rule", rule, "--workers", str(workers), "--overwrite"]
    command = [sys.executable, "-m", "rlvr_cli", "score", "--input", str(source), "--output", str(target), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]


def may_be_named(answer: str) -> bool:
    """Whether ``y=answer`` says the same."""
    return bool(answer.strip()) and not _RELATION.search(answer) and not prose(answer)


def prose(answer: str) -> bool:
    bare = re.sub(r"\\[A-Za-z]+|\{[a-z]*\}", " ", answer)
    return len(re.findall(r"[A-Za-z]{3,}", bare)) >= 2


def cause(row: dict[str, Any], verdict: dict[str, Any]) -> str:
    """Why a gold answer does not verify, in words for a table."""
    answer = str(row["answer"])
    if not answer.strip():
        return "the row has no answer"
    if verdict["reason"] == "timeout":
        return "takes longer than the deadline"
    kind = "prose" if prose(answer) else "several formulas" if answer.count("$") > 2 else "other"
    return f"{kind} ({verdict['reason']})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="+", metavar="PART", help="files whose path contains one of these")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    failed: list[dict[str, Any]] = []
    causes: Counter[tuple[str, str, str]] = Counter()
    print("| file | rows | rule | verified | of | with a name | not scorable | seconds |")
    print("|---|---:|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for name, path in files(options.data_dir):
            shown = str(path.relative_to(options.data_dir))
            if options.only and not any(part in shown for part in options.only):
                continue
            items = rows(path)
            for rule in RULES:
                started = time.perf_counter()
                cells: list[str] = []
                for named in (False, True) if name == "math" else (False,):
                    used = [row for row in items if not named or may_be_named(str(row["answer"]))]
                    pairs = [{"problem": row, "response": answered(name, row, named=named)} for row in used]
                    verdicts = scored(name, pairs, rule, options.workers, Path(folder))
                    assert len(verdicts) == len(used)
                    right = sum(verdict["correct"] is True for verdict in verdicts)
                    cells += [f"{len(used):,}", f"{right:,} ({right / len(used):.2%})"]
                    if named:
                        cells.append(str(sum(verdict["correct"] is None for verdict in verdicts)))
                    for row, verdict in zip(used, verdicts, strict=True):
                        if verdict["correct"] is not True:
                            why = cause(row, verdict)
                            spelling = "with a name" if named else "as it is"
                            causes[spelling, rule, why] += 1
                            where = {"file": shown, "id": row.get("id"), "rule": rule, "spelling": spelling}
                            failed.append({**where, "gold": row["answer"], "cause": why, **verdict})
                cells += [""] * (5 - len(cells))
                seconds = time.perf_counter() - started
                print(f"| {shown} | {cells[0]} | {rule} | {' | '.join(cells[1:])} | {seconds:.0f} |", flush=True)
    print("\n| spelling | rule | cause | rows |\n|---|---|---|---:|")
    for (spelling, rule, why), count in sorted(causes.items()):
        print(f"| {spelling} | {rule} | {why} | {count} |")
    if options.out:
        options.out.write_text("".join(json.dumps(item) + "\n" for item in failed), encoding="utf-8")


if __name__ == "__main__":
    main()
