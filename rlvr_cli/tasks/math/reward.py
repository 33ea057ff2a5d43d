"""Where the answer of a mathematical response is, under each prompt style and rule, and the rewards of three papers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rlvr_cli.tasks.problem import Verdict
from rlvr_cli.verify.math_answer import Outcome, Rule, last_box, last_tag

Style = Literal["boxed", "reasoning_answer"]
Format = Literal["full", "partial", "none"]

TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")


@dataclass(frozen=True)
class ParsedAnswer:
    """The answer that was read in a response; None when there is none.

    ``format``: ``full`` = a box, or all four tags; ``partial`` = some of the tags.
    """

    format: Format
    answer: str | None


def extract_answer(response: str, style: Style, rule: Rule) -> ParsedAnswer:
    r"""Find the answer in what a model wrote. Pure, raises for no string, linear in its length.

    It is the last closed ``\boxed{}`` behind the last ``</think>``. With the tags it is the last ``<answer>`` block, or
    the box in it, only where all four tags occur (GTPO's code pays for an answer only then); the strict rule wants each
    tag once, in order, and nothing behind them.
    """
    if style == "boxed":
        answer = last_box(response)
        return ParsedAnswer("none" if answer is None else "full", answer)
    present = [tag in response for tag in TAGS]
    if not all(present) or (rule == "strict" and not _in_order(response)):
        return ParsedAnswer("partial" if any(present) else "none", None)
    block = last_tag(response)
    return ParsedAnswer("full", block and (last_box(block) or block))


def _in_order(response: str) -> bool:
    positions = [response.find(tag) for tag in TAGS]
    once = all(response.count(tag) == 1 for tag in TAGS)
    return once and positions == sorted(positions) and not response[positions[-1] + len(TAGS[-1]) :].strip()


RewardKind = Literal["zero_one", "plus_minus", "gtpo"]

REASONS = ("correct", "wrong", "no_answer", "bad_format", "too_long", "timeout", "unparsed")
RANGES: dict[RewardKind, tuple[float, float]] = {"zero_one": (0.0, 1.0), "plus_minus": (-1.0, 1.0), "gtpo": (0.0, 20.0)}

_GTPO_FORMAT: dict[Format, float] = {"full": 10.0, "partial": 1.0, "none": 0.0}
GTPO_FORMAT_RANGE = (min(_GTPO_FORMAT.values()), max(_GTPO_FORMAT.values()))


def _reward_parts(kind: RewardKind, format: Format, correct: bool) -> dict[str, float]:
    """The reward's parts; ``correct`` implies a full format."""
    if kind == "gtpo":
        return {"format": _GTPO_FORMAT[format], "answer": 10.0 if correct else 0.0}
    wrong, right = RANGES[kind]
    return {"answer": right if correct else wrong}


def answer_verdict(
    kind: RewardKind, reading: ParsedAnswer, outcome: Outcome | None, *, answer: str | None, truncated: bool
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
    parts = _reward_parts(kind, reading.format, correct)
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


def _format_wrong(kind: RewardKind, reading: ParsedAnswer) -> bool:
    """Whether a response without an answer has a wrong format; AR-Lopti's reward knows no format."""
    return reading.format == "partial" or (kind != "zero_one" and reading.format == "none")
