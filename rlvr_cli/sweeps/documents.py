"""The printed documents of a sweep: dry run, status, and submitted jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.table import ResultDocument, Table
from rlvr_cli.core.terminal import state_text
from rlvr_cli.core.text import count, duration_in_words, some
from rlvr_cli.launch.slurm_state import has_ended
from rlvr_cli.planning.plan import Speed, duration, measured_speed
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.sweeps.driver import WorkerOptions
from rlvr_cli.sweeps.expand import Sweep
from rlvr_cli.sweeps.folder import OPEN, SweepDir, SweepPlan
from rlvr_cli.sweeps.prepare import (
    Cost,
    check_optuna,
    cost_of,
    prepare_sweep,
    same_gradient_arms,
    total,
)
from rlvr_cli.sweeps.ranking import confirmation, rank
from rlvr_cli.sweeps.rows import reported_tables
from rlvr_cli.sweeps.screen import COLUMNS, TrialProgress, cells, state_counts, trials_progress
from rlvr_cli.sweeps.search_space import axis_name, labels
from rlvr_cli.sweeps.slurm import dry_run as slurm_scripts
from rlvr_cli.sweeps.slurm_queue import TrialJob, trial_jobs, visible_jobs, with_jobs

# The maximum number of cluster jobs in a message.
SHOWN_JOBS = 6


def status_document(folder: SweepDir) -> ResultDocument:
    """Show the state of each trial of a sweep, and the best arm by its objective."""
    plan = folder.read_plan()
    try:
        jobs, unknown = trial_jobs(folder), None
    except UserError as error:
        jobs, unknown = {}, " ".join(error.problems)
    progress = with_jobs(trials_progress(folder, plan), jobs)
    queued = [f"{trial} {job.id}" for trial, job in jobs.items() if not has_ended(job.state)]
    running = bool(queued) or folder.running()
    dropped = [entry.name for entry in plan.trials if not entry.named]
    lines = [f"{folder.path}: {state_counts(progress)}; {'running' if running else 'not running'}"]
    lines += [f"in Slurm: {some(queued, SHOWN_JOBS)}"] if queued else []
    lines += [unknown] if unknown else []
    pending = [trial.status.entry.name for trial in progress if trial.status.state in OPEN]
    if ended := [f"{name}'s job {jobs[name].id} {jobs[name].state}" for name in pending if name in jobs]:
        lines.append(f"ended: {some(ended, SHOWN_JOBS)}; continue with: {plan.command}")
    lines += _failure_lines(folder, progress)
    if dropped:
        lines.append(f"no longer named by the sweep file: {', '.join(dropped)}")
    data = {
        "sweep": plan.name,
        "folder": str(folder.path),
        "running": running,
        "trials": _trials_json(progress, jobs),
        "queue_unknown": unknown,
        "no_longer_named": dropped,
    }
    return _progress_document(folder, plan, progress, data, lines)


def outcome_document(folder: SweepDir, progress: Sequence[TrialProgress]) -> ResultDocument:
    """Show the state of a sweep at the end of a call."""
    data = {"folder": str(folder.path), "trials": [trial.as_json() for trial in progress]}
    lines = [f"{folder.path}: {state_counts(progress)}", *_failure_lines(folder, progress)]
    return _progress_document(folder, folder.read_plan(), progress, data, lines)


def submitted_document(
    folder: SweepDir, submitted: Sequence[Mapping[str, str]], notes: Sequence[str] = ()
) -> ResultDocument:
    """Show the submitted arrays (each a mapping from trial names to job ids) and the state of all trials."""
    queued = visible_jobs(folder)
    progress = with_jobs(trials_progress(folder, folder.read_plan()), queued)
    lines = [f"{folder.path}: {state_counts(progress)}", *notes, *folder.read_plan().notes()]
    arrays = [{"job": next(iter(jobs.values())).partition("_")[0], "trials": list(jobs)} for jobs in submitted]
    for array in arrays:
        number = len(array["trials"])
        lines.append(f"submitted {number} trial{'s as the array' if number > 1 else ' as job'} {array['job']}")
    if not arrays:
        lines.append("nothing was submitted: every waiting trial is in the queue already")
    if any(trial.status.state == "failed" for trial in progress):
        lines.append(f"fix the causes, then: rlvr sweep retry {folder.path} --submit slurm")
    lines.append(f"see their state: rlvr sweep status {folder.path}; stop them: rlvr sweep stop {folder.path}")
    trials = _trials_json(progress, queued)
    data = {
        "folder": str(folder.path),
        "jobs": arrays,
        "trials": trials,
        "notes": list(notes),
    }
    return ResultDocument(tables=[_trials_table(progress)], data=data, after=lines, rows=trials)


def grid_document(sweep: Sweep, options: WorkerOptions, *, submit: bool, speed: Speed | None) -> ResultDocument:
    """Show the dry run of a grid: trials and their status, remaining cost, arms with one gradient, Slurm scripts.

    Args:
        speed: for the duration; None = measured on the sweep's first finished trial.
    """
    folder = SweepDir(sweep.folder)
    prepared = prepare_sweep(sweep, folder)
    progress = trials_progress(folder, prepared.plan)
    costs = [Cost.of_entry(trial.status.entry) for trial in progress]
    todo = [(trial, cost) for trial, cost in zip(progress, costs, strict=True) if not trial.status.trained]
    cost = total([each for _, each in todo])
    same = same_gradient_arms(sweep)
    done = next((trial.status.entry.name for trial in progress if trial.status.trained), None)
    if speed is None and done is not None:
        speed = measured_speed(RunDir(folder.path / done))
    number = options.workers or (max(len(todo), 1) if submit else 1)
    seconds = None if speed is None else _seconds(sweep, {trial.status.entry.id for trial, _ in todo}, speed) / number
    scripts = slurm_scripts(sweep, folder, prepared.plan, options) if submit else []
    printed = reported_tables(sweep.file, {trial.row for trial in sweep.trials})
    trials = [{**trial.as_json(), **asdict(each)} for trial, each in zip(progress, costs, strict=True)]
    lines = [
        f"{count(len(progress), 'trial')} in {folder.path}, {len(todo):,} to do: {count(cost.rollouts, 'rollout')}, "
        f"{count(cost.completions, 'completion')}, {count(cost.steps, 'optimizer step')}"
    ]
    if todo and seconds is not None and speed is not None:
        lines.append(f"about {duration_in_words(seconds)} with {count(number, 'worker')}, by {speed.source}")
    lines += [*prepared.notes, *prepared.plan.notes(), *(group.sentence() for group in same)]
    header = ("trial", "status", "method", "seed", "rollouts", "completions", "optimizer steps")
    rows = [
        (
            entry.name,
            state_text(trial.status.state),
            entry.method,
            str(entry.seed),
            *(f"{amount:,}" for amount in amounts),
        )
        for trial in progress
        for entry in [trial.status.entry]
        for amounts in [(entry.rollouts, entry.completions, entry.steps)]
    ]
    data = {
        "sweep": sweep.file.name,
        "folder": str(folder.path),
        "trials": trials,
        "to_do": {"trials": len(todo), **asdict(cost)},
        "seconds": seconds,
        "speed": None if speed is None else speed.source,
        "same_gradient": [{"arms": list(group.names), "when": group.when, "note": group.sentence()} for group in same],
        "reported": printed,
        "notes": list(prepared.notes),
        **({"scripts": scripts} if submit else {}),
    }
    return ResultDocument(
        tables=[Table("", header, rows), *map(_reported_table, printed)],
        data=data,
        after=lines,
        files=scripts,
        rows=trials,
    )


def search_document(sweep: Sweep) -> ResultDocument:
    """Show the dry run of a search: its space, the number of configurations, and the maximum cost."""
    assert sweep.space is not None and sweep.objective is not None and sweep.file.spec.search is not None
    spec, budget, seeds = sweep.file.spec.search, sweep.file.spec.budget, len(sweep.space.seeds)
    prepared = prepare_sweep(sweep, SweepDir(sweep.folder))
    size = sweep.space.size()
    limits = [limit for limit in (spec.trials, size) if limit is not None]
    rollouts = min([*(limit * sweep.bound for limit in limits), *([budget] if budget is not None else [])])
    notes = [*prepared.notes, *_missing_packages()]
    axes = [{"axis": axis_name(axis), **_describe_axis(axis)} for axis in sweep.space.axes]
    per = f"{seeds} seed{'s' if seeds > 1 else ''} each, up to {sweep.bound:,} rollouts a configuration"
    number = f"{min(limits):,} configurations" if limits else "configurations until the budget is spent"
    lines = [f"{spec.sampler} search for {sweep.objective}: {number}, {per}; at most {rollouts:,} rollouts together"]
    if size is not None and (spec.trials is None or size <= spec.trials):
        lines.append(f"the space has {size:,} combinations: a grid runs each once as well")
    if spec.pruning is not None:
        lines.append(
            "pruning: a configuration whose first seed is below the median at a held-out evaluation is stopped, once "
            f"{spec.pruning.startup} are finished"
        )
    if prepared.plan.named:
        lines.append(f"{len(prepared.plan.named)} trials already exist in {sweep.folder}")
    data = {
        "sweep": sweep.file.name,
        "folder": str(sweep.folder),
        "search": spec.model_dump(),
        "objective": str(sweep.objective),
        "space": axes,
        "combinations": size,
        "seeds": seeds,
        "rollouts_at_most": rollouts,
        "rollouts_of_a_configuration": sweep.bound,
        "trials_so_far": len(prepared.plan.named),
        "notes": notes,
    }
    table = Table("", ("axis", "searched", "values"), [tuple(axis.values()) for axis in axes])
    return ResultDocument(tables=[table], data=data, after=[*lines, *notes], rows=axes)


def _progress_document(
    folder: SweepDir, plan: SweepPlan, progress: Sequence[TrialProgress], data: dict[str, Any], lines: list[str]
) -> ResultDocument:
    """Show the trials, the arms if the sweep has an objective, and the state of a search with its pruned trials."""
    tables = [_trials_table(progress)]
    statuses = [trial.status for trial in progress]
    lines += [f"{status.entry.name} pruned: {status.reason}" for status in statuses if status.state == "pruned"]
    if plan.search is not None:
        state = plan.search
        counts = [f"{state.configurations} configurations"]
        counts += [f"{state.duplicates} repeated suggestions"] if state.duplicates else []
        counts += [f"{state.rejected} excluded or not valid, and not run"] if state.rejected else []
        lines.append(f"search: {', '.join(counts)}{f'; ended: {state.ended}' if state.ended else ''}")
    ranking = rank(folder, plan, statuses)
    if ranking is not None:
        header = ("arm", ranking.objective.metric, "95% interval over seeds", "seeds", "status")
        rows = []
        for arm in ranking.arms:
            mean = arm.estimate
            interval = "-" if mean is None or mean.low is None else f"{mean.low:.3f} to {mean.high:.3f}"
            value = "-" if mean is None else f"{mean.value:.3f}"
            rows.append((arm.name, value, interval, f"{len(arm.values)}/{arm.wanted}", arm.state))
        tables.append(Table("", header, rows))
        confirm = confirmation(folder, plan)
        lines += [*ranking.sentences(), *([f"confirm: {confirm}"] if confirm else [])]
        data = {**data, "objective": {**ranking.as_json(), "confirm": confirm}}
    if plan.search is not None:
        data = {**data, "search": asdict(plan.search)}
    return ResultDocument(tables=tables, data=data, after=lines, rows=data["trials"])


def _trials_table(progress: Sequence[TrialProgress]) -> Table:
    return Table("", COLUMNS, [*map(cells, progress)])


def _failure_lines(folder: SweepDir, progress: Sequence[TrialProgress]) -> list[str]:
    failed = [(trial.status.entry, trial.status.reason) for trial in progress if trial.status.state == "failed"]
    return [f"{entry.name} failed: {reason} (output: {folder.output_path(entry)})" for entry, reason in failed]


def _trials_json(progress: Sequence[TrialProgress], jobs: Mapping[str, TrialJob]) -> list[dict[str, Any]]:
    """Return the trials as JSON, each with its job's id and state; None if Slurm has no job for it."""
    pairs = [(trial, jobs.get(trial.status.entry.name)) for trial in progress]
    return [
        {**trial.as_json(), "job": job.id if job else None, "job_state": str(job.state) if job else None}
        for trial, job in pairs
    ]


def _reported_table(printed: Mapping[str, Any]) -> Table:
    rows = [
        (name, *("-" if value is None else f"{value:g}" for value in values))
        for name, values in printed["rows"].items()
    ]
    title = f"reported in {printed['place']} ({printed['unit']}), not ours:"
    return Table(title, ("trial", *printed["columns"]), rows)


def _seconds(sweep: Sweep, todo: set[str], speed: Speed) -> float:
    """Return the seconds of the trials ``todo`` in sequence, for completions as long as in the measured run."""
    durations = [
        duration(cost_of(trial.config).completions, trial.config.rollout.max_new_tokens, speed)
        for trial in sweep.trials
        if trial.id in todo
    ]
    return sum(each.at_most if each.expected is None else each.expected for each in durations)


def _missing_packages() -> list[str]:
    try:
        check_optuna()
    except UserError as error:
        return [error.problems[0]]
    return []


def _describe_axis(axis: Any) -> dict[str, str]:
    interval = axis.interval
    if interval is None:
        texts = [label.removeprefix(f"{axis.keys[0]}=") if len(axis.keys) == 1 else label for label in labels(axis)]
        return {"kind": "one of", "values": "; ".join(texts) if len(axis.keys) > 1 else ", ".join(texts)}
    kind = f"{'logarithmic' if interval.log else 'uniform'}{', whole numbers' if interval.whole else ''}"
    return {"kind": kind, "values": f"{interval.low:g} to {interval.high:g}"}
