"""High-entropy tokens only: train on the share of tokens where the policy is most uncertain.

    A' = A 1[H >= h]        h = (1 - share)-quantile of H over all valid tokens of the rollout

Wang et al., "Beyond the 80/20 Rule", arXiv:2506.01939, section 5 (share = 0.2). The quantile interpolates linearly, and
tokens equal to it are kept. The divisor still counts all valid tokens, as in the paper, so a step is about a fifth of
the usual size.

How we differ from the released code: TRL takes the quantile over one micro-batch of all processes, from the current
policy's entropies. We take it once over the whole rollout, from the sampling policy, so every update of a rollout
trains the same tokens. ASPO's code has a quantile per completion, which is part of ``aspo``.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.base import Rollout, RolloutShaping, Shaping, quantile
from rlvr_cli.methods.preset import Modifier, Paper


class HighEntropy(RolloutShaping):
    """Advantage 0 on all tokens but those of highest entropy."""

    key: ClassVar[str] = "high_entropy"
    main_key: ClassVar[str] = "share"
    order: ClassVar[int] = 2

    share: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        None, description="Fraction of the rollout's tokens to train on, those of highest entropy; null = all."
    )

    needs_entropies: ClassVar[bool] = True

    def select(self, rollout: Rollout) -> Tensor:
        """Return (N, T) True for tokens to train on."""
        assert rollout.entropies is not None and self.share is not None
        valid = rollout.mask.bool()
        entropies = rollout.entropies.detach().double()
        if not valid.any():
            return valid
        return valid & (entropies >= quantile(entropies[valid], 1 - self.share))

    def shape(self, rollout: Rollout, advantages: Tensor, shaped: Tensor) -> Tensor:
        return torch.where(self.select(rollout), shaped, 0.0)

    def simplify(self) -> Shaping:
        return self.disabled() if self.share == 1 else self


PAPER = Paper(
    "Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement Learning for LLM Reasoning",
    "Wang et al.",
    "2506.01939",
)
PRESETS = (
    Modifier(
        "high-entropy",
        title="High-entropy tokens only",
        summary="Trains on the 20% of the rollout's tokens with the highest entropy.",
        paper=PAPER,
        golden=("high_entropy_mask",),
        extra_cost="token entropies: one forward per rollout, unless the sampler returns them",
        sets={"shaping.high_entropy.share": (0.2, "80/20 paper: the top 20%")},
    ),
)
