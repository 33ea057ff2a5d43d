"""A collapse that stops a run (train.on_collapse=stop)."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr_cli.collapse.watch import Collapse
from rlvr_cli.config.batch import BatchArithmetic
from rlvr_cli.core.errors import JointError
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.runs.folder import RunDir


def collapsed(found: Sequence[Collapse], sound: int, run: RunDir, batch: BatchArithmetic) -> JointError:
    """The end of a run by a collapse: what was found, and how to go on.

    Args:
        found: the collapses that began after the same rollout. sound: the last rollout, from 0, from before.
    """
    before = f"from before it began (in rollout {sound + 2})"
    # The policy that sampled the last sound rollout.
    step = sound * batch.steps_per_rollout
    checkpoints = [entry for entry in valid_checkpoints(run.checkpoints_dir) if entry.step <= step]
    again = f"rlvr train -c {run.config_path} run.name=NEW"
    if checkpoints:
        advice = (
            f"The newest checkpoint {before} is {checkpoints[0].path}; to go on from it with other settings: {again} "
            f"model.name={checkpoints[0].path} optimizer.lr=..."
        )
    else:
        advice = (
            f"No checkpoint {before} was kept (checkpoint.every, checkpoint.keep); to start again with other settings: "
            f"{again} optimizer.lr=..."
        )
    return JointError(
        f"rollout {found[0].first + 1}: {'; '.join(map(str, found))}. Stopped, as train.on_collapse=stop says. "
        f"{advice} With train.on_collapse=warn it is only said; `rlvr train --resume` would stop here again."
    )
