"""What a comparison of two answers can come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reason = Literal["equal", "different", "timeout", "unparsed", "died", "too_long"]


@dataclass(frozen=True)
class Outcome:
    """Whether an answer equals the gold answer, and why.

    ``equal`` is None where nobody can say: the judgement ran out of time (``timeout``) or took its process with it
    (``died``), or the gold answer itself cannot be read (``unparsed``, ``too_long``). An *answer* that cannot be read
    or is longer than any answer is a wrong one: ``equal`` is False with the same two reasons.
    """

    equal: bool | None
    reason: Reason


EQUAL = Outcome(True, "equal")
DIFFERENT = Outcome(False, "different")
TIMEOUT = Outcome(None, "timeout")
DIED = Outcome(None, "died")
UNPARSED_ANSWER = Outcome(False, "unparsed")
UNPARSED_GOLD = Outcome(None, "unparsed")
TOO_LONG_ANSWER = Outcome(False, "too_long")
TOO_LONG_GOLD = Outcome(None, "too_long")
