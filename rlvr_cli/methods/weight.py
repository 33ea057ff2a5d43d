"""The token weight F: what every file of a method's weight implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlvr_cli.methods.tokens import Regions, Tokens, regions


@dataclass(frozen=True)
class TokenWeight(ABC):
    """F of ratio, sign of the advantage and old probability, under stop-gradient; frozen parameters.

    The gradient of a token's loss is ``-F A grad log pi``.

    Attributes:
        needs_statistics: whether it reads statistics of the whole optimizer step, which :meth:`statistics` computes.
        per_sequence: whether a row's tokens share one ratio, that of the whole row.
    """

    needs_statistics: ClassVar[bool] = False
    per_sequence: ClassVar[bool] = False

    @property
    def needs_entropies(self) -> bool:
        """Whether :meth:`weight` reads ``tokens.entropies``."""
        return False

    @property
    def reads_whole_rows(self) -> bool:
        """Whether the weight of one token depends on the other tokens of its row."""
        return self.per_sequence

    def statistics(self, tokens: Tokens) -> Tensor | None:
        """What :meth:`weight` must know of the whole optimizer step.

        ``tokens`` holds every row of the step, of all micro-batches and processes, in any order.
        """
        return None

    @abstractmethod
    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        """(B, T) F, without gradient; whatever on padding. Finite wherever ratio and 1/ratio are."""

    @abstractmethod
    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[float | Tensor, float | Tensor]:
        """eps_low and eps_high of the trust region: numbers, or broadcastable to (B, T)."""

    def regions(self, tokens: Tokens, statistics: Tensor | None = None) -> Regions:
        """Where each token lies."""
        return regions(tokens, *self.bounds(tokens, statistics))

    @abstractmethod
    def surrogate(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        """(B, T) the loss value in the paper's or the released code's form; its derivative is -F A."""


def with_unit_slope(values: Tensor, log_probs: Tensor) -> Tensor:
    """``values`` as constants times pi / sg(pi): the same numbers, whose derivative by log pi is themselves."""
    return values.detach() * torch.exp(log_probs - log_probs.detach())
