"""What `rlvr methods compare` was asked, checked before torch is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlvr_cli.analysis.saved_rollout import SavedRollout, find_saved_rollout
from rlvr_cli.core.errors import UserError
from rlvr_cli.methods.method import Method
from rlvr_cli.report.named_methods import replayed_configs
from rlvr_cli.results.figure import check_path


@dataclass(frozen=True)
class CompareRequest:
    """Two methods, a rollout with its policies, how many tokens to list, and the picture's file if one is wanted."""

    first: Method
    second: Method
    saved: SavedRollout
    top: int
    figure: Path | None


def compare_request(
    first: str,
    second: str,
    run: str,
    root: Path,
    *,
    rollout: int | None = None,
    step: int | None = None,
    top: int = 10,
    figure: Path | None = None,
) -> CompareRequest:
    """The request of a command line.

    Raises:
        UserError: an unknown method, one that draws what cannot be drawn again, a number out of its range, a file that
            cannot be, and all that `find_saved_rollout` raises.
    """
    configs = replayed_configs([first, second])
    if top < 0:
        raise UserError(f"--top {top}: must be 0 or more.")
    if rollout is not None and rollout < 0:
        raise UserError(f"--rollout {rollout}: rollouts count from 0.")
    if figure is not None:
        check_path(figure)
    saved = find_saved_rollout(run, root, rollout=rollout, step=step)
    return CompareRequest(configs[0], configs[1], saved, top, figure)
