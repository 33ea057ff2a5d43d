"""An entropy bonus in the loss, with a fixed coefficient or one that follows a target.

    l = l_policy - c H        H = -sum over the vocabulary v of p_v log p_v
    dH/dz_v = -p_v (log p_v + H)        z: logits over the temperature

Mnih et al., arXiv:1602.01783, section 4; H in nats, at the sampling temperature. With a ``target``, at step k:

    c = c_k if H_(k-1) <= target else 0        c_(k+1) = c_k + step if H_k <= target else c_k - step, in [min, max]

He et al., arXiv:2505.22312 (Skywork-OR1), as in TRL. H_k: the mean over the step's tokens in all processes, before the
update; the first step has no bonus.

The bonus is no `F A grad log pi`, since its gradient needs a token's whole distribution. The divisor is the method's Z,
the tokens are all of the pass, as for the KL penalty: a step skips none, not even while an adaptive coef is 0.

How we differ from the paper: the gate reads the entropy of the step before, as in TRL.

How we differ from the released code: TRL's bonus is a mean over the tokens of a forward pass whatever the loss type,
without those that ``top_entropy_quantile`` drops. Here a step without a finite entropy changes no coef.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from pydantic import Field

from rlvr_cli.core.section import Contradiction, NotNegative
from rlvr_cli.methods.base import Advantage, Part
from rlvr_cli.methods.preset import Modifier, Paper


class EntropyBonus(Part):
    """``coef`` times the entropy of each token's distribution, subtracted from its loss."""

    coef: float = Field(0.0, description="Weight of each token's entropy, in nats; with a target the initial weight.")
    target: NotNegative | None = Field(
        None,
        description="Mean entropy per token (nats) to keep: coef rises by step while the entropy is at or below it, "
        "else falls and does not act; null = a fixed coef.",
    )
    min: float = Field(0.0, description="Lower bound of an adaptive coef.")
    max: float = Field(1.0, description="Upper bound of an adaptive coef.")
    step: NotNegative = Field(0.005, description="Change of an adaptive coef per optimizer step.")

    @property
    def is_on(self) -> bool:
        return self.coef != 0 or self.adaptive

    @property
    def adaptive(self) -> bool:
        return self.target is not None

    def applied(self, coef: float, last_entropy: float) -> float:
        """Return the weight at a step; ``last_entropy``: of the step before, in nats."""
        return coef if self.target is None or last_entropy <= self.target else 0.0

    def adapt(self, coef: float, entropy: float) -> float:
        """Return the coefficient of the next step."""
        if self.target is None or not math.isfinite(entropy):
            return coef
        moved = coef + (self.step if entropy <= self.target else -self.step)
        return min(max(moved, self.min), self.max)

    def contradictions(self, advantage: Advantage) -> Iterator[Contradiction]:
        if self.adaptive and self.min > self.max:
            low, high = "method.entropy_bonus.min", "method.entropy_bonus.max"
            yield Contradiction((low, high), f"{low}={self.min:g} must be at most {high}={self.max:g}")

    def unused(self, advantage: Advantage) -> Iterator[tuple[str, str, str]]:
        target = "method.entropy_bonus.target"
        for name in () if self.adaptive else ("min", "max", "step"):
            yield f"method.entropy_bonus.{name}", target, f"{target}=null means a fixed coef. Set {target}"

    def simplify(self) -> EntropyBonus:
        return self if self.adaptive else EntropyBonus(coef=self.coef)


COST = "the gradient of the entropy, for every token of the pass: none is skipped"
PRESETS = (
    Modifier(
        "entropy-bonus",
        title="Entropy bonus",
        summary="Adds the entropy of each token's distribution to the objective, with a fixed weight.",
        paper=Paper("Asynchronous Methods for Deep Reinforcement Learning", "Mnih et al.", "1602.01783"),
        golden=("entropy_bonus",),
        extra_cost=COST,
        sets={"entropy_bonus.coef": (0.001, "our choice; TRL's default is 0, the A3C paper's 0.01")},
    ),
    Modifier(
        "adaptive-entropy",
        title="Adaptive entropy control",
        summary="Adds an entropy bonus while the entropy is below a target, with a weight that rises until it is not.",
        paper=Paper("Skywork Open Reasoner 1 Technical Report", "He et al.", "2505.22312"),
        golden=("entropy_bonus",),
        extra_cost=COST,
        sets={
            "entropy_bonus.coef": (0.0, "TRL's default, as the bounds"),
            "entropy_bonus.target": (0.2, "TRL's default, after Skywork-OR1"),
            "entropy_bonus.step": (0.005, "TRL's default, after Skywork-OR1"),
        },
    ),
)
