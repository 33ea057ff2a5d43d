"""The advantage A: what every file of an advantage estimator implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from rlvr_cli.core.lazy import Tensor
from rlvr_cli.core.section import Choice
from rlvr_cli.methods.rollout import Rollout


class Advantage(Choice, ABC):
    """A from the rewards of a rollout; frozen parameters.

    Attributes:
        needs_values: whether it reads ``rollout.values``, so that the policy gets a value head.
        needs_correct: whether it reads ``rollout.correct``, the verifier's verdicts.
    """

    needs_values: ClassVar[bool] = False
    needs_correct: ClassVar[bool] = False

    @property
    def needs_reference(self) -> bool:
        """Whether it reads ``rollout.ref_log_probs`` (and with them ``old_log_probs``)."""
        return False

    @abstractmethod
    def advantages(self, rollout: Rollout) -> Tensor:
        """(N, 1) or (N, T) A, finite, 0 for rows whose reward is NaN; whatever on padding."""
