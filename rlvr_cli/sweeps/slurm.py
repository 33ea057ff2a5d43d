"""`rlvr sweep FILE --submit slurm`: the trials of a sweep as arrays of jobs, one task a trial."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlvr_cli.config.launch import SlurmConfig
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import read_jsonl, truncate_jsonl
from rlvr_cli.launch import slurm
from rlvr_cli.launch.slurm_script import Array, array_script
from rlvr_cli.sweeps.driver import Orders, begin_again
from rlvr_cli.sweeps.expand import Sweep
from rlvr_cli.sweeps.folder import OPEN, Entry, Plan, SweepDir
from rlvr_cli.sweeps.prepare import check_not_running, make_folder, prepare, write
from rlvr_cli.sweeps.progress import Standing, standings
from rlvr_cli.sweeps.slurm_queue import Submission, Task, cancel, in_queue, record, with_queue
from rlvr_cli.sweeps.slurm_resources import of_entries, of_sweep

# MaxArraySize of a cluster that says nothing of it (`man slurm.conf`).
USUAL_ARRAY = 1001


@dataclass(frozen=True)
class Submitted:
    """What was handed to SLURM, notes on how the sweep has changed, and how its trials stand."""

    folder: SweepDir
    submissions: list[Submission]
    notes: tuple[str, ...]
    standings: list[Standing]
    tasks: dict[str, Task]


def start(sweep: Sweep, orders: Orders) -> Submitted:
    """Submit what of ``sweep`` is not finished, not failed, and neither in the queue nor being worked on.

    Raises UserError before anything is submitted, or with SLURM's own words; nothing of it is in the queue then, and a
    folder that was not there before is not there afterwards.
    """
    folder = SweepDir(sweep.folder)
    if lacking := slurm.missing():
        raise UserError(lacking)
    check_not_running(sweep, folder)
    asked = of_sweep(sweep)
    prepare(sweep, folder)
    make_folder(folder)
    with folder.driven():
        fresh = not folder.exists()
        try:
            prepared = prepare(sweep, folder)
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


def again(folder: SweepDir, names: Sequence[str], orders: Orders) -> Submitted:
    """Submit failed trials again: those of ``names``, or all. Raises UserError as :func:`start`."""
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


def scripts(sweep: Sweep, folder: SweepDir, plan: Plan, orders: Orders) -> list[str]:
    """The arrays that :func:`start` would submit. Raises UserError where the resources do not fit."""
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


def _with_command(plan: Plan, orders: Orders) -> Plan:
    workers = ["--workers", str(orders.workers)] if orders.workers else []
    return replace(plan, given=[*plan.given, "--submit", "slurm", *workers])


def _open(folder: SweepDir, plan: Plan, tasks: Mapping[str, Task]) -> list[Entry]:
    """The trials that wait for somebody, and for whom no task waits."""
    return [look.entry for look in folder.looks(plan) if look.state in OPEN and look.entry.name not in tasks]


def _submitted(folder: SweepDir, plan: Plan, made: list[Submission], notes: tuple[str, ...]) -> Submitted:
    try:
        tasks = in_queue(folder)
    except UserError:
        # They are in the queue, whatever can be seen of it.
        tasks = {}
    return Submitted(folder, made, notes, with_queue(standings(folder, plan), tasks), tasks)


def _arrays(
    folder: SweepDir,
    plan: Plan,
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
    folder: SweepDir, plan: Plan, entries: Sequence[Entry], asked: Mapping[str, SlurmConfig], orders: Orders
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
