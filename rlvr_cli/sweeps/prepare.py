"""Check a sweep's folder against its file, and write the plan."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.config.user_files import refer_to_copies, replace_paths
from rlvr_cli.core.errors import ConfigError, UserError
from rlvr_cli.core.files import write_text
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.include import load_source_files
from rlvr_cli.core.text import count, ellipsize
from rlvr_cli.core.user_code import UserFile, save_copies
from rlvr_cli.core.yaml import dump
from rlvr_cli.methods.equivalence import SameGradient
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.store.arm import same_arms
from rlvr_cli.sweeps.expand import Sweep, Trial
from rlvr_cli.sweeps.folder import Entry, SearchState, SweepDir, SweepPlan
from rlvr_cli.sweeps.naming import config_digest, make_unique
from rlvr_cli.sweeps.search_space import axis_name, categories
from rlvr_cli.sweeps.slurm_queue import visible_jobs
from rlvr_cli.training.teacher import find_teacher

SHOWN = 6


def find_same_gradient_arms(sweep: Sweep) -> list[SameGradient]:
    return same_arms({trial.row: trial.config for trial in sweep.trials})


def check_arms(sweep: Sweep) -> None:
    """Raise UserError for arms that cannot differ, unless the file allows them or they have started."""
    path, folder = sweep.file.path, SweepDir(sweep.folder)
    ids = {entry.id for entry in folder.read_plan().trials} if folder.exists() else set()
    resumed = {trial.row for trial in sweep.trials if trial.id in ids}
    problems = [
        f"{path}: {group.sentence()} Remove all but one"
        f"{', set update.mini_batches above 1' if group.when == 'one_step' else ''}, or train them all with "
        "`identical_arms: true` in this file."
        for group in find_same_gradient_arms(sweep)
        if group.cannot_differ and not resumed.issuperset(group.names)
    ]
    if problems and not sweep.file.spec.identical_arms:
        raise UserError(problems)


def check_optuna() -> None:
    """Raise UserError, with the install command, if Optuna is missing."""
    if importlib.util.find_spec("optuna") is None:
        raise UserError(
            'search: the package optuna is not installed. pip install "rlvr[search]", or remove `search` to run a grid.'
        )


def study_name(sweep: Sweep) -> str:
    """Return a digest of the space, its corner configurations, and the objective, 16 hexadecimal digits."""
    assert sweep.space is not None
    axes = [(axis_name(axis), categories(axis), repr(axis.interval)) for axis in sweep.space.axes]
    seeds = [dict(point.values) for point in sweep.space.seeds]
    excluded = [exclusion.written for exclusion in sweep.space.exclusions]
    content = [axes, seeds, repr(sweep.objective), excluded, [trial.id for trial in sweep.corners]]
    return text_digest(json.dumps(content))[:16]


@dataclass(frozen=True)
class PreparedSweep:
    plan: SweepPlan
    notes: tuple[str, ...]


def prepare_sweep(sweep: Sweep, folder: SweepDir) -> PreparedSweep:
    """Return the plan, unwritten; known trials keep name and run.

    Raises UserError for a foreign folder or run, or a missing teacher.
    """
    for trial in sweep.trials:
        find_teacher(trial.config)
    previous = folder.read_plan() if folder.exists() else None
    if previous is None and folder.path.exists() and _is_foreign(folder.path):
        raise UserError(
            f"{folder.path}: exists and is not a sweep's folder (it has no trials.json). Set another "
            "`name:`, or move the folder away."
        )
    base = [str(folder.base_dir / name) for name in _copy_base(sweep)[0]]
    spec, search = sweep.file.spec, None
    if sweep.space is None:
        entries = _grid_entries(sweep, folder, previous, base)
    else:
        entries = [] if previous is None else previous.trials
        search = SearchState(study_name(sweep), base, sweep.bound, len(sweep.space.seeds))
        if previous is not None and (previous.search is None or previous.search.study != search.study):
            raise UserError(
                f"{sweep.folder}: belongs to another sweep, or to a search over other axes, seeds or settings, or by "
                "another objective. Undo the change (`trials`, `budget` and the sampler may change), or set "
                "another `name:`."
            )
    plan = SweepPlan(
        name=sweep.file.name,
        file=str(sweep.file.path.resolve()),
        retries=spec.retries,
        eval=None if sweep.eval is None else list(sweep.eval),
        slots=spec.slots.model_dump(),
        trials=entries,
        given=[*sweep.cli_overrides, *sweep.flags],
        objective=sweep.objective,
        search=search,
    )
    return PreparedSweep(plan, tuple(_change_notes(previous, plan)))


def _grid_entries(sweep: Sweep, folder: SweepDir, previous: SweepPlan | None, base: list[str]) -> list[Entry]:
    """Return the entries of the file's trials, then those of the folder that were removed from it."""
    old_names = {entry.id: entry.name for entry in previous.trials} if previous else {}
    continued = sweep.flags and previous and previous.file == str(sweep.file.path.resolve())
    if previous and previous.trials and not continued and not any(trial.id in old_names for trial in sweep.trials):
        raise UserError(
            f"{folder.path}: belongs to another sweep ({previous.file}): none of its {len(previous.trials)} trials is "
            f"among the {len(sweep.trials)} of {sweep.file.path} (editing the file of a method, task or reward also "
            "changes its trials). Set another `name:`, or move the folder away."
        )
    names: dict[str, str] = {}
    for trial in sweep.trials:
        taken = {*old_names.values(), *names.values()}
        names[trial.id] = old_names.get(trial.id) or make_unique(trial.name, trial.id, taken)
    problems = [
        f"{folder.path / names[trial.id]}: has the run of another trial. Set another `name:`, or move the folder away."
        for trial in sweep.trials
        if (path := RunDir(folder.path / names[trial.id]).config_path).exists()
        and config_digest(load_config([path])) != trial.id
    ]
    if problems:
        raise UserError(problems)
    entries = [make_entry(trial, names[trial.id], base, _copy_method(trial, folder)[0]) for trial in sweep.trials]
    old = [] if previous is None else [entry for entry in previous.trials if entry.id not in names]
    if previous is None or not sweep.flags:
        return [*entries, *(replace(entry, named=False) for entry in old)]
    # Finished trials that --only or --seeds leaves out still belong to the sweep.
    finished = [entry.named and folder.status(previous, entry).state == "finished" for entry in old]
    return [*entries, *(replace(entry, named=named) for entry, named in zip(old, finished, strict=True))]


def write_sweep(sweep: Sweep, folder: SweepDir, plan: SweepPlan) -> None:
    """Write the plan and copies of the sweep file, its base and its user files; the caller holds the lock."""
    folder.base_dir.mkdir(exist_ok=True)
    copies, files = _copy_base(sweep)
    for name, text in copies.items():
        write_text(folder.base_dir / name, text)
    save_copies([*files, *(file for trial in sweep.trials for file in _copy_method(trial, folder)[1])], folder.base_dir)
    write_text(folder.file_copy, sweep.file.text)
    folder.write_plan(plan)


def make_folder(folder: SweepDir) -> None:
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder.path}: cannot be created ({error.strerror}). Set run.dir to a writable folder."
        ) from error


def check_not_running(sweep: Sweep, folder: SweepDir) -> None:
    """Raise UserError if the sweep is running, or its file was changed while jobs are in a cluster's queue.

    Otherwise leases separate queued jobs and local workers.
    """
    running = folder.is_running()
    if not running and not visible_jobs(folder):
        return
    changed = folder.file_copy.exists() and folder.file_copy.read_text(encoding="utf-8") != sweep.file.text
    if sweep.space is None:
        changed |= {entry.id for entry in folder.read_plan().named} != {trial.id for trial in sweep.trials}
    commands = f"`rlvr sweep status {folder.path}` shows it, `rlvr sweep stop {folder.path}` saves and ends it."
    if changed:
        raise UserError(
            f"{sweep.file.path}: was changed while the sweep {folder.path} is running, or defines other trials. "
            f"{commands} Then run `rlvr sweep {sweep.file.path}` again: finished trials are kept, new ones added."
        )
    if running:
        raise UserError(f"{folder.path}: this sweep is running. {commands}")


def make_entry(trial: Trial, name: str, base: Sequence[str], option: str | None) -> Entry:
    batch, rollouts = trial.config.batch, trial.config.train.rollouts
    return Entry(
        id=trial.id,
        name=name,
        method=trial.config.method.name,
        seed=trial.config.run.seed,
        varies=trial.varies,
        base=list(base),
        option=option,
        overrides=list(trial.overrides),
        rollouts=rollouts,
        completions=batch.completions * rollouts,
        steps=batch.steps_total,
    )


def _copy_base(sweep: Sweep) -> tuple[dict[str, str], list[UserFile]]:
    """Return the text of each base configuration's copy by file name, and the user files that they name.

    Included files come first; `include` is removed, since its paths are invalid in another folder.
    """
    copies, files = dict[str, str](), list[UserFile]()
    for number, path in enumerate(sweep.file.base, start=1):
        problems: list[tuple[str, str]] = []
        sources = load_source_files(path, tuple(Config.model_fields), problems)
        if problems:
            raise ConfigError(problems)
        for position, source in enumerate(sources, start=1):
            stem = f"{number}" if len(sources) == 1 else f"{number}.{position}"
            values, named = refer_to_copies(source.values, source.path.parent)
            copies[f"{stem}-{source.path.name}"] = source.bare_text if values == source.values else dump(values)
            files += named
    return copies, files


def _copy_method(trial: Trial, folder: SweepDir) -> tuple[str | None, list[UserFile]]:
    values, files = refer_to_copies({"method": trial.method}, None)
    return replace_paths(values, folder.base_dir, str)["method"] if files else trial.method, files


def _is_foreign(path: Path) -> bool:
    names = {".lock", "base", "sweep.yaml", "state"}
    return not path.is_dir() or any(
        entry.name not in names and not entry.name.endswith(".tmp") for entry in path.iterdir()
    )


def _change_notes(previous: SweepPlan | None, plan: SweepPlan) -> list[str]:
    if previous is None:
        return []
    old, was_named = ({entry.id for entry in entries} for entries in (previous.trials, previous.named))
    added = [entry.name for entry in plan.named if entry.id not in old]
    dropped = [entry.name for entry in plan.trials if not entry.named and entry.id in was_named]
    notes = [f"{count(len(added), 'trial')} added: {ellipsize(added, SHOWN)}"] if added else []
    notes += [f"removed from the sweep file, kept on disk: {ellipsize(dropped, SHOWN)}"] if dropped else []
    return notes
