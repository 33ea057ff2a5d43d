"""Means of arms and their differences with intervals, for reading."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from rlvr_cli.results.metrics import metric as declared
from rlvr_cli.stats.clustered import CrossedEstimate, crossed_interval


def arm_mean(scores: np.ndarray, metric: str) -> CrossedEstimate:
    """The mean of scores [runs, problems]; the interval is cut where no mean can be, and covers what it did."""
    return possible_mean(crossed_interval(scores), metric)


def possible_mean(mean: CrossedEstimate, metric: str) -> CrossedEstimate:
    """A mean whose interval is cut where no mean can be: of shares at 0 and 1, of lengths at 0."""
    return _cut(mean, 0.0 if declared(metric).share or metric == "length" else -inf, _highest(metric))


def possible(difference: CrossedEstimate, metric: str) -> CrossedEstimate:
    """A difference of two means whose interval is cut where no difference can be: of shares, at -1 and 1."""
    return _cut(difference, -_highest(metric), _highest(metric))


def _highest(metric: str) -> float:
    return 1.0 if declared(metric).share else inf


def _cut(estimate: CrossedEstimate, lowest: float, highest: float) -> CrossedEstimate:
    if estimate.low is None or estimate.high is None:
        return estimate
    return replace(estimate, low=max(lowest, estimate.low), high=min(highest, estimate.high))
