"""`rlvr sweep FILE --submit slurm`: the trials of a sweep as arrays of jobs, one task a trial."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from rlvr_cli.config.launch import SlurmConfig
from rlvr_cli.config.load import LoadedConfig, load
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import ConfigError, UserError
from rlvr_cli.core.files import read_jsonl, truncate_jsonl
from rlvr_cli.core.layers import label, override_text
from rlvr_cli.core.section import Contradiction
from rlvr_cli.core.text import some
from rlvr_cli.launch import slurm
from rlvr_cli.launch.deepspeed_config import check_deepspeed
from rlvr_cli.launch.slurm_script import Array, array_script
from rlvr_cli.sweeps.driver import Orders, begin_again
from rlvr_cli.sweeps.expand import SHOWN_TRIALS, Sweep, Trial, at_lines
from rlvr_cli.sweeps.folder import OPEN, Entry, SweepDir, SweepPlan
from rlvr_cli.sweeps.prepare import check_not_running, make_folder, prepare_sweep, write
from rlvr_cli.sweeps.screen import TrialProgress, trials_progress
from rlvr_cli.sweeps.slots import with_slots
from rlvr_cli.sweeps.slurm_queue import SlurmTask, Submission, cancel, in_queue, record, with_queue


@dataclass(frozen=True)
class _Wish:
    """A trial to be checked: its configuration, how to learn where its values were set, and names of these places."""

    name: str
    config: Config
    loaded: Callable[[], LoadedConfig]
    places: dict[str, str] = field(default_factory=dict)


def of_sweep(sweep: Sweep, *, here: bool = True) -> dict[str, SlurmConfig]:
    """What the task of each trial asks for, by the trials' identities: section `slurm`, with the sweep's slots.

    Args:
        here: whether DeepSpeed must be installed where it is asked for.
    Raises:
        UserError: with the places that set them, what cannot be or does not fit the training; a model, a DeepSpeed
            file or a tracker that is not there; a search.
    """
    file = sweep.file
    if file.spec.search is not None:
        raise UserError(
            f"{file.place('search')}: a search starts one trial after another, in workers that must live as long as "
            "it does: run it inside a job, without --submit."
        )
    places = {label(override_text(key, value)): file.place("set", key) for key, value in file.spec.set.items()}

    def wish(trial: Trial) -> _Wish:
        axes = {
            label(override_text(key, value)): file.place("grid", key)
            for key, value in trial.varies.items()
            if key in file.spec.grid
        }
        loaded = partial(load, file.base, trial.method, None, None, trial.overrides, True)
        return _Wish(trial.name, trial.config, loaded, {**places, **axes})

    return _resources({trial.id: wish(trial) for trial in sweep.trials}, file.spec.slots.model_dump(), here=here)


def of_entries(entries: Sequence[Entry], slots: Mapping[str, int | None]) -> dict[str, SlurmConfig]:
    """The same of trials of a plan with these ``slots``. Raises UserError as :func:`of_sweep`."""

    def wish(entry: Entry) -> _Wish:
        loaded = partial(load, [Path(file) for file in entry.base], entry.option, None, None, entry.overrides, True)
        return _Wish(entry.name, loaded().config, loaded)

    return _resources({entry.id: wish(entry) for entry in entries}, slots)


def _resources(
    wishes: Mapping[str, _Wish], slots: Mapping[str, int | None], *, here: bool = True
) -> dict[str, SlurmConfig]:
    from rlvr_cli.models.source import resolve_model
    from rlvr_cli.tracking.trackers import check_trackers

    found: dict[tuple[str, str], list[str]] = {}
    asked: dict[str, SlurmConfig] = {}
    for id_, wish in wishes.items():
        clash = list(_clashes(wish.config.slurm, slots))
        asked[id_] = with_slots(wish.config.slurm, slots)
        config = wish.config.model_copy(update={"slurm": asked[id_]})
        if clash or any(slurm.slurm_problems(config)):
            try:
                slurm.check_slurm(replace(wish.loaded(), config=config), clash)
            except ConfigError as error:
                for place, said in error.by_origin:
                    found.setdefault((at_lines(place, wish.places), said), []).append(wish.name)
    if found:
        raise ConfigError(
            [
                (place, said if len(names) == len(wishes) else f"{said} (trials {some(names, SHOWN_TRIALS)})")
                for (place, said), names in found.items()
            ]
        )
    configs = [wish.config for wish in wishes.values()]
    for model, revision in dict.fromkeys((config.model.name, config.model.revision) for config in configs):
        resolve_model(model, revision=revision)
    for track in dict.fromkeys(config.track.to for config in configs):
        check_trackers(track)
    for config in configs:
        check_deepspeed(config, here=here)
    return asked


def _clashes(section: SlurmConfig, slots: Mapping[str, int | None]) -> Iterator[Contradiction]:
    for slot, key in (("cores", "cpus_per_task"), ("gpus", "gpus_per_node")):
        wanted, own = slots.get(slot), getattr(section, key)
        if wanted is not None and own is not None and wanted != own:
            yield Contradiction(
                (f"slurm.{key}",),
                f"slurm.{key}={own}, and the sweep's slots.{slot}={wanted}: both set what one trial gets. Leave one "
                "out, or make them equal",
            )


# MaxArraySize of a cluster that says nothing of it (`man slurm.conf`).
USUAL_ARRAY = 1001


@dataclass(frozen=True)
class Submitted:
    """What was handed to SLURM, notes on how the sweep has changed, and how its trials stand."""

    folder: SweepDir
    submissions: list[Submission]
    notes: tuple[str, ...]
    progress: list[TrialProgress]
    tasks: dict[str, SlurmTask]


def submit_sweep(sweep: Sweep, orders: Orders) -> Submitted:
    """Submit what of ``sweep`` is not finished, not failed, and neither in the queue nor being worked on.

    Raises UserError before anything is submitted, or with SLURM's own words; nothing of it is in the queue then, and a
    folder that was not there before is not there afterwards.
    """
    folder = SweepDir(sweep.folder)
    if lacking := slurm.missing():
        raise UserError(lacking)
    check_not_running(sweep, folder)
    asked = of_sweep(sweep)
    prepare_sweep(sweep, folder)
    make_folder(folder)
    with folder.driven():
        fresh = not folder.exists()
        try:
            prepared = prepare_sweep(sweep, folder)
            plan = _with_command(prepared.plan, orders)
            tasks = in_queue(folder)
            write(sweep, folder, plan)
            made = _submit(folder, plan, _open(folder, plan, tasks), asked, orders)
        except BaseException:
            if fresh:
                # Its lock is held still, and a network file system keeps what is.
                shutil.rmtree(folder.path, ignore_errors=True)
            raise
    return _submitted(folder, plan, made, prepared.notes)


def submit_retry(folder: SweepDir, names: Sequence[str], orders: Orders) -> Submitted:
    """Submit failed trials again: those of ``names``, or all. Raises UserError as :func:`submit_sweep`."""
    if lacking := slurm.missing():
        raise UserError(lacking)
    plan = folder.read_plan()
    if plan.search is not None:
        raise UserError(f"{folder.path}: is a search, which runs on this machine. Leave out --submit.")
    with folder.driven():
        tasks = in_queue(folder)
        lines = {entry.name: len(read_jsonl(folder.attempts_path(entry))) for entry in plan.named}
        entries = begin_again(folder, plan, names)
        try:
            asked = of_entries(entries, plan.slots)
            made = _submit(folder, plan, [entry for entry in entries if entry.name not in tasks], asked, orders)
        except BaseException:
            # They have failed as before.
            for entry in entries:
                truncate_jsonl(folder.attempts_path(entry), lines[entry.name])
            raise
    return _submitted(folder, plan, made, ())


def scripts(sweep: Sweep, folder: SweepDir, plan: SweepPlan, orders: Orders) -> list[str]:
    """The arrays that :func:`submit_sweep` would submit. Raises UserError where the resources do not fit."""
    asked = of_sweep(sweep, here=False)
    try:
        tasks = in_queue(folder)
    except UserError:
        tasks = {}
    arrays = _arrays(folder, plan, _open(folder, plan, tasks), asked, orders.workers, _most_tasks())
    chained = [
        replace(one, after="PREVIOUS") if number and orders.workers else one for number, one in enumerate(arrays)
    ]
    return [array_script(array, Path.cwd(), orders.flags) for array in chained]


def _with_command(plan: SweepPlan, orders: Orders) -> SweepPlan:
    workers = ["--workers", str(orders.workers)] if orders.workers else []
    return replace(plan, given=[*plan.given, "--submit", "slurm", *workers])


def _open(folder: SweepDir, plan: SweepPlan, tasks: Mapping[str, SlurmTask]) -> list[Entry]:
    """The trials that wait for somebody, and for whom no task waits."""
    return [status.entry for status in folder.statuses(plan) if status.state in OPEN and status.entry.name not in tasks]


def _submitted(folder: SweepDir, plan: SweepPlan, made: list[Submission], notes: tuple[str, ...]) -> Submitted:
    try:
        tasks = in_queue(folder)
    except UserError:
        # They are in the queue, whatever can be seen of it.
        tasks = {}
    return Submitted(folder, made, notes, with_queue(trials_progress(folder, plan), tasks), tasks)


def _arrays(
    folder: SweepDir,
    plan: SweepPlan,
    entries: Sequence[Entry],
    asked: Mapping[str, SlurmConfig],
    limit: int | None,
    most: int,
) -> list[Array]:
    """One array for all trials that ask for the same, or several of ``most`` tasks."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(json.dumps(asked[entry.id].model_dump(mode="json"), sort_keys=True), []).append(entry)
    return [
        Array(
            slurm=asked[group[0].id],
            name=plan.name,
            sweep=folder.path,
            state=folder.state_dir.absolute(),
            trials=tuple(entry.name for entry in group[begin : begin + most]),
            limit=limit,
        )
        for group in groups.values()
        for begin in range(0, len(group), most)
    ]


def _submit(
    folder: SweepDir, plan: SweepPlan, entries: Sequence[Entry], asked: Mapping[str, SlurmConfig], orders: Orders
) -> list[Submission]:
    """Queue a task for each of ``entries``: all of them, or none."""
    made: list[Submission] = []
    try:
        for array in _arrays(folder, plan, entries, asked, orders.workers, _most_tasks()):
            # The limit is one array's own: several keep it together by coming one after the other.
            after = made[-1].job if made and orders.workers else None
            text = array_script(replace(array, after=after), Path.cwd(), orders.flags)
            submission = Submission(slurm.hand_over(text), array.name, array.trials)
            made.append(submission)
            record(folder, submission, text)
    except BaseException:
        cancel([one.job for one in made])
        raise
    return made


def _most_tasks() -> int:
    """How many tasks an array may have here. Raises UserError where the cluster allows no arrays."""
    if shutil.which("scontrol") is None:
        return USUAL_ARRAY
    said = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", said, re.MULTILINE)
    most = int(match[1]) if match else USUAL_ARRAY
    if most == 0:
        raise UserError("this cluster allows no arrays of jobs (MaxArraySize = 0). Run the sweep inside a job instead.")
    return most
