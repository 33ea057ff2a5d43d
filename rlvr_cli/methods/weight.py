"""The token weight F: what every file of a method's weight implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field

from rlvr_cli.core.lazy import Tensor
from rlvr_cli.core.section import Choice
from rlvr_cli.methods.tokens import Regions, Tokens, regions

EpsLow = Annotated[float, Field(ge=0.0, le=1.0)]
EpsHigh = Annotated[float, Field(ge=0.0, le=100.0)]
AboveOne = Annotated[float, Field(gt=1.0)]
OpenShare = Annotated[float, Field(gt=0.0, lt=1.0)]


class TokenWeight(Choice, ABC):
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

    def unused(self) -> Iterator[tuple[str, str, str]]:
        """Keys without effect at the present values: (key, the key that switches it off, why and what to do)."""
        yield from ()

    def simplest(self) -> TokenWeight:
        """A weight with the same gradient whatever the data, written in the fewest parameters."""
        return self

    @abstractmethod
    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        """(B, T) F, without gradient; whatever on padding. Finite wherever ratio and 1/ratio are."""

    @abstractmethod
    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[float | Tensor, float | Tensor]:
        """eps_low and eps_high of the trust region: numbers, or broadcastable to (B, T)."""

    def regions(self, tokens: Tokens, statistics: Tensor | None = None) -> Regions:
        """Where each token lies."""
        return regions(tokens, *self.bounds(tokens, statistics))
