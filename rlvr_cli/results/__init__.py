"""The results of runs: metrics, the records of runs and evaluations, arms, and all of it as data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlvr_cli.results.tables import problems, runs, samples, steps

__all__ = ["problems", "runs", "samples", "steps"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rlvr_cli.results import tables  # when it is first used: other modules import results.metrics alone

    return getattr(tables, name)
