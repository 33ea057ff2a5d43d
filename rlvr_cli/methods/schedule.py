"""Schedules: which tokens each pass over a rollout trains on; all at once, or by probability (Lopti).

    low_first:   A 1[p_old < eta] over all mini-batches, then A 1[p_old >= eta] over all mini-batches

Yang et al., arXiv:2505.12929, Algorithm 1, lines 12 to 20, eta = 0.5 (Lopti). Old log-probs stay those of the rollout,
so the second pass starts off policy; the mask is that of the old probability in both. The divisor of either pass counts
all valid tokens, so that the two together are about one update, and the KL term is masked like the advantage.
``high_first`` is the paper's reversed order (section 5.3), ``low_only`` and ``high_only`` are its selective updates
(figure 1). With rule ``quantile`` eta is the share of the rollout's tokens that are low.

How we differ from the paper: it prints p <= eta, its released code has p < eta, and so do we.

How we differ from the released code: its negative eta for "high first" and its eta 0 for the quantile rule are keys of
their own here. ACPO's spread is taken over all tokens in either pass.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Choice, Probability
from rlvr_cli.methods.rollout import Rollout
from rlvr_cli.methods.statistics import quantile
from rlvr_cli.methods.tokens import Tokens

# What each pass trains on, in order.
PASSES = {
    "low_first": ("low", "high"),
    "high_first": ("high", "low"),
    "low_only": ("low",),
    "high_only": ("high",),
}


class Schedule(Choice):
    """The passes over a rollout."""

    chooses_by_old_log_probs: ClassVar[bool] = False

    @property
    def passes(self) -> tuple[str, ...]:
        """What each pass trains on, in the order of training."""
        return ("all",)

    @property
    def needs_old_log_probs_of_the_rollout(self) -> bool:
        """Whether old log-probs of the whole rollout are needed before the first update."""
        return False

    def threshold(self, rollout: Rollout) -> float | None:
        """The probability below which a token of this rollout is low; None where it is a constant."""
        return None

    @abstractmethod
    def selected(self, tokens: Tokens, which: str) -> Tensor:
        """(B, T) the tokens that pass ``which`` trains on."""


class OnePass(Schedule):
    """All tokens in one pass."""

    kind: Literal["one_pass"] = Field("one_pass", description="one_pass = all tokens at once.")

    def selected(self, tokens: Tokens, which: str) -> Tensor:
        """(B, T) the tokens that pass ``which`` trains on."""
        return tokens.mask.bool()


class ByProbability(Schedule):
    """Tokens divided by their old probability: Lopti's two passes, or one side alone."""

    kind: Literal["lopti"] = Field("lopti", description="lopti = passes by the tokens' old probability.")
    order: Literal["low_first", "high_first", "low_only", "high_only"] = Field(
        "low_first", description="Which tokens are trained on, and in which order."
    )
    eta: Probability = Field(
        0.5, description="Tokens of old probability below eta are low; with rule quantile, the share that is low."
    )
    rule: Literal["probability", "quantile"] = Field(
        "probability", description="Whether eta is a probability or a quantile of the rollout's probabilities."
    )

    chooses_by_old_log_probs: ClassVar[bool] = True

    @property
    def passes(self) -> tuple[str, ...]:
        """The selections, in the order of training."""
        return PASSES[self.order]

    @property
    def needs_old_log_probs_of_the_rollout(self) -> bool:
        """A quantile can only be taken once the probabilities of the whole rollout are known."""
        return self.rule == "quantile"

    def threshold(self, rollout: Rollout) -> float | None:
        """The probability below which a token of this rollout is low; None where it is ``eta`` itself."""
        if self.rule == "probability":
            return None
        assert rollout.old_log_probs is not None
        probabilities = torch.exp(rollout.old_log_probs.double())[rollout.mask.bool()]
        return float(quantile(probabilities, self.eta)) if probabilities.numel() else self.eta

    def selected(self, tokens: Tokens, which: str) -> Tensor:
        """(B, T) the tokens that pass ``which`` (``low`` or ``high``) trains on."""
        threshold = self.eta if tokens.low_threshold is None else tokens.low_threshold
        low = tokens.old_probs < threshold
        return tokens.mask.bool() & (low if which == "low" else ~low)
