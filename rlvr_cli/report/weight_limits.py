"""What the formulas say beyond any rollout: the weight on grad pi far out, and the bias for a density of the ratio.

DGPO paper, arXiv:2603.14389: section 4.2 (divergence as pi vanishes), appendix A.3.4 (analytic bias).
"""

from __future__ import annotations

import torch

from rlvr_cli.methods.method import Method
from rlvr_cli.report.weight_curves import effective_weight

# The ratio runs over this decade, far outside any trust region, for a token so unlikely that pi stays below 1.
_FAR = {"LN": (-1, 1e-7, 1e-6), "HP": (1, 1e6, 1e7)}
_UNLIKELY = 1e-9
_STEPS = 20_000
# Beyond e^-600 a ratio is no longer a normal number.
_LONGEST = 600.0


def far_slope(method: Method, region: str) -> float | None:
    """Slope of log W over log r as r -> 0 in ``LN``, as r -> infinity in ``HP``; W is the weight on grad pi at fixed p.

    Negative in LN: the weight diverges as the token vanishes. None where the weight is 0 far out, or the method has no
    advantages of that sign.
    """
    sign, *ends = _FAR[region]
    if sign not in method.advantage.signs:
        return None
    ratios = torch.tensor(ends, dtype=torch.float64)
    on_prob = effective_weight(method, ratios, _UNLIKELY, sign)[0] / ratios
    if bool((on_prob <= 0).any()):
        return None
    return float((on_prob.log().diff() / ratios.log().diff())[0])


def left_bias(method: Method, gamma: float, lowest: float, old_prob: float) -> float | None:
    """Bias in LN relative to the true gradient there, for ratios of density k r^gamma on (0, lowest).

    integral |F - r| r^gamma dr / integral r^(gamma + 1) dr: appendix A.3.4, equations 29 to 32, each over that of GRPO.
    In CE-GPPO's equation 31 the paper takes the absolute value of the integral, here it is taken inside, as printed in
    the step before.

    Args:
        gamma: above -1.
        lowest: 1 - eps_low.
        old_prob: for methods whose weight depends on it.
    """
    if -1 not in method.advantage.signs:
        return None
    # r = lowest e^-s turns the density into an exponential one; |F / r - 1| grows like e^s at most for bounded F.
    width = min(40 / (gamma + 1), _LONGEST) / _STEPS
    s = (torch.arange(_STEPS, dtype=torch.float64) + 0.5) * width
    ratios = lowest * torch.exp(-s)
    relative = effective_weight(method, ratios, old_prob, -1)[0] / ratios
    return float(((relative - 1).abs() * (gamma + 2) * torch.exp(-(gamma + 2) * s)).sum() * width)
