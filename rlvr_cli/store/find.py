"""Find runs by name, path, glob or sweep, and the records of the sweep of a run."""

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
    """A run.

    Attributes:
        values: every key of ``config``, by its dotted name.
        argument_index: index of the command-line argument that names the run.
        kept: the records of its steps, where they are kept in memory.
    """

    dir: RunDir
    config: Config
    values: dict[str, Any]
    manifest: dict[str, Any]
    argument_index: int
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
        finished = self.manifest.get("status") == "finished"
        return spending(self.dir, self.steps, self.config.rollout, finished=finished)

    @cached_property
    def held_out(self) -> list[Evaluation]:
        """Return the evaluations made during its training, read once. Raises RunError where one is damaged."""
        return held_out(self.dir)


@dataclass(frozen=True)
class RunSelection:
    """Distinct runs, in the order of the arguments; those of a folder or a glob sorted by name.

    Attributes:
        problems: a line for each unknown name, and each damaged or unfinished run.
        notes: on trials of sweeps.
    """

    runs: tuple[Run, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def find_runs(names: Sequence[str], root: Path, *, unfinished: bool = False) -> RunSelection:
    """Find every run that ``names`` match.

    A name is resolved in ``root`` first and then as a path: a run, a folder of runs, or a glob of either.

    Args:
        unfinished: accept unfinished runs.
    """
    problems, notes = list[str](), list[str]()
    sweeps: dict[Path, set[str]] = {}
    runs: dict[Path, Run] = {}
    for index, name in enumerate(names):
        matches = _find_folders(name, root, problems)
        if not matches:
            problems.append(_unknown_name_message(name, root))
        for start, folders in matches.items():
            if start not in folders and start.resolve() not in sweeps:
                sweeps[start.resolve()] = _filter_trials(start, problems, notes, unfinished=unfinished)
            dropped = sweeps.get(start.resolve(), set())
            for folder in folders:
                resolved = folder.resolve()
                if resolved not in runs and not (folder.parent == start and folder.name in dropped):
                    run = read_run(folder, index, problems, unfinished=unfinished)
                    if run is not None:
                        runs[resolved] = run
    return RunSelection(tuple(runs.values()), tuple(problems), tuple(notes))


def _find_folders(name: str, root: Path, problems: list[str]) -> dict[Path, list[Path]]:
    """Return the folders that a name matches, each with its runs: itself, or those in it."""
    try:
        path = local_path(name)
    except UserError:
        return {}
    for start in dict.fromkeys((root / name, path)):
        folders: dict[Path, list[Path]] = {}
        for match in sorted(_glob(start)) if has_magic(name) else [start]:
            folders |= _runs_of(match, problems)
        if folders:
            return folders
    return {}


def _glob(pattern: Path) -> list[Path]:
    start = Path(pattern.anchor)
    try:
        return list(start.glob(str(pattern.relative_to(start))))
    except ValueError:  # pathlib rejects patterns such as `a**`
        return []


def _runs_of(folder: Path, problems: list[str]) -> dict[Path, list[Path]]:
    """Return by folder or sweep: the folder itself if it is a run, else the runs in it, else those in its subfolders.

    Adds a line to ``problems`` for a folder with several sweeps, or a sweep and other runs.
    """
    if is_run(folder):
        return {folder: [folder]}
    try:
        runs = list(run_folders(folder).values())
    except OSError:
        return {}
    direct = [path for path in runs if path.parent == folder]
    if is_sweep(folder):
        return {folder: direct} if direct else {}
    sweeps = [path for path in dict.fromkeys(run.parent for run in runs) if is_sweep(path)]
    if len(sweeps) == 1 and not direct and all(run.parent == sweeps[0] for run in runs):
        return {sweeps[0]: runs}
    if sweeps:
        names = [path.name for path in sweeps]
        content = f"the sweep {names[0]}" if len(sweeps) == 1 else f"{len(sweeps)} sweeps ({some(names, 4)})"
        others = "" if all(run.parent in sweeps for run in runs) else " and other runs"
        problems.append(
            f"{folder}: holds {content}{others}, which are not one experiment. Name what to compare, as {sweeps[0]}."
        )
    return {folder: direct or runs} if runs else {}


def read_run(folder: Path, argument_index: int, problems: list[str], *, unfinished: bool) -> Run | None:
    """Return the run in ``folder``; None, with a line in ``problems``, if it is damaged.

    An unfinished run adds a line too, unless ``unfinished``.
    """
    run = RunDir(folder)
    if not run.config_path.is_file() or not run.manifest_path.is_file():
        missing = "config.yaml" if run.manifest_path.is_file() else "manifest.json"
        problems.append(f"{folder}: damaged, it has no {missing}. Remove it, or train it again with --overwrite.")
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
        problems.append(f"{folder}: {_unfinished_message(run, manifest)}")
    values = {".".join(path): value for path, value in leaves(config)}
    return Run(run, config, values, manifest, argument_index)


def _unfinished_message(run: RunDir, manifest: dict[str, Any]) -> str:
    status = manifest.get("status")
    progress = f"rollout {manifest.get('rollout')} of {manifest.get('rollouts_total')}"
    if status == "running" and is_held(run.path):
        return f"still running ({progress}). Wait for it, remove it, or compare it as it is with --unfinished."
    word = "killed" if status == "running" else str(status)
    command = sweep_command(run.path) or f"rlvr train --resume {quote(str(run.path))}"
    return (
        f"not finished ({word} at {progress}). Continue it with `{command}`, remove it, or compare "
        "it as it is with --unfinished."
    )


def _unknown_name_message(name: str, root: Path) -> str:
    if has_magic(name):
        return f"{name}: matches no run in {root}, and no path."
    names = sorted(_top_names(root))
    hint = f" There are: {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}." if names else ""
    return (
        f"{name}: no run, sweep or folder of runs of this name in {root}, and no such path."
        f"{did_you_mean(name, names)}{hint} --runs names another folder of runs."
    )


def _top_names(root: Path) -> Iterator[str]:
    try:
        yield from dict.fromkeys(name.split("/", 1)[0] for name in run_folders(root))
    except OSError:
        return


def _filter_trials(folder: Path, problems: list[str], notes: list[str], *, unfinished: bool) -> set[str]:
    """Return the excluded trials of the sweep in ``folder``: no longer in the sweep file, or pruned.

    Adds a line to ``notes`` for them, and to ``problems`` (with ``unfinished``, to ``notes``) for trials without a run;
    to ``problems`` for a damaged file.
    """
    if not is_sweep(folder):
        return set()
    try:
        content = read_trials(folder)
    except RunError as error:
        problems.append(str(error))
        return set()
    names = [str(trial["name"]) for trial in content["trials"] if trial.get("named", True)]
    dropped = {str(trial["name"]) for trial in content["trials"] if not trial.get("named", True)}
    waiting = [name for name in names if not (folder / name / "manifest.json").is_file()]
    if excluded := sorted(name for name in dropped if (folder / name / "manifest.json").is_file()):
        notes.append(f"{folder}: left out because the sweep file no longer names them: {some(excluded, 4)}.")
    if pruned := sorted(name for name in names if name not in dropped and is_pruned(folder, name)):
        notes.append(f"{folder}: left out because the search stopped them early: {some(pruned, 4)}.")
    if waiting:
        line = f"{folder}: {len(waiting)} of its {len(names)} trials have not started ({some(waiting, 4)})."
        if unfinished:
            notes.append(line)
        else:
            problems.append(
                f"{line} Finish the sweep with `{command_of(content)}`, or compare it as it is with --unfinished."
            )
    return dropped | set(pruned)


def sweep_command(run: Path) -> str | None:
    """Return the command that continues the sweep of the run; None if the run is not a trial in a sweep file."""
    content = _sweep_of(run)
    if not any(trial["name"] == run.name and trial.get("named", True) for trial in content.get("trials", ())):
        return None
    return command_of(content)


def eval_options(run: Path) -> str:
    """Return the arguments of `rlvr eval RUN` in the sweep of the run, each after a space; empty without a sweep."""
    return "".join(f" {shlex.quote(str(argument))}" for argument in _sweep_of(run).get("eval") or ())


def sweep_evaluation(run: Path) -> str | None:
    """Return the command that evaluates all trials of the run's sweep; None without a sweep, or if it has `eval`."""
    content = _sweep_of(run)
    return command_to_evaluate(content) if content and content.get("eval") is None else None


def index_in_sweep(run: Path) -> int | None:
    """Return the index of the run among its sweep's trials, in the order of the sweep file; None without a sweep."""
    names = [str(trial["name"]) for trial in _sweep_of(run).get("trials", ())]
    return names.index(run.name) if names else None


def _sweep_of(run: Path) -> dict[str, Any]:
    """Return the content of the `trials.json` that contains the run; empty if there is none, or it is damaged."""
    try:
        content = read_trials(run.parent) if is_sweep(run.parent) else {}
    except RunError:
        return {}
    return content if any(trial["name"] == run.name for trial in content.get("trials", ())) else {}
