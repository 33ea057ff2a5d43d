"""Corrections of the gradient for a sampler that is not the trained policy (``rollout.correction``).

    x = log pi_old - log pi_sampler      per token; 0 where the sampler's log-prob is unknown (NaN)

    token      min(e^x, cap)                          cap 2
    icepop     e^x where low <= e^x <= high, else 0   low 0.5, high 5
    sequence   min(prod e^x, cap)                     cap 2
    mis        prod e^x where it is <= cap, else 0    cap 2
    geometric  1 where low <= exp(mean x) <= high, else 0                           low 0.999, high 1.001
    opsm       0 where A < 0 and mean(log pi_sampler - log pi) > delta, else 1      delta 0.5

pi_old is the trainer's probability before the first update on the rollout, pi_sampler the sampler's, pi the current
policy's, all at the sampling temperature. Products and means are over the tokens of the row, in float64 and in log
space. The weight multiplies F A, without gradient; the KL penalty and the value loss have none.

Sources:

- token: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025), with the cap of
  verl. TRL's ``token_truncate`` (cap 3).
- icepop: "Every Step Evolves", arXiv:2510.18855 (alpha 0.5, beta 5). TRL's ``token_mask``, there without a lower bound.
- sequence: verl's ``rollout_is=sequence`` with its cap. TRL's ``sequence_truncate`` (cap 3).
- mis: Liu et al., "When Speed Kills Stability" (2025), with verl's threshold. TRL's ``sequence_mask``, its default (3).
- geometric: Li et al., "Trust Region Masking", arXiv:2512.23075, with the bounds of verl's documentation, which are for
  rounding: stale or tempered samples need wider ones.
- opsm: DeepSeek-V3.2, arXiv:2512.02556, equation 9. The paper prints no delta; TRL's documentation of
  ``off_policy_mask_threshold`` suggests 0.5. With advantages per token each follows its sign.

Tokens and rows with weight 0 stay in the divisor Z, as in the papers of IcePop and DeepSeek-V3.2, in TRL and prime-rl:
otherwise the fewer rows are accepted, the larger each one's step would be. verl takes rejected rows out of Z.

A product over a long row is 0 or beyond any cap (0.012 a token is 3.3 over 100), so ``sequence`` and ``mis`` filter by
length: ``importance/cut_short`` and ``importance/cut_long`` show it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Choice
from rlvr_cli.methods.base import Tokens

Cap = Annotated[float, Field(ge=1.0, le=1e6)]
Low = Annotated[float, Field(ge=0.0, le=1.0)]
High = Annotated[float, Field(ge=1.0, le=1e6)]


class CorrectionSetting(Choice):
    """The value of ``rollout.correction``: a correction, or which one to use."""


class Correction(CorrectionSetting, ABC):
    """A weight for the difference of sampler and trainer.

    Attributes:
        reads_rows: whether a token's weight depends on the other tokens of its row.
        reads_policy: whether it depends on the current policy, and so changes from update to update.
    """

    reads_rows: ClassVar[bool] = False
    reads_policy: ClassVar[bool] = False

    @abstractmethod
    def weights(self, tokens: Tokens, sampler_log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, T) weights, and where the limit of the correction has changed them; arbitrary on padding.

        ``sampler_log_probs``: (B, T) of the sampled tokens, NaN where unknown.
        """


def log_ratios(log_probs: Tensor, sampler_log_probs: Tensor) -> Tensor:
    """Return log(pi / pi_sampler) (B, T); 0 where the sampler's log-prob is NaN."""
    difference = log_probs.detach() - sampler_log_probs
    return torch.where(difference.isnan(), 0.0, difference)


def _row_sum(values: Tensor, tokens: Tokens) -> Tensor:
    """Return (B, 1) float64 sums over the valid tokens; -inf for an undefined sum, inf - inf."""
    total = torch.where(tokens.mask.bool(), values, 0.0).sum(dim=1, keepdim=True, dtype=torch.float64)
    return torch.where(total.isnan(), -math.inf, total)


def _row_mean(values: Tensor, tokens: Tokens) -> Tensor:
    return _row_sum(values, tokens) / tokens.mask.bool().sum(dim=1, keepdim=True).clamp(min=1)


def _reject(values: Tensor, rejected: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``values``, 0 where ``rejected``, in shape and dtype of ``like``, and ``rejected`` in its shape."""
    return torch.where(rejected, 0.0, values).to(like.dtype).expand_as(like), rejected.expand_as(like)


class AutoCorrection(CorrectionSetting):
    """The correction of the engine."""

    kind: Literal["auto"] = Field("auto", description="auto = token with cap 2 for vLLM, else none.")


class NoCorrection(CorrectionSetting):
    """No correction."""

    kind: Literal["none"] = Field("none", description="none = no weights.")


class TokenCorrection(Correction):
    """Truncated importance sampling per token."""

    kind: Literal["token"] = Field("token", description="token = the token's pi_old / pi_sampler, at most cap (TIS).")
    cap: Cap = Field(2.0, description="Largest weight.")

    def weights(self, tokens: Tokens, sampler_log_probs: Tensor) -> tuple[Tensor, Tensor]:
        ratios = log_ratios(tokens.old_log_probs, sampler_log_probs).exp()
        return ratios.clamp(max=self.cap), ratios > self.cap


class IcePop(Correction):
    """Importance weights per token, masked outside bounds."""

    kind: Literal["icepop"] = Field("icepop", description="icepop = as token without a cap; 0 outside low and high.")
    low: Low = Field(0.5, description="Smallest weight that is kept.")
    high: High = Field(5.0, description="Largest weight that is kept.")

    def weights(self, tokens: Tokens, sampler_log_probs: Tensor) -> tuple[Tensor, Tensor]:
        ratios = log_ratios(tokens.old_log_probs, sampler_log_probs).exp()
        return _reject(ratios, (ratios < self.low) | (ratios > self.high), ratios)


class SequenceCorrection(Correction):
    """Truncated importance sampling per row."""

    kind: Literal["sequence"] = Field("sequence", description="sequence = as token, of the row's probability.")
    cap: Cap = Field(2.0, description="Largest weight.")

    reads_rows: ClassVar[bool] = True

    def weights(self, tokens: Tokens, sampler_log_probs: Tensor) -> tuple[Tensor, Tensor]:
        differences = log_ratios(tokens.old_log_probs, sampler_log_probs)
        total, limit = _row_sum(differences, tokens), math.log(self.cap)
        weights = total.clamp(max=limit).exp().to(differences.dtype)
        return weights.expand_as(differences), (total > limit).expand_as(differences)


class MaskedSequence(Correction):
    """Importance weights per row, masked above a cap."""

    kind: Literal["mis"] = Field("mis", description="mis = as sequence, but 0 above cap: the row is out.")
    cap: Cap = Field(2.0, description="Largest weight that is kept.")

    reads_rows: ClassVar[bool] = True

    def weights(self, tokens: Tokens, sampler_log_probs: Tensor) -> tuple[Tensor, Tensor]:
        differences = log_ratios(tokens.old_log_probs, sampler_log_probs)
        total = _row_sum(differences, tokens)
        return _reject(total.exp(), total > math.log(self.cap), differences)


class GeometricRejection(Correction):
    """Rejection of rows by their geometric mean ratio."""

    kind: Literal["geometric"] = Field("geometric", description="geometric = 1; 0 for rows of mean beyond bounds.")
    low: Low = Field(0.999, description="Smallest mean ratio that is kept.")
    high: High = Field(1.001, description="Largest mean ratio that is kept.")

    reads_rows: ClassVar[bool] = True

    def weights(self, tokens: Tokens, sampler_log_probs: Tensor) -> tuple[Tensor, Tensor]:
        differences = log_ratios(tokens.old_log_probs, sampler_log_probs)
        mean = _row_mean(differences, tokens).exp()
        return _reject(torch.ones_like(mean), (mean < self.low) | (mean > self.high), differences)


class OffPolicySequenceMask(Correction):
    """Rejection of rows with a negative advantage that the current policy no longer samples."""

    kind: Literal["opsm"] = Field("opsm", description="opsm = 1; 0 for negative rows far off policy.")
    delta: Annotated[float, Field(ge=0.0, le=1e6)] = Field(
        0.5, description="Largest mean log pi_sampler - log pi of a row with a negative advantage, in nats a token."
    )

    reads_rows: ClassVar[bool] = True
    reads_policy: ClassVar[bool] = True

    def weights(self, tokens: Tokens, sampler_log_probs: Tensor) -> tuple[Tensor, Tensor]:
        differences = log_ratios(tokens.log_probs, sampler_log_probs)
        divergence = _row_mean(-differences, tokens)
        return _reject(torch.ones_like(divergence), (tokens.advantages < 0) & (divergence > self.delta), differences)
