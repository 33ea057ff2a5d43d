"""The records of runs on disk: runs, arms, steps, evaluations and metrics, also as data frames.

    from rlvr_cli import store

    runs = store.runs("kk-lopti*", "kk-grpo*")                     # one row per run
    final = store.last(store.evaluations(runs))                    # evaluations by `rlvr eval` of the last step
    store.problems(final).groupby(["arm", "seed"])["avg@4"].mean()

Records are verified as by the commands. Raises UserError for a name that matches no run, RunError for damaged records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlvr_cli.store.frames import arms, evaluations, last, problems, runs, samples, steps

__all__ = ["arms", "evaluations", "last", "problems", "runs", "samples", "steps"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rlvr_cli.store import frames  # import pandas only when a frame is requested

    return getattr(frames, name)
