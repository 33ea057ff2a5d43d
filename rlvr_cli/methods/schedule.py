"""Which tokens each pass over a rollout trains on: all at once, or by their probability (Lopti, selective updates).

Lopti (AR-Lopti paper, Algorithm 1): one complete pass over all mini-batches with the tokens of low old probability,
then one over all mini-batches with the others; old log-probs stay those of the rollout, so the second pass starts off
policy. The divisor of both passes counts all valid tokens, and the KL term is masked like the advantage.

How we differ from the released code: paper and code disagree on the edge (p <= eta in print, p < eta in code); we take
the code's. Its negative eta for "high first" and eta 0 for the quantile rule are keys of their own here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr_cli.methods.rollout import Rollout
from rlvr_cli.methods.tokens import Tokens

PASSES = {
    "low_first": ("low", "high"),
    "high_first": ("high", "low"),
    "low_only": ("low",),
    "high_only": ("high",),
}


@dataclass(frozen=True)
class OnePass:
    """All tokens in one pass."""

    passes = ("all",)
    needs_old_log_probs_of_the_rollout = False

    def threshold(self, rollout: Rollout) -> float | None:
        """No probability divides the tokens."""
        return None

    def selected(self, tokens: Tokens, which: str) -> Tensor:
        """(B, T) the tokens that pass ``which`` trains on."""
        return tokens.mask.bool()


@dataclass(frozen=True)
class ByProbability:
    """Tokens divided by their old probability: Lopti's two passes, or one side alone.

    Attributes:
        order: ``low_first`` (Lopti), ``high_first`` (the paper's reversed order), ``low_only``, ``high_only``.
        eta: the dividing probability; or, with ``threshold_kind`` ``quantile``, the share of the rollout's tokens
            that counts as low.
        rule: ``probability`` or ``quantile``.
    """

    order: str
    eta: float
    rule: str

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
        return float(torch.quantile(probabilities, self.eta)) if probabilities.numel() else self.eta

    def selected(self, tokens: Tokens, which: str) -> Tensor:
        """(B, T) the tokens that pass ``which`` (``low`` or ``high``) trains on."""
        threshold = self.eta if tokens.low_threshold is None else tokens.low_threshold
        low = tokens.old_probs < threshold
        return tokens.mask.bool() & (low if which == "low" else ~low)


Schedule = OnePass | ByProbability
