"""What `rlvr eval` was told to evaluate: a run, a checkpoint or a model. Imports no torch."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.text import count, did_you_mean, some
from rlvr_cli.models.source import PRESETS, prompt_style, resolve_model
from rlvr_cli.runs.checkpoints import STEP, Checkpoint, Damaged, check_intact, scan_checkpoints
from rlvr_cli.runs.folder import RunDir, newest_run, open_run
from rlvr_cli.runs.listing import find_run_folders
from rlvr_cli.runs.trials import evaluation_command, is_sweep, read_trials

# Names of runs that a message shows.
SHOWN = 6


@dataclass(frozen=True)
class EvaluatedModel:
    """One model to evaluate.

    ``label`` names it to the reader, ``model`` is what loads it (a folder, a preset or a hub id), ``stem`` and ``root``
    say where its evaluations are kept. ``step`` and ``base``: of a run's checkpoint, and the model that the run began
    from; None of other models. ``style`` is the prompt style it was made for; None until it is loaded, for a model of
    the hub. ``known``: there is such a folder, or may be such a hub id; else ``model`` is a server's word.
    """

    label: str
    model: str
    stem: str
    root: Path
    style: str | None
    known: bool = True
    step: int | None = None
    base: str | None = None


# Before a run's name: the model that the run began from. As --against alone, that of the evaluated run.
BASE = "base"


@dataclass(frozen=True)
class Target:
    """What a name stands for: subjects (newest checkpoint first), their run if they have one, and remarks."""

    subjects: tuple[EvaluatedModel, ...]
    run: RunDir | None
    notes: tuple[str, ...] = ()


def find_target(name: str | None, runs_root: Path, *, checkpoints: int = 1, revision: str | None = None) -> Target:
    """The run, checkpoint or model that ``name`` stands for; None is the newest run under ``runs_root``.

    A name is tried as a preset, a run in ``runs_root``, a path to a run, to a checkpoint or to a model folder, and a
    hub id, in this order; a sweep is refused with its trials. A run gives its newest valid ``checkpoints`` checkpoints,
    ``base:RUN`` the model that the run began from.
    Raises UserError when nothing fits, or fewer checkpoints than that are valid.
    """
    if name is None:
        newest = newest_run(runs_root)
        if newest is None:
            raise UserError(
                f"there is no run in {runs_root} to evaluate. `rlvr train` makes one; `rlvr eval lab` evaluates the "
                "untrained lab model."
            )
        return _run_target(newest, checkpoints)
    if name.startswith(f"{BASE}:") and (run := find_run_of(name, runs_root)) is not None:
        base = load_config([run.config_path], from_start=True).model
        return find_target(base.name, runs_root, checkpoints=checkpoints, revision=base.revision)
    if name not in PRESETS:
        run = _named_run(name, runs_root)
        if run is not None:
            return _run_target(run, checkpoints)
        path = local_path(name)
        # A checkpoint that was copied out of its run is a model folder like any other.
        if STEP.fullmatch(path.name) and (path.parent.parent / "config.yaml").is_file():
            _only_one(name, "a checkpoint", checkpoints)
            return _checkpoint_target(path)
        sweep = runs_root / name.partition("/")[0]
        for place in (runs_root / name, path, *([sweep] if name.count("/") == 1 and not path.exists() else [])):
            if is_sweep(place):
                raise UserError(_names_a_sweep(name, place))
    _only_one(name, "a model", checkpoints)
    try:
        source = resolve_model(name, revision=revision)
    except UserError as error:
        known = list(find_run_folders(runs_root)) if runs_root.is_dir() else []
        near = difflib.get_close_matches(name, known, len(known), 0) if known else []
        hint = f"Runs in {runs_root}: {some(near, SHOWN)}." if known else f"There is no run in {runs_root.absolute()}."
        guess = did_you_mean(name, known)
        *others, last = error.problems
        raise UserError([*others, f"{last} {name!r} is not a run either.{guess} {hint}"]) from error
    weights = None if source.kind == "hub" else Path(source.location)
    label = Path(source.location).name if source.kind == "folder" else name
    return Target((EvaluatedModel(label, name, slug(label), runs_root / "evals", _style(weights)),), None)


def _names_a_sweep(name: str, folder: Path) -> str:
    """Return the error message for the name of a sweep, or of no trial of it, where a run is asked for."""
    content = read_trials(folder)
    trials = [f"{folder}/{trial['name']}" for trial in content["trials"]]
    what = "is a sweep, not a run" if folder.name == Path(name).name else f"no run of this name in the sweep {folder}"
    guess = did_you_mean(f"{folder}/{Path(name).name}", trials) if folder.name != Path(name).name else ""
    every = f"`{evaluation_command(content)}` evaluates all"
    return f"{name}: {what}.{guess} Name one of its {count(len(trials), 'trial')}: {some(trials, SHOWN)}; {every}."


def find_run_of(name: str, runs_root: Path) -> RunDir | None:
    """Return the run that ``name`` stands for, or whose checkpoint or base (``base:RUN``) it is; None of other models.

    `rlvr eval` takes its default settings from this run.
    """
    name = name.removeprefix(f"{BASE}:")
    if name in PRESETS:
        return None
    path = local_path(name)
    inside = STEP.fullmatch(path.name) and (path.parent.parent / "config.yaml").is_file()
    return _named_run(name, runs_root) or (RunDir(path.parent.parent) if inside else None)


def served_target(name: str, runs_root: Path) -> Target:
    """What a server is asked for under a name that ``find_target`` does not take as a model of this machine.

    A folder with a tokenizer and no weights is enough to write prompts; any other name is the server's own.
    """
    folder = local_path(name)
    known = any((folder / part).is_file() for part in ("tokenizer.json", "tokenizer.model", "vocab.json"))
    style = _style(folder) if known and (folder / "config.json").is_file() else None
    label = folder.name if known else name
    return Target((EvaluatedModel(label, name, slug(label), runs_root / "evals", style, known),), None)


def _named_run(name: str, runs_root: Path) -> RunDir | None:
    for path in (runs_root / name, local_path(name)):
        # A model folder may have a file of that name too.
        if (path / "manifest.json").exists() and not (path / "config.json").exists():
            return open_run(path)
    return None


def _run_target(run: RunDir, count: int) -> Target:
    found = scan_checkpoints(run.checkpoints_dir, hashed=count)
    valid = [entry for entry in found if isinstance(entry, Checkpoint)]
    damaged = [entry for entry in found if isinstance(entry, Damaged)]
    notes = tuple(f"checkpoint {entry.path} skipped: {entry.reason}" for entry in damaged)
    if not valid:
        saved = run.read_manifest().get("step")
        if saved and not damaged:
            raise UserError(
                f"{run.checkpoints_dir}: holds no checkpoint, and the run was saved at step {saved}: they were "
                "removed, or their disk is missing. Put them back, or name a model's folder."
            )
        why = "; ".join(f"{entry.path.name}: {entry.reason}" for entry in damaged) or "none was written yet"
        raise UserError(
            f"{run.path}: this run has no checkpoint that can be used ({why}). Continue it with "
            f"`rlvr train --resume {run.path}`."
        )
    if len(valid) < count:
        raise UserError(
            f"{run.path}: --average-last {count} needs {count} checkpoints; this run has {len(valid)} "
            f"(steps {', '.join(str(entry.step) for entry in reversed(valid))}). checkpoint.keep says how many a run "
            "keeps."
        )
    return Target(tuple(_checkpoint_subject(entry, run) for entry in valid[:count]), run, notes)


def _checkpoint_target(path: Path) -> Target:
    check_intact(path)
    run = RunDir(path.parent.parent)
    return Target((_checkpoint_subject(Checkpoint(int(path.name.removeprefix("step-")), path), run),), run)


def _checkpoint_subject(checkpoint: Checkpoint, run: RunDir) -> EvaluatedModel:
    label = f"{run.path.resolve().name} step {checkpoint.step}"
    stem, style = f"step-{checkpoint.step}", _style(checkpoint.path)
    base = load_config([run.config_path]).model.name
    return EvaluatedModel(label, str(checkpoint.path), stem, run.eval_dir, style, step=checkpoint.step, base=base)


def _only_one(name: str, kind: str, checkpoints: int) -> None:
    if checkpoints > 1:
        raise UserError(f"--average-last {checkpoints}: {name} is {kind}; only a run has checkpoints to average.")


def _style(folder: Path | None) -> str | None:
    if folder is None or not (folder / "config.json").is_file():
        return None
    return prompt_style(json.loads((folder / "config.json").read_text(encoding="utf-8")))


def slug(name: str) -> str:
    """A name as a part of a folder's name."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name).strip("-.") or "model"
