"""Compute token weights over the ratio, for `rlvr methods plot`.

With advantage A, the gradient of a token is w A grad log pi = (w / pi) A grad pi, where w is the token weight F times
the factors of shaping, summed over the passes. Both weights are functions of the ratio r, the sign of A
and the old probability p; pi = r p. (DGPO paper, arXiv:2603.14389, figure 2 and equation 9.) Also computes the
asymptotic weight on grad pi (section 4.2: divergence as pi vanishes), and the bias for a density of the ratio (appendix
A.3.4).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.base import Tokens
from rlvr_cli.methods.covariance import Covariance
from rlvr_cli.methods.lopti import ByProbability
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.unclipped import Unclipped

RATIOS = (0.25, 4.0)
# Default kappa of the ratio's standard deviation kappa (1 - p)^2.
SPREAD = 0.1
_POINTS = 800
_EDGE = 1e-7
# Sign and decade of ratios far outside any trust region, for a token so unlikely that pi stays below 1.
_FAR = {"LN": (-1, 1e-7, 1e-6), "HP": (1, 1e6, 1e7)}
_UNLIKELY = 1e-9
_STEPS = 20_000
# A ratio below e^-600 is subnormal.
_LONGEST = 600.0


@dataclass(frozen=True)
class WeightCurve:
    """A method's weights for a sign of the advantage and an old probability.

    Attributes:
        label: the method's name, with the kind of token if its weight depends on entropy.
        sign: of the advantage, -1 or +1.
        old_prob: probability of the token under the policy that sampled it.
        ratios: (R,) increasing; none with pi = ratio * old_prob above 1.
        on_log_prob: (R,) factors of A grad log pi.
        on_prob: (R,) factors of A grad pi: ``on_log_prob / (ratios * old_prob)``.
        region: the trust region as (lowest, highest) ratio; None for a method without one.
    """

    label: str
    sign: int
    old_prob: float
    ratios: Tensor
    on_log_prob: Tensor
    on_prob: Tensor
    region: tuple[float, float] | None


@dataclass(frozen=True)
class Curves:
    curves: tuple[WeightCurve, ...]
    notes: tuple[str, ...]


def weight_curves(
    methods: Sequence[Method], old_probs: Sequence[float], *, spread: float = SPREAD, span: tuple[float, float] = RATIOS
) -> Curves:
    """Return the curves of ``methods``, in order, for both signs and every old probability.

    Args:
        spread: kappa of the ratio's standard deviation kappa (1 - p)^2, assumed where bounds depend on it (ACPO).
        span: lowest and highest ratio.
    """
    curves = [
        curve
        for method in methods
        for high_entropy in ((False, True) if method.policy_loss.needs_entropies else (None,))
        for old_prob in old_probs
        for sign in method.advantage.signs
        if (curve := _make_curve(method, high_entropy, sign, old_prob, spread, span)) is not None
    ]
    return Curves(tuple(curves), tuple(_merge_notes(methods, spread)))


def effective_weight(
    method: Method,
    ratios: Tensor,
    old_prob: float,
    sign: int,
    *,
    spread: float = SPREAD,
    high_entropy: bool | None = None,
) -> tuple[Tensor, tuple[float, float]]:
    """Return the (R,) w at ``ratios``, and the trust region; ``high_entropy``: the token's kind, if it matters."""
    tokens = _make_probe(method, ratios.double(), old_prob, sign, high_entropy)
    statistics = method.policy_loss.statistics(_make_step(spread)) if method.policy_loss.needs_statistics else None
    total = torch.zeros_like(ratios, dtype=torch.float64)
    for pass_name in method.passes.names:
        shaped = method.shape_tokens(tokens, pass_name)
        values = method.policy_loss.weight(shaped, statistics) * shaped.advantages / sign
        total += torch.where(shaped.advantages == 0, 0.0, values)[:, 0]
    low, high = method.policy_loss.bounds(tokens, statistics)
    return total, (1 - _first(low), 1 + _first(high))


def _make_curve(
    method: Method, high_entropy: bool | None, sign: int, old_prob: float, spread: float, span: tuple[float, float]
) -> WeightCurve | None:
    highest = min(span[1], 1 / old_prob)
    if highest <= span[0]:
        return None
    grid = span[0] * torch.logspace(0, 1, _POINTS, base=highest / span[0], dtype=torch.float64)

    def weigh(ratios: Tensor) -> tuple[Tensor, tuple[float, float]]:
        return effective_weight(method, ratios, old_prob, sign, spread=spread, high_entropy=high_entropy)

    low, high = weigh(grid[:1])[1]
    # Points on both sides of each bound draw the jump exactly.
    edges = [edge * side for edge in (low, high) for side in (1 - _EDGE, 1.0, 1 + _EDGE)]
    inside = torch.tensor([edge for edge in edges if grid[0] < edge < grid[-1]], dtype=torch.float64)
    ratios = torch.cat([grid, inside]).sort().values
    weights = weigh(ratios)[0]
    # Unclipped weights have bounds for statistics only.
    region = None if isinstance(method.policy_loss, Unclipped) else (low, high)
    kind = "" if high_entropy is None else " (high entropy)" if high_entropy else " (low entropy)"
    return WeightCurve(f"{method.name}{kind}", sign, old_prob, ratios, weights, weights / (ratios * old_prob), region)


def _make_probe(method: Method, ratios: Tensor, old_prob: float, sign: int, high_entropy: bool | None) -> Tokens:
    """Return a row per ratio whose first token is the probe, followed by others only if entropy matters."""
    old = torch.full((len(ratios), 1), old_prob, dtype=torch.float64).log()
    log_probs = old + ratios.log().unsqueeze(1)
    if high_entropy is None:
        return Tokens(log_probs, old, torch.full_like(old, sign), torch.ones_like(old))
    # Enough other tokens, on both sides of the entropy quantile, for the probe to be above or below it.
    others = torch.linspace(0.1, 0.9, 1000, dtype=torch.float64).expand(len(ratios), -1)
    entropies = torch.cat([torch.full_like(old, 1.0 if high_entropy else 0.0), others], dim=1)
    shape = entropies.shape
    return Tokens(
        log_probs.expand(shape),
        old.expand(shape),
        torch.full(shape, float(sign), dtype=torch.float64),
        torch.ones(shape, dtype=torch.float64),
        entropies=entropies,
    )


def _make_step(spread: float) -> Tokens:
    """Return a step with old probabilities p evenly over [0, 1], ratios of mean 1, deviation ``spread`` (1 - p)^2."""
    probs = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    deviation = spread * (1 - probs) ** 2
    old = probs.log().expand(2, -1)
    ratios = torch.stack([1 + deviation, 1 - deviation])
    signs = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).expand_as(old)
    return Tokens(old + ratios.log(), old, signs, torch.ones_like(old), entropies=-old)


def _first(bound: float | Tensor) -> float:
    return float(bound.flatten()[0]) if isinstance(bound, torch.Tensor) else float(bound)


def _merge_notes(methods: Sequence[Method], spread: float) -> Iterator[str]:
    methods_of_note: dict[str, list[str]] = {}
    for method in methods:
        for note in _notes(method, spread):
            methods_of_note.setdefault(note, []).append(method.name)
    for note, names in methods_of_note.items():
        yield f"{', '.join(names)}: {note}"


def _notes(method: Method, spread: float) -> Iterator[str]:
    if isinstance(method.policy_loss, Covariance):
        yield "not drawn: what happens to the few tokens that are selected by their covariance in the step"
    elif method.policy_loss.has_penalty:
        yield "not drawn: the penalty on the log ratio, which is the same for any advantage"
    elif method.policy_loss.needs_statistics:
        yield (
            f"bounds depend on the step's ratios; drawn for ratios of standard deviation {spread:g} (1 - p)\u00b2 (the "
            "ACPO paper's lemma 1) and old probabilities p spread evenly over 0 to 1"
        )
    if method.policy_loss.per_sequence:
        yield "the ratio is that of the sequence; drawn as if all its tokens had this ratio"
    if isinstance(method.passes, ByProbability) and method.passes.rule == "quantile":
        yield "eta is a quantile; drawn for old probabilities spread evenly over 0 to 1"
    if len(method.passes.names) > 1:
        yield "each token is drawn in the pass that trains it"
    if method.rollout_shapings:
        names = ", ".join(type(shaping).__name__ for shaping in method.rollout_shapings)
        shapings = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", names).lower()
        yield f"not drawn, because it depends on whole rows or groups: {shapings}"
    if method.kl.beta > 0:
        more = "r log(\u03c0_ref / \u03c0)" if method.kl.bias_correction else "(\u03c0_ref / \u03c0 - 1)"
        yield f"not drawn: the KL penalty, {method.kl.beta:g} {more} more on grad log \u03c0"
    if method.entropy_bonus.is_on:
        yield "not drawn: the entropy bonus, whose gradient depends on all tokens of the vocabulary"
    if len(method.advantage.signs) == 1:
        yield f"no advantage is {'negative' if method.advantage.signs == (1,) else 'positive'}"


def far_slope(method: Method, region: str) -> float | None:
    """Return the slope of log W over log r as r -> 0 (``LN``) or infinity (``HP``), W the weight on grad pi at fixed p.

    Negative in LN: the weight diverges as the token vanishes. None if the weight is 0 there or the method has no
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
    """Return the bias in LN relative to the true gradient there, for ratios of density k r^gamma on (0, lowest).

    integral |F - r| r^gamma dr / integral r^(gamma + 1) dr: appendix A.3.4, equations 29 to 32, each over that of GRPO.
    CE-GPPO's equation 31 in the paper has the absolute value of the integral; here it is inside, as in the step before.

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
