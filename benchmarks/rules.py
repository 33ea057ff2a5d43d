r"""`paper` against `strict` on the public problems: where do they differ, and which of them is right?

    python -m benchmarks.rules --data-dir DIR [--count 1000] [--seed 0] [--tasks math gsm8k ...] [--samples FOLDER ...]

For each task, `--count` responses to public problems, written in the ways in which models write answers
(`benchmarks/rules_texts.py`), each way equally often, with the gold answer or with one that is wrong. Each way has a
worth by its meaning: whether the one final answer, in the place that the prompt asks for and after the reasoning, is
right. A rule errs where it pays for no worth (false reward) or does not pay for worth (missed). Prints Markdown: a
summary, and every way in which a rule erred or the rules differed.

`--samples` are folders of `rlvr eval` on Knights & Knaves (a model's own completions): each is judged by both rules.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.hostile_texts import written_answer
from benchmarks.rules_texts import Answers, Style, styles
from rlvr_cli.config.load import choose_task
from rlvr_cli.tasks import Problem, Task, Verdict
from rlvr_cli.tasks.countdown_puzzles import CountdownPuzzle, expression_text, find_solutions
from rlvr_cli.tasks.kk import KnightsAndKnaves

# Row of the table -> task, its data below the data folder, the split, and overrides.
SETS: dict[str, tuple[str, str, str, list[str]]] = {
    "kk": ("kk", "kk", "test", ["task.people={2: 0.14, 3: 0.14, 4: 0.14, 5: 0.14, 6: 0.14, 7: 0.15, 8: 0.15}"]),
    "countdown": ("countdown", "countdown", "test", []),
    "math": ("math", "math/math500.jsonl", "all", []),
    "gsm8k": ("gsm8k", "gsm8k", "test", []),
    "gsm8k_tags": ("gsm8k", "gsm8k", "test", ["task.reward=gtpo"]),
    "hitab": ("hitab", "hitab", "test", []),
}
RULES = ("paper", "strict")


@dataclass
class Count:
    """Responses of one style: how many, and how often each rule paid."""

    responses: int = 0
    paid: Counter[tuple[bool, bool]] = field(default_factory=Counter)  # (paper, strict) -> responses

    def erred(self, worth: bool, rule: int) -> int:
        """How often rule 0 (paper) or 1 (strict) did not do what the style is worth."""
        return sum(number for pays, number in self.paid.items() if pays[rule] != worth)

    @property
    def differ(self) -> int:
        """How often one rule paid and the other did not."""
        return sum(number for (paper, strict), number in self.paid.items() if paper != strict)


def tasks_of(name: str, data_dir: Path | None) -> tuple[list[Task], str]:
    """The task under both rules, and the split of its public problems; without a folder, of generated ones."""
    task, data, split, overrides = SETS[name]
    place, split = ("null", "test") if data_dir is None else (str(data_dir / data), split)
    made: list[Task] = []
    for rule in RULES:
        config = choose_task(task, [f"task.data={place}", *overrides], rule)
        made.append(config.for_model("logic_rl"))
    return made, split


def right_answer(name: str, problem: Problem) -> str | None:
    """The gold answer as a response spells it; None where the public data has none to write."""
    if name == "kk":
        pairs = zip(problem.data["names"], problem.data["solution"], strict=True)
        return "\n".join(
            f"({number}) {who} is a {'knight' if knight else 'knave'}" for number, (who, knight) in enumerate(pairs, 1)
        )
    if name == "countdown":
        found = next(find_solutions(CountdownPuzzle(tuple(problem.data["nums"]), problem.data["target"])), None)
        return expression_text(found) if found is not None else None
    if name == "hitab":
        return written_answer(problem.data["answer"])
    return str(problem.data["answer"]).strip().strip("$")


def wrong_answer(name: str, problem: Problem, right: str, others: Sequence[str], rng: random.Random) -> str:
    """An answer in the right form that is not right: a role turned, another value, or another problem's answer."""
    if name == "kk":
        lines = right.split("\n")
        place = rng.randrange(len(lines))
        old, new = ("knight", "knave") if lines[place].endswith("knight") else ("knave", "knight")
        lines[place] = lines[place].removesuffix(old) + new
        return "\n".join(lines)
    if name == "countdown":
        nums, target = problem.data["nums"], problem.data["target"]
        return " + ".join(map(str, nums)) if sum(nums) != target else " * ".join(map(str, nums))
    if name == "gsm8k" or name == "gsm8k_tags":
        return str(float(right.replace(",", "")) + rng.randint(1, 9)).removesuffix(".0")
    return rng.choice([other for other in others if other != right])


def responses(
    name: str, problems: Sequence[Problem], count: int, rng: random.Random
) -> list[tuple[Style, Problem, str]]:
    """``count`` responses, the styles in turn, each to a problem drawn at random."""
    ways = styles(name)
    golds = [gold for problem in problems if (gold := right_answer(name, problem)) is not None]
    made: list[tuple[Style, Problem, str]] = []
    while len(made) < count:
        style = ways[len(made) % len(ways)]
        while True:
            problem = rng.choice(problems)
            right = right_answer(name, problem)
            if right is None:
                continue
            wrong = wrong_answer(name, problem, right, golds, rng)
            text = style.write(Answers(right, wrong, problem.data, rng))
            if text is not None:
                break
        made.append((style, problem, text))
    return made


def judged(task: Task, rows: Sequence[tuple[Style, Problem, str]]) -> list[Verdict]:
    """The task's verdicts on the responses."""
    cut = ["cut off" in style.name for style, _, _ in rows]
    return task.judge_many([problem for _, problem, _ in rows], [text for _, _, text in rows], cut)


def compare(name: str, data_dir: Path | None, count: int, seed: int) -> dict[Style, Count]:
    """How often each rule paid, by style."""
    (paper, strict), split = tasks_of(name, data_dir)
    every = 300 if data_dir is None else 10**6
    problems = paper.problems(split, every, 0)  # type: ignore[arg-type]  # `all` is a split of loaded problems
    rows = responses(name, problems, count, random.Random(f"{seed} {name}"))
    counts: dict[Style, Count] = defaultdict(Count)
    for row, one, other in zip(rows, judged(paper, rows), judged(strict, rows), strict=True):
        counts[row[0]].responses += 1
        counts[row[0]].paid[one.correct, other.correct] += 1
    return counts


def summary(name: str, counts: dict[Style, Count]) -> str:
    """The row of the first table."""
    errors = [
        sum(count.erred(style.worth, rule) for style, count in counts.items() if style.worth == worth)
        for rule in (0, 1)
        for worth in (False, True)
    ]
    total = sum(count.responses for count in counts.values())
    differ = sum(count.differ for count in counts.values())
    return f"| {name} | {total:,} | {differ} | {' | '.join(map(str, errors))} |"


def details(counts: dict[Style, Count]) -> list[str]:
    """The rows of the second table: every style on which a rule erred or the rules differed."""
    lines = []
    for style, count in counts.items():
        errors = [count.erred(style.worth, rule) for rule in (0, 1)]
        if not any(errors):
            continue
        paid = [sum(number for pays, number in count.paid.items() if pays[rule]) for rule in (0, 1)]
        right = {(True, True): "neither", (True, False): "strict", (False, True): "paper"}[
            bool(errors[0]), bool(errors[1])
        ]
        worth = "yes" if style.worth else "no"
        name = style.name.replace("|", "\\|")
        lines.append(f"| {name} | {count.responses} | {worth} | {paid[0]} | {paid[1]} | {right} |")
    agreed = [style for style, count in counts.items() if not any(count.erred(style.worth, rule) for rule in (0, 1))]
    lines.append(f"| the other {len(agreed)} ways | {sum(counts[style].responses for style in agreed)} | | | | both |")
    return lines


def sampled(folder: Path) -> list[str]:
    """Rows on a model's own completions: pairs of reasons, and how many."""
    meta: dict[str, Any] = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    names = {sample["problem"] for sample in samples}
    people = {int(number): share for number, share in meta["task"]["people"].items()}
    base = {"people": people, **{key: meta["task"][key] for key in ("compound", "depth", "data")}}
    paper, strict = (
        KnightsAndKnaves.model_validate({**base, "reward": reward}).for_model(meta["task"]["style"])
        for reward in ("logic_rl", "strict")
    )
    problems = {problem.id: problem for problem in paper.problems(meta["split"], len(names), 0)}
    if names - set(problems):
        raise SystemExit(f"{folder}: its problems cannot be made again; was run.seed 0?")
    pairs: Counter[tuple[str, str]] = Counter()
    for sample in samples:
        problem, text, cut = problems[sample["problem"]], sample["text"], sample["truncated"]
        one, other = (task.judge(problem, text, truncated=cut) for task in (paper, strict))
        pairs[one.reason, other.reason] += 1
    same = ", ".join(f"{one} {number:,}" for (one, other), number in pairs.most_common() if one == other)
    differ = ", ".join(f"{one} / {other} {number:,}" for (one, other), number in pairs.most_common() if one != other)
    temperature = meta["sampling"]["temperature"]
    return [f"| {folder.name} | {temperature:g} | {len(samples):,} | {same} | {differ or 'none'} |"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--samples", nargs="*", type=Path, default=[])
    options = parser.parse_args()
    results = {name: compare(name, options.data_dir, options.count, options.seed) for name in options.tasks}
    print("| task | responses | rules differ | paper: false rewards | missed | strict: false rewards | missed |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, counts in results.items():
        print(summary(name, counts))
    for name, counts in results.items():
        print(f"\n### {name}\n")
        print("| response | n | right answer | `paper` pays | `strict` pays | right |")
        print("|---|---:|---|---:|---:|---|")
        print("\n".join(details(counts)))
    if options.samples:
        print("\n### A model's own completions\n")
        print("| samples | temperature | completions | both rules | paper / strict |")
        print("|---|---|---:|---|---|")
        for folder in options.samples:
            print("\n".join(sampled(folder)))


if __name__ == "__main__":
    main()
