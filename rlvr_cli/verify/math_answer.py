"""Compare mathematical answers without a parser; ``rlvr_cli.verify.pool`` compares the undecided ones.

All functions are pure, linear in the text, and raise no exception for any string.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from rlvr_cli.verify.numbers import exact_number, normalise

Rule = Literal["paper", "strict"]
Reason = Literal["equal", "different", "timeout", "unparsed", "died", "too_long"]

# Characters. The longest gold answer of the public sets has 993.
MAX_LENGTH = 2000

# math-verify rounds to six decimals if a side has a decimal point; it decides closer numbers.
_ROUNDING = Fraction(1, 100_000)
_LONGEST_NAME = 60
_BASED = re.compile(r"(-?\d+)_\{?(\d{1,3})\}?")
_SHORT_WHOLE = re.compile(r"-?[1-9][0-9]{0,14}|0")

_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_CLEANING = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # Explicit spaces; `\\` before a space is a line break.
        (r"\\\\|\\[ ;:]|~|\\q?quad(?![A-Za-z])", lambda match: match[0] if match[0] == "\\\\" else " "),
        (r"\s+", " "),
        (r"\\(?:!|displaystyle(?![A-Za-z])|left(?![A-Za-z])|right(?![A-Za-z]))", ""),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\{,\}", ","),
        (r"\\(le|ge|ne)(?:q?slant|qq?)(?![A-Za-z])", r"\\\1"),
    )
)
# A dash between digits is a range; a hyphen or a minus sign is a minus.
_RANGE = re.compile("(?<=[0-9])\\s?[\\u2012-\\u2015]\\s?(?=[0-9])")
# Keep the space of `48, 384`: without it the list would be a number with a thousands separator.
_LOOSE_SPACE = re.compile(r"(?<![A-Za-z0-9]) (?!(?:(?<=\d, )|(?<=\d , ))\d{3}(?!\d))| (?![A-Za-z0-9])")
# In a name: an index, the arguments of a function, words.
_INDEX = re.compile(r"_(?:[A-Za-z0-9]|\\[A-Za-z]+|\{[^{}]{1,12}\})")
_ARGUMENT = re.compile(r"(?<=[A-Za-z}'])\s*\(-?[^()=<>+*/^-]{1,20}\)|(?<=[fghFGHPQ])\s*\([^()=<>]{1,20}\)")
_WORDS = re.compile(r"\\(?:text|mbox|textbf|textit|mathrm|operatorname)\s*\{([A-Za-z ,.:'-]*)\}")
_BARS = re.compile(r"\|\s?([A-Z]{2,3})\s?\||\\lvert\s?([A-Z]{2,3})\s?\\rvert")
_NAME = re.compile(r"(?:\\[A-Za-z]+|[A-Za-z]|[(){}\s,'])+")
_NOT_IN_NAMES = re.compile(
    r"\\(?:frac|sqrt|c?dots?|ldots|times|div|pm|mp|le|ge|ne|lt|gt|not|neg|lnot|sum|prod|int|lim|binom|cup|cap|setminus|to|"
    r"rightarrow|Rightarrow|implies|iff|equiv|approx|sim|cong|in|notin|subset|subseteq|mid|infty|pi|boxed|fbox|cancel|"
    r"phantom|color|log|ln|exp|over|and|or|lor|land|wedge|vee|neq|bot|perp|parallel|circ|left|right|begin|end|max|min|"
    r"lfloor|lceil|mod|bmod|pmod)(?![A-Za-z])"
    r"|\b(?:not|no|never|isn|wrong|false|incorrect|or|and|if|but|less|more|than|times|minus|plus|half|twice|double|"
    r"neither|nor|except|over|is|"
    r"opposite|reciprocal|inverse|negation|negative|(?:square|cube|root|logarithm|power|multiple) of)\b",
    re.IGNORECASE,
)
# Delimiters around the whole answer.
_DELIMITED = re.compile(
    r"(\$\$|\$|\*\*)((?:(?!\1).)+)\1|\\\(((?:(?!\\[()]).)+)\\\)|\\\[((?:(?!\\[\[\]]).)+)\\\]", re.DOTALL
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of comparing an answer with the gold answer, and its reason.

    ``equal`` is None if undecided: after a ``timeout`` or the death of the process (``died``), and for an unparsable
    gold answer (``unparsed``, ``too_long``). An unparsable or too long *answer* is wrong: ``equal`` is False, with the
    same two reasons.
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


def clean(text: str) -> str:
    r"""Normalise an answer: ASCII signs, without math delimiters, spacing commands and full stop."""
    text = normalise(_RANGE.sub(r"\\text{ to }", text))
    for pattern, replacement in _CLEANING:
        text = pattern.sub(replacement, text).strip()
    text = strip_full_stop(text)
    while True:
        text = text.strip()
        if (match := _DELIMITED.fullmatch(text)) is not None:
            text = match[match.lastindex or 0]
        # Quadratic time.
        elif len(text) <= MAX_LENGTH and (braces := _count_outer_braces(text)):
            text = text[braces:-braces]
        else:
            break
    return _LOOSE_SPACE.sub("", strip_full_stop(text))


def strip_full_stop(text: str) -> str:
    return text[:-1] if text.endswith(".") and not text.endswith("..") else text


def compare_plain(gold: str, answer: str) -> Outcome | None:
    """Compare without algebra; return None if undecided.

    Decides too long and empty answers, equal spellings after ``clean``, and two plain numbers, optionally named
    (``x=5``), compared exactly (except numbers that math-verify may round to the same).
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
    (gold_name, gold), (name, answer) = _split_name(gold), _split_name(answer)
    if gold_name and name and gold_name != name:
        return None
    if (same := _compare_in_bases(gold, answer)) is not None:
        return EQUAL if same else DIFFERENT
    (gold_percent, gold), (percent, answer) = _split_percent(gold), _split_percent(answer)
    gold_value, answer_value = (exact_number(text.removeprefix("\\$"), powers=True) for text in (gold, answer))
    if gold_value is None or answer_value is None:
        return None
    if gold_value == answer_value:
        return EQUAL
    # Small differences may be rounded away.
    exact = "." not in gold and "." not in answer
    return DIFFERENT if gold_percent == percent and (exact or abs(gold_value - answer_value) > _ROUNDING) else None


def compare_plain_paper(gold: str, answer: str) -> Outcome | None:
    """Compare short whole numbers and too long texts under the paper rule; return None if undecided."""
    if len(gold) > MAX_LENGTH:
        return TOO_LONG_GOLD
    if len(answer) > MAX_LENGTH:
        return TOO_LONG_ANSWER
    if not _SHORT_WHOLE.fullmatch(gold) or not _SHORT_WHOLE.fullmatch(answer):
        return None
    return EQUAL if int(gold) == int(answer) else DIFFERENT


def is_name(text: str) -> bool:
    r"""Return whether a side of an equation names the other side: ``x``, ``a_{n+1}``, ``f(2)``, ``\angle ABC``.

    A name has no digits (except in its index and arguments), operators, and negating or comparing words.
    """
    text = text.strip()
    if not text or len(text) > _LONGEST_NAME:
        return False
    text = _ARGUMENT.sub("", _INDEX.sub("", _BARS.sub(r"\1\2", _WORDS.sub(_keep_letters, text))))
    return any(map(str.isalpha, text)) and _NAME.fullmatch(text) is not None and _NOT_IN_NAMES.search(text) is None


def _keep_letters(match: re.Match[str]) -> str:
    return f" {re.sub('[^A-Za-z]', ' ', match[1])} "


def _split_name(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    return (name, value) if equals and "=" not in value and is_name(name) else ("", text)


def _split_percent(text: str) -> tuple[bool, str]:
    bare = text.removesuffix("%")
    return bare != text, bare.removesuffix("\\").strip() if bare != text else text


def _compare_in_bases(gold: str, answer: str) -> bool | None:
    """Compare two whole numbers if one has a base; a missing base is ten, or gold's for the answer."""
    numbers = [match.groups() if (match := _BASED.fullmatch(text)) else (text, "") for text in (gold, answer)]
    (digits, base), (written, other) = numbers
    if not (base or other) or exact_number(digits) is None or exact_number(written) is None:
        return None
    return digits == written and (other in ("", base) if base else other == "10")


def _count_outer_braces(text: str) -> int:
    if text[:1] != "{":
        return 0
    closing: dict[int, int] = {}
    open_braces: list[int] = []
    for match in _BRACE.finditer(text):
        if match[0] == "{":
            open_braces.append(match.start())
        elif match[0] == "}" and open_braces:
            closing[open_braces.pop()] = match.start()
    count = 0
    while closing.get(count) == len(text) - 1 - count:
        count += 1
    return count
