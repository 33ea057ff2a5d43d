"""How many seeds and problems it takes to see a difference, from the variances that a comparison has shown.

The test is the one of ``clustered``: p < alpha where p is Cochran's. Given the run part of the estimated variance,
chi-square with S - 1 degrees of freedom, the mean difference is normal; power is the average over that part:

    power = E_u[ P(|N(difference, V)| > h(u)) ],   V = run / S + problem / P + residual / (S P)
    h(u)^2 = t(S-1)^2 (run / S + residual / (S P)) u / (S-1) + t(P-1)^2 problem / P,   u ~ chi-square(S-1)

The problem part is taken as known: with the hundreds of problems of an evaluation it nearly is. Of arms that are not
paired the run part is the sum of two, each with a u of its own, and t has the degrees of freedom that Welch's formula
gives for these (``clustered.unpaired_crossed_interval``); their runs are taken to vary alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from rlvr_cli.stats.clustered import VarianceComponents
from rlvr_cli.stats.scores import Array

POWER = 0.8
ALPHA = 0.05
# Nodes of the integral over one u, and over each of two.
_NODES, _NODES_OF_TWO = 200, 48
_MOST = 10**9


def power(
    components: VarianceComponents,
    difference: float,
    seeds: float,
    problems: float,
    *,
    alpha: float = ALPHA,
    paired: bool = True,
) -> float:
    """The chance that p < ``alpha`` when the true mean difference is ``difference``.

    ``components`` are those of the differences, ``paired`` or not; either of ``seeds`` (of each arm) and ``problems``
    may be infinite, the other is at least 2. Raises ValueError for numbers outside their range.
    """
    _checked(components, difference, seeds, problems, alpha)
    from scipy.special import ndtr, stdtrit

    cells = 1 / (seeds * problems)
    run_part = components.run / seeds + components.residual * cells
    problem_part = components.problem / problems
    deviation = math.sqrt(run_part + problem_part)
    if deviation == 0.0:
        return 1.0
    ratio, degrees, weights = _estimated(seeds, paired=paired)
    own, other = (stdtrit(f, 1 - alpha / 2) ** 2 for f in (degrees, problems - 1))
    reach = np.sqrt(own * run_part * ratio + other * problem_part)
    above, below = ndtr((difference - reach) / deviation), ndtr((-difference - reach) / deviation)
    return float(((above + below) * weights).sum())


@cache
def _estimated(seeds: float, *, paired: bool) -> tuple[Array, Array, Array]:
    """The estimated run part over the true one, its degrees of freedom, and how likely: nodes and weights."""
    from scipy.special import gammaincinv

    if math.isinf(seeds):
        return np.ones(1), np.full(1, np.inf), np.ones(1)
    x, weights = np.polynomial.legendre.leggauss(_NODES if paired else _NODES_OF_TWO)
    u, weights = gammaincinv((seeds - 1) / 2, (x + 1) / 2) * 2 / (seeds - 1), weights / 2
    if paired:
        return u, np.full(len(u), seeds - 1.0), weights
    first, second = u[:, None], u[None, :]
    degrees = (seeds - 1) * (first + second) ** 2 / (first**2 + second**2)
    return ((first + second) / 2).ravel(), degrees.ravel(), np.outer(weights, weights).ravel()


def detectable_difference(
    components: VarianceComponents,
    seeds: int,
    problems: int,
    *,
    power: float = POWER,
    alpha: float = ALPHA,
    paired: bool = True,
) -> float:
    """The smallest difference that ``seeds`` and ``problems`` see with the given power. 0 without any variance.

    Raises ValueError for numbers outside their range.
    """
    _checked_power(power, alpha)
    _checked(components, 1.0, seeds, problems, alpha)
    high = math.sqrt(components.run / seeds + components.problem / problems + components.residual / (seeds * problems))
    if high == 0.0:
        return 0.0
    reached = _power_of(components, alpha, paired=paired)
    while reached(high, seeds, problems) < power:
        high *= 2
    low = 0.0
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle, seeds, problems) >= power else (middle, high)
    return high


def seeds_needed(
    components: VarianceComponents,
    difference: float,
    problems: int,
    *,
    power: float = POWER,
    alpha: float = ALPHA,
    paired: bool = True,
) -> int | None:
    """The least number of seeds (2 or more) that sees ``difference`` on ``problems``.

    None when no number does: the spread between problems alone hides it. Raises ValueError as ``power``.
    """
    _checked_power(power, alpha)
    reached = _power_of(components, alpha, paired=paired)
    return _least(lambda seeds: reached(difference, seeds, problems) >= power)


def problems_needed(
    components: VarianceComponents,
    difference: float,
    seeds: int,
    *,
    power: float = POWER,
    alpha: float = ALPHA,
    paired: bool = True,
) -> int | None:
    """The least number of problems (2 or more) that sees ``difference`` with ``seeds``.

    None when no number does: the spread between runs alone hides it. Raises ValueError as ``power``.
    """
    _checked_power(power, alpha)
    reached = _power_of(components, alpha, paired=paired)
    return _least(lambda problems: reached(difference, seeds, problems) >= power)


def _power_of(components: VarianceComponents, alpha: float, *, paired: bool) -> Callable[[float, float, float], float]:
    """``power`` under a name that the arguments above do not hide."""
    return lambda difference, seeds, problems: power(
        components, difference, seeds, problems, alpha=alpha, paired=paired
    )


def _least(enough: Callable[[float], bool]) -> int | None:
    """The least whole number from 2 that is enough; None when infinity is not, or none below a billion is."""
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


def _checked(components: VarianceComponents, difference: float, seeds: float, problems: float, alpha: float) -> None:
    parts = (components.run, components.problem, components.residual)
    if not all(math.isfinite(part) and part >= 0.0 for part in parts):
        raise ValueError(f"variances are 0 or more, not {parts}")
    if not math.isfinite(difference) or difference == 0.0:
        raise ValueError(f"the difference to see must be a number other than 0, not {difference}")
    if not (seeds >= 2 and problems >= 2):
        raise ValueError(f"at least 2 seeds and 2 problems, not {seeds} and {problems}")
    _checked_power(POWER, alpha)


def _checked_power(power: float, alpha: float) -> None:
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha lies between 0 and 1, not {alpha}")
    if not alpha < power < 1.0:
        raise ValueError(f"power lies between alpha={alpha} and 1, not {power}")
