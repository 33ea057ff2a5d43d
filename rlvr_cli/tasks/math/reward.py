"""Where the answer of a mathematical response is, under each prompt style and rule, and the rewards of three papers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rlvr_cli.tasks.problem import Verdict
from rlvr_cli.verify.math_answer import Extracted, Outcome, Rule, box_alone, boxed, tagged

Style = Literal["boxed", "reasoning_answer"]
Format = Literal["full", "partial", "none"]

TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
_THINK, _THOUGHT = "<think>", "</think>"


@dataclass(frozen=True)
class ParsedAnswer:
    """What was read in a response.

    ``format``: ``full`` = a box, or all four tags; ``partial`` = some of the tags. ``answer`` is None when there is
    none; ``refused`` says that there were several which differ, or that the answer is not after the reasoning.
    """

    format: Format
    answer: str | None
    refused: bool = False


def extract_answer(response: str, style: Style, rule: Rule) -> ParsedAnswer:
    """Find the answer in what a model wrote. Pure, raises for no string, linear in its length.

    The paper rule takes the last answer wherever it is; with the tags, only where all four occur (GTPO's code pays for
    an answer only then). The strict rule wants it after the reasoning, and only one: see docs/tasks/math.md.
    """
    if style == "boxed":
        return _read_boxed(response, rule)
    return _read_strict_tags(response) if rule == "strict" else _read_tags(response)


def _read_boxed(response: str, rule: Rule) -> ParsedAnswer:
    if rule == "strict":
        began = response.lstrip().startswith(_THINK)
        text = response.lstrip().removeprefix(_THINK) if began else response
        if _THINK in text or text.count(_THOUGHT) > 1 or (began and _THOUGHT not in text):
            return ParsedAnswer("none", None, refused=True)
    else:
        # As AR-Lopti's grader: what stands between the first and the second end of thinking.
        pieces = response.split(_THOUGHT, 2)
        text = pieces[1] if len(pieces) > 1 else response
    return _from(boxed(text, rule), "full", otherwise="none")


def _read_tags(response: str) -> ParsedAnswer:
    present = [tag in response for tag in TAGS]
    if not all(present):
        return ParsedAnswer("partial" if any(present) else "none", None)
    found = tagged(response)
    return ParsedAnswer("full", _unboxed(found.answer)) if found.answer is not None else ParsedAnswer("full", None)


def _read_strict_tags(response: str) -> ParsedAnswer:
    positions = [response.find(tag) for tag in TAGS]
    once = all(response.count(tag) == 1 for tag in TAGS) and positions == sorted(positions)
    if not once or response[positions[-1] + len(TAGS[-1]) :].strip():
        return ParsedAnswer("partial" if any(position >= 0 for position in positions) else "none", None)
    found = tagged(response, rule="strict")
    if found.answer is None:
        return ParsedAnswer("full", None)
    inner = boxed(found.answer, "strict")
    if inner.reason == "none":
        return ParsedAnswer("full", found.answer)
    if not box_alone(found.answer):
        # Something else stands in the block, next to the box.
        return ParsedAnswer("full", None, refused=True)
    return _from(inner, "full", otherwise="full")


def _unboxed(answer: str) -> str:
    return boxed(answer).answer or answer


def _from(found: Extracted, format: Format, *, otherwise: Format) -> ParsedAnswer:
    if found.reason == "several":
        return ParsedAnswer(format, None, refused=True)
    return ParsedAnswer(format if found.answer is not None else otherwise, found.answer)


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
    return reading.refused or reading.format == "partial" or (kind != "zero_one" and reading.format == "none")
