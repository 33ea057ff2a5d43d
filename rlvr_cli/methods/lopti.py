"""Passes over a rollout: all tokens at once, or split by probability (Lopti).

    low_first:   A 1[p_old < eta] over all mini-batches, then A 1[p_old >= eta] over all mini-batches

Yang et al., arXiv:2505.12929, algorithm 1, lines 12 to 20, with eta = 0.5. Both passes use the old log-probs and the
old probabilities of the rollout, so the second pass starts off-policy. Both divide by all valid tokens, so together
they are about one update. The KL term is masked like the advantage. ``high_first`` is the paper's reversed order
(section 5.3), ``low_only`` and ``high_only`` its selective updates (figure 1). With rule ``quantile``, eta is the share
of the rollout's tokens in the low pass.

How we differ from the paper: it prints p <= eta; its released code and ours have p < eta.

How we differ from the released code: its negative eta ("high first") and its eta 0 (the quantile rule) are separate
keys here. ACPO's spread is taken over all tokens in both passes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Choice, Contradiction, Probability
from rlvr_cli.methods.base import Advantage, Part, Rollout, Tokens, quantile
from rlvr_cli.methods.preset import MethodPreset, Modifier, Sets
from rlvr_cli.methods.reweight import AR_LOPTI, PAPER

# The tokens of each pass, in order.
ORDERS = {"low_first": ("low", "high"), "high_first": ("high", "low"), "low_only": ("low",), "high_only": ("high",)}


class Passes(Part, Choice):
    """The passes over a rollout."""

    chooses_by_old_log_probs: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        """The tokens of each pass, in the order of training."""
        return ("all",)

    @property
    def empty_passes(self) -> tuple[bool, ...]:
        """Flags of the passes that are empty for any data."""
        return tuple(False for _ in self.names)

    def simplify_first_step(self) -> Passes:
        """Return passes that select the same tokens at a rollout's first optimizer step, with the fewest parameters."""
        return self

    @property
    def needs_rollout_log_probs(self) -> bool:
        """True if old log-probs of the whole rollout are needed before the first update."""
        return False

    def threshold(self, rollout: Rollout) -> float | None:
        """Return the probability below which a token of this rollout is low; None if it is a constant."""
        return None

    @abstractmethod
    def selected(self, tokens: Tokens, pass_name: str) -> Tensor:
        """Return (B, T) True for the tokens that pass ``pass_name`` trains on."""


class OnePass(Passes):
    """All tokens in one pass."""

    kind: Literal["one_pass"] = Field("one_pass", description="one_pass = all tokens at once.")

    def selected(self, tokens: Tokens, pass_name: str) -> Tensor:
        return tokens.mask.bool()


class ByProbability(Passes):
    """Tokens split by their old probability: Lopti's two passes, or one of them."""

    kind: Literal["lopti"] = Field("lopti", description="lopti = passes by the tokens' old probability.")
    order: Literal["low_first", "high_first", "low_only", "high_only"] = Field(
        "low_first", description="Passes in order: over the tokens of low or of high probability."
    )
    eta: Probability = Field(
        0.5, description="Old probability below which a token is low; with rule quantile, the fraction of low tokens."
    )
    rule: Literal["probability", "quantile"] = Field(
        "probability", description="Meaning of eta: a probability, or a quantile of the rollout's probabilities."
    )

    chooses_by_old_log_probs: ClassVar[bool] = True

    @property
    def names(self) -> tuple[str, ...]:
        return ORDERS[self.order]

    @property
    def needs_rollout_log_probs(self) -> bool:
        return self.rule == "quantile"

    @property
    def empty_passes(self) -> tuple[bool, ...]:
        # No token has a probability below 0.
        return tuple(pass_name == "low" and self.eta == 0 for pass_name in self.names)

    def contradictions(self, advantage: Advantage) -> Iterator[Contradiction]:
        if (self.order, self.eta) in (("low_only", 0.0), ("high_only", 1.0)):
            side = "below 0: none" if self.order == "low_only" else "of 1 alone: next to none"
            yield Contradiction(
                ("method.passes.eta", "method.passes.order"),
                f"method.passes.eta={self.eta:g} with method.passes.order={self.order} trains on tokens of a "
                f"{self.rule} {side}. Set an eta between 0 and 1",
            )

    def simplify(self) -> Passes:
        """Return one pass if a single pass has all tokens, since an empty pass has no effect.

        With eta 1, tokens whose probability rounds to 1 remain in the high pass; they have no gradient on the first
        step, but on later ones.
        """
        return OnePass() if self.eta == 0 and self.order != "low_only" else self

    def simplify_first_step(self) -> Passes:
        first = self.names[0]
        all_low, all_high = self.eta == 1 and self.rule == "probability", self.eta == 0
        if (first == "low" and all_low) or (first == "high" and all_high):
            return OnePass()
        if all_low or all_high:
            return ByProbability(order="low_only", eta=0.0)
        return self.replace(order=f"{first}_only")

    def threshold(self, rollout: Rollout) -> float | None:
        if self.rule == "probability":
            return None
        assert rollout.old_log_probs is not None
        probabilities = torch.exp(rollout.old_log_probs.double())[rollout.mask.bool()]
        return float(quantile(probabilities, self.eta)) if probabilities.numel() else self.eta

    def selected(self, tokens: Tokens, pass_name: str) -> Tensor:
        threshold = self.eta if tokens.low_threshold is None else tokens.low_threshold
        low = tokens.old_probs < threshold
        return tokens.mask.bool() & (low if pass_name == "low" else ~low)


TWO_PASSES: Sets = {
    "passes.kind": ("lopti", "AR-Lopti paper, algorithm 1, lines 12 to 20"),
    "passes.order": (
        "low_first",
        "AR-Lopti paper, algorithm 1: all mini-batches of unlikely tokens, then all of the likely ones",
    ),
    "passes.eta": (0.5, "AR-Lopti paper, table 3; released scripts: 0.4, and 0.5 with reweighting"),
    "passes.rule": ("probability", "AR-Lopti paper, section 4.2: a threshold on the probability"),
}
COST = "a second pass over the rollout: twice the optimizer steps, forward and backward in both"
QUARTILES = "AR-Lopti paper, section 4.2: a threshold on the probability; its figure 1 uses quartiles"
PRESETS = (
    MethodPreset(
        "lopti",
        trainer="LoptiTrainer",
        title="Low-Probability Token Isolation",
        summary="Two passes over each rollout: first the unlikely tokens, then the likely ones.",
        paper=PAPER,
        golden=("lopti",),
        extra_cost=f"{COST}; one reference-model forward per rollout (KL penalty)",
        inherits="grpo",
        sets={**AR_LOPTI, **TWO_PASSES},
    ),
    Modifier(
        "lopti",
        title="Low-Probability Token Isolation",
        summary="Two passes over each rollout: first the unlikely tokens, then the likely ones.",
        paper=PAPER,
        golden=("lopti", "ar_lopti"),
        extra_cost=COST,
        sets=TWO_PASSES,
    ),
    Modifier(
        "low-only",
        title="Low-probability tokens only",
        summary="Trains only on unlikely tokens.",
        paper=PAPER,
        golden=("lopti",),
        sets={
            "passes.kind": ("lopti", "AR-Lopti paper, figures 1e and 6a: selective updates"),
            "passes.order": ("low_only", "AR-Lopti paper, figures 1e and 6a; ACPO paper, appendix D.1, p < 0.2"),
            "passes.eta": (0.5, "our choice, Lopti's threshold: figure 1e has p < 0.25, figure 6a says none"),
            "passes.rule": ("probability", QUARTILES),
        },
    ),
    Modifier(
        "high-only",
        title="High-probability tokens only",
        summary="Trains only on likely tokens.",
        paper=PAPER,
        golden=("lopti",),
        sets={
            "passes.kind": ("lopti", "AR-Lopti paper, figure 1f: selective updates"),
            "passes.order": ("high_only", "AR-Lopti paper, figure 1f; ACPO paper, appendix D.1, for p > 0.8"),
            "passes.eta": (0.5, "our choice, Lopti's threshold: figure 1f has p > 0.75"),
            "passes.rule": ("probability", QUARTILES),
        },
    ),
)
