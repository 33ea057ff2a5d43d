"""Where the answer of a mathematical response is, under each prompt style and rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlvr_cli.verify.math_answer import Extracted, Rule, box_alone, boxed, tagged

Style = Literal["boxed", "reasoning_answer"]
Format = Literal["full", "partial", "none"]

TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
_THINK, _THOUGHT = "<think>", "</think>"


@dataclass(frozen=True)
class Reading:
    """What was read in a response.

    ``format``: ``full`` = a box, or all four tags; ``partial`` = some of the tags. ``answer`` is None when there is
    none; ``refused`` says that there were several which differ, or that the answer is not after the reasoning.
    """

    format: Format
    answer: str | None
    refused: bool = False


def read(response: str, style: Style, rule: Rule) -> Reading:
    """Find the answer in what a model wrote. Pure, raises for no string, linear in its length.

    The paper rule takes the last answer wherever it is; with the tags, only where all four occur (GTPO's code pays for
    an answer only then). The strict rule wants it after the reasoning, and only one: see docs/tasks/math.md.
    """
    if style == "boxed":
        return _read_boxed(response, rule)
    return _read_strict_tags(response) if rule == "strict" else _read_tags(response)


def _read_boxed(response: str, rule: Rule) -> Reading:
    if rule == "strict":
        began = response.lstrip().startswith(_THINK)
        text = response.lstrip().removeprefix(_THINK) if began else response
        if _THINK in text or text.count(_THOUGHT) > 1 or (began and _THOUGHT not in text):
            return Reading("none", None, refused=True)
    else:
        # As AR-Lopti's grader: what stands between the first and the second end of thinking.
        pieces = response.split(_THOUGHT, 2)
        text = pieces[1] if len(pieces) > 1 else response
    return _from(boxed(text, rule), "full", otherwise="none")


def _read_tags(response: str) -> Reading:
    present = [tag in response for tag in TAGS]
    if not all(present):
        return Reading("partial" if any(present) else "none", None)
    found = tagged(response)
    return Reading("full", _unboxed(found.answer)) if found.answer is not None else Reading("full", None)


def _read_strict_tags(response: str) -> Reading:
    positions = [response.find(tag) for tag in TAGS]
    once = all(response.count(tag) == 1 for tag in TAGS) and positions == sorted(positions)
    if not once or response[positions[-1] + len(TAGS[-1]) :].strip():
        return Reading("partial" if any(position >= 0 for position in positions) else "none", None)
    found = tagged(response, rule="strict")
    if found.answer is None:
        return Reading("full", None)
    inner = boxed(found.answer, "strict")
    if inner.reason == "none":
        return Reading("full", found.answer)
    if not box_alone(found.answer):
        # Something else stands in the block, beside the box.
        return Reading("full", None, refused=True)
    return _from(inner, "full", otherwise="full")


def _unboxed(answer: str) -> str:
    return boxed(answer).answer or answer


def _from(found: Extracted, format: Format, *, otherwise: Format) -> Reading:
    if found.reason == "several":
        return Reading(format, None, refused=True)
    return Reading(format if found.answer is not None else otherwise, found.answer)
