"""Factors on the advantage: what every file of a shaping implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from rlvr_cli.core.lazy import Tensor
from rlvr_cli.methods.rollout import Rollout
from rlvr_cli.methods.tokens import Tokens


@dataclass(frozen=True)
class RolloutShaping(ABC):
    """Changes the advantages once, when the rollout is scored; may look at whole groups.

    Attributes:
        needs_entropies: whether it reads ``rollout.entropies``.
    """

    needs_entropies: ClassVar[bool] = False

    @property
    def needs_initial_entropy(self) -> bool:
        """Whether it reads ``rollout.initial_entropy``."""
        return False

    @abstractmethod
    def shape(self, rollout: Rollout, advantages: Tensor, shaped: Tensor) -> Tensor:
        """(N, 1) or (N, T) advantages after this shaping; 0 stays 0 on rows whose reward is NaN.

        Args:
            advantages: what the estimator gave, untouched by any shaping.
            shaped: the same after the shapings before this one.
        """


@dataclass(frozen=True)
class TokenShaping(ABC):
    """A factor on the advantage of each token, from that token's own old probability."""

    @abstractmethod
    def factor(self, tokens: Tokens) -> Tensor:
        """(B, T) the factor, not negative."""
