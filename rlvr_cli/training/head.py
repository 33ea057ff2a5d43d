"""Log-probs and entropies of sampled tokens from hidden states, without the logits of a whole batch in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

# Logits that are in memory at a time (256 MiB in float32).
MOST_LOGITS = 2**26


class _LogProbs(torch.autograd.Function):
    """log softmax of (n, V) logits at (n,) targets: one buffer of n x V for the gradient, none for the result."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        normalisers = logits.logsumexp(dim=-1)
        ctx.save_for_backward(logits, targets, normalisers)
        ctx.mark_non_differentiable(normalisers)
        return logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - normalisers, normalisers

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None]:
        logits, targets, normalisers = ctx.saved_tensors
        of_logits = torch.sub(logits, normalisers.unsqueeze(-1)).exp_().mul_(-gradient.unsqueeze(-1))
        of_logits.scatter_add_(-1, targets.unsqueeze(-1), gradient.unsqueeze(-1))
        return of_logits, None


def token_log_probs(
    head: Callable[[Tensor], Tensor],
    states: Tensor,
    targets: Tensor,
    *,
    vocabulary: int,
    temperature: float,
    entropies: bool,
) -> tuple[Tensor, Tensor | None]:
    """(n,) log-probs of ``targets`` and, where asked for, (n,) entropies (nats, no gradient) at their places.

    Both under the distribution that was sampled from: logits divided by ``temperature``. The head is applied to as many
    states at a time as :data:`MOST_LOGITS` allows; where there are several such parts, the backward pass computes each
    again.

    Args:
        head: from states to logits. states: (n, H), one before each target. targets: (n,) token ids.
        vocabulary: logits of each state.
    """

    def part(states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        logits = head(states)
        # As in TRL's head: which of the two is used must not decide the precision.
        logits = logits if logits.dtype == torch.float64 else logits.float()
        logits = logits if temperature == 1 else logits / temperature
        log_probs, normalisers = _LogProbs.apply(logits, targets)  # type: ignore[no-untyped-call]
        if not entropies:
            return log_probs, None
        with torch.no_grad():
            log_softmax = logits.detach() - normalisers.unsqueeze(-1)
            return log_probs, -(log_softmax.exp() * log_softmax).sum(dim=-1)

    size = max(1, MOST_LOGITS // vocabulary)
    if len(targets) <= size:
        return part(states, targets)
    found = []
    for some, wanted in zip(states.split(size), targets.split(size), strict=True):
        if torch.is_grad_enabled():
            found.append(checkpoint(part, some, wanted, use_reentrant=False))
        else:
            found.append(part(some, wanted))
    log_probs = torch.cat([one for one, _ in found])
    return log_probs, torch.cat([one for _, one in found]) if entropies else None
