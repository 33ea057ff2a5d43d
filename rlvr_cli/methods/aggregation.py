"""From per-token losses to one number: the normaliser Z."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token_mean", "sequence_mean", "constant_length"]


def aggregate(values: Tensor, mask: Tensor, aggregation: Aggregation, *, max_length: int | None = None) -> Tensor:
    """Reduce (B, T) per-token ``values`` over a whole optimizer-step batch.

    - ``token_mean``: sum over valid tokens / number of valid tokens (DAPO, arXiv:2503.14476, equation 8).
    - ``sequence_mean``: mean over rows of the row's token mean (DeepSeekMath, arXiv:2402.03300, equation 3); a row
      with no valid token counts as 0.
    - ``constant_length``: sum over valid tokens / (B * ``max_length``) (Dr. GRPO, arXiv:2503.20783).

    Raises:
        ValueError: ``constant_length`` without ``max_length``.
    """
    mask = mask.to(values.dtype)
    total = torch.where(mask.bool(), values, 0.0)
    if aggregation == "token_mean":
        return total.sum() / mask.sum().clamp(min=1.0)
    if aggregation == "sequence_mean":
        return (total.sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)).mean()
    if max_length is None:
        raise ValueError("constant_length needs max_length")
    return total.sum() / (values.shape[0] * max_length)
