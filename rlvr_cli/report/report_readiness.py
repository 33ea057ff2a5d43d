"""Which runs can be compared yet; what of the rest is not done, and the commands that do it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlvr_cli.compare.options import Question
from rlvr_cli.core.text import some
from rlvr_cli.results.arms import Arm
from rlvr_cli.results.find import Run, eval_options, sweep_command
from rlvr_cli.sweeps.folder import Plan, SweepDir

SHOWN = 4


@dataclass(frozen=True)
class Readiness:
    """How far the runs are.

    Attributes:
        runs: those that can be compared: finished (or taken as they are) and evaluated.
        unfinished: what is not finished yet, a line each.
        left_out: what takes no part in a comparison for that reason, a line each.
        lacking: why there is nothing to compare yet; empty where there is.
        commands: what finishes and evaluates the runs, in this order.
    """

    runs: tuple[Run, ...]
    unfinished: tuple[str, ...]
    left_out: tuple[str, ...]
    lacking: tuple[str, ...]
    commands: tuple[str, ...]


def readiness(
    question: Question, arms: Sequence[Arm], baseline: str, statuses: Mapping[str, str], sweeps: Mapping[Path, Plan]
) -> Readiness:
    """How far the runs of ``arms`` are; ``statuses`` by the run's path."""
    runs = [run for arm in arms for run in arm.runs.values()]
    open_ = [run for run in runs if statuses[run.path] != "finished"]
    done = runs if question.unfinished else [run for run in runs if run not in open_]
    ready = [run for run in done if _evaluated(run, question)]
    bare = [run for run in done if run not in ready]
    what = "evaluation" if question.match is None else "held-out evaluation from training"
    left_out = [f"left out of the comparison, for want of an {what}: {_names(bare)}."] if bare else []
    if out := [run for run in runs if run not in done]:
        left_out.append(f"left out of the comparison, for they are not finished: {_names(out)}.")
    return Readiness(
        runs=tuple(ready),
        unfinished=(*_states(open_, statuses), *_not_begun(sweeps)),
        left_out=tuple(left_out),
        lacking=tuple(_lacking(question, arms, baseline, ready)) if len(arms) > 1 else (),
        commands=tuple(dict.fromkeys([*map(_continue, open_), *_begin(sweeps), *_evaluate(bare, question)])),
    )


def _lacking(question: Question, arms: Sequence[Arm], baseline: str, ready: Sequence[Run]) -> list[str]:
    have = {arm.name: {one for one, run in arm.runs.items() if run in ready} for arm in arms}
    with_some = [name for name, own in have.items() if own]
    what = "finished run with an evaluation" if question.match is None else "finished run with held-out evaluations"
    if len(with_some) < 2:
        return [f"a comparison takes two arms with a {what}; there {_arms(with_some)}."]
    if question.baseline is not None and baseline not in with_some:
        return [f"the baseline, {baseline}, has no {what} yet."]
    if not question.unpaired and not set.intersection(*(own for own in have.values() if own)):
        return ["runs are compared in pairs of one seed, and no seed is finished and evaluated in all arms yet."]
    return []


def _arms(names: Sequence[str]) -> str:
    return f"is one so far, {names[0]}" if names else "is none so far"


def _evaluated(run: Run, question: Question) -> bool:
    folder = run.dir.eval_dir if question.match is None else run.dir.held_out_dir
    return any(folder.glob("*/metrics.json"))


def _states(runs: Sequence[Run], statuses: Mapping[str, str]) -> list[str]:
    lines = [
        f"{run.path} is {statuses[run.path]}: rollout {run.manifest.get('rollout')} of "
        f"{run.manifest.get('rollouts_total')}."
        for run in runs
    ]
    if len(lines) <= SHOWN + 1:
        return lines
    return [*lines[:SHOWN], f"{len(lines) - SHOWN} more runs are not finished; the list of runs below has all."]


def _not_begun(sweeps: Mapping[Path, Plan]) -> list[str]:
    lines = []
    for folder, plan in sweeps.items():
        if waiting := _waiting(folder, plan):
            lines.append(f"{folder}: {len(waiting)} of its {len(plan.named)} trials were not begun ({_few(waiting)}).")
    return lines


def _waiting(folder: Path, plan: Plan) -> list[str]:
    sweep = SweepDir(folder)
    return [one.name for one in plan.named if not one.shared and not sweep.run_dir(one).manifest_path.exists()]


def _begin(sweeps: Mapping[Path, Plan]) -> list[str]:
    return [plan.command for folder, plan in sweeps.items() if _waiting(folder, plan)]


def _continue(run: Run) -> str:
    return sweep_command(run.dir.path) or f"rlvr train --resume {shlex.quote(run.path)}"


def _evaluate(runs: Sequence[Run], question: Question) -> list[str]:
    if question.match is not None:
        return []
    benchmark = f" --benchmark {shlex.quote(question.benchmark)}" if question.benchmark else ""
    return [f"rlvr eval {shlex.quote(run.path)}{eval_options(run.dir.path) or benchmark}" for run in runs]


def _names(runs: Sequence[Run]) -> str:
    return _few([run.path for run in runs])


def _few(names: Sequence[str]) -> str:
    return some(names, SHOWN)
