"""Pass@k training: the advantage of a completion in a random set of k of the prompt's completions.

    n completions of the prompt, w of them wrong
    mean = 1 - C(w, k) / C(n, k)                                 the prompt's pass@k
    std  = sqrt(mean (1 - mean))
    A    = (1 - mean) / std                                      if correct
    A    = (1 - mean - C(w - 1, k - 1) / C(n - 1, k - 1)) / std  if wrong

Chen et al., arXiv:2508.10751, equations 14 and 15: the expected advantage over all sets of k, each rewarded by its best
completion. A = 0 where every set passes (fewer than k wrong) or none does. k = 1 is the verdict's z-score with the
population standard deviation (ddof 0). Correctness is the verifier's verdict, not the reward.

How we differ from the paper: completions without a reward do not count in n and w; if fewer than k are left, k is their
number.

How we differ from the released code: the authors divide by std + 1e-6. verl's ``grpo_passk`` is another method
(arXiv:2503.19595): the best completion of a group gets its lead over the second best, all others 0.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Count
from rlvr_cli.methods.base import Advantage, Rollout
from rlvr_cli.methods.maxrl import count_verdicts
from rlvr_cli.methods.preset import MethodPreset, Paper


def share_of_sets(inside: Tensor, total: Tensor, size: Tensor) -> Tensor:
    """Return C(inside, size) / C(total, size), the share of the sets of ``size`` that lie inside; float64.

    A product of ``size`` factors, exact where it is 0 or 1 and without large numbers.
    """
    share = torch.ones_like(total)
    for drawn in range(int(size.max()) if size.numel() else 0):
        factor = (inside - drawn).clamp(min=0) / (total - drawn).clamp(min=1)
        share = torch.where(size > drawn, share * factor, share)
    return share


class PassAtKAdvantage(Advantage):
    """The advantage under the pass@k of the group; rows without a reward get 0 and count nowhere."""

    kind: Literal["pass_at_k"] = Field("pass_at_k", description="pass_at_k = mean advantage over the sets of k.")
    k: Count = Field(4, description="Completions of a set, below rollout.group_size; 1 = the verdict's z-score.")

    needs_correct: ClassVar[bool] = True
    compares_group: ClassVar[bool] = True

    @property
    def least_group(self) -> tuple[int, str]:
        return self.k + 1, "method.advantage.k"

    def advantages(self, rollout: Rollout) -> Tensor:
        correct, right, count = count_verdicts(rollout)
        size, wrong = count.clamp(max=self.k), count - right
        fails = share_of_sets(wrong, count, size)
        std = (fails * (1 - fails)).sqrt()
        with_wrong = share_of_sets(wrong - 1, count - 1, size - 1)
        advantages = (fails - (1 - correct) * with_wrong) / std
        trained = (std > 0) & ~rollout.rewards.isnan()
        return torch.where(trained, advantages, 0.0).to(rollout.rewards.dtype).unsqueeze(1)


PAPER = Paper(
    "Pass@k Training for Adaptively Balancing Exploration and Exploitation of Large Reasoning Models",
    "Chen et al.",
    "2508.10751",
)
PRESETS = (
    MethodPreset(
        "pass-at-k",
        trainer="PassAtKTrainer",
        title="Pass@k training",
        summary="Advantages of the pass@k of a prompt's completions, by counting its sets of k.",
        paper=PAPER,
        golden=("pass_at_k",),
        inherits="grpo",
        sets={
            "advantage.kind": ("pass_at_k", "Pass@k paper, equations 14 and 15 (analytical derivation)"),
            "advantage.k": (4, "half of the default group of 8: our choice"),
        },
    ),
)
