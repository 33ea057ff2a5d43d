"""Extend a run: `rlvr train --resume RUN train.rollouts=N`."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr_cli.config.load import LoadedConfig, dump_yaml, load, load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import write_text
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.launch.checks import EXTENDING, check_resumable
from rlvr_cli.runs.folder import SUBMITTED, RunDir, now

KEY = "train.rollouts"


def load_extended(run: RunDir, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Load the configuration of ``run`` with ``overrides``, and with an extension that was interrupted."""
    return load([run.config_path], overrides=[*_interrupted(run), *overrides], import_files=True, from_start=True)


def check_extension(run: RunDir, overrides: Sequence[str] = ()) -> None:
    """Raise UserError if ``run`` cannot be resumed with ``overrides``, which may only increase `train.rollouts`."""
    others = [text for text in overrides if text.partition("=")[0] != KEY]
    if others:
        raise UserError(
            f"{', '.join(others)}: --resume can change only {KEY}, to extend the run. Start a new run to change "
            "another setting."
        )
    old, new = (load_config([run.config_path], overrides=[*_interrupted(run), *more]) for more in ((), overrides))
    before, after = old.train.rollouts, new.train.rollouts
    if after < before:
        raise UserError(f"{KEY} must be at least {before}, the rollouts of {run.path}; got {after}.")
    check_resumable(run, finished=after > before)
    if after > before and run.read_manifest().get("status") == SUBMITTED:
        raise UserError(f"{run.path}: has not started. Cancel its job and submit it again with {KEY}={after}.")


def extend(run: RunDir, overrides: Sequence[str] = ()) -> list[str]:
    """Write ``overrides`` and an interrupted extension to the locked run; return lines for the user."""
    check_extension(run, overrides)
    manifest, interrupted = run.read_manifest(), _interrupted(run)
    before = load_config([run.config_path], overrides=interrupted, import_files=True)
    after = load_config([run.config_path], overrides=[*interrupted, *overrides], import_files=True)
    old, new = before.train.rollouts, after.train.rollouts
    if new == old and not interrupted:
        return []
    text = dump_yaml(after)
    if new > old:
        entry = {"from": old, "to": new, "step": manifest["step"], "time": now()}
        extension = {"rollouts": new, "config_sha256": text_digest(text)}
        run.update_manifest(**{EXTENDING: extension, "extended": [*manifest.get("extended", []), entry]})
    write_text(run.config_path, text)
    run.update_manifest(
        status="interrupted",
        rollouts_total=new,
        steps_total=after.batch.steps_total,
        config_sha256=text_digest(text),
        **{EXTENDING: None},
    )
    if new == old:
        return []
    return [f"{run.path}: extended from {old} to {new} rollouts", *_schedule_note(before, after, manifest["step"])]


def _interrupted(run: RunDir) -> list[str]:
    extension = run.read_manifest().get(EXTENDING)
    return [f"{KEY}={extension['rollouts']}"] if isinstance(extension, dict) else []


def _schedule_note(before: Config, after: Config, step: int) -> list[str]:
    """Return a note if the schedule differs from that of a run with the new length from the start."""
    schedule = after.optimizer.lr_schedule
    if schedule == "constant":
        return []
    old, new = (config.learning_rate.factor(step) for config in (before, after))
    rollouts = after.train.rollouts
    return [
        f"optimizer.lr_schedule={schedule}: now the schedule of {rollouts} rollouts. The learning rate changes from "
        f"{old:.3g} to {new:.3g} of its peak, and the result differs from that of a run with {rollouts} rollouts from "
        "the start."
    ]
