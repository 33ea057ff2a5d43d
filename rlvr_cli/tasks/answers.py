"""Extract answers from responses: tags, boxes, numbers. Pure, linear in the text, no exception for any string."""

from __future__ import annotations

import re
from collections import deque
from fractions import Fraction
from typing import NamedTuple

from rlvr_cli.verify.numbers import exact_number

# A box closes within LONGEST_BOX characters, and only the last MOST_BOXES are tried: linear time for any text.
LONGEST_BOX, MOST_BOXES = 4000, 100
BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
# A tag under the strict rules; letter case and white space inside do not count.
TAG = re.compile(r"<\s*+(/?)\s*+(think|answer)\s*+>", re.IGNORECASE)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_SPACES = re.compile(r"\s*")
_BARE = re.compile(r"\s*([^\s{}$\\]+)")
# Characters.
_MAX_NUMBER = 64
_CURRENCY = re.compile(r"(?:us|ca?|au?|nz|hk)?\$|[\u20ac\u00a3\u00a5\u20b9]")
_CURRENCY_AFTER = re.compile(r"[ ]?(?:[\u20ac\u00a3\u00a5$]|(?:dollars?|euros?|pounds?|usd|cad|eur|gbp))\Z")
_PERCENT_AFTER = re.compile(r"[ ]?(?:%|per ?cent)\Z")
_SPACED = re.compile(r"\d{1,3}(?: \d{3})+(?:\.\d+)?")
_LOOSE = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)")
_EXPONENT = re.compile(r"\d(?:\.\d+)?e[+-]?\d{1,2}")


def last_tagged(text: str, tag: str = "answer") -> str | None:
    """Return the last match of ``<tag>(.*?)</tag>``, in linear time, or None."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    block, position = None, 0
    while True:
        start = text.find(opening, position)
        end = text.find(closing, start + len(opening)) if start >= 0 else -1
        if end < 0:
            return block
        block = text[start + len(opening) : end].strip()
        position = end + len(closing)


class Box(NamedTuple):
    r"""The span of a ``\boxed{...}`` in a text, command included, and its content."""

    start: int
    end: int
    content: str


def last_box(text: str, command: re.Pattern[str] = BOX) -> Box | None:
    r"""Return the last closed ``\boxed{...}`` or ``\fbox{...}``, braces balanced; ``\boxed 5`` is read too."""
    for match in reversed(deque(command.finditer(text), MOST_BOXES)):
        opening = match.end() + len(_SPACES.match(text, match.end())[0])  # type: ignore[index]
        depth = 0
        for brace in _BRACE.finditer(text, opening, opening + LONGEST_BOX) if text.startswith("{", opening) else ():
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            if depth == 0:
                return Box(match.start(), brace.end(), text[opening + 1 : brace.start()].strip())
        if (bare := _BARE.match(text, match.end())) is not None:
            return Box(match.start(), bare.end(), bare[1].rstrip(".,;"))
    return None


def boxed_answer(text: str) -> str | None:
    """Return the content of the last box after the last ``</think>``; None without a box or for an empty one."""
    box = last_box(text.rpartition("</think>")[2])
    return box.content or None if box is not None else None


def read_number_and_percent(text: str) -> tuple[Fraction | None, bool]:
    """Parse the whole text as a number; return it, or None, and whether it has a percent sign.

    Accepts, beyond ``exact_number``, groups of three separated by spaces, exponents, and a currency before or after
    the number (not with a percent sign): ``$1,234.5``, ``-3 euros``, ``1 000``, ``2.5e3``, ``69.1 percent``.
    """
    if len(text) > _MAX_NUMBER:
        return None, False
    body, percents = _PERCENT_AFTER.subn("", text.lower())
    sign = body[:1] if body[:1] in ("+", "-") else ""
    body = body[len(sign) :].lstrip()
    currencies = 1
    if (currency := _CURRENCY.match(body)) is not None:
        body = body[currency.end() :].lstrip()
        if not sign and body[:1] in ("+", "-"):
            sign, body = body[0], body[1:].lstrip()
    else:
        body, currencies = _CURRENCY_AFTER.subn("", body)
    # A comma with a space separates two answers.
    starts = body[:1].isdigit() or body[:1] in (".", "\\")
    if ", " in body or not starts or (currencies and percents):
        return None, False
    digits = body.replace(" ", "") if _SPACED.fullmatch(body) else body
    number = exact_number(digits, powers=_EXPONENT.fullmatch(body) is not None)
    if number is None:
        return None, False
    return (-number if sign == "-" else number), bool(percents)


def read_loose_number_and_percent(text: str) -> tuple[Fraction | None, bool]:
    """Parse as HiTab does: drop all commas, one opening and one closing parenthesis or percent sign."""
    body = text.removeprefix("(")
    percent = body.endswith("%")
    body = (body[:-1] if body.endswith(("%", ")")) else body).replace(",", "").strip()
    number = exact_number(body) if len(text) <= _MAX_NUMBER and _LOOSE.fullmatch(body) else None
    return number, percent and number is not None
