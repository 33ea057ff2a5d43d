"""The parts and variants of an update whose directions are compared: coefficients of grad log pi for each.

ACPO paper, appendix D and figure 4: tokens by probability and entropy, advantages by sign, and the same off-policy
batch under other ways of clipping.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr_cli.analysis.method_step import MethodStep, Scored
from rlvr_cli.methods.base import TokenWeight
from rlvr_cli.methods.high_entropy import HighEntropy
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.unclipped import One, Ratio

TOKENS, SIGNS, CLIPPING = "tokens", "sign of the advantage", "clipping"


@dataclass(frozen=True)
class Group:
    """Coefficients to take the gradient with.

    Attributes:
        name: short, as in the summary numbers.
        kind: ``TOKENS``, ``SIGNS`` or ``CLIPPING``.
        what: for people.
        coefficients: (N, T) what multiplies grad log pi.
        members: (N, T) the tokens that have a part: those with an advantage, clipped ones too.
        at_old: whether the gradient is that of the policy that sampled.
    """

    name: str
    kind: str
    what: str
    coefficients: Tensor
    members: Tensor
    at_old: bool = False

    @property
    def tokens(self) -> int:
        """How many have a part."""
        return int(self.members.sum())

    def of_rows(self, kept: Tensor) -> Group:
        """What some of the rows, ``kept`` (N, 1), have of it."""
        coefficients = torch.where(kept, self.coefficients, 0.0)
        return dataclasses.replace(self, coefficients=coefficients, members=self.members & kept)


def token_groups(step: MethodStep, scored: Scored, *, low: float, high: float, entropy: float) -> Iterator[Group]:
    """Parts of the whole update, with its divisor: the two signs add up to it.

    Args:
        low, high: bounds of the old probability. entropy: share of the rollout's tokens, under the policy that sampled.
    """
    whole, old_probs = step.full_coefficients(), step.tokens.old_probs
    advantages = step.tokens.advantages.expand_as(whole)
    learned = step.tokens.mask.bool() & (advantages != 0)
    parts = (
        ("low", TOKENS, f"p < {low:g}", old_probs < low),
        ("high", TOKENS, f"p > {high:g}", old_probs > high),
        ("entropy", TOKENS, f"highest {entropy:.0%} of entropy", HighEntropy(share=entropy).kept(scored.rollout)),
        ("positive", SIGNS, "A > 0", advantages > 0),
        ("negative", SIGNS, "A < 0", advantages < 0),
    )
    for name, kind, what, chosen in parts:
        part = torch.where(chosen & learned, whole, 0.0)
        yield Group(name, kind, what, part, chosen & learned)


def clipping_variants(step: MethodStep, weights: Mapping[str, TokenWeight], scored: Scored) -> Iterator[Group]:
    """The whole batch with another token weight in place of the method's.

    Args:
        weights: name -> weight, beside those without settings: no clipping (F = r), and F = 1 at the current policy
            and at the old one, which is the update that is made on policy.
    """
    learned = step.tokens.mask.bool() & (step.tokens.advantages != 0)

    def variant(weight: TokenWeight, of: MethodStep = step) -> Tensor:
        return dataclasses.replace(of, method=with_weight(of.method, weight)).full_coefficients()

    at_old = step.at(scored.old_log_probs, scored.rollout.entropies)
    yield Group("noclip", CLIPPING, "no clipping", variant(Ratio()), learned)
    for name, weight in weights.items():
        yield Group(name, CLIPPING, name.upper(), variant(weight), learned)
    yield Group("onpolicy", CLIPPING, "ratio 1", variant(One()), learned)
    yield Group("old", CLIPPING, "old policy", variant(One(), at_old), learned, at_old=True)


def with_weight(method: Method, weight: TokenWeight) -> Method:
    """``method`` with another token weight; all else is as it was."""
    return method.model_copy(update={"weight": weight})
