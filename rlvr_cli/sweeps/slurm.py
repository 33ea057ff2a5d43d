"""`rlvr sweep FILE --submit slurm`: the trials of a sweep as arrays of jobs, one job a trial."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvr_cli.config.launch import SlurmConfig
from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import ConfigError, UserError
from rlvr_cli.core.files import read_jsonl, truncate_jsonl
from rlvr_cli.core.section import Contradiction
from rlvr_cli.launch import slurm
from rlvr_cli.launch.deepspeed_config import check_deepspeed
from rlvr_cli.launch.slurm_job import Job
from rlvr_cli.launch.slurm_state import FOLDER
from rlvr_cli.sweeps.driver import Orders, begin_again
from rlvr_cli.sweeps.expand import Sweep
from rlvr_cli.sweeps.folder import OPEN, Entry, SweepDir, SweepPlan
from rlvr_cli.sweeps.prepare import check_not_running, make_folder, prepare_sweep, write
from rlvr_cli.sweeps.slots import with_slots
from rlvr_cli.sweeps.slurm_queue import TrialJob, cancel, queued_jobs, record, visible_jobs

# Jobs that an array may have where a cluster does not set MaxArraySize (`man slurm.conf`).
LARGEST_ARRAY = 1000


def _resources(
    configs: Mapping[str, Config], slots: Mapping[str, int | None], place: Callable[[str], str], *, here: bool = True
) -> dict[str, SlurmConfig]:
    """Return the section `slurm` of each trial, with the sweep's slots, by the keys of ``configs``.

    Args:
        place: names the line that sets a key for the trials.
        here: whether DeepSpeed must be installed where it is asked for.
    Raises:
        UserError: what cannot be or does not fit the training; a model, a DeepSpeed file or a tracker that is missing.
    """
    from rlvr_cli.models.source import resolve_model
    from rlvr_cli.tracking.trackers import check_trackers

    sections = {key: with_slots(config.slurm, slots) for key, config in configs.items()}
    problems = [
        (place(problem.keys[0]), problem.message)
        for key, config in configs.items()
        for problem in (
            *_clashes(config.slurm, slots),
            *slurm.slurm_problems(config.model_copy(update={"slurm": sections[key]})),
        )
    ]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    for model, revision in dict.fromkeys((config.model.name, config.model.revision) for config in configs.values()):
        resolve_model(model, revision=revision)
    for track in dict.fromkeys(config.track.to for config in configs.values()):
        check_trackers(track)
    for config in configs.values():
        check_deepspeed(config, here=here)
    return sections


def _clashes(section: SlurmConfig, slots: Mapping[str, int | None]) -> Iterator[Contradiction]:
    for slot, key in (("cores", "cpus_per_task"), ("gpus", "gpus_per_node")):
        of_slot, of_section = slots.get(slot), getattr(section, key)
        if None not in (of_slot, of_section) and of_slot != of_section:
            message = (
                f"slurm.{key}={of_section}, and the sweep's slots.{slot}={of_slot}: both set what one trial gets. "
                "Leave one out, or make them equal"
            )
            yield Contradiction((f"slurm.{key}",), message)


def _resources_of_sweep(sweep: Sweep, *, here: bool = True) -> dict[str, SlurmConfig]:
    file = sweep.file
    if file.spec.search is not None:
        raise UserError(
            f"{file.place('search')}: a search starts one trial after another, in workers that must live as long as "
            "it does: run it inside a job, without --submit."
        )

    def place(key: str) -> str:
        where = next((name for name in ("set", "grid") if key in getattr(file.spec, name)), None)
        return str(file.path) if where is None else file.place(where, key)

    configs = {trial.id: trial.config for trial in sweep.trials}
    return _resources(configs, file.spec.slots.model_dump(), place, here=here)


def submit_sweep(sweep: Sweep, orders: Orders) -> tuple[list[dict[str, str]], tuple[str, ...]]:
    """Submit the trials that are not finished, not failed, and neither in the queue nor being worked on.

    Returns the jobs of each array by their trials' names, and notes on how the sweep has changed. Raises UserError
    before anything is submitted, or with Slurm's own words; nothing of it is in the queue then, and a folder that was
    not there before is not there afterwards.
    """
    folder = SweepDir(sweep.folder)
    slurm.check_tools()
    check_not_running(sweep, folder)
    resources = _resources_of_sweep(sweep)
    prepare_sweep(sweep, folder)
    make_folder(folder)
    with folder.driven():
        fresh = not folder.exists()
        try:
            prepared = prepare_sweep(sweep, folder)
            workers = ["--workers", str(orders.workers)] if orders.workers else []
            plan = replace(prepared.plan, given=[*prepared.plan.given, "--submit", "slurm", *workers])
            queued = queued_jobs(folder)
            write(sweep, folder, plan)
            arrays = _submit(folder, plan, _open(folder, plan, queued), resources, orders)
        except BaseException:
            if fresh:
                # Its lock is held still, and a network file system keeps what is.
                shutil.rmtree(folder.path, ignore_errors=True)
            raise
    return arrays, prepared.notes


def submit_retry(folder: SweepDir, names: Sequence[str], orders: Orders) -> list[dict[str, str]]:
    """Submit failed trials again, those of ``names`` or all. Returns and raises as :func:`submit_sweep`."""
    slurm.check_tools()
    plan = folder.read_plan()
    if plan.search is not None:
        raise UserError(f"{folder.path}: is a search, which runs on this machine. Leave out --submit.")
    with folder.driven():
        queued = queued_jobs(folder)
        lines = {entry.name: len(read_jsonl(folder.attempts_path(entry))) for entry in plan.named}
        entries = begin_again(folder, plan, names)
        try:
            configs = {
                entry.id: load_config(
                    [Path(file) for file in entry.base], entry.option, None, None, entry.overrides, import_files=True
                )
                for entry in entries
            }
            resources = _resources(configs, plan.slots, lambda key: str(folder.path))
            waiting = [entry for entry in entries if entry.name not in queued]
            return _submit(folder, plan, waiting, resources, orders)
        except BaseException:
            # They have failed as before.
            for entry in entries:
                truncate_jsonl(folder.attempts_path(entry), lines[entry.name])
            raise


def dry_run(sweep: Sweep, folder: SweepDir, plan: SweepPlan, orders: Orders) -> list[str]:
    """Return the scripts that :func:`submit_sweep` would submit. Raises UserError where the resources do not fit."""
    resources = _resources_of_sweep(sweep, here=False)
    texts: list[str] = []
    for section, entries in _arrays(_open(folder, plan, visible_jobs(folder)), resources):
        parameters = _parameters(section, plan, orders, "PREVIOUS" if texts else None)
        text = slurm.script(parameters, _submitit_folder(folder), len(entries))
        commands = "".join(f"#   {shlex.join(_command(folder, entry, orders))}\n" for entry in entries)
        texts.append(f"{text}\n# The jobs run:\n{commands}")
    return texts


def _open(folder: SweepDir, plan: SweepPlan, queued: Mapping[str, TrialJob]) -> list[Entry]:
    """Return the trials that no worker has and for which no job waits."""
    entries = [status.entry for status in folder.statuses(plan) if status.state in OPEN]
    return [entry for entry in entries if entry.name not in queued]


def _submitit_folder(folder: SweepDir) -> Path:
    return folder.state_dir.absolute() / FOLDER


def _command(folder: SweepDir, entry: Entry, orders: Orders) -> list[str]:
    return [sys.executable, "-m", "rlvr_cli.sweeps.slurm_task", str(folder.path), entry.name, *orders.flags]


def _arrays(entries: Sequence[Entry], resources: Mapping[str, SlurmConfig]) -> list[tuple[SlurmConfig, list[Entry]]]:
    """Return the trials of each array: those that ask for the same, in groups of :data:`LARGEST_ARRAY`."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(resources[entry.id].model_dump_json(), []).append(entry)
    return [
        (resources[group[0].id], group[begin : begin + LARGEST_ARRAY])
        for group in groups.values()
        for begin in range(0, len(group), LARGEST_ARRAY)
    ]


def _parameters(section: SlurmConfig, plan: SweepPlan, orders: Orders, before: str | None) -> dict[str, Any]:
    """Return submitit's parameters of an array that follows the array ``before``."""
    parameters = slurm.parameters(section, plan.name)
    options = parameters["additional_parameters"]
    if before is not None and orders.workers:
        # The limit is one array's: several keep it together by coming one after the other.
        options["dependency"] = ",".join(filter(None, [str(options.get("dependency", "")), f"afterany:{before}"]))
    return {**parameters, "array_parallelism": orders.workers or LARGEST_ARRAY}


def _submit(
    folder: SweepDir, plan: SweepPlan, entries: Sequence[Entry], resources: Mapping[str, SlurmConfig], orders: Orders
) -> list[dict[str, str]]:
    """Queue a job for each of ``entries``, all of them or none; return the jobs of each array by their trials."""
    arrays: list[dict[str, str]] = []
    numbers: list[str] = []
    try:
        for section, group in _arrays(entries, resources):
            jobs = [Job(tuple(_command(folder, entry, orders)), slurm.save_seconds(section)) for entry in group]
            parameters = _parameters(section, plan, orders, numbers[-1] if numbers else None)
            ids = slurm.queue(jobs, parameters, _submitit_folder(folder))
            numbers.append(ids[0].partition("_")[0])
            arrays.append({entry.name: job for entry, job in zip(group, ids, strict=True)})
            record(folder, plan.name, arrays[-1])
    except BaseException:
        if numbers:
            cancel(*numbers)
        raise
    return arrays
