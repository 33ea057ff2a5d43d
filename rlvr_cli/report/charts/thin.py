"""Fewer points than a screen has columns, with every peak and trough kept."""

from __future__ import annotations

import numpy as np

# A chart is some 400 columns wide; two points each for the least and the greatest in a stretch of two columns.
STRETCHES = 200


def kept(*heights: np.ndarray) -> np.ndarray:
    """Indices of the points to draw, all where they are few.

    The points are cut into 200 stretches of equally many; of each, the first, the last, and the least and the greatest
    of every one of ``heights`` are kept. What is NaN is neither.
    """
    count = len(heights[0])
    if count <= 4 * STRETCHES:
        return np.arange(count)
    chosen: set[int] = set()
    for part in np.array_split(np.arange(count), STRETCHES):
        chosen |= {int(part[0]), int(part[-1])}
        for values in heights:
            piece = values[part]
            if np.isfinite(piece).any():
                chosen |= {int(part[np.nanargmin(piece)]), int(part[np.nanargmax(piece)])}
    return np.array(sorted(chosen))
