"""Collapse detection where the truth is known: simulated runs, and runs of the lab that do and do not collapse.

    python -m benchmarks.collapse                          # the simulated runs: some minutes
    python -m benchmarks.collapse --dir runs-collapse      # the lab's too: every run that is not there is trained

Prints the tables that docs/collapse.md and docs/archive.md summarize, as Markdown.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlvr_cli.collapse.watch import PATTERNS, Collapse, CollapseWatch, detect
from rlvr_cli.config.load import load_config
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.runs.folder import RunDir

GROUP = 8
# Problems of a rollout differ in difficulty by a Beta distribution of this concentration.
CONCENTRATION = 3.0
Curve = NDArray[np.float64]

# --- simulated runs ------------------------------------------------------------------------------------------------

STEADY = {
    "accuracy": 0.4,
    "format": 0.9,
    "truncated": 0.05,
    "length": 400.0,
    "entropy": 0.3,
    "diversity": 0.9,
    "grad_norm": 0.3,
}
# Where each number of a steady run goes, a pattern at a time; what is not named stays.
COLLAPSES: Mapping[str, Mapping[str, float]] = {
    "length_collapse": {"length": 120.0, "accuracy": 0.15},
    "length_explosion": {"length": 1200.0, "accuracy": 0.15, "truncated": 0.6},
    "entropy_collapse": {"entropy": 0.04, "diversity": 0.3, "accuracy": 0.15, "grad_norm": 0.05},
    "entropy_explosion": {"entropy": 1.2, "accuracy": 0.15, "grad_norm": 3.0},
    "format_loss": {"format": 0.4},
    "reward_hacking": {"format": 0.98},
    "broken_policy": {"accuracy": 0.0, "format": 0.0, "truncated": 1.0, "length": 1200.0, "entropy": 1.2},
}
# Where the format was right from the beginning, nobody can learn it in place of the answers.
STARTS: Mapping[str, Mapping[str, float]] = {"reward_hacking": {"format": 0.5, "accuracy": 0.05}}
# What a training that succeeds looks like: longer and surer, right more often, alike because right.
LEARNING: Mapping[str, float] = {"accuracy": 0.9, "format": 0.98, "length": 1200.0, "entropy": 0.07, "diversity": 0.4}


def moving(ends: Mapping[str, float], rollouts: int, begins: int, length: int, **start: float) -> dict[str, Curve]:
    """Every number's mean in each rollout: ``STEADY`` (or ``start``) until ``begins``, at ``ends`` ``length`` later."""
    way = np.clip((np.arange(rollouts) - begins) / length, 0, 1)
    return {name: value + way * (ends.get(name, value) - value) for name, value in {**STEADY, **start}.items()}


def simulated(
    curves: Mapping[str, Curve], rng: np.random.Generator, *, problems: int = 16, noise: float = 0.1
) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl, one a rollout, around ``curves``.

    Shares are of groups of ``GROUP`` completions whose problems differ in difficulty; other numbers have log-normal
    noise of standard deviation ``noise``, diversity a third of that.
    """
    rollouts = len(curves["accuracy"])
    columns: dict[str, Curve] = {}
    for name in ("accuracy", "format", "truncated"):
        means = np.clip(curves[name], 1e-6, 1 - 1e-6)[:, None]
        difficulty = rng.beta(CONCENTRATION * means, CONCENTRATION * (1 - means), size=(rollouts, problems))
        found = rng.binomial(GROUP, difficulty) / GROUP
        columns[name] = found.mean(axis=1)
        columns[f"{name}/se"] = found.std(axis=1, ddof=1) / problems**0.5
    for name in ("length", "entropy", "grad_norm"):
        columns[name] = curves[name] * np.exp(rng.normal(0, noise, rollouts))
    columns["diversity"] = np.clip(curves["diversity"] * np.exp(rng.normal(0, noise / 3, rollouts)), 1 / GROUP, 1)
    names = list(columns)
    lines = zip(*(columns[name].tolist() for name in names), strict=True)
    return [{"rollout": number, **dict(zip(names, line, strict=True))} for number, line in enumerate(lines)]


def found_in(
    curves: Mapping[str, Curve], runs: int, seed: int, *, problems: int = 16, noise: float = 0.1
) -> list[list[Collapse]]:
    """What is detected in each of ``runs`` simulated runs."""
    rng = np.random.default_rng(seed)
    return [detect(simulated(curves, rng, problems=problems, noise=noise), problems) for _ in range(runs)]


def false_alarms(runs: int, rollouts: int = 100) -> None:
    """Print how many runs in which nothing happens, or all goes well, are alarmed about."""
    steady = moving({}, rollouts, 0, 1)
    hard = moving({}, rollouts, 0, 1, accuracy=0.05, format=0.6)
    learning = moving(LEARNING, rollouts, 5, 60)
    print(f"| runs with an alarm, of {runs:,} of {rollouts} rollouts | 4 problems | 16 | 64 |\n|---|---|---|---|")
    rows: list[tuple[str, Mapping[str, Curve], float]] = [
        ("steady, noise 10%", steady, 0.1),
        ("steady, noise 25%", steady, 0.25),
        ("steady at accuracy 0.05, format 0.6, noise 10%", hard, 0.1),
        ("learning, noise 10%", learning, 0.1),
    ]
    for label, curves, noise in rows:
        cells = []
        for problems in (4, 16, 64):
            found = found_in(curves, runs, 1, problems=problems, noise=noise)
            which = sorted({collapse.name for run in found for collapse in run})
            cells.append(f"{sum(map(bool, found)) / runs:.1%}" + (f" ({', '.join(which)})" if which else ""))
        print(f"| {label} | {' | '.join(cells)} |")


def delays(runs: int, begins: int = 40) -> None:
    """Print how many rollouts after its beginning a collapse is named."""
    print("| rollouts until it is named: median (95% of runs within) | at once | over 10 rollouts | over 30 |")
    print("|---|---|---|---|")
    for pattern, ends in COLLAPSES.items():
        cells = []
        for length in (1, 10, 30):
            curves = moving(ends, begins + length + 80, begins, length, **STARTS.get(pattern, {}))
            named = [
                next((c.first - begins + 1 for c in run if c.pattern == pattern and c.first >= begins), 10**6)
                for run in found_in(curves, runs, 2)
            ]
            middle, late = np.quantile(named, [0.5, 0.95], method="higher")
            missed = sum(number == 10**6 for number in named)
            most = "missed" if late == 10**6 else f"{late:.0f}"
            cells.append(f"{middle:.0f} ({most})" + (f", {missed / runs:.1%} missed" if missed else ""))
        print(f"| {pattern.replace('_', ' ')} | {' | '.join(cells)} |")


def onsets(runs: int, begins: int = 40) -> None:
    """Print which rollout is taken for the last one from before a collapse, counted from the one before it begins."""
    print("| last sound rollout: median (5% and 95% of runs) | at once | over 10 rollouts | over 30 |")
    print("|---|---|---|---|")
    rng = np.random.default_rng(3)
    for pattern, ends in COLLAPSES.items():
        cells = []
        for length in (1, 10, 30):
            curves = moving(ends, begins + length + 80, begins, length, **STARTS.get(pattern, {}))
            found = [_last_sound(simulated(curves, rng), begins) - begins for _ in range(runs)]
            low, middle, high = np.quantile(found, [0.05, 0.5, 0.95], method="nearest")
            cells.append(f"{middle:+.0f} ({low:+.0f} to {high:+.0f})")
        print(f"| {pattern.replace('_', ' ')} | {' | '.join(cells)} |")


def _last_sound(rows: list[dict[str, Any]], begins: int) -> int:
    """Of the first collapse that is named after ``begins``."""
    watch = CollapseWatch(16)
    for row in rows:
        watch.see(row)
        if (found := watch.begins(row["rollout"])) and row["rollout"] > begins:
            return watch.last_sound(found)
    raise ValueError("no collapse was named")


# --- runs of the lab -----------------------------------------------------------------------------------------------

FAST = ("optimizer.lr=1e-3", "optimizer.lr_schedule=constant")
# Name of the runs, what their figures were used for, overrides, and seeds.
LAB: tuple[tuple[str, str, tuple[str, ...], tuple[int, ...]], ...] = (
    ("grpo", "choosing", ("method=grpo",), (0, 1)),
    ("pl", "choosing", ("method=pl",), (0,)),
    ("nl", "choosing", ("method=nl",), (0,)),
    ("pl-fast", "choosing", ("method=pl", *FAST), (0,)),
    ("pl-fast", "choosing", ("method=pl", *FAST, "train.rollouts=40"), (1, 2)),
    ("nl-fast", "choosing", ("method=nl", *FAST), (0,)),
    ("grpo", "checking", ("method=grpo",), (2, 3, 4, 5, 6, 7, 8, 9)),
    ("grpo-fast", "checking", ("method=grpo", *FAST), (0, 1)),
    ("pl-fast", "checking", ("method=pl", *FAST, "train.rollouts=40"), (3,)),
    ("nl-fast", "checking", ("method=nl", *FAST, "train.rollouts=25"), (1,)),
    ("short", "checking", ("train.rollouts=12", "rollout.max_new_tokens=20", "task.people={4: 1.0}"), (0,)),
)


def lab_run(name: str, overrides: tuple[str, ...], seed: int, folder: Path) -> RunDir:
    """The run ``name`` of ``seed``, trained if it is not finished."""
    run = RunDir(folder / f"{name}-s{seed}")
    if not run.path.exists() or run.read_manifest().get("status") != "finished":
        where = (f"run.dir={folder}", f"run.name={run.name}", f"run.seed={seed}", "checkpoint.every=100000")
        command = [sys.executable, "-m", "rlvr_cli", "train", "--overwrite", *overrides, *where]
        subprocess.run(command, check=True, stdout=sys.stderr)
    return run


def lab(folder: Path) -> None:
    """Print what is detected in the runs of the lab, trained where they are not in ``folder``."""
    print("| run | for | accuracy at the start, best, end | named, after which rollout |\n|---|---|---|---|")
    noise: dict[str, list[float]] = {}
    for name, purpose, overrides, seeds in LAB:
        for seed in seeds:
            run = lab_run(name, overrides, seed, folder)
            rows = read_jsonl(run.metrics_path)
            found = detect(rows, load_config([run.config_path]).rollout.prompts)
            first = {pattern: next((c for c in found if c.pattern == pattern), None) for pattern in PATTERNS}
            named = ", ".join(f"{c.name} {c.first + 1}" for c in sorted(filter(None, first.values()), key=_first))
            print(f"| {name}, seed {seed} | {purpose} | {_accuracies(rows)} | {named or 'nothing'} |")
            for number in ("length", "entropy") if name == "grpo" else ():
                noise.setdefault(number, []).append(_noise([row[number] for row in rows]))
    found_noise = ", ".join(f"{number} {np.median(values):.0%}" for number, values in noise.items())
    print(f"\nFrom rollout to rollout, `grpo` after 20 rollouts, median over seeds: {found_noise}.")


def _first(collapse: Collapse) -> int:
    return collapse.first


def _accuracies(rows: list[dict[str, Any]]) -> str:
    values = [row["accuracy"] for row in rows if row["update"] == 0]
    means = np.convolve(values, np.ones(5) / 5, mode="valid")
    return f"{values[0]:.2f}, {means.max():.2f}, {means[-1]:.2f}"


def _noise(values: list[float]) -> float:
    """Relative standard deviation from one rollout to the next, past the first 20."""
    return float(np.diff(np.log(values[20:])).std() / 2**0.5)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--dir", type=Path, help="folder of the lab's runs; without it they are left out")
    parser.add_argument("--runs", type=int, default=200, help="simulated runs for each figure")
    options = parser.parse_args()
    false_alarms(options.runs)
    print()
    delays(options.runs)
    print()
    onsets(options.runs)
    if options.dir is not None:
        print()
        lab(options.dir)


if __name__ == "__main__":
    main()
