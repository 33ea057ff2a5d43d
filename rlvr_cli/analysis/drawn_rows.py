"""Which completions of a saved rollout an analysis looks at that is to look at so many at most. Imports no torch."""

from __future__ import annotations

import random

from rlvr_cli.analysis.saved_rollout import SavedRollout
from rlvr_cli.core.streams import stream_seed


def drawn_rows(saved: SavedRollout, most: int) -> list[int]:
    """Indices of ``most`` rows in rising order, or of all where there are no more; the same ones at every call."""
    count = len(saved.rows)
    if count <= most:
        return list(range(count))
    stream = random.Random(stream_seed(saved.config.run.seed, "analysis-rows", saved.number))
    return sorted(stream.sample(range(count), most))
