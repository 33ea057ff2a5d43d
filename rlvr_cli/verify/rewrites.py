r"""Rewrites of answers for the strict rule, each documented with its example in docs/verifiers.md.

A rewrite turns a common spelling into one that math-verify reads as it is meant. Text in, text out; applied in the
order of ``REWRITES``, linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_BARE = r"(\\[A-Za-z]+|[^\s{}\\\[])"
_FIRST_ARGUMENT = re.compile(rf"(\\(?:[dtc]?frac|[dt]?binom)(?![A-Za-z]))\s*{_BARE}")
_SECOND_ARGUMENT = re.compile(rf"(\\(?:[dtc]?frac|[dt]?binom)\s*{_GROUP})\s*{_BARE}")
_ROOT_ARGUMENT = re.compile(rf"(\\sqrt(?![A-Za-z])\s*(?:\[[^\[\]]{{1,9}}\])?)\s*{_BARE}")
_POWER_ARGUMENT = re.compile(rf"([\^_])\s*(\\[dtc]?frac\s*{_GROUP}\s*{_GROUP})")

_DEGREE = re.compile(r"\s*(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\^?\s*\\degree(?![A-Za-z]))")
_MARK = "\N{DEGREE SIGN}"
_OF_ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])(?:\s*\^\s*(?:\{[^{}]*\}|\d))?\s*")
_ANGLE = re.compile(
    rf"(\d+(?:\.\d+)?[A-Za-z]?|\\[dtc]?frac\s*{_GROUP}\s*{_GROUP}|\\?[A-Za-z]+|\([^()]*\)|\{{[^{{}}]*\}}){_MARK}"
)

_PLAIN_FRACTION = r"\\frac\{(\d+)\}\{(\d+)\}"
_MIXED = re.compile(rf"(?<![\w.,^}}])(\d+)\s*{_PLAIN_FRACTION}")
# Not behind the index of a logarithm or the power of a function.
_FACTOR = re.compile(r"(?:(?<=\d)(?<![_^]\d)|(?<=\d\)))(?:\s|\\,)*(?=\(|\\binom)")
_BASED = re.compile(r"(?<![\w.}])(\d+)_(?:\{(\d+)\}|(\d+))")

_ABOUT = re.compile(
    r"(?:\s|\\[;:, ]|\\q?quad(?![A-Za-z]))*"
    r"(?:\\(?:text|mbox|mathrm)\s*\{\s*,?\s*\(?\s*(?:or )?(?:about|approximately|approx\.?)\s*"
    r"(-?\d+(?:\.\d+)?)\s*\)?\s*\}"
    r"|\(\s*\\(?:approx|simeq)\s*(-?\d+(?:\.\d+)?)\s*\))\s*\Z"
)
_APPROX = re.compile(r"\\(?:simeq|thickapprox|approxeq|doteq)(?![A-Za-z])|\u2248")
_EMPTY = re.compile(r"\\(?:varnothing|emptyset)(?![A-Za-z])|\u2205|\u00d8|\\\{\s*\\\}")
_ANGLED = re.compile(r"\\(?:langle|left\s*<)(?![A-Za-z])([^<>]*?)\\(?:rangle|right\s*>)(?![A-Za-z])")
_PERCENT = re.compile(r"\s*\\?%[\s$]*\Z")
_OR = re.compile(r"\\(?:lor|vee)(?![A-Za-z])|\u2228")
_CHOICE = re.compile(
    r"\s*(?:\\(?:text|textbf|mathrm|mathbf)\s*\{)?\s*(?:\(([A-J])\)|([A-J])[.:)](?=[\s~}\\]|\Z))\}?"
    r"(?P<rest>.*)",
    re.DOTALL,
)


def brace_arguments(text: str) -> str:
    r"""Brace what a command takes without braces: ``\frac\pi3`` is ``\frac{\pi}{3}``, ``\sqrt2`` is ``\sqrt{2}``."""
    text = _ROOT_ARGUMENT.sub(r"\1{\2}", text)
    text = _SECOND_ARGUMENT.sub(r"\1{\2}", _FIRST_ARGUMENT.sub(r"\1{\2}", text))
    return _POWER_ARGUMENT.sub(r"\1{\2}", text)


def convert_degrees(text: str) -> str:
    r"""Convert degrees within trigonometric functions: ``\cos 15^\circ`` is ``\cos (\frac{15\pi}{180})``."""
    if not _OF_ANGLE.search(text) or not _DEGREE.search(text):
        return text
    text = _DEGREE.sub(_MARK, text)
    pieces: list[str] = []
    done = 0
    for function in _OF_ANGLE.finditer(text):
        start = function.end()
        if start < done:
            continue
        end = _end_of_argument(text, start)
        pieces += [text[done:start], _ANGLE.sub(_in_radians, text[start:end])]
        done = end
    return "".join([*pieces, text[done:]]).replace(_MARK, r"^\circ")


def _in_radians(angle: re.Match[str]) -> str:
    return rf"(\frac{{{angle[1]}\pi}}{{180}})"


def _end_of_argument(text: str, start: int) -> int:
    """The end of a bracket that opens here, with a degree sign behind it; else of the angle that is written here."""
    depth = 0
    if text[start : start + 1] in ("(", "{"):
        for position in range(start, len(text)):
            depth += (text[position] in "({") - (text[position] in ")}")
            if depth == 0:
                return position + 1 + text.startswith(_MARK, position + 1)
    angle = _ANGLE.match(text, start)
    return angle.end() if angle is not None else start


def mixed_numbers(text: str) -> str:
    r"""Write a mixed number as one fraction: ``2\frac{3}{4}`` is ``\frac{11}{4}``."""

    def improper(match: re.Match[str]) -> str:
        whole, top, bottom = (int(group) for group in match.groups())
        return rf"\frac{{{whole * bottom + top}}}{{{bottom}}}" if top < bottom else match[0]

    return _MIXED.sub(improper, text)


def multiply_brackets(text: str) -> str:
    r"""Write the sign of a product between a number and a bracket: ``4(8)`` is ``4\cdot (8)``, not 12."""
    return _FACTOR.sub(r"\\cdot ", text)


def name_bases(text: str) -> str:
    r"""Make a number with a base a name of its own: ``x+12_3``; with base ten it is a plain number."""
    return _BASED.sub(
        lambda match: match[1] if "10" in match.groups() else rf"\variable{{{match[1]}_{match[2] or match[3]}}}", text
    )


def mark_approximation(text: str) -> str:
    r"""Spell an approximation behind the value with ``\approx``: ``\frac{5}{7}\text{ (about 0.714)}``."""
    return _ABOUT.sub(lambda match: rf"\approx {match[1] or match[2]}", _APPROX.sub(r"\\approx ", text))


def name_empty_set(text: str) -> str:
    r"""Give the empty set one name: ``\varnothing`` and ``\{\}`` are ``\emptyset``."""
    return _EMPTY.sub(r"\\emptyset ", text).strip()


def round_brackets(text: str) -> str:
    r"""Write vectors with round brackets: ``\langle 1,2\rangle`` is ``(1,2)``."""
    return _ANGLED.sub(r"(\1)", text)


def spell_or(text: str) -> str:
    r"""Spell the sign for "or" as the word: ``x=1 \lor x=-2`` is ``x=1 \text{ or } x=-2``."""
    return _OR.sub(r"\\text{ or }", text)


REWRITES: tuple[Callable[[str], str], ...] = (
    brace_arguments,
    convert_degrees,
    mark_approximation,
    name_empty_set,
    round_brackets,
    spell_or,
)


# Applied to what the parser reads only: pieces of it are compared as they were written first.
FOR_THE_PARSER: tuple[Callable[[str], str], ...] = (mixed_numbers, multiply_brackets, name_bases)
_FRACTION = rf"\\[dtc]?frac\s*{_GROUP}\s*{_GROUP}"
# Two numbers side by side, also in braces or behind a fraction; a whole number before an improper fraction.
_SIDE_BY_SIDE = re.compile(
    rf"(?<![\w^.,}}])\d+(?:,\d{{3}})*(?:\.\d*)?(?:\s+|\s*\{{+)\.?\d|(?:\A|[^\w\\}}\]^])\{{+[\d.,]+\}}+\s*\{{*\.?\d|{_FRACTION}\s*\d"
    rf"|(?<![\w^.}}])\d+\s*{_PLAIN_FRACTION}"
)


def for_parser(text: str) -> str:
    """Return ``text`` as math-verify's parser reads it rightly. Raises ValueError where it could mean several things."""
    for change in FOR_THE_PARSER:
        text = change(text)
    if _SIDE_BY_SIDE.search(text):
        raise ValueError(f"two numbers side by side: {text}")
    return text


def rewrite(text: str) -> str:
    """Apply every rewrite, in order."""
    for change in REWRITES:
        text = change(text)
    return text


def chosen_letter(gold: str, answer: str) -> str:
    """The letter of an answer such as ``E. some text``, where the gold answer is a letter; else the answer."""
    choice = _CHOICE.fullmatch(answer) if re.fullmatch(r"\(?[A-J]\)?", gold.strip()) else None
    if choice is None or re.search(r"(?<![A-Za-z])(?:[A-J]\)|or|and|not|[B-J](?=[.,:]))", choice["rest"]):
        return answer
    return choice[1] or choice[2]


def without_shared_percent(gold: str, answer: str) -> tuple[str, str]:
    r"""Both without the percent sign that both end in: ``33\frac13\%`` and ``\frac{100}{3}\%``."""
    bare = [_PERCENT.sub("", text) for text in (gold, answer)]
    return (bare[0], bare[1]) if all(bare) and bare[0] != gold and bare[1] != answer else (gold, answer)
