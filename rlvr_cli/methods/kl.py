"""Estimates of the KL divergence between policies from sampled tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def k3(log_probs: Tensor, other_log_probs: Tensor) -> Tensor:
    """Per-token estimate of KL(pi || other) for tokens sampled from pi: exp(d) - d - 1 with d = log other - log pi.

    Never negative, unbiased, of low variance: Schulman, "Approximating KL divergence" (2020), k3; DeepSeekMath,
    arXiv:2402.03300, equation 4. No clamp (verl clamps d to +-20 and the value to 10).
    """
    difference = other_log_probs - log_probs
    return torch.exp(difference) - difference - 1
