"""Resolve the target of `rlvr eval`: a run, a checkpoint or a model. Imports no torch."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.text import count, did_you_mean, ellipsize
from rlvr_cli.models.source import PRESETS, prompt_style, resolve_model
from rlvr_cli.runs.checkpoints import STEP, Checkpoint, Damaged, check_intact, scan_checkpoints
from rlvr_cli.runs.folder import RunDir, match_run, newest_run
from rlvr_cli.runs.listing import find_run_folders
from rlvr_cli.runs.trials import evaluation_command, is_sweep, read_trials

# Names of runs that a message shows.
SHOWN = 6


@dataclass(frozen=True)
class EvaluatedModel:
    """A model to evaluate.

    Attributes:
        label: its name in tables. model: the folder, preset, hub id or served name that loads it.
        stem, root: a component of the names of its evaluations' folders, and the folder that holds them.
        style: the prompt style that it was trained on; None for a hub model until it is loaded.
        local: ``model`` is a folder, a preset or a hub id; otherwise only a server knows the name.
        step, base: of a run's checkpoint, and the model before training; None for other models.
    """

    label: str
    model: str
    stem: str
    root: Path
    style: str | None
    local: bool = True
    step: int | None = None
    base: str | None = None


# `base:RUN` is the run's model before training; `--against base` is that of the evaluated run.
BASE = "base"


@dataclass(frozen=True)
class Target:
    """The models that a name resolves to, the newest checkpoint first, their run if any, and notes for the user."""

    subjects: tuple[EvaluatedModel, ...]
    run: RunDir | None
    notes: tuple[str, ...] = ()


def find_target(name: str | None, runs_root: Path, *, checkpoints: int = 1, revision: str | None = None) -> Target:
    """Resolve ``name`` to a run, checkpoint or model; None to the newest run in ``runs_root``.

    A name is tried as a preset, a run in ``runs_root``, a path of a run, a checkpoint or a model folder, and a hub id,
    in this order. Of a run the newest ``checkpoints`` valid checkpoints are returned, of ``base:RUN`` the model before
    training.
    Raises UserError for an unknown name, a sweep, and a run with fewer valid checkpoints.
    """
    if name is None:
        newest = newest_run(runs_root)
        if newest is None:
            raise UserError(
                f"there is no run in {runs_root} to evaluate. `rlvr train` creates one; `rlvr eval lab` evaluates the "
                "untrained lab model."
            )
        return _run_target(newest, checkpoints)
    if name.startswith(f"{BASE}:") and (run := find_source_run(name, runs_root)) is not None:
        base = load_config([run.config_path], from_start=True).model
        return find_target(base.name, runs_root, checkpoints=checkpoints, revision=base.revision)
    if name not in PRESETS:
        run = match_run(name, runs_root)
        if run is not None:
            return _run_target(run, checkpoints)
        path = local_path(name)
        if (run := _run_of_checkpoint(path)) is not None:
            _check_average(name, "a checkpoint", checkpoints)
            check_intact(path)
            return Target((_checkpoint_subject(Checkpoint(int(path.name.removeprefix("step-")), path), run),), run)
        sweep = runs_root / name.partition("/")[0]
        for folder in (runs_root / name, path, *([sweep] if name.count("/") == 1 and not path.exists() else [])):
            if is_sweep(folder):
                raise UserError(_sweep_message(name, folder))
    _check_average(name, "a model", checkpoints)
    try:
        source = resolve_model(name, revision=revision)
    except UserError as error:
        runs = list(find_run_folders(runs_root)) if runs_root.is_dir() else []
        close = difflib.get_close_matches(name, runs, len(runs), 0) if runs else []
        hint = (
            f"Runs in {runs_root}: {ellipsize(close, SHOWN)}."
            if runs
            else f"There is no run in {runs_root.absolute()}."
        )
        *others, last = error.problems
        raise UserError([*others, f"{last} {name!r} is not a run either.{did_you_mean(name, runs)} {hint}"]) from error
    weights = None if source.kind == "hub" else Path(source.location)
    label = Path(source.location).name if source.kind == "folder" else name
    return Target((EvaluatedModel(label, name, slug(label), runs_root / "evals", _style(weights)),), None)


def _sweep_message(name: str, folder: Path) -> str:
    content, base = read_trials(folder), Path(name).name
    trials = [f"{folder}/{trial['name']}" for trial in content["trials"]]
    problem, guess = "is a sweep, not a run", ""
    if folder.name != base:
        problem, guess = f"no run of this name in the sweep {folder}", did_you_mean(f"{folder}/{base}", trials)
    every = f"`{evaluation_command(content)}` evaluates all"
    return (
        f"{name}: {problem}.{guess} Name one of its {count(len(trials), 'trial')}: {ellipsize(trials, SHOWN)}; {every}."
    )


def find_source_run(name: str, runs_root: Path) -> RunDir | None:
    """Return the run that ``name`` is, or is a checkpoint or base of, whose settings are the default; else None."""
    name = name.removeprefix(f"{BASE}:")
    return None if name in PRESETS else match_run(name, runs_root) or _run_of_checkpoint(local_path(name))


def _run_of_checkpoint(path: Path) -> RunDir | None:
    run = RunDir(path.parent.parent)
    return run if STEP.fullmatch(path.name) and run.config_path.is_file() else None


def served_target(name: str, runs_root: Path) -> Target:
    """Return a server's model as the target; a folder ``name`` with only a tokenizer still formats prompts."""
    folder = local_path(name)
    local = any((folder / file).is_file() for file in ("tokenizer.json", "tokenizer.model", "vocab.json"))
    label, style = (folder.name, _style(folder)) if local else (name, None)
    return Target((EvaluatedModel(label, name, slug(label), runs_root / "evals", style, local),), None)


def _run_target(run: RunDir, count: int) -> Target:
    checkpoints = scan_checkpoints(run.checkpoints_dir, hashed=count)
    valid = [entry for entry in checkpoints if isinstance(entry, Checkpoint)]
    damaged = [entry for entry in checkpoints if isinstance(entry, Damaged)]
    notes = tuple(f"checkpoint {entry.path} skipped: {entry.reason}" for entry in damaged)
    if not valid:
        saved = run.read_manifest().get("step")
        if saved and not damaged:
            raise UserError(
                f"{run.checkpoints_dir}: holds no checkpoint, and the run was saved at step {saved}: they were "
                "removed, or their disk is missing. Put them back, or name a model's folder."
            )
        reason = "; ".join(f"{entry.path.name}: {entry.reason}" for entry in damaged) or "none was written yet"
        raise UserError(
            f"{run.path}: this run has no checkpoint that can be used ({reason}). Continue it with "
            f"`rlvr train --resume {run.path}`."
        )
    if len(valid) < count:
        raise UserError(
            f"{run.path}: --average-last {count} needs {count} checkpoints; this run has {len(valid)} "
            f"(steps {', '.join(str(entry.step) for entry in reversed(valid))}). checkpoint.keep sets how many a run "
            "keeps."
        )
    return Target(tuple(_checkpoint_subject(entry, run) for entry in valid[:count]), run, notes)


def _checkpoint_subject(checkpoint: Checkpoint, run: RunDir) -> EvaluatedModel:
    label = f"{run.path.resolve().name} step {checkpoint.step}"
    stem, style = f"step-{checkpoint.step}", _style(checkpoint.path)
    base = load_config([run.config_path]).model.name
    return EvaluatedModel(label, str(checkpoint.path), stem, run.eval_dir, style, step=checkpoint.step, base=base)


def _check_average(name: str, kind: str, checkpoints: int) -> None:
    if checkpoints > 1:
        raise UserError(f"--average-last {checkpoints}: {name} is {kind}; only a run has checkpoints to average.")


def _style(folder: Path | None) -> str | None:
    if folder is None or not (folder / "config.json").is_file():
        return None
    return prompt_style(json.loads((folder / "config.json").read_text(encoding="utf-8")))


def slug(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name).strip("-.") or "model"
