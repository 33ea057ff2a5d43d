"""The number that an answer spells, exactly. What is read and what is refused: docs/tasks/gsm8k.md."""

from __future__ import annotations

import re
from fractions import Fraction

from rlvr_cli.verify.math_answer import Rule
from rlvr_cli.verify.numbers import exact_number, normalise

# Characters. A longer text is no answer to a word problem.
MAX_LENGTH = 300

_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\[,;: ]|~|\\(?:quad|qquad|left|right|displaystyle)(?![A-Za-z])")
_DELIMITERS = (("**", "**"), ("`", "`"), ("$$", "$$"), ("\\(", "\\)"), ("\\[", "\\]"), ("{", "}"))

_CURRENCY = r"(?:US\s?\$|\$|\u20ac|\u00a3|\u00a5|\u20b9|(?:USD|EUR|GBP|Rs\.?)(?![A-Za-z]))"
_PLAIN = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)(?:\.\d*)?|\.\d+"
_FRACTION = r"\\frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\}|\d+\s*/\s*\d+"
_UNIT = r"\s*(?:%|(?:per)?-?[A-Za-z]+(?:[ /-]{1,2}[A-Za-z]+){0,3})"
_NUMBER = re.compile(
    rf"(?:[A-Za-z]\s*=\s*)?(?P<sign>[+-]?)\s?{_CURRENCY}?\s?(?P<sign2>[+-]?)"
    rf"(?:(?P<whole>\d{{1,9}})\s*(?P<part>(?<=\s)(?:{_FRACTION})|\\frac\s*\{{\s*\d+\s*\}}\s*\{{\s*\d+\s*\}})"
    rf"|(?P<fraction>{_FRACTION})|(?P<plain>{_PLAIN}))"
    rf"(?:\s*{_CURRENCY})?(?P<unit>{_UNIT})?\s*\.?"
)

# Words that change the number they stand beside, or make it one of several.
_CHANGING = re.compile(
    r"\b(?:k|K|M|B|bn|mn|hundreds?|thousands?|millions?|billions?|trillions?|dozens?|half|halves|thirds?|quarters?|"
    r"double|twice|triple|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|minus|negative|plus|"
    r"times|squared|cubed|factorial|or|and|not|no|to|than|least|most|between|mod|modulo|over|divided|false|wrong|incorrect)\b|(?<=\d)[kKMB]\b",
)
_LITERAL = re.compile(r"\d(?:[\d,./ ]*\d)?")
_LOOSE_REFUSED = re.compile(r"[\\{}^*/+<>~!|%_()]|\d\s*[A-Za-z]*\d")
_NEGATIVE = re.compile(rf"(?:^|[\s=:])-\s?{_CURRENCY}?\s?\Z")


def read_number(text: str, rule: Rule = "strict") -> Fraction | None:
    """The number of an answer, or None when there is not exactly one.

    Strict: the whole text is a number, with a sign, a currency before it and a unit of up to four words after it.
    Paper: besides, a sentence that holds a single number. Units and per cent signs are not converted: ``60%`` is 60.
    Nothing is computed, raises for no string, and takes time linear in the text.
    """
    if len(text) > MAX_LENGTH:
        return None
    plain = _plain(text)
    if _CHANGING.search(plain):
        return None
    match = _NUMBER.fullmatch(plain)
    if match is not None:
        return _value(match)
    return _single(plain) if rule == "paper" else None


def _plain(text: str) -> str:
    text = normalise(text).replace("\\$", "$").replace("\\%", "%").replace("{,}", ",").replace("\\!", "")
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text)
    text = _SPACING.sub(" ", _TEXT_COMMAND.sub(r" \1 ", text)).removeprefix("####")
    text = " ".join(text.split())
    stripped = True
    while stripped:
        stripped = False
        for opening, closing in _DELIMITERS:
            inner = text[len(opening) : -len(closing)]
            if inner and text.startswith(opening) and text.endswith(closing) and closing not in inner:
                text, stripped = inner.strip(), True
        # A dollar sign at both ends marks mathematics; one in front is money.
        if len(text) > 2 and text[0] == text[-1] == "$":
            text, stripped = text[1:-1].strip(), True
    return text


def _value(match: re.Match[str]) -> Fraction | None:
    if match["sign"] and match["sign2"]:
        return None
    if match["plain"] is not None:
        value = exact_number(match["plain"].replace(" ", ""))
    else:
        value = exact_number(match["part"] or match["fraction"])
        if value is not None and match["whole"] is not None:
            value = value + int(match["whole"]) if value < 1 else None
    if value is None:
        return None
    return -value if "-" in (match["sign"], match["sign2"]) else value


def _single(text: str) -> Fraction | None:
    """The only number of a sentence."""
    literals = list(_LITERAL.finditer(text))
    if len(literals) != 1 or _LOOSE_REFUSED.search(text.replace(literals[0][0], "0")):
        return None
    start = literals[0].start()
    if text[:start].endswith("."):
        return None
    value = exact_number(literals[0][0])
    if value is None:
        return None
    before = text[:start]
    if "-" in before[-4:]:
        return -value if _NEGATIVE.search(before) else None
    return value
