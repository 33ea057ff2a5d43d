"""From the words of a command line to runs: names, paths, globs, sweeps, and what a sweep says of its trials."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from glob import has_magic
from pathlib import Path
from shlex import quote
from typing import Any

from rlvr_cli.config.load import leaves, load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import is_held, local_path
from rlvr_cli.core.text import did_you_mean, some
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.listing import is_run, run_folders
from rlvr_cli.runs.trials import command_of, command_to_evaluate, is_pruned, is_sweep, read_trials
from rlvr_cli.stats.scores import Array
from rlvr_cli.store.evaluation import Evaluation, held_out
from rlvr_cli.store.training import Steps, read_steps, spending


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        values: the value of every key of ``config``, by its dotted name.
        place: of the word of the command line that named it, from 0.
        kept: what it recorded of its steps, where that is kept in memory.
    """

    dir: RunDir
    config: Config
    values: dict[str, Any]
    manifest: dict[str, Any]
    place: int
    kept: Steps | None = field(default=None, repr=False, compare=False)

    @property
    def path(self) -> str:
        return str(self.dir.path)

    @property
    def seed(self) -> int:
        return self.config.run.seed

    @property
    def steps(self) -> Steps:
        """Return what it recorded of its steps, read from the disk unless it is ``kept``. Raises RunError."""
        return self.kept or read_steps(self.dir)

    @cached_property
    def spent(self) -> dict[str, Array]:
        """Return what :func:`spending` does, computed once. Raises RunError."""
        return spending(self)

    @cached_property
    def held_out(self) -> list[Evaluation]:
        """Return the evaluations made during its training, read once. Raises RunError where one is damaged."""
        return held_out(self.dir)


@dataclass(frozen=True)
class RunSelection:
    """The runs that names stand for, each once, in the order given; those of a folder or a glob by their names.

    Attributes:
        problems: a line for each name that stands for nothing, and each run that is damaged or not finished.
        notes: what a sweep's records tell of its trials.
    """

    runs: tuple[Run, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def find_runs(names: Sequence[str], root: Path, *, unfinished: bool = False) -> RunSelection:
    """Find every run that ``names`` stand for.

    A name is tried in ``root`` first and then as a path: a run, a folder whose subfolders are runs, or a glob of
    either.

    Args:
        unfinished: whether unfinished runs are accepted.
    """
    problems, notes = list[str](), list[str]()
    sweeps: dict[Path, set[str]] = {}
    runs: dict[Path, Run] = {}
    for place, name in enumerate(names):
        found = _folders(name, root, problems)
        if not found:
            problems.append(_unknown(name, root))
        for start, folders in found.items():
            if start not in folders and start.resolve() not in sweeps:
                sweeps[start.resolve()] = _tell_trials(start, problems, notes, unfinished=unfinished)
            dropped = sweeps.get(start.resolve(), set())
            for folder in folders:
                resolved = folder.resolve()
                if resolved not in runs and not (folder.parent == start and folder.name in dropped):
                    run = read_run(folder, place, problems, unfinished=unfinished)
                    if run is not None:
                        runs[resolved] = run
    return RunSelection(tuple(runs.values()), tuple(problems), tuple(notes))


def _folders(name: str, root: Path, problems: list[str]) -> dict[Path, list[Path]]:
    """The folders that a name stands for, each with the runs in it: itself, or those below."""
    try:
        path = local_path(name)
    except UserError:
        return {}
    for start in dict.fromkeys((root / name, path)):
        found: dict[Path, list[Path]] = {}
        for match in sorted(_matches(start)) if has_magic(name) else [start]:
            found |= _runs_of(match, problems)
        if found:
            return found
    return {}


def _matches(pattern: Path) -> list[Path]:
    start = Path(pattern.anchor)
    try:
        return list(start.glob(str(pattern.relative_to(start))))
    except ValueError:  # a pattern such as `a**`, which pathlib refuses
        return []


def _runs_of(folder: Path, problems: list[str]) -> dict[Path, list[Path]]:
    """The folder itself if it is a run, else the runs in it, else those in its folders, by the folder or sweep.

    Args:
        problems: gets a line for a folder that holds sweeps next to other runs: their runs are no one comparison.
    """
    if is_run(folder):
        return {folder: [folder]}
    try:
        found = run_folders(folder)
    except OSError:
        return {}
    direct = [path for path in found.values() if path.parent == folder]
    if is_sweep(folder):
        return {folder: direct} if direct else {}
    sweeps = [path for path in dict.fromkeys(run.parent for run in found.values()) if is_sweep(path)]
    if len(sweeps) == 1 and not direct and all(run.parent == sweeps[0] for run in found.values()):
        return {sweeps[0]: list(found.values())}
    if sweeps:
        names = [path.name for path in sweeps]
        what = f"the sweep {names[0]}" if len(sweeps) == 1 else f"{len(sweeps)} sweeps ({some(names, 4)})"
        besides = "" if all(run.parent in sweeps for run in found.values()) else " and other runs"
        problems.append(
            f"{folder}: holds {what}{besides}, which are not one experiment. Name what to compare, as {sweeps[0]}."
        )
    runs = direct or list(found.values())
    return {folder: runs} if runs else {}


def read_run(folder: Path, place: int, problems: list[str], *, unfinished: bool) -> Run | None:
    """Return the run in ``folder``; None, with a line in ``problems``, where it is damaged.

    An unfinished run gets a line too, unless ``unfinished``.
    """
    run = RunDir(folder)
    if not run.config_path.is_file() or not run.manifest_path.is_file():
        missing = "config.yaml" if run.manifest_path.is_file() else "manifest.json"
        problems.append(f"{folder}: damaged, it has no {missing}. Leave it out, or train it again with --overwrite.")
        return None
    try:
        manifest = run.read_manifest()
        config = load_config([run.config_path])
    except RunError as error:
        problems.append(str(error))
        return None
    except UserError as error:
        problems.extend(error.problems)
        return None
    if not unfinished and manifest.get("status") != "finished":
        problems.append(f"{folder}: {_state(run, manifest)}")
    values = {".".join(path): value for path, value in leaves(config)}
    return Run(run, config, values, manifest, place)


def _state(run: RunDir, manifest: dict[str, Any]) -> str:
    status = manifest.get("status")
    at = f"rollout {manifest.get('rollout')} of {manifest.get('rollouts_total')}"
    if status == "running" and is_held(run.path):
        return f"still running ({at}). Wait for it, leave it out, or compare it as it is with --unfinished."
    word = "killed" if status == "running" else str(status)
    command = sweep_command(run.path) or f"rlvr train --resume {quote(str(run.path))}"
    return (
        f"not finished ({word} at {at}). Continue it with `{command}`, leave it out, or compare "
        "it as it is with --unfinished."
    )


def _unknown(name: str, root: Path) -> str:
    if has_magic(name):
        return f"{name}: matches no run in {root}, and no path."
    known = sorted(_names(root))
    shown = f" There are: {', '.join(known[:20])}{', ...' if len(known) > 20 else ''}." if known else ""
    return (
        f"{name}: no run, sweep or folder of runs of this name in {root}, and no such path."
        f"{did_you_mean(name, known)}{shown} --runs names another folder of runs."
    )


def _names(root: Path) -> Iterator[str]:
    try:
        yield from dict.fromkeys(name.split("/", 1)[0] for name in run_folders(root))
    except OSError:
        return


def _tell_trials(folder: Path, problems: list[str], notes: list[str], *, unfinished: bool) -> set[str]:
    """Tell which trials of the sweep in ``folder`` have no run yet.

    Returns the names of the trials left out: no longer in the sweep file, or given up by a search.

    Args:
        notes: gets a line for what is left out.
        problems: gets one for trials that have not begun (``notes`` gets it where ``unfinished`` is wanted), and for a
            damaged file.
    """
    if not is_sweep(folder):
        return set()
    try:
        content = read_trials(folder)
    except RunError as error:
        problems.append(str(error))
        return set()
    trials = [one for one in content["trials"] if one.get("named", True)]
    dropped = {str(one["name"]) for one in content["trials"] if not one.get("named", True)}
    own = [str(one["name"]) for one in trials]
    waiting = [name for name in own if not (folder / name / "manifest.json").is_file()]
    if out := sorted(name for name in dropped if (folder / name / "manifest.json").is_file()):
        notes.append(f"{folder}: left out because the sweep file no longer names them: {some(out, 4)}.")
    if pruned := sorted(name for name in own if name not in dropped and is_pruned(folder, name)):
        notes.append(f"{folder}: left out because the search stopped them early: {some(pruned, 4)}.")
    if waiting:
        line = f"{folder}: {len(waiting)} of its {len(trials)} trials have not begun ({some(waiting, 4)})."
        if unfinished:
            notes.append(line)
        else:
            command = command_of(content)
            problems.append(f"{line} Finish the sweep with `{command}`, or compare it as it is with --unfinished.")
    return dropped | set(pruned)


def sweep_command(run: Path) -> str | None:
    """What continues the sweep that names the run at ``run`` as a trial's; None where there is none."""
    content = _sweep_of(run)
    if not any(one["name"] == run.name and one.get("named", True) for one in content.get("trials", ())):
        return None
    return command_of(content)


def eval_options(run: Path) -> str:
    """What follows `rlvr eval RUN` where a sweep evaluates the run at ``run``, with a blank before it; else nothing."""
    return "".join(f" {shlex.quote(str(one))}" for one in _sweep_of(run).get("eval") or ())


def sweep_evaluation(run: Path) -> str | None:
    """Return what evaluates all trials of the sweep of the run at ``run``; None of other runs, and where it does."""
    content = _sweep_of(run)
    return command_to_evaluate(content) if content and content.get("eval") is None else None


def place_in_sweep(run: Path) -> int | None:
    """Which trial of its sweep's the run at ``run`` is, from 0, in the order of the sweep file; None of other runs."""
    names = [str(one["name"]) for one in _sweep_of(run).get("trials", ())]
    return names.index(run.name) if names else None


def _sweep_of(run: Path) -> dict[str, Any]:
    """The content of `trials.json` next to a run; empty where it has no such run, or is damaged."""
    try:
        content = read_trials(run.parent) if is_sweep(run.parent) else {}
    except RunError:
        return {}
    return content if any(one["name"] == run.name for one in content.get("trials", ())) else {}
