"""What the adapter to TRL takes from a run, and what a forward pass gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from rlvr_cli.methods.base import Tokens


class Rollouts(Protocol):
    """Where completions and rewards come from."""

    def sample(self, rollout: int, problems: Sequence[int], first_row: int) -> tuple[list[list[int]], list[list[int]]]:
        """Prompt and completion token ids for the rows of this process; ``first_row`` is its first global row."""

    def before_training(
        self, problems: Sequence[int]
    ) -> tuple[list[list[int]], list[list[int]], list[list[float]] | None]:
        """Prompt and completion token ids, one for each of ``problems``, and the sampler's entropies where it can tell.

        Asked once, before the first rollout, of methods that measure the untrained model's entropy on problems.
        """

    def sampler_log_probs(self) -> list[list[float]]:
        """For every token just sampled, the log-prob that its sampler gave it at the sampling temperature."""

    def sampler_entropies(self) -> list[list[float]] | None:
        """The entropies in nats at those tokens' positions, of the same distributions; None where it cannot tell."""

    def judge(self) -> list[float]:
        """The rewards of the rows just sampled; NaN for a row that must not be learned from."""

    def correct(self) -> list[bool]:
        """The verdict on each of those rows, mirrored where its reward is; asked of methods that train by it."""

    def finish(self, rewards: Sequence[float], advantages: Sequence[float], values: Sequence[float] | None) -> None:
        """Take what the rows just judged are trained with, and store everything.

        Args:
            advantages, values: for each row the mean over its tokens; no ``values`` without a value head, NaN for a
                row without tokens.
        """


class Meter(Protocol):
    """What watches the update, forward pass by forward pass."""

    def add_rollout(self) -> None:
        """A rollout was scored."""

    def begin_step(self, mask: Tensor) -> None:
        """An optimizer step begins; (n, T) ``mask`` holds the valid tokens of this process's rows, read or not."""

    def add(self, tokens: Tokens, which: str, statistics: Tensor | None, value_loss: Tensor | None) -> None:
        """The detached tokens of one forward pass in pass ``which``, and their summed value loss."""

    def add_importance(self, weights: Tensor, capped: Tensor, read: Tensor) -> None:
        """The weights of the tokens that a forward pass ``read`` for what sampled them, and where the cap cut them."""


@dataclass(frozen=True)
class Outputs:
    """What a forward pass says of the completions of some rows.

    Attributes:
        log_probs: (n, T), 0 on what was not read. entropies: the same, where they were asked for.
        values: (n, T) of the value head, where there is one.
        aux_loss: () the router's auxiliary loss, for a mixture of experts.
    """

    log_probs: Tensor
    entropies: Tensor | None
    values: Tensor | None
    aux_loss: Tensor | None
