"""Check a sweep's folder against its file, and write the plan."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.config.user_files import copied_files, user_files, with_files
from rlvr_cli.core.errors import ConfigError, UserError
from rlvr_cli.core.files import write_text
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.include import source_files
from rlvr_cli.core.text import some
from rlvr_cli.core.user_code import UserFile, keep_copies
from rlvr_cli.core.yaml import dump
from rlvr_cli.methods.equivalence import SameGradient
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.store.arm import same_arms
from rlvr_cli.sweeps.axes import METHOD, AxisPoint, split_names, values_of
from rlvr_cli.sweeps.expand import Sweep, Trial, load_trial
from rlvr_cli.sweeps.folder import Entry, SearchState, SweepDir, SweepPlan
from rlvr_cli.sweeps.naming import config_differences, config_hash, make_unique, short_keys, trial_name
from rlvr_cli.sweeps.search_space import Space, axis_name, labels
from rlvr_cli.sweeps.slurm_queue import visible_jobs


@dataclass(frozen=True)
class Cost:
    """Rollouts, sampled completions and optimizer steps of one or several trials."""

    rollouts: int = 0
    completions: int = 0
    steps: int = 0

    @staticmethod
    def of_entry(entry: Entry) -> Cost:
        return Cost(entry.rollouts, entry.completions, entry.steps)

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.rollouts + other.rollouts, self.completions + other.completions, self.steps + other.steps)


def cost_of(config: Config) -> Cost:
    batch = config.batch
    return Cost(config.train.rollouts, batch.completions * config.train.rollouts, batch.steps_total)


def total(costs: Sequence[Cost]) -> Cost:
    return sum(costs, Cost())


def same_gradient_arms(sweep: Sweep) -> list[SameGradient]:
    """Return the groups of a grid's arms that differ only in their method and have the same gradient."""
    return same_arms({trial.row: trial.config for trial in sweep.trials})


def check_arms(sweep: Sweep) -> None:
    """Raise UserError for arms of a grid that cannot differ, unless the file allows them or they have started."""
    path, folder = sweep.file.path, SweepDir(sweep.folder)
    ids = {entry.id for entry in folder.read_plan().trials} if folder.exists() else set()
    resumed = {trial.row for trial in sweep.trials if trial.id in ids}
    problems = [
        f"{path}: {group.sentence()} Leave all but one of them out"
        f"{', set update.mini_batches above 1' if group.when == 'one_step' else ''}, or train them all with "
        "`identical_arms: true` in this file."
        for group in same_gradient_arms(sweep)
        if group.cannot_differ and not resumed.issuperset(group.names)
    ]
    if problems and not sweep.file.spec.identical_arms:
        raise UserError(problems)


INSTALL = 'pip install "rlvr[search]"'


def check_optuna() -> None:
    """Raise UserError, with the install command, if Optuna is missing."""
    if importlib.util.find_spec("optuna") is None:
        raise UserError(f"search: the package optuna is not installed. {INSTALL}, or leave `search` out for a grid.")


def suggested_trials(
    space: Space, points: Sequence[AxisPoint], base: Sequence[Path], common: Sequence[str], taken: Collection[str] = ()
) -> list[Trial]:
    """Return the trials of one configuration, one per seed. Raises UserError if the configuration is invalid.

    Args:
        base, common: configuration files and overrides of every trial. taken: names of other trials.
    """
    keys, shorts = space.keys, short_keys(space.keys)
    trials: list[Trial] = []
    for seed in space.seeds:
        combination = (*points, seed)
        names, unnamed = split_names(combination)
        config, method, overrides = load_trial(base, combination, common, {})
        id_ = config_hash(config)
        name_values = {key: value for key, value in unnamed.items() if key in keys}
        name_values |= {METHOD: config.method.name} if METHOD in name_values else {}
        name = trial_name(name_values, shorts, config.method.name, names)
        name = make_unique(name, id_, {*taken, *(trial.name for trial in trials)})
        trials.append(Trial(name, id_, method, (*common, *overrides), values_of(combination), config))
    return trials


def study_name(sweep: Sweep) -> str:
    """Hash the space, the objective, and the configurations at the corners of the space to 16 hexadecimal digits."""
    assert sweep.space is not None
    axes = [(axis_name(axis), labels(axis), repr(axis.interval)) for axis in sweep.space.axes]
    seeds = [dict(point.values) for point in sweep.space.seeds]
    excluded = [exclusion.written for exclusion in sweep.space.exclusions]
    content = [axes, seeds, repr(sweep.objective), excluded, [trial.id for trial in sweep.corners]]
    return text_digest(json.dumps(content))[:16]


SHOWN = 6


@dataclass(frozen=True)
class PreparedSweep:
    """The plan, and notes for the user on its changes since the last run."""

    plan: SweepPlan
    notes: tuple[str, ...]


def prepare_sweep(sweep: Sweep, folder: SweepDir) -> PreparedSweep:
    """Return the plan for ``sweep`` in ``folder``, without writing it.

    A trial whose hash is in the folder's plan keeps its name and its run.

    Raises:
        UserError: the folder is not this sweep's, or a trial's folder has another run.
    """
    previous = folder.read_plan() if folder.exists() else None
    if previous is None and folder.path.exists() and _is_foreign(folder.path):
        raise UserError(
            f"{folder.path}: exists and is not a sweep's folder (it has no trials.json). Give the sweep another "
            "`name:`, or move the folder away."
        )
    base = [str(folder.base_dir / name) for name in _copy_base(sweep)[0]]
    spec = sweep.file.spec
    plan = SweepPlan(
        name=sweep.file.name,
        file=str(sweep.file.path.resolve()),
        retries=spec.retries,
        eval=None if sweep.eval is None else list(sweep.eval),
        slots=spec.slots.model_dump(),
        trials=_grid_entries(sweep, folder, previous, base)
        if sweep.space is None
        else _search_entries(sweep, previous),
        given=[*sweep.cli_overrides, *sweep.flags],
        objective=sweep.objective,
        search=_search_state(sweep, base),
    )
    return PreparedSweep(plan, tuple(_change_notes(previous, plan)))


def _grid_entries(sweep: Sweep, folder: SweepDir, previous: SweepPlan | None, base: list[str]) -> list[Entry]:
    """Return the trials of the file, then those of the folder that are no longer in it."""
    old_names = {entry.id: entry.name for entry in previous.trials} if previous else {}
    continued = sweep.flags and previous and previous.file == str(sweep.file.path.resolve())
    if previous and previous.trials and not continued and not any(trial.id in old_names for trial in sweep.trials):
        raise UserError(_other_sweep_message(sweep, folder, previous))
    names: dict[str, str] = {}
    for trial in sweep.trials:
        taken = {*old_names.values(), *names.values()}
        names[trial.id] = old_names.get(trial.id) or make_unique(trial.name, trial.id, taken)
    problems = [text for trial in sweep.trials if (text := _conflicting_run(folder, names[trial.id], trial))]
    if problems:
        raise UserError(problems)
    entries = [make_entry(trial, names[trial.id], base, _copied_method(trial, folder)[0]) for trial in sweep.trials]
    old = [] if previous is None else [entry for entry in previous.trials if entry.id not in names]
    if previous is None or not sweep.flags:
        return [*entries, *(replace(entry, named=False) for entry in old)]
    # Finished trials that --only or --seeds leaves out still belong to the sweep.
    finished = [entry.named and folder.status(previous, entry).state == "finished" for entry in old]
    return [*entries, *(replace(entry, named=named) for entry, named in zip(old, finished, strict=True))]


def _search_entries(sweep: Sweep, previous: SweepPlan | None) -> list[Entry]:
    """Return the trials that the search has suggested. Raises UserError if they are from another space."""
    if previous is None:
        return []
    if previous.search is None or previous.search.study != study_name(sweep):
        raise UserError(
            f"{sweep.folder}: belongs to another sweep, or to a search over other axes, seeds or settings, or by "
            "another objective. Undo the change (`trials`, `budget` and the sampler may change), or give it another "
            "`name:`."
        )
    return previous.trials


def write_sweep(sweep: Sweep, folder: SweepDir, plan: SweepPlan) -> None:
    """Write the plan, the sweep file, its base configurations and their user files; the caller holds the lock."""
    folder.base_dir.mkdir(exist_ok=True)
    copies, files = _copy_base(sweep)
    for name, text in copies.items():
        write_text(folder.base_dir / name, text)
    keep_copies(
        [*files, *(file for trial in sweep.trials for file in _copied_method(trial, folder)[1])], folder.base_dir
    )
    write_text(folder.file_copy, sweep.file.text)
    folder.write_plan(plan)


def make_folder(folder: SweepDir) -> None:
    """Create the sweep's folder if it does not exist. Raises UserError if that fails."""
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder.path}: cannot be created ({error.strerror}). Set run.dir to a folder you can write to."
        ) from error


def check_not_running(sweep: Sweep, folder: SweepDir) -> None:
    """Raise UserError if the sweep is running, or has jobs in a cluster's queue and its file was changed.

    Leases keep queued jobs and local workers apart.
    """
    running = folder.running()
    if not running and not visible_jobs(folder):
        return
    changed = folder.file_copy.exists() and folder.file_copy.read_text(encoding="utf-8") != sweep.file.text
    if sweep.space is None:
        changed |= {entry.id for entry in folder.read_plan().named} != {trial.id for trial in sweep.trials}
    how = f"`rlvr sweep status {folder.path}` shows it, `rlvr sweep stop {folder.path}` saves and ends it."
    if changed:
        raise UserError(
            f"{sweep.file.path}: was changed while the sweep {folder.path} is running, or asks for other trials. "
            f"{how} Then run `rlvr sweep {sweep.file.path}` again: what is finished stays, what is new is added."
        )
    if running:
        raise UserError(f"{folder.path}: this sweep is running. {how}")


def _search_state(sweep: Sweep, base: list[str]) -> SearchState | None:
    if sweep.space is None:
        return None
    return SearchState(study_name(sweep), base, sweep.bound, len(sweep.space.seeds))


def make_entry(trial: Trial, name: str, base: Sequence[str], option: str | None) -> Entry:
    """Return the trial's entry in the plan; ``option``: the argument of `--method`."""
    cost = cost_of(trial.config)
    return Entry(
        id=trial.id,
        name=name,
        method=trial.config.method.name,
        seed=trial.config.run.seed,
        varies=trial.varies,
        base=list(base),
        option=option,
        overrides=list(trial.overrides),
        rollouts=cost.rollouts,
        completions=cost.completions,
        steps=cost.steps,
    )


def _copy_base(sweep: Sweep) -> tuple[dict[str, str], list[UserFile]]:
    """Return the copies of the base configurations, texts by file name, and the user files that they name.

    Included files come first, and `include` is removed: its paths are not valid in another folder.
    """
    copies, files = dict[str, str](), list[UserFile]()
    for number, path in enumerate(sweep.file.base, start=1):
        problems: list[tuple[str, str]] = []
        sources = source_files(path, tuple(Config.model_fields), problems)
        if problems:
            raise ConfigError(problems)
        for position, source in enumerate(sources, start=1):
            stem = f"{number}" if len(sources) == 1 else f"{number}.{position}"
            values, named = copied_files(source.values, source.path.parent)
            copies[f"{stem}-{source.path.name}"] = source.alone if values == source.values else dump(values)
            files += named
    return copies, files


def _copied_method(trial: Trial, folder: SweepDir) -> tuple[str | None, list[UserFile]]:
    """Return a trial's method with paths of its copies in the sweep's folder, and the user files."""
    values, files = copied_files({"method": trial.method}, None)
    return with_files(values, folder.base_dir, str)["method"] if files else trial.method, files


def _is_foreign(path: Path) -> bool:
    """Return whether ``path`` is something else than a sweep's folder whose creation was interrupted."""
    names = {".lock", "base", "sweep.yaml", "state"}
    return not path.is_dir() or any(
        entry.name not in names and not entry.name.endswith(".tmp") for entry in path.iterdir()
    )


def _conflicting_run(folder: SweepDir, name: str, trial: Trial) -> str | None:
    """Return an error message if the trial's folder has another run; else None."""
    run = RunDir(folder.path / name)
    if not run.path.exists() or not run.config_path.exists():
        return None
    try:
        config = load_config([run.config_path])
    except UserError as error:
        return f"{run.config_path}: is no longer a valid configuration ({error.problems[0]})."
    if config_hash(config) == trial.id:
        return None
    changes = config_differences(config, trial.config)
    return (
        f"{run.path}: belongs to another sweep: its run differs from the trial {name} in {some(changes, SHOWN)}. "
        "Give the sweep another `name:`, or move the folder away."
    )


def _other_sweep_message(sweep: Sweep, folder: SweepDir, previous: SweepPlan) -> str:
    if edited := _edited_files(sweep, folder, previous):
        return (
            f"{folder.path}: its trials use files that were edited since: {'; '.join(edited)}. Undo the change to "
            "continue them, or give the sweep another `name:` to run all of it with the files as they are now."
        )
    return (
        f"{folder.path}: belongs to another sweep ({previous.file}): none of its {len(previous.trials)} trials is "
        f"one of the {len(sweep.trials)} of {sweep.file.path}. Give the sweep another `name:`, or move the folder away."
    )


def _edited_files(sweep: Sweep, folder: SweepDir, previous: SweepPlan) -> list[str]:
    """Return the user files that were edited since a trial started, with both hashes."""
    now = {file.path.name: file for trial in sweep.trials for file in user_files(trial.config)}
    for entry in previous.trials:
        run = RunDir(folder.path / entry.name)
        copies = run.read_manifest().get("user_files") or () if run.manifest_path.exists() else ()
        then = {Path(str(file["file"])).name: str(file["sha256"])[:12] for file in copies}
        if edited := [name for name in then if name in now and now[name].digest != then[name]]:
            return [
                f"{now[name].path} ({entry.name} has SHA-256 {then[name]}..., now it is {now[name].digest}...)"
                for name in edited
            ]
    return []


def _change_notes(previous: SweepPlan | None, plan: SweepPlan) -> list[str]:
    if previous is None:
        return []
    old = {entry.id for entry in previous.trials}
    added = [entry.name for entry in plan.named if entry.id not in old]
    was_named = {entry.id for entry in previous.named}
    dropped = [entry.name for entry in plan.trials if not entry.named and entry.id in was_named]
    notes = []
    if added:
        notes.append(f"{len(added)} trial{'s' if len(added) > 1 else ''} added: {some(added, SHOWN)}")
    if dropped:
        notes.append(f"no longer named by the sweep file, kept as they are: {some(dropped, SHOWN)}")
    return notes
