r"""Inequalities and intervals that words join: ``x>1 and x<2`` is ``1<x<2``, ``x<1 or x>2`` a union of intervals.

Only whole texts are rewritten: of inequalities in one name, with numbers on the other side.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rlvr_cli.verify.math_answer import clean


def _word(word: str, signs: str) -> re.Pattern[str]:
    return re.compile(
        rf",?\s*(?:\\(?:text|mbox|mathrm)\s*\{{\s*{word}\s*\}}|(?<![A-Za-z]){word}(?![A-Za-z])|\\(?:{signs})(?![A-Za-z]))\s*"
    )


_AND, _OR = _word("and", "land|wedge"), _word("or", "lor|vee")
_SIGN = re.compile(r"(\\[lg]e(?![A-Za-z])|[<>])")
_TURNED = {">": "<", r"\ge": r"\le"}
_NAME = re.compile(r"[A-Za-df-z]")
_BOUND = re.compile(r"(?:[-+*/^(){}.\s\d]|\\(?:frac|sqrt|pi|infty)(?![A-Za-z]))+")
_INTERVAL = re.compile(r"[(\[][^()\[\],;]+,[^()\[\],;]+[)\]]")
_MEMBER = re.compile(r"([A-Za-z])\s*\\in(?![A-Za-z])\s*")


class _Range(NamedTuple):
    """``low`` and ``high``: a sign, ``<`` or ``\\le``, and a number; None where there is no bound."""

    name: str
    low: tuple[str, str] | None
    high: tuple[str, str] | None


def alike(gold: str, answer: str) -> tuple[str, str]:
    """The two, where words join ranges in one of them, spelled as the other one spells them."""
    gold, answer = _chain(gold), _chain(answer)
    if "\\cup" in clean(gold):
        return gold, _union(answer)
    return (_union(gold), answer) if "\\cup" in clean(answer) else (gold, answer)


def _chain(text: str) -> str:
    """``1<x<2`` for two inequalities that "and" joins; any other text as it is."""
    ranges = [_range(part) for part in _AND.split(_plain(text))]
    if len(ranges) != 2:
        return text
    for one, other in (ranges, ranges[::-1]):
        if one and other and one.name == other.name and one.low and not one.high and other.high and not other.low:
            return f"{one.low[1]} {one.low[0]} {one.name} {other.high[0]} {other.high[1]}"
    return text


def _union(text: str) -> str:
    """The union of the intervals, or inequalities in one name, that "or" joins; any other text as it is."""
    parts = _OR.split(_plain(text))
    names, intervals = set(), []
    for part in parts:
        member = _MEMBER.match(part)
        interval = part[member.end() :] if member is not None else part
        if _INTERVAL.fullmatch(interval):
            names |= {member[1]} if member is not None else set()
            intervals.append(interval)
        elif (found := _range(part)) is not None:
            names.add(found.name)
            intervals.append(_interval(found))
        else:
            return text
    return r"\cup ".join(intervals) if len(parts) > 1 and len(names) <= 1 else text


def _plain(text: str) -> str:
    return clean(text.replace("$", " "))


def _range(text: str) -> _Range | None:
    pieces = [piece.strip() for piece in _SIGN.split(text)]
    signs = pieces[1::2]
    if signs and all(sign in _TURNED for sign in signs):
        pieces = [_TURNED.get(piece, piece) for piece in reversed(pieces)]
    elif any(sign in _TURNED for sign in signs):
        return None
    numbers = [_BOUND.fullmatch(piece) is not None for piece in pieces[::2]]
    if len(pieces) == 5 and numbers == [True, False, True] and _NAME.fullmatch(pieces[2]):
        return _Range(pieces[2], (pieces[1], pieces[0]), (pieces[3], pieces[4]))
    if len(pieces) == 3 and numbers == [True, False] and _NAME.fullmatch(pieces[2]):
        return _Range(pieces[2], (pieces[1], pieces[0]), None)
    if len(pieces) == 3 and numbers == [False, True] and _NAME.fullmatch(pieces[0]):
        return _Range(pieces[0], None, (pieces[1], pieces[2]))
    return None


def _interval(found: _Range) -> str:
    low = ("[" if found.low[0] == r"\le" else "(") + found.low[1] if found.low else r"(-\infty"
    high = found.high[1] + ("]" if found.high[0] == r"\le" else ")") if found.high else r"\infty)"
    return f"{low},{high}"
