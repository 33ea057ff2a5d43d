"""From per-token values to one number: the normaliser Z."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Aggregation:
    """What the sum over the tokens of a whole optimizer step is divided by.

    - ``token_mean``: 1 / number of valid tokens (DAPO, arXiv:2503.14476, equation 8).
    - ``sequence_mean``: 1 / (tokens of the row * number of rows) (DeepSeekMath, arXiv:2402.03300, equation 3).
    - ``constant_length``: 1 / (``max_length`` * number of rows) (Dr. GRPO, arXiv:2503.20783).

    How we differ from released code: verl averages the token means of micro-batches with equal weight and divides
    ``constant_length`` by the length alone; TRL counts a row without valid tokens as a row.

    Attributes:
        kind: one of the three above.
        rows: which rows are counted: ``valid`` = those with at least one valid token, ``all`` = every row,
            ``trained`` = valid ones whose advantage is not 0 (the |A+| of the landscape paper's losses).
            Of no meaning for ``token_mean``.
        max_length: L of ``constant_length``, tokens.
    """

    kind: Literal["token_mean", "sequence_mean", "constant_length"]
    rows: Literal["valid", "all", "trained"] = "valid"
    max_length: int | None = None

    def __post_init__(self) -> None:
        if self.kind == "constant_length" and self.max_length is None:
            raise ValueError("constant_length needs max_length")

    def count(self, mask: Tensor, advantages: Tensor) -> Tensor:
        """() what must be counted over a step: tokens, or rows. Adds up over micro-batches and processes.

        Args:
            mask: (B, T). advantages: (B, T) or (B, 1).
        """
        valid = mask.bool()
        if self.kind == "token_mean":
            return valid.sum(dtype=torch.float64)
        if self.rows == "all":
            return torch.tensor(float(len(mask)), dtype=torch.float64, device=mask.device)
        counted = valid if self.rows == "valid" else valid & (advantages != 0)
        return counted.any(dim=1).sum(dtype=torch.float64)

    def coefficients(self, mask: Tensor, count: Tensor) -> Tensor:
        """(B, T) 1/Z of each token in float64, 0 on padding; ``count`` is that of the whole step."""
        valid = mask.double()
        count = count.clamp(min=1.0)
        if self.kind == "token_mean":
            return valid / count
        if self.kind == "sequence_mean":
            return valid / valid.sum(dim=1, keepdim=True).clamp(min=1.0) / count
        return valid / (count * float(self.max_length or 1))

    def aggregate(self, values: Tensor, mask: Tensor, advantages: Tensor) -> Tensor:
        """() the (B, T) ``values`` of a whole step as one number."""
        weights = self.coefficients(mask, self.count(mask, advantages)).to(values.dtype)
        return torch.where(mask.bool(), values * weights, 0.0).sum()
