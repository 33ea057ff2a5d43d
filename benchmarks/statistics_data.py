"""Simulated comparisons whose true difference is known: seeds x problems x samples with every source of noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from rlvr_cli.stats.scores import Array

DIFFICULTY = 1.5
RUN_BY_PROBLEM = 0.5
_CELLS = 1_000_000


@dataclass(frozen=True)
class Kind:
    """What problems and samples are like.

    ``interaction``: standard deviation, in logits, of what a method does to a problem, in every run alike.
    ``samples``: how many a problem, run and arm. ``shared``: correlation of the run effects of arms of one seed.
    ``family``: how many problems in a row share the interaction, as variants of one template do.
    """

    name: str
    interaction: float
    samples: int
    shared: float
    family: int = 1


KINDS = (
    Kind("methods differ by problem, 8 samples", 0.5, 8, 0.0),
    Kind("methods differ much by problem, 32 samples", 1.0, 32, 0.5),
    Kind("methods alike, 4 samples", 0.2, 4, 0.5),
    Kind("methods equal, 1 sample", 0.0, 1, 0.0),
)


def simulated(
    kind: Kind,
    seeds: int,
    problems: int,
    run_sd: float,
    shifts: tuple[float, ...],
    tables: int,
    seed: int = 0,
    centre: float = 0.0,
) -> Iterator[list[Array]]:
    """Chunks of score tables [chunk, S, P] of ``tables`` comparisons, one array an arm.

    A sample is right with probability sigmoid(difficulty[p] + shift + run[s] + interaction[p] + noise[s, p]); the
    difficulty is normal of mean ``centre`` and standard deviation ``DIFFICULTY``, all else as in ``kind``; ``run_sd``
    is the standard deviation of a run's mean score. A score is the mean over samples.
    """
    generator = np.random.default_rng([seed, seeds, problems, int(run_sd * 1000), kind.samples])
    effect = _run_logits(kind, run_sd, centre)
    left = tables
    while left > 0:
        n = min(left, max(1, _CELLS // (seeds * problems)))
        left -= n
        difficulty = generator.normal(centre, DIFFICULTY, (n, 1, problems))
        common = generator.normal(size=(n, seeds, 1))
        arms = []
        for shift in shifts:
            own = generator.normal(size=(n, seeds, 1))
            logits = difficulty + shift + effect * (np.sqrt(kind.shared) * common + np.sqrt(1 - kind.shared) * own)
            interaction = generator.normal(size=(n, 1, problems // kind.family)).repeat(kind.family, axis=-1)
            logits = logits + kind.interaction * interaction
            logits = logits + RUN_BY_PROBLEM * generator.normal(size=(n, seeds, problems))
            arms.append(generator.binomial(kind.samples, 1 / (1 + np.exp(-logits))) / kind.samples)
        yield arms


def true_mean(kind: Kind, run_sd: float, shift: float, centre: float = 0.0) -> float:
    """The mean score over all runs and problems, by Gauss-Hermite quadrature over the sum of all normal effects."""
    spread = np.hypot(_spread(kind), _run_logits(kind, run_sd, centre))
    return _expected(lambda logit: 1 / (1 + np.exp(-logit)), centre + shift, float(spread))


def _run_logits(kind: Kind, run_sd: float, centre: float) -> float:
    """The run effect in logits that moves the mean score by ``run_sd``."""

    def slope(logit: Array) -> Array:
        right: Array = 1 / (1 + np.exp(-logit))
        return right * (1 - right)

    return run_sd / _expected(slope, centre, _spread(kind))


def _spread(kind: Kind) -> float:
    return float(np.sqrt(DIFFICULTY**2 + kind.interaction**2 + RUN_BY_PROBLEM**2))


def _expected(function: Callable[[Array], Array], centre: float, spread: float) -> float:
    nodes, weights = np.polynomial.hermite_e.hermegauss(81)
    return float((weights * function(centre + spread * nodes)).sum() / weights.sum())
