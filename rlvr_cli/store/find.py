"""Load runs by name, path, glob or sweep, and read the sweep of a run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from glob import has_magic
from pathlib import Path
from shlex import quote
from typing import Any

from rlvr_cli.config.load import leaves, load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError, UserError, collect_problems
from rlvr_cli.core.files import is_held, local_path
from rlvr_cli.core.text import did_you_mean, ellipsize
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.listing import find_run_folders, is_run
from rlvr_cli.runs.trials import evaluation_command, is_pruned, is_sweep, read_trials, resume_command
from rlvr_cli.stats.scores import Array
from rlvr_cli.store.evaluation import Evaluation, held_out
from rlvr_cli.store.training import Steps, cumulative_costs, read_steps


@dataclass(frozen=True)
class Run:
    """A run with its configuration and manifest.

    Attributes:
        values: every key of ``config``, by its dotted name.
        argument_index: index of the command-line argument that names the run.
        cached_steps: the records of its steps, if they are in memory.
    """

    dir: RunDir
    config: Config
    values: dict[str, Any]
    manifest: dict[str, Any]
    argument_index: int
    cached_steps: Steps | None = field(default=None, repr=False, compare=False)

    @property
    def path(self) -> str:
        return str(self.dir.path)

    @property
    def seed(self) -> int:
        return self.config.run.seed

    @property
    def steps(self) -> Steps:
        """Return the records of its steps, from disk unless cached. Raises RunError."""
        return self.cached_steps or read_steps(self.dir)

    @cached_property
    def spent(self) -> dict[str, Array]:
        """Return :func:`cumulative_costs`. Raises RunError."""
        finished = self.manifest.get("status") == "finished"
        return cumulative_costs(self.dir, self.steps, self.config.rollout, finished=finished)

    @cached_property
    def held_out(self) -> list[Evaluation]:
        """Return the evaluations during its training. Raises RunError for damaged ones."""
        return held_out(self.dir)


@dataclass(frozen=True)
class RunSelection:
    """Distinct runs in the order of the arguments; those of a folder or a glob sorted by name.

    ``problems``: a line for each unknown name, and each damaged or unfinished run. ``notes``: on trials of sweeps.
    """

    runs: tuple[Run, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def load_runs(names: Sequence[str], root: Path, *, unfinished: bool = False) -> RunSelection:
    """Load every run that ``names`` match.

    A name is resolved in ``root`` first and then as a path: a run, a folder of runs (a sweep), or a glob of either.
    (``runs.folder.find_run`` opens the folder of a single run.)

    Args:
        unfinished: accept unfinished runs.
    """
    problems, notes = list[str](), list[str]()
    sweeps: dict[Path, frozenset[str]] = {}
    runs: dict[Path, Run] = {}
    for index, name in enumerate(names):
        matches: dict[Path, list[Path]] = {}
        with collect_problems(problems):
            matches = _find_folders(name, root)
        for start, folders in matches.items():
            if start not in folders and start.resolve() not in sweeps:
                sweeps[start.resolve()] = _excluded_trials(start, problems, notes, unfinished=unfinished)
            excluded = sweeps.get(start.resolve(), frozenset())
            for folder in folders:
                resolved = folder.resolve()
                if resolved in runs or (folder.parent == start and folder.name in excluded):
                    continue
                with collect_problems(problems):
                    run = runs[resolved] = read_run(folder, index)
                    if not unfinished and run.manifest.get("status") != "finished":
                        problems.append(f"{folder}: {_unfinished_message(run.dir, run.manifest)}")
    return RunSelection(tuple(runs.values()), tuple(problems), tuple(notes))


def _find_folders(name: str, root: Path) -> dict[Path, list[Path]]:
    """Return the folders that a name matches with their runs. Raises UserError for none or several experiments."""
    folders: dict[Path, list[Path]] = {}
    for path in dict.fromkeys((root / name, local_path(name))):
        for match in sorted(_glob(path)) if has_magic(name) else [path]:
            folders |= _runs_of(match)
        if folders:
            return folders
    raise UserError(_unknown_name_message(name, root))


def _glob(pattern: Path) -> list[Path]:
    start = Path(pattern.anchor)
    try:
        # A run that is being created has a hidden folder.
        return [path for path in start.glob(str(pattern.relative_to(start))) if not path.name.startswith(".")]
    except ValueError:  # pathlib rejects patterns such as `a**`
        return []


def _runs_of(folder: Path) -> dict[Path, list[Path]]:
    """Return a folder's runs by folder or sweep. Raises UserError for several sweeps, or a sweep and other runs."""
    if is_run(folder):
        return {folder: [folder]}
    try:
        runs = list(find_run_folders(folder).values())
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
        content = f"the sweep {names[0]}" if len(sweeps) == 1 else f"{len(sweeps)} sweeps ({ellipsize(names, 4)})"
        others = "" if all(run.parent in sweeps for run in runs) else " and other runs"
        raise UserError(
            f"{folder}: holds {content}{others}, which are not one experiment. Name a single one, as {sweeps[0]}."
        )
    return {folder: direct or runs} if runs else {}


def read_run(folder: Path, argument_index: int = 0) -> Run:
    """Read the run in ``folder``. Raises UserError or RunError if it is damaged."""
    run = RunDir(folder)
    if not run.config_path.is_file() or not run.manifest_path.is_file():
        missing = "config.yaml" if run.manifest_path.is_file() else "manifest.json"
        raise UserError(f"{folder}: damaged, it has no {missing}. Leave it out, or train it again with --overwrite.")
    manifest, config = run.read_manifest(), load_config([run.config_path])
    values = {".".join(path): value for path, value in leaves(config)}
    return Run(run, config, values, manifest, argument_index)


def _unfinished_message(run: RunDir, manifest: dict[str, Any]) -> str:
    status = manifest.get("status")
    progress = f"rollout {manifest.get('rollout')} of {manifest.get('rollouts_total')}"
    if status == "running" and is_held(run.path):
        return f"still running ({progress}). Wait for it, leave it out, or compare it as it is with --unfinished."
    state = "killed" if status == "running" else status
    command = sweep_command(run.path) or f"rlvr train --resume {quote(str(run.path))}"
    return (
        f"not finished ({state} at {progress}). Continue it with `{command}`, leave it out, or compare "
        "it as it is with --unfinished."
    )


def _unknown_name_message(name: str, root: Path) -> str:
    if has_magic(name):
        return f"{name}: matches no run in {root}, and no path."
    names: list[str] = []
    with suppress(OSError):
        names = sorted({name.split("/", 1)[0] for name in find_run_folders(root)})
    hint = f" There are: {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}." if names else ""
    return (
        f"{name}: no run, sweep or folder of runs of this name in {root}, and no such path."
        f"{did_you_mean(name, names)}{hint} --runs names another folder of runs."
    )


def _excluded_trials(folder: Path, problems: list[str], notes: list[str], *, unfinished: bool) -> frozenset[str]:
    """Return the trials of a sweep that were pruned or left the sweep file; ``unfinished``: accept those without a run.

    Adds to ``problems`` a damaged file and trials without a run, and to ``notes`` the exclusions.
    """
    content: dict[str, Any] = {"trials": []}
    if is_sweep(folder):
        with collect_problems(problems, RunError):
            content = read_trials(folder)
    names = [str(trial["name"]) for trial in content["trials"] if trial.get("named", True)]
    dropped = {str(trial["name"]) for trial in content["trials"] if not trial.get("named", True)}
    waiting = [name for name in names if not (folder / name / "manifest.json").is_file()]
    if trained := sorted(name for name in dropped if (folder / name / "manifest.json").is_file()):
        notes.append(f"{folder}: left out because the sweep file no longer names them: {ellipsize(trained, 4)}.")
    if pruned := sorted(name for name in names if name not in dropped and is_pruned(folder, name)):
        notes.append(f"{folder}: left out because the search stopped them early: {ellipsize(pruned, 4)}.")
    if waiting:
        line = f"{folder}: {len(waiting)} of its {len(names)} trials have not started ({ellipsize(waiting, 4)})."
        if unfinished:
            notes.append(line)
        else:
            problems.append(
                f"{line} Finish the sweep with `{resume_command(content)}`, or compare it as it is with --unfinished."
            )
    return frozenset(dropped.union(pruned))


def sweep_command(run: Path) -> str | None:
    """Return the command that continues the sweep of the run; None if the run is not a trial in a sweep file."""
    content = _sweep_of(run)
    if not any(trial["name"] == run.name and trial.get("named", True) for trial in content.get("trials", ())):
        return None
    return resume_command(content)


def eval_options(run: Path) -> str:
    """Return the arguments of `rlvr eval RUN` in the sweep of the run, each after a space; empty without a sweep."""
    return "".join(f" {shlex.quote(str(argument))}" for argument in _sweep_of(run).get("eval") or ())


def sweep_evaluation_command(run: Path) -> str | None:
    """Return the command that adds an evaluation of all trials to the run's sweep; None without one, or with `eval`."""
    content = _sweep_of(run)
    return evaluation_command(content) if content and content.get("eval") is None else None


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
