"""What an answer on a table says: numbers as they are written in tables, texts, and when two are equal.

Source of the `paper` rule: HiTab's own scorer (Cheng et al. 2022, `qa/table/utils.py` and `qa/datadump/utils.py`). It
compares numbers to within 1e-5 and texts after WikiTableQuestions' normalisation. What differs is in
docs/tasks/hitab.md.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from rlvr_cli.verify.numbers import exact_number, normalise

Percent = Literal["as_written", "ratio", "either"]
Sign = Literal["exact", "either"]
Rule = Literal["paper", "strict"]

# A longer text is no number that a table holds.
_MAX_NUMBER = 64

_CURRENCY = re.compile(r"(?:us|ca?|au?|nz|hk)?\$|[\u20ac\u00a3\u00a5\u20b9]")
_CURRENCY_AFTER = re.compile(r"[ ]?(?:[\u20ac\u00a3\u00a5$]|(?:dollars?|euros?|pounds?|usd|cad|eur|gbp))\Z")
_PERCENT_AFTER = re.compile(r"[ ]?(?:%|per ?cent)\Z")
_SPACED = re.compile(r"\d{1,3}(?: \d{3})+(?:\.\d+)?")
_EXPONENT = re.compile(r"(\d(?:\.\d+)?)e([+-]?\d{1,2})")
_LOOSE = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)")
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textrm)\{([^{}]*)\}")
_CITATION = re.compile(r"\[[^\[\]]*\]\Z")
_QUOTES = str.maketrans("\u2018\u2019\u00b4`\u201c\u201d", "''''\"\"")


@dataclass(frozen=True)
class Conventions:
    """How two answers are compared.

    ``tolerance``: numbers are equal when they differ by at most this. ``percent``: what 69.1% is, 69.1 (as_written),
    0.691 (ratio) or whichever fits (either). ``sign``: either = magnitudes are compared.
    """

    tolerance: Fraction = Fraction(1, 100_000)
    percent: Percent = "as_written"
    sign: Sign = "exact"


@dataclass(frozen=True)
class Value:
    """One answer: its normalised text and, where it spells a number, that number without its percent sign."""

    text: str
    number: Fraction | None = None
    percent: bool = False

    def canonical(self) -> str:
        """One spelling for all that are written differently and read the same."""
        if self.number is None:
            return self.text
        return decimal_text(self.number) + ("%" if self.percent else "")


def read_value(written: str | int | float, rule: Rule) -> Value:
    """Read an answer, either of the data (where numbers may be JSON numbers) or of a response. Linear; never raises."""
    if not isinstance(written, str):
        return Value(str(written), Fraction(str(written)))
    text = _clean(written)
    number, percent = _number(text if text.endswith("..") else text.removesuffix("."))
    if number is None and rule == "paper":
        number, percent = _loose_number(text)
    return Value(_plain_text(text, rule), number, percent)


def equal(gold: Value, answer: Value, conventions: Conventions) -> bool:
    """Whether the answer is the gold value: numbers within the tolerance, texts letter by letter."""
    if gold.number is None or answer.number is None:
        return gold.number is None and answer.number is None and gold.text == answer.text
    return any(
        abs(true - given) <= conventions.tolerance
        for true in _readings(gold, conventions)
        for given in _readings(answer, conventions)
    )


def same_multiset(gold: Sequence[Value], answers: Sequence[Value], conventions: Conventions) -> bool:
    """Whether the answers can be paired off with the gold values, in any order."""
    if len(gold) != len(answers):
        return False
    partners: list[int | None] = [None] * len(gold)
    return all(_pair(index, gold, answers, conventions, partners) for index in range(len(answers)))


def _clean(text: str) -> str:
    """The text without the marks that only lay it out: LaTeX and Markdown wrappers, odd spaces, Unicode signs."""
    text = normalise(text).strip()
    for escaped, plain in (("\\%", "%"), ("\\$", "$"), ("\\&", "&"), ("\\!", ""), ("\\,", " "), ("\\ ", " ")):
        text = text.replace(escaped, plain)
    text = _WRAPPED.sub(r"\1", text)
    if len(text) > 2 and text[0] == text[-1] == "$":
        text = text[1:-1]
    text = " ".join(text.translate(_QUOTES).split())
    text = text.strip("*_ ") or text
    return text[1:-1].strip() if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def decimal_text(number: Fraction) -> str:
    """The number as a decimal without trailing zeros, to 10 places."""
    sign = "-" if number < 0 else ""
    scaled = round(abs(number) * 10**10)
    whole, decimals = divmod(scaled, 10**10)
    text = f"{sign}{whole}.{decimals:010d}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _number(text: str) -> tuple[Fraction | None, bool]:
    """The number that the whole text spells, and whether a percent sign follows it."""
    if len(text) > _MAX_NUMBER:
        return None, False
    text = text.lower()
    body, percents = _PERCENT_AFTER.subn("", text)
    sign = body[:1] if body[:1] in ("+", "-") else ""
    body = body[len(sign) :].lstrip()
    currencies = 1
    if (currency := _CURRENCY.match(body)) is not None:
        body = body[currency.end() :].lstrip()
        if not sign and body[:1] in ("+", "-"):
            sign, body = body[0], body[1:].lstrip()
    else:
        body, currencies = _CURRENCY_AFTER.subn("", body)
    # A comma and a space divide two answers.
    if ", " in body or (not body[:1].isdigit() and body[:1] not in (".", "\\")):
        return None, False
    if currencies and percents:
        return None, False
    if _SPACED.fullmatch(body):
        body = body.replace(" ", "")
    if (match := _EXPONENT.fullmatch(body)) is not None:
        number: Fraction | None = Fraction(match[1]) * Fraction(10) ** int(match[2])
    else:
        number = exact_number(body)
    if number is None:
        return None, False
    return (-number if sign == "-" else number), bool(percents)


def _loose_number(text: str) -> tuple[Fraction | None, bool]:
    """HiTab's own reading: commas anywhere, one opening and one closing parenthesis or percent sign are dropped."""
    if len(text) > _MAX_NUMBER:
        return None, False
    body = text.removeprefix("(")
    percent = body.endswith("%")
    body = body[:-1] if body.endswith(("%", ")")) else body
    match = _LOOSE.fullmatch(body.replace(",", "").strip())
    if match is None:
        return None, False
    number = Fraction(match[2])
    return (-number if match[1] == "-" else number), percent


def _plain_text(text: str, rule: Rule) -> str:
    """Lower case without accents and the full stop at the end; `paper` also drops notes at the end, as HiTab does."""
    text = "".join(c for c in unicodedata.normalize("NFKD", text.lower()) if unicodedata.category(c) != "Mn")
    while rule == "paper":
        shorter = _without_note(text.rstrip())
        if shorter == text:
            break
        text = shorter
    return text.removesuffix(".").strip() or text


def _without_note(text: str) -> str:
    """Without one citation, footnote mark or parenthesis at the end, unless it is all there is."""
    if text.endswith(")"):
        start = text.rfind(" (")
        return text[:start] if start > 0 and ")" not in text[start:-1] else text
    if text.endswith("]"):
        start = text.rfind("[")
        return text[:start] if start > 0 and _CITATION.match(text, start) else text
    return text.rstrip("\u2022\u2666\u2020\u2021*#+") or text


def _readings(value: Value, conventions: Conventions) -> list[Fraction]:
    assert value.number is not None
    number = abs(value.number) if conventions.sign == "either" else value.number
    if not value.percent or conventions.percent == "as_written":
        return [number]
    return [number / 100] if conventions.percent == "ratio" else [number, number / 100]


def _pair(
    index: int, gold: Sequence[Value], answers: Sequence[Value], conventions: Conventions, partners: list[int | None]
) -> bool:
    """Find the answer a gold partner, moving earlier answers to others where that frees one (Kuhn's algorithm).

    Breadth first, so that no length of list is a depth of recursion.
    """
    came_from: dict[int, int] = {}
    queue = [index]
    for answer in queue:
        for place, value in enumerate(gold):
            if place in came_from or not equal(value, answers[answer], conventions):
                continue
            came_from[place] = answer
            holder = partners[place]
            if holder is not None:
                queue.append(holder)
                continue
            free: int | None = place
            while free is not None:
                mover = came_from[free]
                previous = next((p for p, who in enumerate(partners) if who == mover), None)
                partners[free] = mover
                free = previous
            return True
    return False
