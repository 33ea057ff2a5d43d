"""The mean of one arm with its interval, for reading."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlvr_cli.evaluation.metrics import is_share
from rlvr_cli.stats.clustered import CrossedEstimate, crossed_interval


def arm_mean(scores: np.ndarray, metric: str) -> CrossedEstimate:
    """The mean of scores [runs, problems]; a share's interval is cut where no share can be, and covers what it did."""
    estimate = crossed_interval(scores)
    if not is_share(metric) or estimate.low is None or estimate.high is None:
        return estimate
    return replace(estimate, low=max(0.0, estimate.low), high=min(1.0, estimate.high))
