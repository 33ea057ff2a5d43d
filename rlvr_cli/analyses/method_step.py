"""A method's optimizer step on a saved rollout: advantages, and coefficients of grad log pi."""

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
# Relative tolerance between coefficients, for another order of summation.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class ScoredTokens:
    """A rollout with its tokens' log-probs under the old and the current policy.

    Attributes:
        rollout: with the verifier's rewards and the optional tensors that the methods require.
        old_log_probs: (N, T) float64, under the sampling policy.
        log_probs: (N, T) float64, under the current policy.
        entropies: (N, T) of the current policy, nats.
    """

    rollout: Rollout
    old_log_probs: Tensor
    log_probs: Tensor
    entropies: Tensor | None = None

    @property
    def largest_drift(self) -> float:
        drift = (self.log_probs - self.old_log_probs)[self.rollout.mask.bool()]
        return float(drift.abs().max()) if drift.numel() else 0.0


@dataclass(frozen=True)
class MethodStep:
    """The rows of one optimizer step of ``method``.

    Attributes:
        tokens: (n, T) float64, with advantages after the shapings over rows and groups of the whole rollout.
        estimated: (n, T) advantages before that shaping, which the aggregation counts.
    """

    method: Method
    tokens: Tokens
    estimated: Tensor

    @classmethod
    def of(cls, method: Method, scored: ScoredTokens) -> MethodStep:
        """Return the whole rollout as one step at the current policy."""
        rollout = dataclasses.replace(scored.rollout, old_log_probs=scored.old_log_probs)
        rollout = method.reward.shape(rollout)
        mask = rollout.mask
        estimated, advantages = (tensor.double().expand_as(mask) for tensor in method.rollout_advantages(rollout))
        threshold = method.passes.threshold(rollout)
        tokens = Tokens(
            log_probs=scored.log_probs,
            old_log_probs=scored.old_log_probs,
            advantages=advantages,
            mask=mask,
            entropies=scored.entropies,
            ref_log_probs=rollout.ref_log_probs,
            low_threshold=None if threshold is None else torch.full((len(mask), 1), threshold, dtype=torch.float64),
            token_ids=rollout.token_ids,
        )
        return cls(method, tokens, estimated)

    @property
    def learned(self) -> Tensor:
        """(n, T) mask of the tokens with an advantage."""
        return self.tokens.mask.bool() & (self.tokens.advantages != 0)

    def at(self, log_probs: Tensor, entropies: Tensor | None) -> MethodStep:
        tokens = dataclasses.replace(self.tokens, log_probs=log_probs, entropies=entropies)
        return dataclasses.replace(self, tokens=tokens)

    def select(self, rows: Tensor) -> MethodStep:
        """Return the step on ``rows`` (indices), with their counts and statistics."""
        fields = {field.name: getattr(self.tokens, field.name) for field in dataclasses.fields(self.tokens)}
        chosen = {name: value[rows] for name, value in fields.items() if value is not None}
        return dataclasses.replace(self, tokens=Tokens(**chosen), estimated=self.estimated[rows])

    def coefficients(self, pass_name: str) -> Tensor:
        """Return the (n, T) coefficients of grad log pi in the pass; 0 on padding."""
        count = self.method.aggregation.count(self.tokens.mask, self.estimated)
        return self.method.coefficients(self.tokens, count, pass_name, self._statistics(pass_name))

    def full_coefficients(self) -> Tensor:
        """Return the (n, T) coefficients summed over passes, at the same policy."""
        return torch.stack([self.coefficients(pass_name) for pass_name in self.method.passes.names]).sum(dim=0)

    def full_values(self) -> Tensor:
        """Return the (n, T) F A summed over passes."""
        return torch.stack([self.values(pass_name) for pass_name in self.method.passes.names]).sum(dim=0)

    def values(self, pass_name: str) -> Tensor:
        """Return the (n, T) F A of the pass: token weight times shaped advantage, without normaliser and KL term."""
        shaped = self.method.shape_tokens(self.tokens, pass_name)
        weight = self.method.policy_loss.weight(shaped, self._statistics(pass_name))
        # 0 without an advantage, even if the ratio overflowed.
        return torch.where(shaped.advantages == 0, 0.0, weight * shaped.advantages)

    def regions(self) -> Regions:
        return self.method.policy_loss.regions(self.tokens, self._statistics(self.method.passes.names[0]))

    def bounds(self) -> tuple[float | Tensor, float | Tensor]:
        return self.method.policy_loss.bounds(self.tokens, self._statistics(self.method.passes.names[0]))

    def _statistics(self, pass_name: str) -> Tensor | None:
        weight = self.method.policy_loss
        return weight.statistics(self.method.shape_tokens(self.tokens, pass_name)) if weight.needs_statistics else None


@dataclass(frozen=True)
class AppliedMethod:
    """A method applied to a rollout; all (N, T), 0 on padding.

    Attributes:
        advantages: after the shapings of whole rows and groups.
        weights: factors of the advantage: token weight times token shaping, summed over passes.
        coefficients: factors of grad log pi: (weight * advantage + KL term) / normaliser.
        regions: of the method's weight.
    """

    advantages: Tensor
    weights: Tensor
    coefficients: Tensor
    regions: Regions


def apply_method(method: Method, scored: ScoredTokens) -> AppliedMethod:
    """Apply ``method`` to the whole rollout as one optimizer step; passes are summed at the same policy."""
    step = MethodStep.of(method, scored)
    tokens, mask = step.tokens, step.tokens.mask
    valid, advantages = mask.bool(), tokens.advantages
    weights = torch.where(valid & (advantages != 0), step.full_values() / advantages, 0.0)
    return AppliedMethod(torch.where(valid, advantages, 0.0), weights, step.full_coefficients(), step.regions())


def differ(a: Tensor, b: Tensor) -> Tensor:
    """Return the mask of coefficients that differ by more than rounding."""
    return (a - b).abs() > TOLERANCE * torch.maximum(a.abs(), b.abs())


def iter_quarters(old_probs: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the quarters of [0, 1]: name, and the mask of the (N, T) ``old_probs`` inside."""
    for low, high in itertools.pairwise(QUARTERS):
        # By rounding, probabilities may exceed 1.
        below = (old_probs < high) | (high == QUARTERS[-1])
        yield f"p {low:.2f} to {high:.2f}", (old_probs >= low) & below


def thin(chosen: Tensor, most: int = 500) -> Tensor:
    """Subsample the (N, T) mask ``chosen`` to at most ``most`` tokens, evenly spaced."""
    positions = chosen.nonzero()
    sampled = positions[:: max(1, -(-len(positions) // most))]
    mask = torch.zeros_like(chosen)
    mask[sampled[:, 0], sampled[:, 1]] = True
    return mask


def iter_rows(columns: Mapping[str, Tensor], chosen: Tensor) -> Iterator[dict[str, Any]]:
    """Yield a row per token of the (N, T) mask ``chosen``, with its value in every (N, T) column."""
    for values in zip(*(column[chosen].tolist() for column in columns.values()), strict=True):
        yield dict(zip(columns, values, strict=True))
