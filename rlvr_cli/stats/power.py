"""Power analysis: the seeds and problems needed to detect a difference, from estimated variance components.

The test is that of ``clustered``: p < alpha with Cochran's p. Given the run term of the estimated variance,
chi-square with S - 1 degrees of freedom, the mean difference is normal; power is the average over that term:

    power = E_u[ P(|N(difference, V)| > h(u)) ],   V = run / S + problem / P + residual / (S P)
    h(u)^2 = t(S-1)^2 (run / S + residual / (S P)) u / (S-1) + t(P-1)^2 problem / P,   u ~ chi-square(S-1)

The problem term is assumed known, which is nearly true with hundreds of problems. Without pairing the run term is the
sum of two, with independent u, and t has the degrees of freedom of Welch's formula
(``clustered.crossed_difference``); equal variances of runs are assumed.
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
    """The test of a difference with known variance ``components`` (of the differences), ``paired`` or not.

    Attributes:
        alpha: the significance level. power: the target probability of detection.
    Raises ValueError for numbers outside their range, here and in the methods.
    """

    components: VarianceComponents
    paired: bool = True
    alpha: float = 0.05
    power: float = 0.8

    def __post_init__(self) -> None:
        variances = (self.components.run, self.components.problem, self.components.residual)
        if not all(math.isfinite(variance) and variance >= 0.0 for variance in variances):
            raise ValueError(f"variances are 0 or more, not {variances}")
        if not 0.0 < self.alpha < 1.0:
            raise ValueError(f"alpha lies between 0 and 1, not {self.alpha}")
        if not self.alpha < self.power < 1.0:
            raise ValueError(f"power lies between alpha={self.alpha} and 1, not {self.power}")

    def chance(self, difference: float, seeds: float, problems: float) -> float:
        """Return the probability of p < ``alpha`` if the true mean difference is ``difference``.

        ``seeds`` (per arm) and ``problems`` are at least 2; one of them may be infinite.
        """
        if not math.isfinite(difference) or difference == 0.0:
            raise ValueError(f"the difference to detect must not be 0; got {difference}")
        if not (seeds >= 2 and problems >= 2):
            raise ValueError(f"at least 2 seeds and 2 problems, not {seeds} and {problems}")
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

    def detectable(self, seeds: int, problems: int) -> float:
        """Return the smallest difference that is detected with the power; 0 without variance."""
        variances, cells = self.components, seeds * problems
        high = math.sqrt(variances.run / seeds + variances.problem / problems + variances.residual / cells)
        if high == 0.0:
            return 0.0
        while self.chance(high, seeds, problems) < self.power:
            high *= 2
        low = 0.0
        while high - low > 1e-6 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.chance(middle, seeds, problems) >= self.power else (middle, high)
        return high

    def seeds(self, difference: float, problems: int) -> int | None:
        """Return the smallest number of seeds that detects it; None if the spread between problems is too large."""
        return _smallest_integer(lambda seeds: self.chance(difference, seeds, problems) >= self.power)

    def problems(self, difference: float, seeds: int) -> int | None:
        """Return the smallest number of problems that detects it; None if the spread between runs is too large."""
        return _smallest_integer(lambda problems: self.chance(difference, seeds, problems) >= self.power)

    def both(self, difference: float, seeds: int, problems: int) -> tuple[int, int] | None:
        """Return larger numbers of seeds and problems that detect it, the pair with the smallest product.

        Seeds are increased in steps of a quarter, up to a factor of 1000; None if none of these suffices.
        """
        best, tried = None, seeds
        while tried < 1000 * seeds:
            tried += max(1, tried // 4)
            if (wanted := self.problems(difference, tried)) is None:
                continue
            if best is not None and tried * max(wanted, problems) >= best[0] * best[1]:
                break
            best = tried, max(wanted, problems)
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


def _smallest_integer(enough: Callable[[float], bool]) -> int | None:
    """Return the smallest integer from 2 that is enough; None if infinity is not, or it exceeds a billion."""
    if not enough(math.inf):
        return None
    high = 2
    while not enough(high):
        if high > _MOST:
            return None
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
