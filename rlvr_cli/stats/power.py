"""How many seeds and problems it takes to see a difference, from the variances that a comparison has shown.

The test is the one of ``clustered``: p < alpha where p is Cochran's. Given the run part of the estimated variance,
chi-square with S - 1 degrees of freedom, the mean difference is normal; power is the average over that part:

    power = E_u[ P(|N(difference, V)| > h(u)) ],   V = run / S + problem / P + residual / (S P)
    h(u)^2 = t(S-1)^2 (run / S + residual / (S P)) u / (S-1) + t(P-1)^2 problem / P,   u ~ chi-square(S-1)

The problem part is taken as known: with the hundreds of problems of an evaluation it nearly is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from rlvr_cli.stats.clustered import VarianceComponents
from rlvr_cli.stats.intervals import student_quantile

POWER = 0.8
ALPHA = 0.05
_NODES = 200
_MOST = 10**9


def power(
    components: VarianceComponents, difference: float, seeds: float, problems: float, *, alpha: float = ALPHA
) -> float:
    """The chance that p < ``alpha`` when the true mean difference is ``difference``.

    ``components`` are those of the paired differences; either of ``seeds`` and ``problems`` may be infinite, the other
    is at least 2. Raises ValueError for numbers outside their range.
    """
    _checked(components, difference, seeds, problems, alpha)
    from scipy.special import gammaincinv, ndtr

    cells = 1 / (seeds * problems)
    run_part = components.run / seeds + components.residual * cells
    problem_part = components.problem / problems
    deviation = math.sqrt(run_part + problem_part)
    if deviation == 0.0:
        return 1.0
    x, weights = np.polynomial.legendre.leggauss(_NODES)
    degrees = seeds - 1
    ratio = np.ones(_NODES) if math.isinf(seeds) else gammaincinv(degrees / 2, (x + 1) / 2) * 2 / degrees
    own, other = (student_quantile(n - 1, 1 - alpha) ** 2 for n in (seeds, problems))
    reach = np.sqrt(own * run_part * ratio + other * problem_part)
    above, below = ndtr((difference - reach) / deviation), ndtr((-difference - reach) / deviation)
    return float(((above + below) * weights).sum() / 2)


def detectable_difference(
    components: VarianceComponents, seeds: int, problems: int, *, power: float = POWER, alpha: float = ALPHA
) -> float:
    """The smallest difference that ``seeds`` and ``problems`` see with the given power. 0 without any variance.

    Raises ValueError for numbers outside their range.
    """
    _checked_power(power, alpha)
    _checked(components, 1.0, seeds, problems, alpha)
    high = math.sqrt(components.run / seeds + components.problem / problems + components.residual / (seeds * problems))
    if high == 0.0:
        return 0.0
    reached = _power_of(components, alpha)
    while reached(high, seeds, problems) < power:
        high *= 2
    low = 0.0
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle, seeds, problems) >= power else (middle, high)
    return high


def seeds_needed(
    components: VarianceComponents, difference: float, problems: int, *, power: float = POWER, alpha: float = ALPHA
) -> int | None:
    """The least number of seeds (2 or more) that sees ``difference`` on ``problems``.

    None when no number does: the spread between problems alone hides it. Raises ValueError as ``power``.
    """
    _checked_power(power, alpha)
    reached = _power_of(components, alpha)
    return _least(lambda seeds: reached(difference, seeds, problems) >= power)


def problems_needed(
    components: VarianceComponents, difference: float, seeds: int, *, power: float = POWER, alpha: float = ALPHA
) -> int | None:
    """The least number of problems (2 or more) that sees ``difference`` with ``seeds``.

    None when no number does: the spread between runs alone hides it. Raises ValueError as ``power``.
    """
    _checked_power(power, alpha)
    reached = _power_of(components, alpha)
    return _least(lambda problems: reached(difference, seeds, problems) >= power)


def _power_of(components: VarianceComponents, alpha: float) -> Callable[[float, float, float], float]:
    """``power`` under a name that the arguments above do not hide."""
    return lambda difference, seeds, problems: power(components, difference, seeds, problems, alpha=alpha)


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
