"""The rewards of three papers for mathematics, and the verdict on a reading.

``zero_one``: AR-Lopti (Yang et al. 2025, appendix C.1.2), 1 for the right answer, 0 otherwise.
``plus_minus``: DGPO (appendix B.2), +1 when the format is right and the answer too, -1 otherwise.
``gtpo``: GTPO (appendix, "Reward Settings"), 10 for all four tags, 1 for some, 0 for none; 10 more for the right
answer, which its code pays only where all tags are there.
"""

from __future__ import annotations

import math
from typing import Literal

from rlvr_cli.tasks.math.reading import Format, Reading
from rlvr_cli.tasks.problem import Verdict
from rlvr_cli.verify.math_answer import Outcome

RewardKind = Literal["zero_one", "plus_minus", "gtpo"]

REASONS = ("correct", "wrong", "no_answer", "bad_format", "too_long", "timeout", "unparsed")
RANGES: dict[RewardKind, tuple[float, float]] = {"zero_one": (0.0, 1.0), "plus_minus": (-1.0, 1.0), "gtpo": (0.0, 20.0)}

_GTPO_FORMAT: dict[Format, float] = {"full": 10.0, "partial": 1.0, "none": 0.0}
GTPO_FORMAT_RANGE = (min(_GTPO_FORMAT.values()), max(_GTPO_FORMAT.values()))


def reward_parts(kind: RewardKind, format: Format, correct: bool) -> dict[str, float]:
    """The reward's parts; ``correct`` implies a full format."""
    if kind == "gtpo":
        return {"format": _GTPO_FORMAT[format], "answer": 10.0 if correct else 0.0}
    wrong, right = RANGES[kind]
    return {"answer": right if correct else wrong}


def verdict(
    kind: RewardKind, reading: Reading, outcome: Outcome | None, *, answer: str | None, truncated: bool
) -> Verdict:
    """The verdict on a reading.

    Args:
        outcome: how the answer compares with the gold answer; None when there is no answer.
        answer: the answer in the spelling that votes count.
    ``too_long``: the token limit cut the response off before an answer. ``timeout`` (the comparison was stopped or took
    its process with it) and a gold answer that cannot be read say nothing about the response: not scorable, the reward
    is NaN. ``unparsed`` with a reward: the response's answer is no mathematics, or longer than any answer, so it is
    wrong.
    """
    correct = outcome is not None and outcome.equal is True
    parts = reward_parts(kind, reading.format, correct)
    if outcome is None:
        reason = "too_long" if truncated else "bad_format" if _format_wrong(kind, reading) else "no_answer"
    elif correct:
        reason = "correct"
    elif outcome.reason in ("timeout", "died"):
        reason = "timeout"
    else:
        reason = "wrong" if outcome.reason == "different" else "unparsed"
    if outcome is not None and outcome.equal is None:
        return Verdict(math.nan, dict.fromkeys(parts, 0.0), False, answer, reason, scorable=False)
    return Verdict(sum(parts.values()), parts, correct, answer, reason)


def _format_wrong(kind: RewardKind, reading: Reading) -> bool:
    """Whether a response without an answer has a wrong format; AR-Lopti's reward knows no format."""
    return reading.refused or reading.format == "partial" or (kind != "zero_one" and reading.format == "none")
