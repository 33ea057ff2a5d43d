"""Aggregations: from per-token values to one number, the normaliser Z.

    token_mean:       sum_it l_it / sum_i |o_i|
    sequence_mean:    1/N sum_i 1/|o_i| sum_t l_it
    sequence_sum:     1/N sum_it l_it
    constant_length:  1/(N L) sum_it l_it

token_mean: DAPO, arXiv:2503.14476, equation 8; sequence_mean: GRPO, DeepSeekMath, arXiv:2402.03300, equation 3;
sequence_sum: LUSPO, arXiv:2602.05261, equation 7; constant_length: Dr. GRPO, arXiv:2503.20783, with L the longest
completion. Tokens and rows are counted over the whole optimizer step, all micro-batches and processes. The last two
differ by the constant L alone, which changes neither Adam's updates (but for its epsilon) nor the balance with a KL
term; plain SGD and ``max_grad_norm`` see a gradient L times as large.

How we differ from the released code: verl averages the token means of micro-batches with equal weight, which favours
tokens of short micro-batches, and divides constant_length by L alone; TRL counts a row without valid tokens as a row
(``sequences: all`` here), and divides the token mean of each of several updates a rollout by the rollout's tokens over
the number of updates. A row that must not be learned from has no valid tokens.

How we differ from the papers: the DAPO, Lopti and DGPO papers print the token sum of one prompt's group as the divisor;
we divide once by that of the step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Literal

from pydantic import Field, PrivateAttr

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Choice
from rlvr_cli.methods.base import Advantage, Part


class Aggregation(Part, Choice, ABC):
    """The divisor of the sum over the tokens of a whole optimizer step."""

    kind: str
    sequences: Literal["valid", "all", "trained", "trained_per_prompt"] = Field(
        "valid",
        description="Completions that count (not with token_mean): valid = with a token, all = all, trained = with a "
        "nonzero advantage, trained_per_prompt = the same, and every prompt has the same weight.",
    )

    def with_length(self, tokens: int) -> Aggregation:
        """Return a copy with L = ``tokens``, which only ``constant_length`` reads."""
        return self

    def count(self, mask: Tensor, advantages: Tensor) -> Tensor:
        """Return () the number of counted rows, which adds up over micro-batches and processes.

        ``mask``: (B, T). ``advantages``: (B, T) or (B, 1), before shaping, so that dropped tokens do not raise the
        weight of others.
        """
        valid = mask.bool()
        if self.sequences == "all":
            return torch.tensor(float(len(mask)), dtype=torch.float64, device=mask.device)
        counted = valid if self.sequences == "valid" else valid & (advantages != 0)
        return counted.any(dim=1).sum(dtype=torch.float64)

    @abstractmethod
    def coefficients(self, mask: Tensor, count: Tensor) -> Tensor:
        """Return (B, T) 1/Z of each token in float64, 0 on padding; ``count``: of the whole step."""


class TokenMean(Aggregation):
    """All tokens of the step."""

    kind: Literal["token_mean"] = Field("token_mean", description="token_mean = all tokens of the step.")

    def unused(self, advantage: Advantage) -> Iterator[tuple[str, str, str]]:
        reason = "token_mean divides by tokens, not by rows. Set method.aggregation=sequence_mean or constant_length"
        yield "method.aggregation.sequences", "method.aggregation.kind", reason

    def simplify(self) -> Aggregation:
        return TokenMean()

    def count(self, mask: Tensor, advantages: Tensor) -> Tensor:
        return mask.bool().sum(dtype=torch.float64)

    def coefficients(self, mask: Tensor, count: Tensor) -> Tensor:
        return mask.bool().double() / count.clamp(min=1.0)


class SequenceMean(Aggregation):
    """Each row's length, and then the number of rows."""

    kind: Literal["sequence_mean"] = Field(
        "sequence_mean", description="sequence_mean = each row's length and then the number of rows."
    )

    def coefficients(self, mask: Tensor, count: Tensor) -> Tensor:
        valid = mask.bool().double()
        return valid / valid.sum(dim=1, keepdim=True).clamp(min=1.0) / count.clamp(min=1.0)


class SequenceSum(Aggregation):
    """The number of rows, whose tokens are added up."""

    kind: Literal["sequence_sum"] = Field(
        "sequence_sum", description="sequence_sum = the number of rows; the tokens of a row are added up."
    )

    def coefficients(self, mask: Tensor, count: Tensor) -> Tensor:
        return mask.bool().double() / count.clamp(min=1.0)


class ConstantLength(Aggregation):
    """The longest completion of the run times the number of rows."""

    kind: Literal["constant_length"] = Field(
        "constant_length", description="constant_length = max_new_tokens times the number of rows."
    )

    # L: the run's maximum length in tokens.
    _max_length: int | None = PrivateAttr(None)

    @property
    def max_length(self) -> int:
        """The maximum length L in tokens. Raises ValueError if :meth:`with_length` has not set it."""
        if self._max_length is None:
            raise ValueError("constant_length needs the longest completion: ConstantLength.with_length(tokens)")
        return self._max_length

    def with_length(self, tokens: int) -> Aggregation:
        copy = self.model_copy()
        copy._max_length = tokens
        return copy

    def coefficients(self, mask: Tensor, count: Tensor) -> Tensor:
        return mask.bool().double() / (count.clamp(min=1.0) * float(self.max_length))


def prompt_factors(mask: Tensor, advantages: Tensor, group_size: int) -> Tensor:
    """Return (N, 1) factors for equal weight per prompt: mean trained rows a prompt / those of the row's prompt.

    Prompts without trained rows are excluded from the mean. With all rows in one optimizer step, these factors and
    ``sequences: trained`` give the mean over prompts of 1/|A+| sum over the prompt's rows (landscape paper, equations 8
    and 9); with several the divisor is the step's share of the rows.

    Args:
        mask: (N, T) of the whole rollout, the completions of a prompt together. advantages: (N, T) or (N, 1).
    """
    trained = (mask.bool() & (advantages != 0)).any(dim=1).double().view(-1, group_size)
    rows = trained.sum(dim=1, keepdim=True)
    mean = rows.sum() / (rows > 0).sum().clamp(min=1)
    return (mean / rows.clamp(min=1)).expand_as(trained).reshape(-1, 1).to(advantages.dtype)
