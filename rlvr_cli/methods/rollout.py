"""What a method may look at once a rollout is sampled and scored, before the first update on it."""

from __future__ import annotations

from dataclasses import dataclass

from rlvr_cli.core.lazy import Tensor, torch


@dataclass(frozen=True)
class Rollout:
    """All ``N`` completions of one rollout batch, of every process, in the order of sampling.

    The completions of one prompt stand together: row i belongs to group i // group_size.

    Attributes:
        rewards: (N,) one reward a completion; NaN marks a row that must not be learned from.
        group_size: completions of each prompt; N is a multiple of it.
        token_ids: (N, T) sampled tokens, right-padded.
        mask: (N, T) 1 on valid tokens, 0 on padding.
        old_log_probs: (N, T) log-probs under the policy that sampled; only where a method needs them here.
        entropies: (N, T) entropy of that policy at each position, nats; only where a method needs them here.
        ref_log_probs: (N, T) log-probs under the reference policy; only where there is one.
        values: (N, T) predictions of the value head; only where there is one.
        correct: (N,) bool, the verifier's verdict on each completion; only where a method needs it.
        initial_entropy: mean token entropy of the model before training, nats; only where a method needs it.
    """

    rewards: Tensor
    group_size: int
    token_ids: Tensor
    mask: Tensor
    old_log_probs: Tensor | None = None
    entropies: Tensor | None = None
    ref_log_probs: Tensor | None = None
    values: Tensor | None = None
    correct: Tensor | None = None
    initial_entropy: float | None = None

    def row_mean(self, values: Tensor) -> Tensor:
        """(N,) mean of (N, T) ``values`` over each row's valid tokens; 0 for a row without any."""
        mask = self.mask.bool()
        return torch.where(mask, values, 0).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
