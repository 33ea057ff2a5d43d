"""What went wrong while a run was training, in words that say what to do."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from rlvr_cli.analysis.collapse import Collapse
from rlvr_cli.config.batch import BatchArithmetic
from rlvr_cli.config.errors import RunError, UserError
from rlvr_cli.models.room import SamplingMemoryError, out_of_memory
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.runs.directory import RunDir

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def explain(error: Exception, run: RunDir, again: str) -> Exception:
    """``error`` as the user shall see it; ``again`` says how to continue. A bug of ours is returned as it is."""
    if isinstance(error, SamplingMemoryError):
        return RunError(
            f"{run.path}: {error} Settings are those of a new run; if something else took the memory, {again}"
        )
    if isinstance(error, RunError):
        return error
    if isinstance(error, UserError):
        return RunError("\n".join([*error.problems, again]))
    if out_of_memory(error):
        return RunError(
            f"{run.path}: out of memory ({_first_line(error)}). Make update.micro_batch, rollout.max_new_tokens or "
            "rollout.prompts smaller in a new run."
        )
    if isinstance(error, OSError):
        advice = "Make room, or see whether the disk can be written to; then " if error.errno in NO_ROOM else "Then "
        where = error.filename or run.path
        return RunError(f"{where}: {error.strerror or error}. {advice}{again}")
    return error


def collapsed(found: Sequence[Collapse], run: RunDir, batch: BatchArithmetic, window: int) -> RunError:
    """The end of a run with ``train.on_collapse=stop``: what was found, and how to go on.

    Args:
        found: the collapses that began after the same rollout.
        window: rollouts over which a collapse shows before it is found.
    """
    rollout = found[0].first
    healthy = max(0, rollout + 1 - window)
    sound = [
        entry for entry in valid_checkpoints(run.checkpoints_dir) if entry.step <= healthy * batch.steps_per_rollout
    ]
    again = f"rlvr train -c {run.config_path} run.name=NEW"
    if sound:
        advice = (
            f"The newest checkpoint from before these {window} rollouts is {sound[0].path}; to go on from it with "
            f"other settings: {again} model.name={sound[0].path} optimizer.lr=..."
        )
    else:
        advice = (
            f"No checkpoint from before these {window} rollouts was kept (checkpoint.every, checkpoint.keep); to start "
            f"again with other settings: {again} optimizer.lr=..."
        )
    return RunError(
        f"rollout {rollout + 1}: {'; '.join(map(str, found))}. Stopped, as train.on_collapse=stop says. {advice} "
        "With train.on_collapse=warn it is only said; `rlvr train --resume` would stop here again."
    )


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
