"""Statements that need no run: numbers that follow from a method's definition alone.

Options name methods as on the command line. A number is of the method's preset and code as they are when it is asked
for: a claim about it fails when they no longer say what the paper says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import did_you_mean

REGIONS = ("LN", "HP")


def updates_ratio(of: str, against: str) -> float:
    """Optimizer updates a rollout of one method over those of another, all else alike."""

    from rlvr_cli.config.load import load_config

    steps = [load_config(method=name).batch.steps_per_rollout for name in (of, against)]
    return steps[0] / steps[1]


def weight_exponent(method: str, region: str) -> float:
    """The exponent of a token's weight on grad pi in the ratio r, far outside the trust region.

    d log |w / pi| / d log r, with w the weight on grad log pi, in the regions that leave the trust region along the
    advantage: LN (A < 0, r -> 0) and HP (A > 0, r -> infinity). Below 0 in LN, or above 0 in HP, the weight grows
    without bound (DGPO paper, equation 9 and figure 2). Raises UserError for another region, and where the weight is
    0, as behind a hard clip.
    """
    from rlvr_cli.describe.named import policy_config
    from rlvr_cli.describe.weights import far_slope

    if region not in REGIONS:
        raise UserError(f"region: must be one of {', '.join(REGIONS)}; got {region}")
    slope = far_slope(policy_config(method).bound(1), region)
    if slope is None:
        raise UserError(f"{method}: its weight is 0 in {region}, where no power of the ratio describes it.")
    # What is left of the logarithms' rounding is no part of an exponent.
    return round(slope, 9)


def passes_rise(method: str) -> float:
    """By how much the probabilities of the tokens rise from a method's first pass to its last.

    The mean old probability of the tokens that the last pass trains on, minus that of the first, for old probabilities
    spread evenly over 0 to 1: above 0 for Lopti, which trains on the low-probability tokens first (AR-Lopti paper,
    section 4.2). 0 for a method of one pass.
    """
    import torch

    from rlvr_cli.describe.named import policy_config
    from rlvr_cli.methods.base import Tokens

    passes = policy_config(method).bound(1).passes
    old = ((torch.arange(1000, dtype=torch.float64) + 0.5) / 1000).unsqueeze(0)
    tokens = Tokens(old.log(), old.log(), torch.ones_like(old), torch.ones_like(old))
    means = [float(old[passes.selected(tokens, which)].mean()) for which in passes.names]
    return means[-1] - means[0]


EXACT: dict[str, Callable[..., float]] = {
    "passes_rise": passes_rise,
    "updates_ratio": updates_ratio,
    "weight_exponent": weight_exponent,
}


def statement_problems(name: str, options: Mapping[str, Any]) -> list[str]:
    """What is wrong with a call of the function ``name`` with ``options``."""
    if name not in EXACT:
        return [f"exact: {name}: no such function.{did_you_mean(name, EXACT)} There are: {', '.join(EXACT)}."]
    parameters = inspect.signature(EXACT[name]).parameters
    unknown = [
        f"options.{key}: unknown key.{did_you_mean(key, parameters)} Keys of {name}: {', '.join(parameters)}"
        for key in options
        if key not in parameters
    ]
    missing = [f"options.{key}: is missing" for key in parameters if key not in options]
    no_text = [f"options.{key}: must be text" for key, value in options.items() if not isinstance(value, str)]
    return [*unknown, *missing, *no_text]


def compute_exact(name: str, options: Mapping[str, Any]) -> float:
    """The number. Raises UserError for options that mean nothing."""
    return float(EXACT[name](**options))
