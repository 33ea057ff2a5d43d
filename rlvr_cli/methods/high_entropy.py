"""High-entropy tokens only: the policy is trained on the share of tokens at which it is most uncertain.

    A' = A 1[H >= h]        h = (1 - share)-quantile of H over all valid tokens of the rollout

Wang et al., "Beyond the 80/20 Rule", arXiv:2506.01939, section 5 (share = 0.2). The quantile interpolates linearly;
what equals it is kept. The divisor stays that of all valid tokens, as the paper prints it, so that the step is about a
fifth of the usual one.

How we differ from the released code: TRL takes the quantile over one micro-batch of every process and the entropies of
the policy as it is at that update; we take both once, over the whole rollout, from the policy that sampled it, so that
every update of a rollout trains on the same tokens. ASPO's code has a quantile for each row: that is part of ``aspo``.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.base import Rollout, RolloutShaping, Shaping, quantile
from rlvr_cli.methods.preset import Modifier, Paper


class HighEntropy(RolloutShaping):
    """Advantage 0 on all but the tokens of highest entropy."""

    key: ClassVar[str] = "high_entropy"
    main_key: ClassVar[str] = "share"
    place: ClassVar[int] = 2

    share: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        None, description="Train only on this share of the rollout's tokens, those of the highest entropy; null = all."
    )

    needs_entropies: ClassVar[bool] = True

    def kept(self, rollout: Rollout) -> Tensor:
        """(N, T) the valid tokens that are trained on."""
        assert rollout.entropies is not None and self.share is not None
        valid = rollout.mask.bool()
        entropies = rollout.entropies.detach().double()
        if not valid.any():
            return valid
        return valid & (entropies >= quantile(entropies[valid], 1 - self.share))

    def shape(self, rollout: Rollout, advantages: Tensor, shaped: Tensor) -> Tensor:
        return torch.where(self.kept(rollout), shaped, 0.0)

    def simplest(self) -> Shaping:
        return self.off() if self.share == 1 else self


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
        extra_cost="the entropy of each position of the sampling policy once a rollout (one forward, unless the "
        "sampler tells it)",
        sets={
            "shaping.high_entropy.share": (0.2, "80/20 paper: the top 20%"),
        },
    ),
)
