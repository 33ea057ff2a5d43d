"""More rollouts for a run that has begun: `rlvr train --resume RUN train.rollouts=N`."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr_cli.config.batch import learning_rate_factor
from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import write_text
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.runs.folder import SUBMITTED, RunDir, now

KEY = "train.rollouts"
# In the manifest while the configuration is being replaced: a kill in between loses nothing.
PENDING = "extending_to"


def extend(run: RunDir, overrides: Sequence[str]) -> list[str]:
    """Write ``overrides``, which may set `train.rollouts` alone, into the run's configuration; returns what to say.

    The run is then as one that was stopped where it ended. Raises UserError where another key is named, the run was
    submitted and has not begun, is in use or cannot be resumed, or would get shorter.
    """
    finish_extension(run)
    others = [text for text in overrides if text.partition("=")[0] != KEY]
    if others:
        raise UserError(
            f"{', '.join(others)}: a run keeps its configuration; with --resume only {KEY} can change, to extend it. "
            "To change another setting, start a new run."
        )
    from rlvr_cli.launch.checks import check_resumable

    before = load_config([run.config_path], import_files=True)
    after = load_config([run.config_path], overrides=overrides, import_files=True)
    old, new = before.train.rollouts, after.train.rollouts
    with run.lock():
        manifest = run.read_manifest()
        if new < old:
            raise UserError(f"{KEY}={new}: {run.path} has {old} rollouts; a run can be extended, not shortened.")
        check_resumable(run, finished=new > old)
        if manifest.get("status") == SUBMITTED:
            raise UserError(f"{run.path}: has not started yet. Cancel its job and submit it again with {KEY}={new}.")
        if new == old:
            return []
        extended = [*manifest.get("extended", []), {"from": old, "to": new, "step": manifest["step"], "time": now()}]
        run.update_manifest(**{PENDING: new, "extended": extended})
        _write(run, after)
    return [f"{run.path}: extended from {old} to {new} rollouts", *_changes(before, after, manifest["step"])]


def finish_extension(run: RunDir) -> None:
    """Carry out an extension that a kill cut off."""
    if run.read_manifest().get(PENDING) is None:
        return
    with run.lock():
        pending = run.read_manifest().get(PENDING)
        if pending is not None:
            _write(run, load_config([run.config_path], overrides=[f"{KEY}={pending}"], import_files=True))


def _write(run: RunDir, config: Config) -> None:
    text = dump_yaml(config)
    write_text(run.config_path, text)
    run.update_manifest(
        status="interrupted",
        rollouts_total=config.train.rollouts,
        steps_total=config.batch.steps_total,
        config_sha256=text_digest(text),
        **{PENDING: None},
    )


def _changes(before: Config, after: Config, step: int) -> list[str]:
    """What is different from a run that had as many rollouts from the start."""
    optimizer = after.optimizer
    if optimizer.lr_schedule == "constant":
        return []
    old, new = (learning_rate_factor(config.optimizer, config.batch, step) for config in (before, after))
    rollouts = after.train.rollouts
    return [
        f"optimizer.lr_schedule={optimizer.lr_schedule}: the learning rate goes on as in a run of {rollouts} rollouts, "
        f"from {new:.3g} of its peak; that of {before.train.rollouts} rollouts, used so far, is at {old:.3g}. The "
        f"result is not that of a run with {rollouts} rollouts from the start."
    ]
