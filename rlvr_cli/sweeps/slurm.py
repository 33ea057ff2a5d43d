"""`rlvr sweep FILE --submit slurm`: submit the trials of a sweep as job arrays."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvr_cli.config.launch import SlurmConfig
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import ConfigError, UserError
from rlvr_cli.core.files import read_jsonl, truncate_jsonl
from rlvr_cli.launch import slurm
from rlvr_cli.launch.deepspeed_config import check_deepspeed
from rlvr_cli.launch.slurm_job import Job
from rlvr_cli.launch.slurm_state import FOLDER
from rlvr_cli.sweeps.driver import WorkerOptions, reopen_trials
from rlvr_cli.sweeps.expand import Sweep
from rlvr_cli.sweeps.folder import OPEN, Entry, SweepDir, SweepPlan
from rlvr_cli.sweeps.prepare import check_not_running, make_folder, prepare_sweep, write_sweep
from rlvr_cli.sweeps.slurm_queue import TrialJob, cancel, queued_jobs, record_jobs, visible_jobs

# The default of MaxArraySize (`man slurm.conf`).
LARGEST_ARRAY = 1000
# Keys of a sweep's slots, and the keys of the section `slurm` that they set.
SLOT_KEYS = {"cores": "cpus_per_task", "gpus": "gpus_per_node"}


def _check_resources(
    configs: Mapping[str, Config],
    slots: Mapping[str, int | None],
    locate: Callable[[str], str],
    *,
    installed: bool = True,
) -> dict[str, SlurmConfig]:
    """Return each trial's section `slurm` with the sweep's slots. Raises UserError if they do not fit the training."""
    from rlvr_cli.models.source import resolve_model
    from rlvr_cli.tracking.trackers import check_trackers

    sections: dict[str, SlurmConfig] = {}
    problems: list[tuple[str, str]] = []
    for id_, config in configs.items():
        sizes = {key: (slot, size) for slot, key in SLOT_KEYS.items() if (size := slots.get(slot)) is not None}
        problems += [
            (
                locate(f"slurm.{key}"),
                f"slurm.{key}={getattr(config.slurm, key)} and the sweep's slots.{slot}={size} cannot be combined. "
                "Remove one, or set equal values",
            )
            for key, (slot, size) in sizes.items()
            if getattr(config.slurm, key) not in (None, size)
        ]
        sections[id_] = config.slurm.model_copy(update={key: size for key, (_, size) in sizes.items()})
        with_slots = config.model_copy(update={"slurm": sections[id_]})
        problems += [(locate(problem.keys[0]), problem.message) for problem in slurm.slurm_problems(with_slots)]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    for model, revision in dict.fromkeys((config.model.name, config.model.revision) for config in configs.values()):
        resolve_model(model, revision=revision)
    for track in dict.fromkeys(config.track.to for config in configs.values()):
        check_trackers(track)
    for config in configs.values():
        check_deepspeed(config, installed=installed)
    return sections


def _check_sweep_resources(sweep: Sweep, *, installed: bool = True) -> dict[str, SlurmConfig]:
    file = sweep.file
    if file.spec.search is not None:
        raise UserError(
            f"{file.location('search')}: a search cannot be submitted, since it starts its trials one after another. "
            "Run it inside a job, without --submit."
        )

    def locate(key: str) -> str:
        section = next((name for name in ("set", "grid") if key in getattr(file.spec, name)), None)
        return str(file.path) if section is None else file.location(section, key)

    configs = {trial.id: trial.config for trial in sweep.trials}
    return _check_resources(configs, file.spec.slots.model_dump(), locate, installed=installed)


def submit_sweep(sweep: Sweep, options: WorkerOptions) -> tuple[list[dict[str, str]], tuple[str, ...]]:
    """Submit the open trials that are not in the queue, all or none.

    Returns the jobs of each array by trial name, and notes on changes of the sweep. Raises UserError for invalid
    resources or with Slurm's error message, and removes a new folder.
    """
    folder = SweepDir(sweep.folder)
    slurm.check_tools()
    check_not_running(sweep, folder)
    resources = _check_sweep_resources(sweep)
    prepare_sweep(sweep, folder)
    make_folder(folder)
    with folder.lock():
        fresh = not folder.exists()
        try:
            prepared = prepare_sweep(sweep, folder)
            workers = ["--workers", str(options.workers)] if options.workers else []
            plan = replace(prepared.plan, given=[*prepared.plan.given, "--submit", "slurm", *workers])
            queued = queued_jobs(folder)
            write_sweep(sweep, folder, plan)
            arrays = _submit(folder, plan, _submittable(folder, plan, queued), resources, options)
        except BaseException:
            if fresh:
                # A network file system cannot remove the open lock file.
                shutil.rmtree(folder.path, ignore_errors=True)
            raise
    return arrays, prepared.notes


def submit_retry(folder: SweepDir, names: Sequence[str], options: WorkerOptions) -> list[dict[str, str]]:
    """Submit the failed trials in ``names`` (default: all) again. Returns and raises as :func:`submit_sweep`."""
    slurm.check_tools()
    plan = folder.read_plan()
    if plan.search is not None:
        raise UserError(f"{folder.path}: a search cannot be submitted. Remove --submit.")
    with folder.lock():
        queued = queued_jobs(folder)
        lines = {entry.name: len(read_jsonl(folder.attempts_path(entry))) for entry in plan.named}
        entries = reopen_trials(folder, plan, names)
        try:
            configs = {entry.id: entry.load_config() for entry in entries}
            resources = _check_resources(configs, plan.slots, lambda key: str(folder.path))
            waiting = [entry for entry in entries if entry.name not in queued]
            return _submit(folder, plan, waiting, resources, options)
        except BaseException:
            # Undo the retry, so that the same command can be repeated.
            for entry in entries:
                truncate_jsonl(folder.attempts_path(entry), lines[entry.name])
            raise


def render_scripts(sweep: Sweep, folder: SweepDir, plan: SweepPlan, options: WorkerOptions) -> list[str]:
    """Return the scripts that :func:`submit_sweep` would submit. Raises UserError if the resources do not fit."""
    resources = _check_sweep_resources(sweep, installed=False)
    texts: list[str] = []
    for section, entries in _group_arrays(_submittable(folder, plan, visible_jobs(folder)), resources):
        parameters = _array_parameters(section, plan, options, "PREVIOUS" if texts else None)
        text = slurm.render_script(parameters, _submitit_folder(folder), len(entries))
        commands = "".join(f"#   {shlex.join(_command(folder, entry, options))}\n" for entry in entries)
        texts.append(f"{text}\n# The jobs run:\n{commands}")
    return texts


def _submittable(folder: SweepDir, plan: SweepPlan, queued: Mapping[str, TrialJob]) -> list[Entry]:
    entries = [status.entry for status in folder.statuses(plan) if status.state in OPEN]
    return [entry for entry in entries if entry.name not in queued]


def _submitit_folder(folder: SweepDir) -> Path:
    return folder.state_dir.absolute() / FOLDER


def _command(folder: SweepDir, entry: Entry, options: WorkerOptions) -> list[str]:
    return [sys.executable, "-m", "rlvr_cli.sweeps.slurm_task", str(folder.path), entry.name, *options.flags]


def _group_arrays(
    entries: Sequence[Entry], resources: Mapping[str, SlurmConfig]
) -> list[tuple[SlurmConfig, list[Entry]]]:
    """Group the trials by resources into arrays of at most :data:`LARGEST_ARRAY` jobs."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(resources[entry.id].model_dump_json(), []).append(entry)
    return [
        (resources[group[0].id], group[begin : begin + LARGEST_ARRAY])
        for group in groups.values()
        for begin in range(0, len(group), LARGEST_ARRAY)
    ]


def _array_parameters(
    section: SlurmConfig, plan: SweepPlan, options: WorkerOptions, before: str | None
) -> dict[str, Any]:
    parameters = slurm.submitit_parameters(section, plan.name)
    sbatch_options = parameters["additional_parameters"]
    if before is not None and options.workers:
        # Slurm limits each array separately, so run the arrays in sequence.
        dependency = str(sbatch_options.get("dependency", ""))
        sbatch_options["dependency"] = ",".join(filter(None, [dependency, f"afterany:{before}"]))
    return {**parameters, "array_parallelism": options.workers or LARGEST_ARRAY}


def _submit(
    folder: SweepDir,
    plan: SweepPlan,
    entries: Sequence[Entry],
    resources: Mapping[str, SlurmConfig],
    options: WorkerOptions,
) -> list[dict[str, str]]:
    """Submit a job for each of ``entries``, all or none; return the jobs of each array by trial name."""
    arrays: list[dict[str, str]] = []
    numbers: list[str] = []
    try:
        for section, group in _group_arrays(entries, resources):
            jobs = [Job(tuple(_command(folder, entry, options)), slurm.save_seconds(section)) for entry in group]
            parameters = _array_parameters(section, plan, options, numbers[-1] if numbers else None)
            ids = slurm.queue_jobs(jobs, parameters, _submitit_folder(folder))
            numbers.append(ids[0].partition("_")[0])
            arrays.append({entry.name: job for entry, job in zip(group, ids, strict=True)})
            record_jobs(folder, plan.name, arrays[-1])
    except BaseException:
        if numbers:
            cancel(*numbers)
        raise
    return arrays
