"""The data of a report: runs with their records, arms, their progress, and the comparison or why there is none."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlvr_cli.compare.read import choose_baseline, read_task
from rlvr_cli.compare.request import CompareRequest
from rlvr_cli.compare.results import TaskComparison, compare_task
from rlvr_cli.core.errors import UserError, collecting
from rlvr_cli.core.text import some
from rlvr_cli.runs.listing import run_summary
from rlvr_cli.store.arm import Arm, group_arms
from rlvr_cli.store.evaluation import has_evaluation
from rlvr_cli.store.find import Run, eval_options, find_runs, sweep_command
from rlvr_cli.store.training import Steps, read_steps, whole_rows
from rlvr_cli.sweeps.folder import SweepDir, SweepPlan

SHOWN = 4


@dataclass(frozen=True)
class ReportData:
    """The checked data of a page.

    Attributes:
        runs: with their step records in memory. arms: the baseline first, the others by their names.
        sweeps: by folder, if all of a sweep's begun trials are among the runs.
        statuses: of each run, by its path.
        comparison: None for a single arm, or before runs can be compared, which ``readiness`` explains.
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
        """The arm that others are compared with."""
        return self.arms[0]


def read_subject(request: CompareRequest) -> ReportData:
    """Find and read the runs of a request.

    Unfinished runs and those without an evaluation are left out of the comparison (the unfinished unless the request
    includes them), and the page lists them. Raises UserError with every wrong name, option and record, and for
    evaluations that cannot be compared.
    """
    selected = find_runs(request.names, request.root, unfinished=True)
    notes, problems = selected.notes, [*request.validate(), *selected.problems]
    runs = tuple(replace(run, kept=_steps(run, problems)) for run in selected.runs)
    arms: tuple[Arm, ...] = ()
    with collecting(problems):
        arms = group_arms(runs, request.by, alone=True) if runs else ()
        baseline = choose_baseline(request, arms)
    sweeps = _sweeps(runs, problems)
    if problems:
        raise UserError(list(dict.fromkeys(problems)))
    statuses = {run.path: str(run_summary(run.dir.path)["status"]) for run in runs}
    ready = _readiness(request, arms, statuses, sweeps)
    comparison = None
    if len(arms) > 1 and not ready.lacking:
        comparison = compare_task(read_task(request, ready.runs, notes=[*notes, *ready.left_out]))
        baseline = _page_baseline(comparison, arms)
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


def _page_baseline(comparison: TaskComparison, arms: Sequence[Arm]) -> str:
    """Return the arm with the comparison's baseline: arms of some of the runs may have other names than of all."""
    paths = {scores.run.path for scores in comparison.baseline.runs}
    return next(arm.name for arm in arms if any(run.path in paths for run in arm.runs.values()))


def _steps(run: Run, problems: list[str]) -> Steps:
    steps = Steps([], [])
    with collecting(problems):
        steps = read_steps(run.dir)
    if wrong := len(steps.metrics) - len(whole_rows(steps.metrics)):
        problems.append(f"{run.dir.metrics_path}: {wrong} lines are not optimizer steps. The file was altered.")
    return steps


def _sweeps(runs: Sequence[Run], problems: list[str]) -> dict[Path, SweepPlan]:
    sweeps: dict[Path, SweepPlan] = {}
    paths = {run.dir.path for run in runs}
    for folder in dict.fromkeys(run.dir.path.parent for run in runs):
        sweep = SweepDir(folder)
        if not sweep.exists():
            continue
        with collecting(problems):
            plan = sweep.read_plan()
            folders = (sweep.run_dir(trial) for trial in plan.named)
            if {run.path for run in folders if run.manifest_path.exists()} <= paths:
                sweeps[folder] = plan
    return sweeps


@dataclass(frozen=True)
class Readiness:
    """The progress of runs.

    Attributes:
        runs: finished (or included unfinished) and evaluated, so that they can be compared.
        unfinished: a line for each unfinished run.
        left_out: lines on the runs that are not compared.
        lacking: reasons why nothing can be compared yet, if so.
        commands: those that finish and evaluate the runs, in this order.
    """

    runs: tuple[Run, ...]
    unfinished: tuple[str, ...]
    left_out: tuple[str, ...]
    lacking: tuple[str, ...]
    commands: tuple[str, ...]


def _readiness(
    request: CompareRequest, arms: Sequence[Arm], statuses: Mapping[str, str], sweeps: Mapping[Path, SweepPlan]
) -> Readiness:
    runs = [run for arm in arms for run in arm.runs.values()]
    open_ = [run for run in runs if statuses[run.path] != "finished"]
    done = runs if request.unfinished else [run for run in runs if run not in open_]
    ready = [run for run in done if _evaluated(run, request)]
    bare = [run for run in done if run not in ready]
    kind = "evaluation" if request.match is None else "held-out evaluation from training"
    left_out = [f"left out of the comparison because they have no {kind}: {_names(bare)}."] if bare else []
    if out := [run for run in runs if run not in done]:
        left_out.append(f"left out of the comparison because they are not finished: {_names(out)}.")
    return Readiness(
        runs=tuple(ready),
        unfinished=(*_states(open_, statuses), *_not_begun(sweeps)),
        left_out=tuple(left_out),
        lacking=tuple(_lacking(request, arms, ready)) if len(arms) > 1 else (),
        commands=tuple(dict.fromkeys([*map(_continue, open_), *_begin(sweeps), *_evaluate(bare, request)])),
    )


def _lacking(request: CompareRequest, arms: Sequence[Arm], ready: Sequence[Run]) -> list[str]:
    """Return why the ``ready`` runs of arms cannot be compared; nothing if they can."""
    with_some = [
        replace(arm, runs={key: run for key, run in arm.runs.items() if run in ready})
        for arm in arms
        if any(run in ready for run in arm.runs.values())
    ]
    kind = "finished run with an evaluation" if request.match is None else "finished run with held-out evaluations"
    if len(with_some) < 2:
        number = f"is one so far, {with_some[0].name}" if with_some else "is none so far"
        return [f"a comparison takes two arms with a {kind}; there {number}."]
    try:
        baseline = choose_baseline(request, with_some)
    except UserError:
        return [f"the baseline, {request.baseline}, has no {kind} yet."]
    base = next(arm.runs for arm in with_some if arm.name == baseline)
    if not request.unpaired and (apart := [arm.name for arm in with_some if not set(arm.runs) & set(base)]):
        return [f"runs are compared in pairs of one seed, and {some(apart, SHOWN)} and {baseline} share no seed yet."]
    return []


def _evaluated(run: Run, request: CompareRequest) -> bool:
    return has_evaluation(run.dir.eval_dir if request.match is None else run.dir.held_out_dir)


def _states(runs: Sequence[Run], statuses: Mapping[str, str]) -> list[str]:
    lines = [
        f"{run.path} is {statuses[run.path]}: rollout {run.manifest.get('rollout')} of "
        f"{run.manifest.get('rollouts_total')}."
        for run in runs
    ]
    if len(lines) <= SHOWN + 1:
        return lines
    return [*lines[:SHOWN], f"{len(lines) - SHOWN} more runs are not finished; the list of runs below has all."]


def _not_begun(sweeps: Mapping[Path, SweepPlan]) -> list[str]:
    waiting = {folder: _waiting(folder, plan) for folder, plan in sweeps.items()}
    return [
        f"{folder}: {len(names)} of its {len(sweeps[folder].named)} trials have not started ({some(names, SHOWN)})."
        for folder, names in waiting.items()
        if names
    ]


def _waiting(folder: Path, plan: SweepPlan) -> list[str]:
    sweep = SweepDir(folder)
    return [trial.name for trial in plan.named if not sweep.run_dir(trial).manifest_path.exists()]


def _begin(sweeps: Mapping[Path, SweepPlan]) -> list[str]:
    return [plan.command for folder, plan in sweeps.items() if _waiting(folder, plan)]


def _continue(run: Run) -> str:
    return sweep_command(run.dir.path) or f"rlvr train --resume {shlex.quote(run.path)}"


def _evaluate(runs: Sequence[Run], request: CompareRequest) -> list[str]:
    if request.match is not None:
        return []
    benchmark = f" --benchmark {shlex.quote(request.benchmark)}" if request.benchmark else ""
    return [f"rlvr eval {shlex.quote(run.path)}{eval_options(run.dir.path) or benchmark}" for run in runs]


def _names(runs: Sequence[Run]) -> str:
    return some([run.path for run in runs], SHOWN)
