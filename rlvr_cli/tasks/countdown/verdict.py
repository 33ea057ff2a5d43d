"""What the two rules of Countdown have in common: what they read, and the reward for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlvr_cli.tasks.problem import Verdict

RewardKind = Literal["tiny_zero", "zero_one"]

FORMAT, ANSWER = 0.1, 0.9
REASONS = ("correct", "wrong", "wrong_numbers", "no_answer", "bad_format", "too_long")

# A solution of six numbers is shorter than 100 characters; a longer block is not an answer.
MAX_ANSWER = 10_000


@dataclass(frozen=True)
class Reading:
    """What was read in a response.

    ``outcome`` is `correct`, `wrong` (another value, or none, as of a division by zero), `wrong_numbers` (not the given
    ones, each once), `no_answer` (an answer block without a readable expression) or `bad_format` (no answer block).
    ``expression`` is the expression without white space where there is a readable one.
    """

    outcome: Literal["correct", "wrong", "wrong_numbers", "no_answer", "bad_format"]
    expression: str | None = None


def verdict(kind: RewardKind, reading: Reading, *, truncated: bool) -> Verdict:
    """``tiny_zero``: 1.0 for a correct answer, 0.1 for any other answer block, 0 without one; ``zero_one``: 1 or 0.

    ``too_long``: the token limit cut the response off before an answer could be read.
    """
    correct = reading.outcome == "correct"
    if kind == "zero_one":
        parts = {"answer": float(correct)}
    else:
        parts = {
            "format": 0.0 if reading.outcome == "bad_format" else FORMAT,
            "answer": ANSWER if correct else 0.0,
        }
    unread = reading.outcome in ("bad_format", "no_answer")
    reason = "too_long" if truncated and unread else reading.outcome
    return Verdict(sum(parts.values()), parts, correct, reading.expression, reason)
