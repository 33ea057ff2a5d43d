"""Which part of a response is its mathematical answer, and what can be said about it without parsing it.

Everything here is pure, takes time linear in the text and raises for no string. What needs algebra goes to
``rlvr_cli.verify.pool``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from rlvr_cli.verify.numbers import exact_number, normalise
from rlvr_cli.verify.outcome import (
    DIFFERENT,
    EQUAL,
    TOO_LONG_ANSWER,
    TOO_LONG_GOLD,
    UNPARSED_ANSWER,
    UNPARSED_GOLD,
    Outcome,
)

Rule = Literal["paper", "strict"]

# Characters. The longest gold answer of the public sets has 993.
MAX_LENGTH = 2000

# math-verify rounds to six decimals where either side has a decimal point; nearer numbers than this are its to judge.
_ROUNDING = Fraction(1, 100_000)

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE = re.compile(r"\s*([^\s{}$\\]+)")
_SPACING = re.compile(r"\\(?:[!;:]|q?quad(?![A-Za-z])|displaystyle(?![A-Za-z])|left(?![A-Za-z])|right(?![A-Za-z]))")
_FRAC = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_SPACES = re.compile(r"\s+")
# A space that LaTeX keeps; `\\` before a space is a new line.
_KEPT_SPACE = re.compile(r"\\\\|\\ |~")
# The space of `48, 384` stays: without it two numbers would be one with a thousands separator.
_LOOSE_SPACE = re.compile(r"(?<![A-Za-z0-9]) (?!(?<=\d, )\d{3}(?!\d))| (?![A-Za-z0-9])")
_ASSIGNED = re.compile(
    r"(?:[A-Za-z]|\\(?:alpha|beta|gamma|delta|epsilon|theta|lambda|mu|nu|rho|sigma|tau|phi|varphi|omega)(?![A-Za-z]))"
    r"(?:_(?:\w|\{\w+\}))?'{0,2}(?:\([A-Za-z]\))?="
)
_DELIMITERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))


@dataclass(frozen=True)
class Extracted:
    """The answer found in a response, or why there is none.

    ``reason`` is ``found``; ``none`` (there is no candidate, or the last one never closes); or ``several`` (different
    candidates, under the strict rule).
    """

    answer: str | None
    reason: Literal["found", "none", "several"]


def boxed(text: str, rule: Rule = "paper") -> Extracted:
    r"""The content of the last ``\boxed{...}`` (or ``\fbox``) of ``text``, braces balanced.

    The last one is the one that starts last, as in the graders of the MATH benchmark; if its braces never close
    there is no answer. ``paper`` also reads ``\boxed 5``. ``strict`` does not, looks only at what follows the last
    ``</think>``, and refuses boxes whose contents differ.
    """
    if rule == "strict":
        text = text.rpartition("</think>")[2]
    starts = [match.end() for match in _BOX.finditer(text)]
    if not starts:
        return Extracted(None, "none")
    closing = _closing_braces(text)
    last = _content(text, starts[-1], closing)
    if rule == "strict":
        if last is None:
            return Extracted(None, "none")
        contents = [_content(text, start, closing) for start in _innermost(text, starts, closing)]
        return _only(last, [content for content in contents if content is not None])
    if last is None and (match := _BARE.match(text, starts[-1])) is not None:
        last = match[1].rstrip(".,;")
    return Extracted(last, "found") if last else Extracted(None, "none")


def tagged(text: str, tag: str = "answer", rule: Rule = "paper") -> Extracted:
    """The content of the last ``<tag>...</tag>`` of ``text``, stripped; ``strict`` refuses contents that differ."""
    contents = []
    opening, closing = f"<{tag}>", f"</{tag}>"
    for piece in text.split(closing)[:-1]:
        _, found, content = piece.rpartition(opening)
        if found:
            contents.append(content.strip())
    if not contents or not contents[-1]:
        return Extracted(None, "none")
    return _only(contents[-1], contents) if rule == "strict" else Extracted(contents[-1], "found")


def clean(text: str) -> str:
    r"""An answer in a plainer spelling: ASCII signs, no math delimiters, no spacing commands, no closing full stop."""
    text = _KEPT_SPACE.sub(lambda match: match[0] if match[0] == "\\\\" else " ", normalise(text))
    text = _SPACES.sub(" ", text).strip()
    text = _SPACING.sub("", text)
    text = _FRAC.sub(r"\\frac", text).replace("{,}", ",")
    text = without_stop(text.strip())
    stripped = True
    while stripped:
        text, stripped = text.strip(), False
        for opening, closing in _DELIMITERS:
            inner = text[len(opening) : -len(closing)]
            if text.startswith(opening) and text.endswith(closing) and len(text) > len(opening + closing):
                if opening in inner or closing in inner:
                    continue
                text, stripped = inner, True
                break
        # Not for longer texts, which would take quadratic time.
        if len(text) <= MAX_LENGTH and text[:1] == "{" and _closing_braces(text).get(0) == len(text) - 1:
            text, stripped = text[1:-1], True
    return _LOOSE_SPACE.sub("", without_stop(text))


def without_stop(text: str) -> str:
    """``text`` without a closing full stop; an ellipsis stays."""
    return text[:-1] if text.endswith(".") and not text.endswith("..") else text


def check(gold: str, answer: str) -> Outcome | None:
    """Whether ``answer`` equals ``gold``, where that needs no algebra; None where it does.

    Decided here are answers that are too long or empty, the same spelling after ``clean``, and two plain numbers, with
    a name or without (``x=5``), compared exactly (two that differ by so little that math-verify may round them together
    are left to it).
    """
    if len(gold) > MAX_LENGTH:
        return TOO_LONG_GOLD
    if len(answer) > MAX_LENGTH:
        return TOO_LONG_ANSWER
    gold, answer = clean(gold), clean(answer)
    if not gold:
        return UNPARSED_GOLD
    if not answer:
        return UNPARSED_ANSWER
    if gold == answer:
        return EQUAL
    if (gold_name := _ASSIGNED.match(gold)) is not None:
        gold = gold[gold_name.end() :]
    if (name := _ASSIGNED.match(answer)) is not None:
        answer = answer[name.end() :]
    if gold_name is not None and name is not None and gold_name[0] != name[0]:
        return None
    left, right = exact_number(gold), exact_number(answer)
    if left is None or right is None:
        return None
    if left == right:
        return EQUAL
    rounded = "." in gold or "." in answer
    return None if rounded and abs(left - right) <= _ROUNDING else DIFFERENT


def _closing_braces(text: str) -> dict[int, int]:
    """Where each opening brace closes; escaped braces are text."""
    closing: dict[int, int] = {}
    open_braces: list[int] = []
    for match in _BRACE.finditer(text):
        if match[0] == "{":
            open_braces.append(match.start())
        elif match[0] == "}" and open_braces:
            closing[open_braces.pop()] = match.start()
    return closing


def _content(text: str, start: int, closing: dict[int, int]) -> str | None:
    brace = _opening(text, start)
    return text[brace + 1 : closing[brace]].strip() if brace in closing else None


def _opening(text: str, start: int) -> int:
    while start < len(text) and text[start].isspace():
        start += 1
    return start


def _innermost(text: str, starts: list[int], closing: dict[int, int]) -> list[int]:
    """The boxes that hold no other box; a box in a box is the same candidate."""
    following = [*starts[1:], len(text) + 1]
    return [start for start, after in zip(starts, following, strict=True) if after > _end(text, start, closing)]


def _end(text: str, start: int, closing: dict[int, int]) -> int:
    return closing.get(_opening(text, start), start)


def _only(last: str, contents: list[str]) -> Extracted:
    if not last:
        return Extracted(None, "none")
    gold = clean(last)
    number = exact_number(gold)
    for content in contents:
        other = clean(content)
        if other != gold and (number is None or exact_number(other) != number):
            return Extracted(None, "several")
    return Extracted(last, "found")
