"""Marks that the reader of LaTeX passes over although they change what an answer says: primes, indices, words."""

from __future__ import annotations

import re

_PRIMES = re.compile(r"'+|\\prime(?![A-Za-z])")
_FEET = re.compile(r"-?[\d.,]+(?:'[\d.,\s]*)?'{1,2}")
_DEGREES = re.compile(r"\\circ(?![A-Za-z])|\\degree(?![A-Za-z])")
# An index of a power, a fraction or a bracket is read as if it were not there.
_INDEX = re.compile(r"(?:[)\]]|\^\s*(?:\d|\{(?:[^{}]|\{[^{}]*\})*\})|\}\s*\{[^{}]*\})\s*_")
_CLOSED = re.compile(r"\\infty\s*\]|\[\s*-\s*\\infty")
_INFINITY = re.compile(r"\\infty(?![A-Za-z])")
_RUNNING = re.compile(r"\\(?:sum|prod|int|lim|bigcup|bigcap)(?![A-Za-z])")
# Between these an infinity stands alone; a bracket around nothing else is one of a product or of a function.
_BOUNDS = re.compile(
    r"[,;<>=:|()\[\]]|\\(?:[lg]e|[lg]t|ne|in|cup|cap|setminus|to|land|lor|wedge|vee|[{}]|(?:text|mbox|mathrm)\s*\{[^{}]*\})"
    r"(?![A-Za-z])|\b(?:and|or)\b"
)
_ALONE = re.compile(r"(?:[-+]|\\pm(?![A-Za-z]))?\{?[-+]?\\infty\}?")
_NOTHING = re.compile(r"[\s$.~]|\\[,;!]|\\q?quad(?![A-Za-z])")
_APPLIED = re.compile(r"\(\s*[-+]?\s*\\infty\s*\)|\|\s*[-+]?\s*\\infty\s*\|")
_ORDER = re.compile(r"[<>]|\\(?:le|ge|lt|gt)(?![A-Za-z])")
_JOIN = re.compile(r"(?<![A-Za-z])(?:and|or)(?![A-Za-z])|\\(?:land|lor|wedge|vee)(?![A-Za-z])")
_AND = {"and", "\\land", "\\wedge"}
_HALF_OF_DAY = re.compile(r"(?<![A-Za-z])([ap])\.?\s?m(?![A-Za-z])", re.IGNORECASE)
_TEXT = re.compile(r"\\(?:text|mbox|textrm|textbf|mathrm|operatorname)\s*\{([^{}]*)\}")
_CHANGES = re.compile(
    r"\b(?:not|nor?|never|neither|plus|minus|times|less|more|fewer|wrong|incorrect|false|except|"
    r"hundred|thousand|million|billion)\b",
    re.IGNORECASE,
)


def marks_differ(gold: str, answer: str) -> bool:
    r"""Whether two cleaned answers differ in such a mark: ``f'`` and ``f``, ``x^{2}_7`` and ``x^2``, "and" and "or".

    ``5'`` are feet, but no degrees. No interval holds infinity, and nothing is computed with it. An "and" that joins no
    inequalities says nothing, nor does a time without ``a.m.``.
    """
    left, right = (gold, answer) if "=" in gold and "=" in answer else (_value(gold), _value(answer))
    if _primes(left) != _primes(right) or (_DEGREES.search(left) and "'" in right and "'" not in left):
        return True
    if "_" not in gold and _INDEX.search(right) is not None:
        return True
    if _CLOSED.search(answer) and not _CLOSED.search(gold):
        return True
    if _computed(answer) and not _computed(gold):
        return True
    if _ORDER.search(gold) and _ORDER.search(answer) and _differ(_joins(gold), _joins(answer)):
        return True
    if any(_CHANGES.search(words) for words in _TEXT.findall(right)) and not _CHANGES.search(gold):
        return True
    return _differ(_halves_of_day(gold), _halves_of_day(answer))


def _value(text: str) -> str:
    return text.rpartition("=")[2]


def _primes(text: str) -> int:
    if _FEET.fullmatch(text.strip()):
        return 0
    return sum(len(match[0]) if match[0][0] == "'" else 1 for match in _PRIMES.finditer(text))


def _computed(text: str) -> bool:
    r"""Whether something is computed with infinity, as in ``2\infty``: the reader takes the result for infinity."""
    if _INFINITY.search(text) is None or _RUNNING.search(text) is not None:
        return False
    if _APPLIED.search(text):
        return True
    pieces = [_NOTHING.sub("", piece) for piece in _BOUNDS.split(text) if _INFINITY.search(piece)]
    return any(_ALONE.fullmatch(piece) is None for piece in pieces)


def _joins(text: str) -> set[str]:
    return {"and" if word in _AND else "or" for word in _JOIN.findall(text)}


def _halves_of_day(text: str) -> set[str]:
    return {letter.lower() for letter in _HALF_OF_DAY.findall(text)}


def _differ(one: set[str], other: set[str]) -> bool:
    return bool(one) and bool(other) and one != other
