"""What went wrong while a run was training, in words that say what to do."""

from __future__ import annotations

import errno

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.models.sampling.memory import SamplingMemoryError, out_of_memory
from rlvr_cli.runs.folder import RunDir

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


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
