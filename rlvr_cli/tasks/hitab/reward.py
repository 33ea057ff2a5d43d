"""Which part of a response is its answer, and whether that is the gold answer.

The answer is the last ``<answer>`` block or ``\\boxed{}`` after the reasoning. `paper` takes the last one; `strict`
refuses a response with more than one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from rlvr_cli.tasks.hitab.values import Conventions, Rule, Value, equal, read_value, same_multiset
from rlvr_cli.tasks.problem import Verdict

REASONS = ("correct", "wrong", "no_answer", "several_answers", "too_long")

# A longer answer is no answer: no cell or header of a table is.
MAX_ANSWER = 10_000

_OPEN, _CLOSE, _BOXED = "<answer>", "</answer>", "\\boxed{"
_LABEL = re.compile(r"\s*(?:the )?(?:final )?answer(?: is)?\s*:", re.IGNORECASE)
_HARD_SEPARATOR = re.compile(r"[;|\n]")
_SOFT_SEPARATORS = (re.compile(r",\s"), re.compile(r",\s+and\s|,\s|\sand\s"), re.compile(r","))
# Possessive: where it fails, nothing is tried again, so that no text takes more than linear time.
_ITEM = re.compile(r"""\s*+(?:'((?:[^'\\]|\\.)*+)'\s*+|"((?:[^"\\]|\\.)*+)"\s*+|([^,'"\[\]]++))(?P<end>,|\Z)""")
# What strict counts as a candidate or as reasoning, however it is written.
_TAG = re.compile(r"<\s*+(/?)\s*+(answer|think)\s*+>", re.IGNORECASE)
_ANY_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_BULLET = re.compile(r"\s*+[-*\u2022]\s++(?=\S)")
_LINE_NUMBER = re.compile(r"\s*+(\d{1,2})[.)]\s++(?=\S)")
_AND = re.compile(r"\s*and\s")


def judge_table_answer(
    gold: Sequence[str | int | float], response: str, rule: Rule, conventions: Conventions, cut: bool
) -> Verdict:
    """Judge a response. Pure; never raises; time linear in its length.

    Args:
        gold: the answers, in any order; numbers or texts.
        response: what the model wrote.
        rule: paper or strict.
        conventions: tolerance, percent and sign.
        cut: whether the token limit ended the response.
    """
    written, reason = _answer(response) if rule == "paper" else _only_answer(response)
    if written is None:
        return _verdict(False, None, "too_long" if cut and reason == "no_answer" else reason)
    expected = [read_value(item, rule) for item in gold]
    first: list[Value] | None = None
    for items in _splits(written, len(expected)):
        values = [read_value(item, rule) for item in items]
        first = first or values
        if _matches(expected, values, conventions):
            return _verdict(True, _canonical(values), "correct")
    if not first or not any(value.text for value in first):
        return _verdict(False, None, "too_long" if cut else "no_answer")
    return _verdict(False, _canonical(first), "wrong")


def _matches(expected: Sequence[Value], values: Sequence[Value], conventions: Conventions) -> bool:
    if len(expected) == len(values) == 1:
        return equal(expected[0], values[0], conventions)
    return same_multiset(expected, values, conventions)


def _canonical(values: Sequence[Value]) -> str:
    return "; ".join(sorted(value.canonical() for value in values))


def _verdict(correct: bool, answer: str | None, reason: str) -> Verdict:
    reward = 1.0 if correct else 0.0
    return Verdict(reward, {"answer": reward}, correct, answer, reason)


def _after_reasoning(response: str) -> str:
    return response.rpartition("</think>")[2]


def _answer(response: str) -> tuple[str | None, str]:
    """The last answer of either form; a block that holds a box is that box."""
    text = _after_reasoning(response)
    end = text.rfind(_CLOSE)
    start = text.rfind(_OPEN, 0, end) if end >= 0 else -1
    box = _last_box(text)
    if start >= 0 and (box is None or box[1] <= end + len(_CLOSE)):
        block = text[start + len(_OPEN) : end]
        inner = _last_box(block)
        return _bounded(block if inner is None else block[inner[0] : inner[1]])
    return _bounded(text[box[0] : box[1]]) if box is not None else (None, "no_answer")


def _only_answer(response: str) -> tuple[str | None, str]:
    """The one answer there is: a block, a box, or a block that holds nothing but a box."""
    text = _after_reasoning(response)
    tags = [(tag[2].lower(), bool(tag[1])) for tag in _TAG.finditer(text)]
    if ("think", False) in tags:
        return None, "no_answer"
    opened, closed, boxes = text.count(_OPEN), text.count(_CLOSE), len(_ANY_BOX.findall(text))
    if tags.count(("answer", False)) > 1 or tags.count(("answer", True)) > 1 or boxes > 1:
        return None, "several_answers"
    box = _last_box(text)
    if boxes and box is None:
        return None, "several_answers" if opened and closed else "no_answer"
    if not opened and not closed:
        return _bounded(text[box[0] : box[1]]) if box is not None else (None, "no_answer")
    start, end = text.find(_OPEN) + len(_OPEN), text.find(_CLOSE)
    if not (opened and closed and start <= end):
        return None, "no_answer"
    if box is None:
        return _bounded(text[start:end])
    around = text[start : box[0] - len(_BOXED)] + text[box[1] + 1 : end]
    inside = start < box[0] and box[1] < end and not around.strip(" \t\r\n$.")
    return _bounded(text[box[0] : box[1]]) if inside else (None, "several_answers")


def _bounded(answer: str) -> tuple[str | None, str]:
    label = _LABEL.match(answer)
    answer = (answer[label.end() :] if label else answer).strip()
    return (answer, "") if answer and len(answer) <= MAX_ANSWER else (None, "no_answer")


def _last_box(text: str) -> tuple[int, int] | None:
    """Where the content of the last ``\\boxed{}`` begins and ends; None without one that is closed."""
    start = text.rfind(_BOXED)
    if start < 0:
        return None
    start += len(_BOXED)
    depth = 1
    for match in re.finditer(r"\\.|[{}]", text[start:], re.DOTALL):
        if match[0] in "{}":
            depth += 1 if match[0] == "{" else -1
            if depth == 0:
                return start, start + match.start()
    return None


def _splits(written: str, count: int) -> Iterator[list[str]]:
    """The ways to read the text as ``count`` answers, the likeliest first."""
    listed = _list(written)
    if listed is not None:
        yield listed
    if count == 1:
        yield [written]
    if count == 1 or listed is not None:
        return
    parts = [part for part in _HARD_SEPARATOR.split(written) if part.strip()]
    if len(parts) > 1:
        yield parts if ";" in written or "|" in written else _unmarked(parts)
        return
    for separator in _SOFT_SEPARATORS:
        yield [_AND.sub("", part, count=1) if _AND.match(part) else part for part in separator.split(written)]


def _unmarked(lines: list[str]) -> list[str]:
    """The lines without their bullets, or their numbers 1, 2, 3, ..., where every one of them has such a mark."""
    marks = [_BULLET.match(line) for line in lines]
    numbers = [_LINE_NUMBER.match(line) for line in lines]
    if all(number is not None and int(number[1]) == place for place, number in enumerate(numbers, 1)):
        marks = numbers
    return [line[mark.end() :] for line, mark in zip(lines, marks, strict=True) if mark] if all(marks) else lines


def _list(text: str) -> list[str] | None:
    """The items of a list in brackets, of JSON or as Python prints it, numbers as they are spelled; read, not run."""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    try:
        items = json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        items = _printed_items(text[1:-1])
    return items if items and all(isinstance(item, str) for item in items) else None


def _printed_items(text: str) -> list[str] | None:
    items: list[str] = []
    position = 0
    while (match := _ITEM.match(text, position)) is not None:
        items.append(match[1] or match[2] or match[3] or "")
        position = match.end()
        if not match["end"]:
            return items
    return None
