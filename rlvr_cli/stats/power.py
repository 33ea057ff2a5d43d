"""Power analysis: seeds and problems required to detect a difference, from estimated variance components.

The test is that of ``clustered``, p < alpha with Cochran's p. Given the run term of the estimated variance, chi-square
with S - 1 degrees of freedom, the mean difference is normal; power is the average over that term:

    power = E_u[ P(|N(difference, V)| > h(u)) ],   V = run / S + problem / P + residual / (S P)
    h(u)^2 = t(S-1)^2 (run / S + residual / (S P)) u / (S-1) + t(P-1)^2 problem / P,   u ~ chi-square(S-1)

The problem term is assumed known, nearly true with hundreds of problems. Without pairing the run term is the sum of two
with independent u and equal variances, and t has Welch's degrees of freedom (``clustered.crossed_difference``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from rlvr_cli.stats.clustered import VarianceComponents
from rlvr_cli.stats.scores import Array

# Quadrature nodes for one u, and for each of two.
_NODES, _NODES_OF_TWO = 200, 48
_MOST = 10**9


@dataclass(frozen=True)
class PlannedTest:
    """A test of a difference with known variance ``components`` (of the differences) and target ``power``.

    Raises ValueError for arguments out of range, here and in the methods.
    """

    components: VarianceComponents
    paired: bool = True
    alpha: float = 0.05
    power: float = 0.8

    def __post_init__(self) -> None:
        variances = (self.components.run, self.components.problem, self.components.residual)
        if not all(math.isfinite(variance) and variance >= 0.0 for variance in variances):
            raise ValueError(f"variances must be 0 or more; got {variances}")
        if not 0.0 < self.alpha < 1.0:
            raise ValueError(f"alpha must be between 0 and 1; got {self.alpha}")
        if not self.alpha < self.power < 1.0:
            raise ValueError(f"power must be between alpha={self.alpha} and 1; got {self.power}")

    def power_at(self, difference: float, seeds: float, problems: float) -> float:
        """Return the probability of p < ``alpha`` if the true mean difference is ``difference``.

        ``seeds`` (per arm) and ``problems`` are at least 2; one of them may be infinite.
        """
        if not math.isfinite(difference) or difference == 0.0:
            raise ValueError(f"the difference must be finite and not 0; got {difference}")
        if not (seeds >= 2 and problems >= 2):
            raise ValueError(f"seeds and problems must be at least 2; got {seeds} and {problems}")
        from scipy.special import ndtr, stdtrit

        run_term = self.components.run / seeds + self.components.residual / (seeds * problems)
        problem_term = self.components.problem / problems
        deviation = math.sqrt(run_term + problem_term)
        if deviation == 0.0:
            return 1.0
        ratio, degrees, weights = _run_term_nodes(seeds, paired=self.paired)
        of_runs, of_problems = (stdtrit(f, 1 - self.alpha / 2) ** 2 for f in (degrees, problems - 1))
        reach = np.sqrt(of_runs * run_term * ratio + of_problems * problem_term)
        above, below = ndtr((difference - reach) / deviation), ndtr((-difference - reach) / deviation)
        return float(((above + below) * weights).sum())

    def detectable_difference(self, seeds: int, problems: int) -> float:
        """Return the minimum detectable difference at ``power``; 0 without variance."""
        variances, cells = self.components, seeds * problems
        high = math.sqrt(variances.run / seeds + variances.problem / problems + variances.residual / cells)
        if high == 0.0:
            return 0.0
        while self.power_at(high, seeds, problems) < self.power:
            high *= 2
        low = 0.0
        while high - low > 1e-6 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.power_at(middle, seeds, problems) >= self.power else (middle, high)
        return high

    def required_seeds(self, difference: float, problems: int) -> int | None:
        """Return the smallest number of seeds that detects it; None if the variance between problems is too large."""
        return _smallest_integer(lambda seeds: self.power_at(difference, seeds, problems) >= self.power)

    def required_problems(self, difference: float, seeds: int) -> int | None:
        """Return the smallest number of problems that detects it; None if the variance between runs is too large."""
        return _smallest_integer(lambda problems: self.power_at(difference, seeds, problems) >= self.power)

    def required_sizes(self, difference: float, seeds: int, problems: int) -> tuple[int, int] | None:
        """Return larger numbers of seeds and problems that detect it, of the smallest product.

        Seeds are increased by a quarter at a time, up to 1000 times; None if none of these suffices.
        """
        best, tried = None, seeds
        while tried < 1000 * seeds:
            tried += max(1, tried // 4)
            if (required := self.required_problems(difference, tried)) is None:
                continue
            if best is not None and tried * max(required, problems) >= best[0] * best[1]:
                break
            best = tried, max(required, problems)
        return best


@cache
def _legendre_nodes(number: int) -> tuple[Array, Array]:
    return np.polynomial.legendre.leggauss(number)


@cache
def _run_term_nodes(seeds: float, *, paired: bool) -> tuple[Array, Array, Array]:
    """Return quadrature nodes for the ratio of estimated to true run term, their degrees of freedom, and weights."""
    from scipy.special import gammaincinv

    if math.isinf(seeds):
        return np.ones(1), np.full(1, np.inf), np.ones(1)
    x, weights = _legendre_nodes(_NODES if paired else _NODES_OF_TWO)
    u, weights = gammaincinv((seeds - 1) / 2, (x + 1) / 2) * 2 / (seeds - 1), weights / 2
    if paired:
        return u, np.full(len(u), seeds - 1.0), weights
    first, second = u[:, None], u[None, :]
    degrees = (seeds - 1) * (first + second) ** 2 / (first**2 + second**2)
    return ((first + second) / 2).ravel(), degrees.ravel(), np.outer(weights, weights).ravel()


def _smallest_integer(suffices: Callable[[float], bool]) -> int | None:
    """Return the smallest integer from 2 that suffices; None above a billion, or if infinity does not."""
    if not suffices(math.inf):
        return None
    high = 2
    while not suffices(high):
        if high > _MOST:
            return None
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high
