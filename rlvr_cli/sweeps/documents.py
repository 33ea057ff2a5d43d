"""Result documents of `rlvr sweep`: dry run, status, and submitted jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.table import ResultDocument, Table
from rlvr_cli.core.terminal import format_state
from rlvr_cli.core.text import count, ellipsize, format_duration
from rlvr_cli.launch.slurm_state import has_ended
from rlvr_cli.planning.plan import Speed, estimate_duration, measure_speed
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.sweeps.axes import Axis
from rlvr_cli.sweeps.driver import WorkerOptions
from rlvr_cli.sweeps.expand import Sweep
from rlvr_cli.sweeps.folder import OPEN, SweepDir
from rlvr_cli.sweeps.prepare import check_optuna, find_same_gradient_arms, prepare_sweep
from rlvr_cli.sweeps.progress import COLUMNS, read_all_progress, state_counts
from rlvr_cli.sweeps.ranking import confirmation_command, rank_arms
from rlvr_cli.sweeps.rows import reported_tables
from rlvr_cli.sweeps.search_space import axis_name, categories
from rlvr_cli.sweeps.slurm import render_scripts
from rlvr_cli.sweeps.slurm_queue import apply_job_states, read_trial_jobs

# The maximum number of cluster jobs in a message.
SHOWN_JOBS = 6
COSTS = ("rollouts", "completions", "steps")


def status_document(folder: SweepDir) -> ResultDocument:
    plan = folder.read_plan()
    try:
        jobs, queue_error = read_trial_jobs(folder), None
    except UserError as error:
        jobs, queue_error = {}, " ".join(error.problems)
    progress = apply_job_states(read_all_progress(folder, plan), jobs)
    statuses = [trial.status for trial in progress]
    queued = [f"{trial} {job.id}" for trial, job in jobs.items() if not has_ended(job.state)]
    running = bool(queued) or folder.is_running()
    dropped = [entry.name for entry in plan.trials if not entry.named]
    lines = [f"{folder.path}: {state_counts(progress)}; {'running' if running else 'not running'}"]
    lines += [f"in Slurm: {ellipsize(queued, SHOWN_JOBS)}"] if queued else []
    lines += [queue_error] if queue_error else []
    pending = [status.entry.name for status in statuses if status.state in OPEN]
    if ended := [f"{name}'s job {jobs[name].id} {jobs[name].state}" for name in pending if name in jobs]:
        lines.append(f"ended: {ellipsize(ended, SHOWN_JOBS)}; continue with: {plan.command}")
    for status in statuses:
        output = f" (output: {folder.output_path(status.entry)})" if status.state == "failed" else ""
        if status.state in ("failed", "pruned"):
            lines.append(f"{status.entry.name} {status.state}: {status.reason}{output}")
    lines += [f"removed from the sweep file: {', '.join(dropped)}"] if dropped else []
    data: dict[str, Any] = {
        "sweep": plan.name,
        "folder": str(folder.path),
        "running": running,
        "trials": [
            {**trial.as_json(), "job": job.id if job else None, "job_state": job.state if job else None}
            for trial in progress
            for job in [jobs.get(trial.status.entry.name)]
        ],
        "queue_unknown": queue_error,
        "no_longer_named": dropped,
    }
    tables = [Table("", COLUMNS, [trial.cells() for trial in progress])]
    if (search := plan.search) is not None:
        ended_text = f"; ended: {search.ended}" if search.ended else ""
        lines.append(f"search: {search.configurations} configurations{ended_text}")
        data["search"] = asdict(search)
    if (ranking := rank_arms(folder, plan, statuses)) is not None:
        tables.append(ranking.table())
        confirm = confirmation_command(folder, plan)
        lines += [*ranking.sentences(), *([f"confirm: {confirm}"] if confirm else [])]
        data["objective"] = {**ranking.as_json(), "confirm": confirm}
    return ResultDocument(tables=tables, data=data, after=lines, rows=data["trials"])


def submitted_document(
    folder: SweepDir, submitted: Sequence[Mapping[str, str]], notes: Sequence[str] = ()
) -> ResultDocument:
    """Return the submitted arrays (each maps trial names to job ids) and the state of all trials."""
    status = status_document(folder)
    lines = [*notes, *folder.read_plan().notes()]
    arrays = [{"job": next(iter(jobs.values())).partition("_")[0], "trials": list(jobs)} for jobs in submitted]
    for array in arrays:
        number = len(array["trials"])
        lines.append(f"submitted {number} trial{'s as the array' if number > 1 else ' as job'} {array['job']}")
    if not arrays:
        lines.append("nothing was submitted: every waiting trial is already in the queue")
    if any(trial["state"] == "failed" for trial in status.rows):
        lines.append(f"fix the causes, then: rlvr sweep retry {folder.path} --submit slurm")
    lines.append(f"status: rlvr sweep status {folder.path}; stop: rlvr sweep stop {folder.path}")
    data = {**status.data, "jobs": arrays, "notes": list(notes)}
    return replace(status, data=data, after=[*status.after, *lines])


def grid_document(sweep: Sweep, options: WorkerOptions, *, submit: bool, speed: Speed | None) -> ResultDocument:
    """Return the dry run of a grid: trials, remaining cost, arms with the same gradient, Slurm scripts."""
    folder = SweepDir(sweep.folder)
    prepared = prepare_sweep(sweep, folder)
    progress = read_all_progress(folder, prepared.plan)
    todo = [trial.status.entry for trial in progress if not trial.status.trained]
    cost = {key: sum(getattr(entry, key) for entry in todo) for key in COSTS}
    same = find_same_gradient_arms(sweep)
    trained = next((trial.status.entry.name for trial in progress if trial.status.trained), None)
    if speed is None and trained is not None:
        speed = measure_speed(RunDir(folder.path / trained))
    workers = options.workers or (max(len(todo), 1) if submit else 1)
    ids, seconds = {entry.id for entry in todo}, None
    if speed is not None:
        configs = [trial.config for trial in sweep.trials if trial.id in ids]
        times = [
            estimate_duration(config.batch.completions * config.train.rollouts, config.rollout.max_new_tokens, speed)
            for config in configs
        ]
        seconds = sum(at_most if expected is None else expected for at_most, expected in times) / workers
    scripts = render_scripts(sweep, folder, prepared.plan, options) if submit else []
    reported = reported_tables(sweep.file, {trial.row for trial in sweep.trials})
    trials = [{**trial.as_json(), **{key: getattr(trial.status.entry, key) for key in COSTS}} for trial in progress]
    lines = [
        f"{count(len(progress), 'trial')} in {folder.path}, {len(todo):,} to do: "
        f"{count(cost['rollouts'], 'rollout')}, {count(cost['completions'], 'completion')}, "
        f"{count(cost['steps'], 'optimizer step')}"
    ]
    if todo and seconds is not None and speed is not None:
        lines.append(f"about {format_duration(seconds)} with {count(workers, 'worker')}, by {speed.source}")
    lines += [*prepared.notes, *prepared.plan.notes(), *(group.sentence() for group in same)]
    header = ("trial", "status", "method", "seed", "rollouts", "completions", "optimizer steps")
    rows = [
        (entry.name, format_state(trial.status.state), entry.method, str(entry.seed), *amounts)
        for trial in progress
        for entry in [trial.status.entry]
        for amounts in [[f"{getattr(entry, key):,}" for key in COSTS]]
    ]
    data = {
        "sweep": sweep.file.name,
        "folder": str(folder.path),
        "trials": trials,
        "to_do": {"trials": len(todo), **cost},
        "seconds": seconds,
        "speed": None if speed is None else speed.source,
        "same_gradient": [{"arms": list(group.names), "when": group.when, "note": group.sentence()} for group in same],
        "reported": reported,
        "notes": list(prepared.notes),
        **({"scripts": scripts} if submit else {}),
    }
    tables = [Table("", header, rows), *map(_reported_table, reported)]
    return ResultDocument(tables=tables, data=data, after=lines, files=scripts, rows=trials)


def search_document(sweep: Sweep) -> ResultDocument:
    assert sweep.space is not None and sweep.objective is not None and sweep.file.spec.search is not None
    check_optuna()
    spec, budget, seeds = sweep.file.spec.search, sweep.file.spec.budget, len(sweep.space.seeds)
    prepared = prepare_sweep(sweep, SweepDir(sweep.folder))
    size = sweep.space.size()
    limits = [limit for limit in (spec.trials, size) if limit is not None]
    rollouts = min([*(limit * sweep.bound for limit in limits), *([budget] if budget is not None else [])])
    axes = [{"axis": axis_name(axis), **_describe_axis(axis)} for axis in sweep.space.axes]
    per = f"{count(seeds, 'seed')} each, up to {sweep.bound:,} rollouts a configuration"
    number = f"{min(limits):,} configurations" if limits else "configurations until the budget is spent"
    lines = [f"{spec.sampler} search for {sweep.objective}: {number}, {per}; at most {rollouts:,} rollouts together"]
    if size is not None and (spec.trials is None or size <= spec.trials):
        lines.append(f"the space has {size:,} combinations: a grid would run each once")
    if spec.pruning is not None:
        lines.append(
            "pruning: a configuration whose first seed is worse than the median at a held-out evaluation is stopped, "
            f"once {spec.pruning.startup} are finished"
        )
    if prepared.plan.named:
        lines.append(f"{len(prepared.plan.named)} trials already exist in {sweep.folder}")
    data = {
        "sweep": sweep.file.name,
        "folder": str(sweep.folder),
        "search": spec.model_dump(),
        "objective": str(sweep.objective),
        "space": axes,
        "seeds": seeds,
        "rollouts_at_most": rollouts,
        "notes": list(prepared.notes),
    }
    table = Table("", ("axis", "searched", "values"), [tuple(axis.values()) for axis in axes])
    return ResultDocument(tables=[table], data=data, after=[*lines, *prepared.notes], rows=axes)


def _reported_table(reported: Mapping[str, Any]) -> Table:
    rows = [
        (name, *("-" if value is None else f"{value:g}" for value in values))
        for name, values in reported["rows"].items()
    ]
    title = f"Reported in {reported['place']} ({reported['unit']}), not measured here:"
    return Table(title, ("trial", *reported["columns"]), rows)


def _describe_axis(axis: Axis) -> dict[str, str]:
    interval = axis.interval
    if interval is None:
        texts = [label.removeprefix(f"{axis.keys[0]}=") if len(axis.keys) == 1 else label for label in categories(axis)]
        return {"kind": "one of", "values": "; ".join(texts) if len(axis.keys) > 1 else ", ".join(texts)}
    kind = f"{'logarithmic' if interval.log else 'uniform'}{', whole numbers' if interval.is_integer else ''}"
    return {"kind": kind, "values": f"{interval.low:g} to {interval.high:g}"}
