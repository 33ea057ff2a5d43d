"""Save what a redesign must not change, and compare two such saves.

    python -m benchmarks.net build/before
    python -m benchmarks.net build/after --against build/before

Each entry is one command of `rlvr` in a folder of its own; what is kept is text: metrics, rollouts, samples, verdicts,
resolved recipes, messages with their exit codes, and SHA-256 of weights. A second save of the same checkout on the same
machine differs in nothing.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.sweeps.rows import trial_rows
from rlvr_cli.sweeps.spec import read_sweep

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
SMALL = "train.rollouts=3 rollout.prompts=8 rollout.group_size=4 rollout.max_new_tokens=48 validation.every=2 \
validation.problems=8 validation.samples=2 validation.pass_at=[1,2] run.name=run run.threads=1"
TRAININGS = {
    "kk-grpo": "--task kk",
    "countdown-grpo": "--task countdown update.mini_batches=2",
    "math-grpo": "--task math",
    "lopti": "--method lopti",
    "dgpo-lopti": "--method dgpo+lopti update.epochs=2",
    "ppo": "--method ppo",
    "gtpo": "--method gtpo",
    "sft": "--method sft method.demonstrations=64",
    "lora": "model.adapter=lora optimizer.lr=1e-3",
    "users-reward": "--model lab --data rows.jsonl --reward reward.py:accuracy",
    "users-method": "--method method.py",
    "users-task": "--task task.py",
}
EVALUATIONS = {
    "kk": "eval lab --samples 4 --pass-at 1,4 --problems 20",
    "countdown": "eval lab-countdown --benchmark countdown-gen --samples 4 --pass-at 1,4 --problems 20",
    "math-story": "eval lab-math --benchmark math-story-gen --samples 4 --pass-at 1,4 --problems 20",
    "greedy-kk-strict": "eval lab --samples 1 --pass-at 1 --problems 20 task.rule=strict",
    "transformers": "eval lab --engine transformers --samples 2 --pass-at 1,2 --problems 10",
}
# Responses of several forms to each row of a public set; the gold answer is the row's.
FORMS = (
    "\\boxed{{{answer}}}",
    "so the answer is {answer}",
    "<think> x </think> <answer> {answer} </answer>",
    "\\boxed{{{wrong}}}",
    "</think> \\boxed{{1}} and \\boxed{{{answer}}}",
    "",
)
# Commands that are refused or answered without training.
MISTAKES = """
config show rollout.prompt=3
config show rollout.prompts=x
config show --method gpro
train --method lopti rollout.prompts=7 rollout.group_size=3 update.mini_batches=2
train --task own --data none.jsonl
eval none
eval lab --pass-at 64
eval lab --benchmark nothing
compare none
report none
runs show none
sweep none.yaml
plan --gpu-memory x
score --task kk --input none -o x
export none -o out
train num_generations=4
train --resume none
config show -c none.yaml
config show method.policy_loss.kind=x
config keys nothing
config show launch.deepspeed=zero5
train --task none.py
train --method none.py
train --task own --data rows.jsonl
train --data rows.jsonl --reward reward.py:nothing
train --data none.jsonl --reward reward.py:accuracy
train --data rows.jsonl --reward reward.py:accuracy task.columns={prompt:nothing}
train --data rows.jsonl --reward reward.py:accuracy task.reward_weights=[1,2]
score --task math --input none.jsonl -o v.jsonl
eval lab --samples 2 --pass-at 0
analyze nothing none
analyze landscape none
train rollout.temperature=-1
config show run.name=a/b
config show --method sft rollout.top_p=0.9
tasks show kk task.people=1
tasks fetch nothing
new method
new thing name
"""


def rlvr(folder: Path, command: str, *more: str) -> str:
    """Run one command in ``folder``; exit code, standard output and error without what differs between two runs."""
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-m", "rlvr_cli", *command.split(), *more]
    done = subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    text = f"exit {done.returncode}\n{done.stdout}\n--\n{done.stderr}"
    varying = r"[\d,]+ tokens/s|tokens/s [\d,]+|\d+(\.\d+)? (s|min)\b|\d\d:\d\d(:\d\d)?"
    return re.sub(varying, "TIME", text.replace(str(folder), "."))


def users_files(folder: Path) -> None:
    """Write a user's rows, reward, task and method."""
    for kind in ("reward", "task", "method"):
        rlvr(folder, f"new {kind} {kind}")
    rows = folder / "reward.jsonl"
    rows.rename(folder / "rows.jsonl")


def kept_text(path: Path) -> str | None:
    """Return what is compared of a file: its text, the hash of weights, nothing of times and machines."""
    if path.suffix == ".safetensors":
        return hashlib.sha256(path.read_bytes()).hexdigest()
    kept = ("metrics.jsonl", "samples.jsonl", "problems.jsonl", "greedy.jsonl")
    if path.name in kept or path.parent.name == "rollouts":
        return path.read_text(encoding="utf-8")
    if path.name.endswith(".jsonl.gz"):
        return gzip.decompress(path.read_bytes()).decode()
    return None


def save(out: Path, name: str, text: str) -> None:
    """Write one entry of the net."""
    path = out / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def collect(out: Path, name: str, folder: Path) -> None:
    """Keep what a run or an evaluation wrote below ``folder``."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and (text := kept_text(path)) is not None:
            save(out, f"{name}/{path.relative_to(folder)}", text)


def score_rows(folder: Path, file: Path) -> None:
    """Write responses of all ``FORMS`` to the rows of a public set."""
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in list(lines)[:150]]
    answers = [str(row.get("answer")) for row in rows]
    written = [
        {"problem": row, "response": form.format(answer=answer, wrong=wrong)}
        for row, answer, wrong in zip(rows, answers, [*answers[1:], answers[0]], strict=True)
        for form in FORMS
    ]
    text = "".join(json.dumps(row) + "\n" for row in written)
    (folder / "responses.jsonl").write_text(text, encoding="utf-8")


def save_verdicts(out: Path, work: Path) -> None:
    """Judge responses to the public sets under both rules."""
    sets = {"kk": "kk/3ppl.test.jsonl", "countdown": "countdown/test.jsonl.gz", "hitab": "hitab/test.jsonl.gz"}
    sets |= {"gsm8k": "gsm8k/test.jsonl", "math": "math/math500.jsonl"}
    for task, file in sets.items():
        for rule in ("paper", "strict"):
            folder = work / f"score-{task}-{rule}"
            folder.mkdir(parents=True)
            score_rows(folder, DATA / file)
            command = f"score --task {task} --rule {rule} --input responses.jsonl -o v.jsonl"
            save(out, f"score/{task}-{rule}.txt", rlvr(folder, command))
            if (folder / "v.jsonl").exists():
                save(out, f"score/{task}-{rule}.jsonl", (folder / "v.jsonl").read_text(encoding="utf-8"))


def save_recipes(out: Path) -> None:
    """Resolve every row of every table of the papers."""
    papers = ROOT / "configs" / "papers"
    for file in sorted(papers.glob("*/[!_]*.yaml")):
        for name, row in trial_rows(read_sweep(file)).items():
            save(out, f"recipes/{file.parent.name}-{file.stem}-{name}.yaml", dump_yaml(load_config([row])))


def build(out: Path) -> None:
    """Make every entry."""
    work = out / "work"
    shutil.rmtree(out, ignore_errors=True)
    work.mkdir(parents=True)
    (work / "files").mkdir()
    users_files(work / "files")
    for name, arguments in TRAININGS.items():
        folder = shutil.copytree(work / "files", work / name)
        save(out, f"train/{name}.txt", rlvr(folder, f"train {arguments} {SMALL}"))
        collect(out, f"train/{name}", folder / "runs")
        print(name, flush=True)
    for name, arguments in EVALUATIONS.items():
        folder = work / f"eval-{name}"
        folder.mkdir()
        save(out, f"eval/{name}.txt", rlvr(folder, arguments))
        collect(out, f"eval/{name}", folder)
    if DATA.is_dir():
        save_verdicts(out, work)
    save_recipes(out)
    for number, command in enumerate(MISTAKES.split("\n")[1:-1]):
        folder = shutil.copytree(work / "files", work / f"mistake-{number}")
        save(out, f"messages/{number:02d}.txt", f"rlvr {command}\n{rlvr(folder, command)}")
    shutil.rmtree(work)


def differences(before: Path, after: Path) -> list[str]:
    """Return one line for each entry that differs or is in one save only."""
    names = [{str(path.relative_to(top)) for path in top.rglob("*") if path.is_file()} for top in (before, after)]
    lines = [f"only before: {name}" for name in sorted(names[0] - names[1])]
    lines += [f"only after: {name}" for name in sorted(names[1] - names[0])]
    for name in sorted(names[0] & names[1]):
        one, two = (Path(top, name).read_text(encoding="utf-8").splitlines() for top in (before, after))
        if one != two:
            changed = sum(left != right for left, right in zip(one, two, strict=False)) + abs(len(one) - len(two))
            lines.append(f"differs: {name} ({changed} of {max(len(one), len(two))} lines)")
    return lines


def main() -> None:
    """Make a save, and compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--against", type=Path, help="an earlier save")
    parser.add_argument("--compare-only", action="store_true", help="make nothing: `out` is there already")
    options = parser.parse_args()
    if not options.compare_only:
        build(options.out.resolve())
    if options.against:
        lines = differences(options.against, options.out)
        print("\n".join(lines) or "no differences")


if __name__ == "__main__":
    main()
