"""Data of a report: runs with their records, arms, progress, and the comparison or the obstacles to one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlvr_cli.compare.read import choose_baseline, read_task
from rlvr_cli.compare.request import CompareRequest
from rlvr_cli.compare.results import TaskComparison, compare_task
from rlvr_cli.core.errors import UserError, collect_problems
from rlvr_cli.core.text import ellipsize
from rlvr_cli.runs.listing import summarize_run
from rlvr_cli.store.arm import Arm, group_arms
from rlvr_cli.store.evaluation import has_evaluation
from rlvr_cli.store.find import Run, eval_options, load_runs, sweep_command
from rlvr_cli.store.training import Steps, filter_step_rows, read_steps
from rlvr_cli.sweeps.folder import SweepDir, SweepPlan

MOST = 4


@dataclass(frozen=True)
class ReportData:
    """The validated data of a page.

    Attributes:
        runs: with their step records in memory. arms: the baseline first.
        sweeps: by folder, those whose started trials are all among the runs.
        statuses: by the run's path.
        comparison: None for a single arm, or with obstacles in ``readiness``.
        notes: on trials of sweeps.
    """

    request: CompareRequest
    runs: tuple[Run, ...]
    arms: tuple[Arm, ...]
    sweeps: Mapping[Path, SweepPlan]
    statuses: Mapping[str, str]
    readiness: Readiness
    comparison: TaskComparison | None
    notes: tuple[str, ...]

    @property
    def baseline(self) -> Arm:
        return self.arms[0]


def read_report_data(request: CompareRequest) -> ReportData:
    """Find and read the runs of a request. Raises UserError with every wrong name, option and record."""
    selected = load_runs(request.names, request.root, unfinished=True)
    notes, problems = selected.notes, [*request.validate(), *selected.problems]
    runs = tuple(replace(run, cached_steps=_read_steps(run, problems)) for run in selected.runs)
    arms: tuple[Arm, ...] = ()
    with collect_problems(problems):
        arms = group_arms(runs, request.by, alone=True) if runs else ()
        baseline = choose_baseline(request, arms)
    sweeps = _find_sweeps(runs, problems)
    if problems:
        raise UserError(list(dict.fromkeys(problems)))
    statuses = {run.path: str(summarize_run(run.dir.path)["status"]) for run in runs}
    ready = _check_readiness(request, arms, statuses, sweeps)
    comparison = None
    if len(arms) > 1 and not ready.obstacles:
        comparison = compare_task(read_task(request, ready.runs, notes=[*notes, *ready.left_out]))
        baseline = _find_baseline(comparison, arms)
    return ReportData(
        request=request,
        runs=runs,
        arms=tuple(sorted(arms, key=lambda arm: arm.name != baseline)),
        sweeps=sweeps,
        statuses=statuses,
        readiness=ready,
        comparison=comparison,
        notes=notes,
    )


def _find_baseline(comparison: TaskComparison, arms: Sequence[Arm]) -> str:
    """Return the arm with the comparison's baseline, whose name among fewer runs may be another."""
    paths = {scores.run.path for scores in comparison.baseline.runs}
    return next(arm.name for arm in arms if any(run.path in paths for run in arm.runs.values()))


def _read_steps(run: Run, problems: list[str]) -> Steps:
    steps = Steps([], [])
    with collect_problems(problems):
        steps = read_steps(run.dir)
    if wrong := len(steps.metrics) - len(filter_step_rows(steps.metrics)):
        problems.append(f"{run.dir.metrics_path}: {wrong} lines are not optimizer steps. The file was altered.")
    return steps


def _find_sweeps(runs: Sequence[Run], problems: list[str]) -> dict[Path, SweepPlan]:
    sweeps: dict[Path, SweepPlan] = {}
    paths = {run.dir.path for run in runs}
    for folder in dict.fromkeys(run.dir.path.parent for run in runs):
        sweep = SweepDir(folder)
        if not sweep.exists():
            continue
        with collect_problems(problems):
            plan = sweep.read_plan()
            folders = (sweep.run_dir(trial) for trial in plan.named)
            if {run.path for run in folders if run.manifest_path.exists()} <= paths:
                sweeps[folder] = plan
    return sweeps


@dataclass(frozen=True)
class Readiness:
    """The progress of runs.

    Attributes:
        runs: the comparable ones: finished (or included unfinished) and evaluated.
        unfinished, left_out: lines on unfinished runs, and on runs that are not compared.
        obstacles: reasons against a comparison.
        commands: those that finish and evaluate the runs, in this order.
    """

    runs: tuple[Run, ...]
    unfinished: tuple[str, ...]
    left_out: tuple[str, ...]
    obstacles: tuple[str, ...]
    commands: tuple[str, ...]


def _check_readiness(
    request: CompareRequest, arms: Sequence[Arm], statuses: Mapping[str, str], sweeps: Mapping[Path, SweepPlan]
) -> Readiness:
    runs = [run for arm in arms for run in arm.runs.values()]
    unfinished = [run for run in runs if statuses[run.path] != "finished"]
    done = runs if request.unfinished else [run for run in runs if run not in unfinished]
    ready = [run for run in done if has_evaluation(run.dir.eval_dir if request.match is None else run.dir.held_out_dir)]
    unevaluated = [run for run in done if run not in ready]
    kind = "evaluation" if request.match is None else "held-out evaluation from training"
    left_out = [f"not compared, without {kind}: {_join_paths(unevaluated)}."] if unevaluated else []
    if out := [run for run in runs if run not in done]:
        left_out.append(f"not compared, unfinished: {_join_paths(out)}.")
    resumed = [sweep_command(run.dir.path) or f"rlvr train --resume {shlex.quote(run.path)}" for run in unfinished]
    started = [plan.command for folder, plan in sweeps.items() if _find_unstarted(folder, plan)]
    return Readiness(
        runs=tuple(ready),
        unfinished=(*_describe_unfinished(unfinished, statuses), *_describe_unstarted(sweeps)),
        left_out=tuple(left_out),
        obstacles=tuple(_find_obstacles(request, arms, ready)) if len(arms) > 1 else (),
        commands=tuple(dict.fromkeys([*resumed, *started, *_eval_commands(unevaluated, request)])),
    )


def _find_obstacles(request: CompareRequest, arms: Sequence[Arm], ready: Sequence[Run]) -> list[str]:
    """Return why the ``ready`` runs of arms cannot be compared; empty if they can."""
    ready_arms = [
        replace(arm, runs={key: run for key, run in arm.runs.items() if run in ready})
        for arm in arms
        if any(run in ready for run in arm.runs.values())
    ]
    kind = "finished run with an evaluation" if request.match is None else "finished run with held-out evaluations"
    if len(ready_arms) < 2:
        number = f"one, {ready_arms[0].name}" if ready_arms else "none"
        return [f"a comparison requires two arms with a {kind}; so far there is {number}."]
    try:
        baseline = choose_baseline(request, ready_arms)
    except UserError:
        return [f"the baseline, {request.baseline}, has no {kind} yet."]
    base = next(arm.runs for arm in ready_arms if arm.name == baseline)
    if not request.unpaired and (unpaired := [arm.name for arm in ready_arms if not set(arm.runs) & set(base)]):
        return [f"runs are paired by seed, and {ellipsize(unpaired, MOST)} and {baseline} have no seed in common yet."]
    return []


def _describe_unfinished(runs: Sequence[Run], statuses: Mapping[str, str]) -> list[str]:
    lines = [
        f"{run.path} is {statuses[run.path]}: rollout {run.manifest.get('rollout')} of "
        f"{run.manifest.get('rollouts_total')}."
        for run in runs
    ]
    if len(lines) <= MOST + 1:
        return lines
    return [*lines[:MOST], f"{len(lines) - MOST} more runs are not finished; see the list of runs below."]


def _describe_unstarted(sweeps: Mapping[Path, SweepPlan]) -> list[str]:
    waiting = {folder: _find_unstarted(folder, plan) for folder, plan in sweeps.items()}
    return [
        f"{folder}: {len(names)} of its {len(sweeps[folder].named)} trials have not started ({ellipsize(names, MOST)})."
        for folder, names in waiting.items()
        if names
    ]


def _find_unstarted(folder: Path, plan: SweepPlan) -> list[str]:
    sweep = SweepDir(folder)
    return [trial.name for trial in plan.named if not sweep.run_dir(trial).manifest_path.exists()]


def _eval_commands(runs: Sequence[Run], request: CompareRequest) -> list[str]:
    if request.match is not None:
        return []
    benchmark = f" --benchmark {shlex.quote(request.benchmark)}" if request.benchmark else ""
    return [f"rlvr eval {shlex.quote(run.path)}{eval_options(run.dir.path) or benchmark}" for run in runs]


def _join_paths(runs: Sequence[Run]) -> str:
    return ellipsize([run.path for run in runs], MOST)
