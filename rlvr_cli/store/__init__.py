"""What runs have left on disk: their records, evaluations, arms and metrics, and all of it as data frames.

    from rlvr_cli import store

    runs = store.runs("kk-lopti*", "kk-grpo*")                     # a row for each run
    final = store.last(store.evaluations(runs))                    # its evaluations by `rlvr eval`, of the last step
    store.problems(final).groupby(["arm", "seed"])["avg@4"].mean()

Records are read as the commands read them: what was altered is refused. Raises UserError for a name that stands for no
run, RunError for records that are damaged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlvr_cli.store.frames import arms, evaluations, last, problems, runs, samples, steps

__all__ = ["arms", "evaluations", "last", "problems", "runs", "samples", "steps"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rlvr_cli.store import frames  # pandas is imported only where a frame is asked for

    return getattr(frames, name)
