"""Every task, trained on the lab for a few rollouts and evaluated, by the commands that people type.

    python -m benchmarks.tasks_smoke [--rollouts 2] [--problems 4] [--keep FOLDER] [CASE ...]

For each case, `rlvr train` and then `rlvr eval` of the run. Both must end with 0; every step must have the task's
metrics, each a finite number (a reward may be null where no verdict of the step was scorable), the shares of the
reasons summing to 1; the evaluation must have judged every sample. On tasks that no model of the
lab reads (`rlvr tasks list`) no answer is right, and all rewards are the lowest there are (GTPO's pays for some tags).
These rows show that the pipeline runs from end to end, not more.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.hostile_texts import problems_of
from rlvr_cli.config.load import choose_task
from rlvr_cli.core.files import read_jsonl

# Case -> method, task, overrides of the task.
CASES: dict[str, tuple[str, str, list[str]]] = {
    "kk": ("grpo", "kk", []),
    "kk, strict": ("grpo", "kk", ["task.reward=strict"]),
    "countdown": ("grpo", "countdown", []),
    "math": ("grpo", "math", []),
    "gsm8k": ("grpo", "gsm8k", []),
    "hitab": ("grpo", "hitab", []),
    "gtpo, gsm8k": ("gtpo", "gsm8k", ["task.reward=gtpo"]),
    "gtpo, math": ("gtpo", "math", ["task.reward=gtpo"]),
    "dgpo, math": ("dgpo", "math", ["task.reward=plus_minus"]),
}


@dataclass(frozen=True)
class Outcome:
    """What a case came to: the last step's metrics, the evaluation's, and all that was wrong."""

    seconds: float
    step: dict[str, Any]
    evaluation: dict[str, Any]
    wrong: list[str]


def command(arguments: Sequence[str]) -> tuple[str, str | None]:
    """What `rlvr` printed, and what went wrong with it."""
    done = subprocess.run([sys.executable, "-m", "rlvr_cli", *arguments], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout, None
    last = (done.stderr or done.stdout).strip().splitlines()[-1:]
    return done.stdout, f"rlvr {arguments[0]} ended with {done.returncode}: {' '.join(last)}"


def run(case: str, rollouts: int, problems: int, folder: Path) -> Outcome:
    """Train and evaluate a case, and check what both leave."""
    method, task, overrides = CASES[case]
    name = case.replace(", ", "-")
    started = time.perf_counter()
    settings = [f"run.dir={folder}", f"run.name={name}", f"train.rollouts={rollouts}", "task.train_size=64", *overrides]
    # On the other tasks nothing is to be learned, and here nothing has to be.
    data = f"{task}-gen" if task != "hitab" else str(_tables(folder))
    settings += [f"task.data={data}", *([] if task == "kk" else ["train.on_no_signal=off"])]
    _, wrong = command(["train", "--method", method, "--task", task, "--overwrite", *settings])
    if wrong is not None:
        return Outcome(time.perf_counter() - started, {}, {}, [wrong])
    steps = list(read_jsonl(folder / name / "metrics.jsonl"))
    reasons = _reasons(task, overrides)
    problems_found = [message for step in steps for message in check_step(step, reasons)]
    if len({step["rollout"] for step in steps}) != rollouts:
        problems_found.append(f"{len({step['rollout'] for step in steps})} rollouts in the metrics, not {rollouts}")
    printed, wrong = command(
        ["eval", str(folder / name), "--problems", str(problems), "--samples", "2", "--pass-at", "2", "--format=json"]
    )
    seconds = time.perf_counter() - started
    if wrong is not None:
        return Outcome(seconds, steps[-1], {}, [*problems_found, wrong])
    evaluation = json.loads(printed)
    if isinstance(evaluation, list):
        evaluation = evaluation[0]
    problems_found += check_evaluation(evaluation, reasons, problems)
    return Outcome(seconds, steps[-1], evaluation, problems_found)


def _tables(folder: Path) -> Path:
    """Rows of HiTab, of which none are generated."""
    file = folder / "tables.jsonl"
    problems = problems_of(choose_task("hitab"), "train", 200, 0)
    file.write_text("".join(json.dumps(problem.fields) + "\n" for problem in problems), encoding="utf-8")
    return file


def _reasons(task: str, overrides: Sequence[str]) -> tuple[str, ...]:
    config = choose_task(task, overrides, model="lab")
    return config.for_model("compact").reasons


def check_step(step: dict[str, Any], reasons: Sequence[str]) -> list[str]:
    """What is wrong with the metrics of a training step."""
    wanted = ["reward", "accuracy", "length", "grad_norm", "entropy", "unscorable", *(f"reason/{r}" for r in reasons)]
    where = f"step {step.get('step')}"
    wrong = [f"{where}: no {name}" for name in wanted if name not in step]
    wrong += [f"{where}: {name} is {value}" for name, value in step.items() if _unfit(name, value, step)]
    shares = sum(step.get(f"reason/{reason}") or 0.0 for reason in reasons)
    if not math.isclose(shares, 1.0, abs_tol=1e-6):
        wrong.append(f"{where}: the shares of the reasons sum to {shares}")
    return wrong


def _unfit(name: str, value: Any, step: dict[str, Any]) -> bool:
    if value is None:
        return not (name.startswith("reward") and step.get("unscorable") == 1.0)
    return isinstance(value, float) and not math.isfinite(value)


def check_evaluation(evaluation: dict[str, Any], reasons: Sequence[str], problems: int) -> list[str]:
    """What is wrong with an evaluation."""
    wrong = []
    if (evaluation["problems"], evaluation["samples"]) != (problems, 2):
        wrong.append(f"eval: {evaluation['problems']} problems with {evaluation['samples']} samples")
    metrics = evaluation["metrics"]
    wanted = ["greedy", "avg@2", "pass@2", "reward", *(f"reason/{reason}" for reason in reasons)]
    wrong += [f"eval: no {name}" for name in wanted if name not in metrics]
    values = {name: metric["value"] for name, metric in metrics.items()}
    wrong += [f"eval: {name} is {value}" for name, value in values.items() if value is None or not math.isfinite(value)]
    return wrong


def row(case: str, outcome: Outcome) -> str:
    """The line of the table."""
    method, task, overrides = CASES[case]
    reward = next((o.removeprefix("task.reward=") for o in overrides if o.startswith("task.reward=")), "default")
    step, metrics = outcome.step, outcome.evaluation.get("metrics", {})
    told = ", ".join(
        f"{name.removeprefix('reason/')} {share:.0%}"
        for name, share in step.items()
        if name.startswith("reason/") and share
    )
    figures = [step.get("reward"), step.get("accuracy"), step.get("nonzero_advantage")]
    figures += [metrics.get(name, {}).get("value") for name in ("reward", "avg@2", "pass@2")]
    cells = " | ".join("" if value is None else f"{value:.3f}" for value in figures)
    state = "yes" if not outcome.wrong else "no"
    return f"| {task} | {reward} | {method} | {cells} | {told} | {outcome.seconds:.0f} | {state} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {'; '.join(CASES)}")
    parser.add_argument("--rollouts", type=int, default=2)
    parser.add_argument("--problems", type=int, default=4)
    parser.add_argument("--keep", type=Path, help="keep the runs in this folder")
    options = parser.parse_args()
    unknown = [case for case in options.cases if case not in CASES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; cases are: {'; '.join(CASES)}")
    print(
        "| task | reward | method | reward, last step | accuracy | share with an advantage | eval: reward | avg@2 | "
        "pass@2 | reasons, last step | s | passed |"
    )
    print("|---|---|---|---:|---:|---:|---:|---:|---:|---|---:|---|")
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        for case in options.cases or list(CASES):
            outcome = run(case, options.rollouts, options.problems, options.keep or Path(temporary))
            print(row(case, outcome), flush=True)
            wrong += [f"{case}: {message}" for message in outcome.wrong]
    print("\nWhere no model of the lab reads the task, a row shows that the pipeline runs, and no more.")
    for message in wrong:
        print(message, file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
