"""A saved rollout as the optimizer steps of one method see it: advantages, and the coefficients of any of its rows."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.base import Regions, Rollout, Tokens
from rlvr_cli.methods.method import Method

REGIONS = tuple(field.name for field in dataclasses.fields(Regions))
QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Coefficients this close, relative to the larger, are equal: the two may add up the same terms in another order.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class ScoredTokens:
    """A rollout and what the old and the current policy say of its tokens.

    Attributes:
        rollout: with the verifier's rewards, and every optional tensor that the compared methods need.
        old_log_probs: (N, T) float64, under the policy that sampled.
        log_probs: (N, T) float64, under the current policy.
        entropies: (N, T) of the current policy, nats.
    """

    rollout: Rollout
    old_log_probs: Tensor
    log_probs: Tensor
    entropies: Tensor | None = None

    @property
    def largest_drift(self) -> float:
        """The largest |log ratio| of a token; 0 without any."""
        drift = (self.log_probs - self.old_log_probs)[self.rollout.mask.bool()]
        return float(drift.abs().max()) if drift.numel() else 0.0


@dataclass(frozen=True)
class MethodStep:
    """The rows of one optimizer step of ``method``; at first the whole rollout.

    Attributes:
        tokens: (n, T) float64, with the advantages shaped by what looks at rows and groups of the whole rollout.
        estimated: (n, T) advantages before that shaping, by which the aggregation counts.
    """

    method: Method
    tokens: Tokens
    estimated: Tensor

    @classmethod
    def of(cls, method: Method, scored: ScoredTokens) -> MethodStep:
        """The whole rollout as one step, at the current policy."""
        rollout = dataclasses.replace(scored.rollout, old_log_probs=scored.old_log_probs)
        rollout = dataclasses.replace(rollout, rewards=method.reward.rewards(rollout))
        mask = rollout.mask
        estimated, advantages = (of.double().expand_as(mask) for of in method.rollout_advantages(rollout))
        threshold = method.passes.threshold(rollout)
        tokens = Tokens(
            log_probs=scored.log_probs,
            old_log_probs=scored.old_log_probs,
            advantages=advantages,
            mask=mask,
            entropies=scored.entropies,
            ref_log_probs=rollout.ref_log_probs,
            low_threshold=None if threshold is None else torch.full((len(mask), 1), threshold, dtype=torch.float64),
        )
        return cls(method, tokens, estimated)

    @property
    def learned(self) -> Tensor:
        """(n, T) the tokens that have an advantage."""
        return self.tokens.mask.bool() & (self.tokens.advantages != 0)

    def at(self, log_probs: Tensor, entropies: Tensor | None) -> MethodStep:
        """The same rows under another current policy."""
        return dataclasses.replace(
            self, tokens=dataclasses.replace(self.tokens, log_probs=log_probs, entropies=entropies)
        )

    def part(self, rows: Tensor) -> MethodStep:
        """The step that is made of ``rows`` (indices) alone: it counts and measures over them."""
        fields = {field.name: getattr(self.tokens, field.name) for field in dataclasses.fields(self.tokens)}
        chosen = {name: value[rows] for name, value in fields.items() if value is not None}
        return dataclasses.replace(self, tokens=Tokens(**chosen), estimated=self.estimated[rows])

    def coefficients(self, which: str) -> Tensor:
        """(n, T) what multiplies grad log pi in pass ``which``; 0 on padding."""
        count = self.method.aggregation.count(self.tokens.mask, self.estimated)
        return self.method.coefficients(self.tokens, count, which, self._statistics(which))

    def full_coefficients(self) -> Tensor:
        """(n, T) those of all passes added up, as if the weights did not move in between."""
        return torch.stack([self.coefficients(which) for which in self.method.passes.names]).sum(dim=0)

    def full_values(self) -> Tensor:
        """(n, T) F A of all passes added up."""
        return torch.stack([self.values(which) for which in self.method.passes.names]).sum(dim=0)

    def values(self, which: str) -> Tensor:
        """(n, T) token weight times shaped advantage in pass ``which``: F A, without normaliser and KL term."""
        shaped = self.method.shaped(self.tokens, which)
        weight = self.method.policy_loss.weight(shaped, self._statistics(which))
        # A token without advantage has no part, however far its ratio overflowed.
        return torch.where(shaped.advantages == 0, 0.0, weight * shaped.advantages)

    def regions(self) -> Regions:
        """By the bounds of the method's weight in the first pass."""
        return self.method.policy_loss.regions(self.tokens, self._statistics(self.method.passes.names[0]))

    def bounds(self) -> tuple[float | Tensor, float | Tensor]:
        """eps_low and eps_high of the first pass, as `PolicyLoss.bounds`."""
        return self.method.policy_loss.bounds(self.tokens, self._statistics(self.method.passes.names[0]))

    def _statistics(self, which: str) -> Tensor | None:
        weight = self.method.policy_loss
        return weight.statistics(self.method.shaped(self.tokens, which)) if weight.needs_statistics else None


@dataclass(frozen=True)
class Applied:
    """What one method makes of a rollout; all (N, T), 0 on padding.

    Attributes:
        advantages: after the shapings of whole rows and groups.
        weights: what multiplies the advantage: token weight times the factors of token shaping, added up over passes.
        coefficients: what multiplies grad log pi: (weight * advantage + KL term) / normaliser.
        regions: by the bounds of the method's weight.
    """

    advantages: Tensor
    weights: Tensor
    coefficients: Tensor
    regions: Regions


def apply_method(method: Method, scored: ScoredTokens) -> Applied:
    """The coefficients of ``method`` with the whole rollout as one optimizer step.

    The passes are added up as if the weights did not move in between.
    """
    step = MethodStep.of(method, scored)
    tokens, mask = step.tokens, step.tokens.mask
    valid, advantages = mask.bool(), tokens.advantages
    weights = torch.where(valid & (advantages != 0), step.full_values() / advantages, 0.0)
    return Applied(torch.where(valid, advantages, 0.0), weights, step.full_coefficients(), step.regions())


def differs(a: Tensor, b: Tensor) -> Tensor:
    """Where two coefficients are not equal but for rounding."""
    return (a - b).abs() > TOLERANCE * torch.maximum(a.abs(), b.abs())


def quarters(old_probs: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The quarters of probability by their names, and which of the (N, T) ``old_probs`` lie in each."""
    for low, high in itertools.pairwise(QUARTERS):
        # Rounding may leave a probability just above 1.
        below = (old_probs < high) | (high == QUARTERS[-1])
        yield f"p {low:.2f} to {high:.2f}", (old_probs >= low) & below


def thinned(chosen: Tensor, most: int = 500) -> Tensor:
    """(N, T) at most ``most`` of the ``chosen`` tokens, evenly spaced: those to draw, as there may be millions."""
    places = chosen.nonzero()
    kept = places[:: max(1, -(-len(places) // most))]
    shown = torch.zeros_like(chosen)
    shown[kept[:, 0], kept[:, 1]] = True
    return shown


def rows_of(columns: Mapping[str, Tensor], chosen: Tensor) -> Iterator[dict[str, Any]]:
    """Yield the ``chosen`` (N, T) tokens, each with its value of every (N, T) column."""
    for values in zip(*(column[chosen].tolist() for column in columns.values()), strict=True):
        yield dict(zip(columns, values, strict=True))
