"""Compare two answers with math-verify, in worker processes since time and memory are unbounded.

``judge_paper`` calls math-verify as TRL's ``accuracy_reward``. ``judge_strict`` is the strict rule: rewrites
(``rlvr_cli.verify.rewrites``), values at a few points, then math-verify's comparison of two expressions, without its
extraction from running text, which would accept the last number of a garbled answer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, parser, verify

from rlvr_cli.verify import values
from rlvr_cli.verify.math_answer import (
    DIFFERENT,
    EQUAL,
    UNPARSED_ANSWER,
    UNPARSED_GOLD,
    Outcome,
    compare_plain,
    is_name,
)
from rlvr_cli.verify.numbers import exact_number, is_too_big
from rlvr_cli.verify.rewrites import (
    FRACTION,
    extract_choice,
    rewrite,
    rewrite_for_parser,
    strip_shared_percent,
    strip_unit,
)

logging.disable(logging.CRITICAL)

# Cached expressions: a gold answer is compared with all answers of its group.
_CACHE_SIZE = 500
_DELIMITED = re.compile(r"\$|\\[(\[]|\\boxed")
# Judged on start, since the first parse of common forms is slow.
_WARM_UP_PAIRS = [
    ("1/2", r"\frac{2}{4}"),
    ("x^2-1", "(x-1)(x+1)"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    ("(1,2)", "[1,2)"),
    ("5", "x=5"),
    (r"\frac{\pi}{2}", r"\{1,2\}"),
    (r"6\text{ cm}", r"50\%"),
    ("y=3x^{2}+6x-1", r"x\in(-\infty,3]\cup[5,7)"),
]


def make_handler(_: Any) -> Callable[[list[str]], list[Any]]:
    """Warm up; return the workers' job handler: ``[rule, gold, answer]`` to ``[equal, reason]``."""
    for gold, answer in _WARM_UP_PAIRS:
        judge_strict(gold, answer)
        judge_paper(gold, answer)
    return _handle_job


def _handle_job(job: list[str]) -> list[Any]:
    rule, gold, answer = job
    try:
        outcome = judge_paper(gold, answer) if rule == "paper" else judge_strict(gold, answer)
    except MemoryError:
        raise
    except Exception:
        # The answer is unparsable; the worker must survive.
        outcome = UNPARSED_ANSWER
    return [outcome.equal, outcome.reason]


# The arguments of trl.rewards.accuracy_reward (TRL 1.16); the worker's deadline replaces its alarms.
_PAPER = LatexExtractionConfig(
    normalization_config=NormalizationConfig(units=True), boxed_match_priority=0, try_extract_without_anchor=False
)


def judge_paper(gold: str, answer: str) -> Outcome:
    r"""Compare as TRL's ``accuracy_reward``. A gold answer without delimiters is parsed as ``\boxed{gold}``."""
    expected = _parse_gold(gold)
    if not expected:
        return UNPARSED_GOLD
    text = rf"\boxed{{{answer}}}"
    written = parse(text, extraction_config=[_PAPER], extraction_mode="first_match", parsing_timeout=None)
    return EQUAL if verify(expected, written, timeout_seconds=None) else DIFFERENT


@lru_cache(maxsize=_CACHE_SIZE)
def _parse_gold(gold: str) -> list[Any]:
    return list(parse(gold if _DELIMITED.search(gold) else rf"\boxed{{{gold}}}", parsing_timeout=None))


def judge_strict(gold: str, answer: str) -> Outcome:
    r"""Compare two expressions with math-verify after the rewrites, without its false matches.

    All sides of ``a=b=c`` must be equal (except names on the left, as in ``x=5``), while math-verify parses only the
    last. Huge numbers, unbalanced braces and numbers after a fraction are ``unparsed``. Units are stripped only at the
    end of an answer. See docs/verifiers.md.
    """
    gold, answer = strip_shared_percent(rewrite(gold), rewrite(extract_choice(gold, answer)))
    if _is_malformed(answer):
        return UNPARSED_ANSWER
    if _is_malformed(gold):
        return UNPARSED_GOLD
    if _adds_mark(_IGNORED_MARKS, gold, answer) or (_DOTS.search(answer) is None) != (_DOTS.search(gold) is None):
        return DIFFERENT
    marked = have_different_marks(gold, answer)
    if not marked and _have_equal_elements(gold, answer):
        return EQUAL
    if (outcome := _compare_ranges(gold, answer)) is None and (outcome := _compare_approximation(gold, answer)) is None:
        outcome = _compare_equation(gold, answer) if _RELATION.search(gold) else _compare_value(gold, answer)
    return DIFFERENT if marked and outcome.equal else outcome


# The parser treats each digit after a fraction as a factor: 20 would be 2 times 0.
_SCALED_FRACTION = re.compile(rf"{FRACTION}\s*\d")
_BOX = re.compile(r"\\(?:boxed|fbox)")
_BRACE = re.compile(r"\\.|[{}]")


def _is_malformed(text: str) -> bool:
    depth = 0
    for match in _BRACE.finditer(text):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth < 0:
            return True
    return depth != 0 or _BOX.search(text) is not None or _SCALED_FRACTION.search(text) is not None or is_too_big(text)


# Marks that the parser ignores although they change the meaning. An answer with one that gold lacks differs.
_IGNORED_MARKS = tuple(
    re.compile(mark)
    for mark in (
        # Phantoms; digits in text other than powers; coordinates out of order.
        r"\\[hv]?phantom(?![A-Za-z])",
        r"(?:(?<=.)\\text|\\(?:mbox|math|operatorname))[a-z]*\s*\{(?:[^{}\d]|\^\s*\{?\d\}?|\{[^{}\d]*\})*\{?\d",
        r"\([xyz,\s]*(?:[yz]\s*,\s*x|z\s*,\s*y)[xyz,\s]*\)\s*=",
    )
)
_MARKS = tuple(
    re.compile(mark)
    for mark in (
        # An index of a power, a fraction or a bracket; intervals that include infinity; negating or modifying words.
        r"(?:[)\]]|\^\s*(?:\d|\{(?:[^{}]|\{[^{}]*\})*\})|\}\s*\{[^{}]*\})\s*_",
        r"\\infty\s*\]|\[\s*-\s*\\infty",
        r"\\(?:text|mbox|textrm|textbf|mathrm|operatorname)\s*\{[^{}]*\b(?i:not|nor?|never|neither|plus|minus|times|less|more"
        r"|fewer|wrong|incorrect|false|except|hundred|thousand|million|billion)\b",
    )
)
# Marks that must agree if both sides have one.
_HALF_OF_DAY = re.compile(r"(?i)(?<![A-Za-z])([ap])\.?\s?m(?![A-Za-z])")
_JOIN = re.compile(r"(?<![A-Za-z])(?:and|or)(?![A-Za-z])|\\(?:land|wedge)(?![A-Za-z])")
_DOTS = re.compile(r"\\[lcd]?dots|\.\.\.|\u2026")
_ORDER = re.compile(r"[<>]|\\(?:le|ge|lt|gt)(?![A-Za-z])")
_DEGREES = re.compile(r"\\circ(?![A-Za-z])|\\degree(?![A-Za-z])")
_FEET = re.compile(r"-?[\d.,]+(?:'[\d.,\s]*)?'{1,2}")
_RUNNING = re.compile(r"\\(?:sum|prod|int|lim|bigcup|bigcap)(?![A-Za-z])")
_BLANK = re.compile(r"[\s$.~]|\\[,;!]|\\q?quad(?![A-Za-z])")
# Delimiters of an infinity that is a bound or an answer; other brackets belong to products or functions.
_LIMITS = (
    r"[,;<>=:|()\[\]]|and|or|\\(?:[lg]e|[lg]t|ne|in|cup|cap|setminus|to|land|wedge|[{}]|(?:text|mbox|mathrm)\{[^{}]*\})"
)
_BOUND = re.compile(rf"(?:\A|{_LIMITS})(?:[-+]|\\pm)?\{{?[-+]?\\infty\}}?(?=\Z|{_LIMITS})")
_APPLIED = re.compile(r"\([-+]?\\infty\)|\|[-+]?\\infty\|")


def have_different_marks(gold: str, answer: str) -> bool:
    r"""Return whether two answers differ in an ignored mark: ``f'`` and ``f``, ``x^{2}_7`` and ``x^2``, "and" and "or".

    ``5'`` are feet, not degrees. Intervals exclude infinity, and arithmetic with it is refused. "and" counts only
    between inequalities, and a time of day only with ``a.m.`` in both.
    """
    if _adds_mark(_MARKS, gold, answer) or (_has_infinity_arithmetic(answer) and not _has_infinity_arithmetic(gold)):
        return True
    gold_side, answer_side = (gold, answer) if "=" in gold and "=" in answer else (_last_side(gold), _last_side(answer))
    if _count_primes(gold_side) != _count_primes(answer_side) or (
        _DEGREES.search(gold_side) and "'" in answer_side and "'" not in gold_side
    ):
        return True
    ordered = _ORDER.search(gold) and _ORDER.search(answer)
    for mark in (_HALF_OF_DAY, _JOIN) if ordered else (_HALF_OF_DAY,):
        expected, written = ({match.lower() for match in mark.findall(text)} for text in (gold, answer))
        if expected and written and expected != written:
            return True
    return False


def _adds_mark(marks: tuple[re.Pattern[str], ...], gold: str, answer: str) -> bool:
    return any(mark.search(answer) and not mark.search(gold) for mark in marks)


def _last_side(text: str) -> str:
    return text.rpartition("=")[2]


def _count_primes(text: str) -> int:
    return 0 if _FEET.fullmatch(text.strip()) else text.count("'")


def _has_infinity_arithmetic(text: str) -> bool:
    r"""Return whether infinity occurs in arithmetic, as in ``2\infty``, which the parser reduces to infinity."""
    if "\\infty" not in text or _RUNNING.search(text) is not None:
        return False
    text = _BLANK.sub("", text)
    return _APPLIED.search(text) is not None or "\\infty" in _BOUND.sub("", text)


_AND = re.compile(r",?\s*(?:\\(?:text|mbox|mathrm)\s*\{\s*,?\s*(?:and|or)\s*\}|\b(?:and|or)\b)\s*")
_SEPARATOR = re.compile(r"(?<!\\)[,;]")
_TOP = re.compile(r"\\.|[{}()\[\],;]")
_RELATION = re.compile(r"(?<![\\<>!:])=|\\(?:equiv|approx|in)(?![A-Za-z])")
_DECIMALS = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")


def _split_elements(text: str) -> list[str]:
    """Split ``text`` at commas and semicolons outside brackets, and at "and" and "or"."""
    text = _AND.sub(",", text)
    return _split(text, _SEPARATOR)


def _split_sides(piece: str) -> list[str]:
    """Split a chain of equations at the relations outside brackets: ``P(X=4)=1/8`` has two sides."""
    return [side.strip() for side in _split(piece, _RELATION) if side.strip()]


def _split(text: str, separator: re.Pattern[str]) -> list[str]:
    pieces, start, position, depth = [], 0, 0, 0
    for match in separator.finditer(text):
        for bracket in _TOP.finditer(text, position, match.start()):
            depth += (bracket[0] in "{([") - (bracket[0] in "})]")
        position = match.end()
        if depth <= 0:
            pieces.append(text[start : match.start()])
            start = position
    return [*pieces, text[start:]]


def _strip_names(sides: list[str]) -> list[str]:
    while len(sides) > 1 and is_name(sides[0]):
        sides = sides[1:]
    return sides


def _have_equal_elements(gold: str, answer: str) -> bool:
    """Return whether both list equal texts in equal order, however separated."""
    expected, written = ([_remove_spaces(piece) for piece in _split_elements(text)] for text in (gold, answer))
    return len(expected) > 1 and "=" in gold and expected == written


_JOINED_BY_OR, _JOINED_BY_AND = (
    re.compile(rf"\s*,?\s*(?:\\(?:text|mbox|mathrm)\s*\{{\s*{word}\s*\}}|(?<![A-Za-z]){word}(?![A-Za-z]){signs})\s*")
    for word, signs in (("or", ""), ("and", r"|\\(?:land|wedge)(?![A-Za-z])"))
)


def _compare_ranges(gold: str, answer: str) -> Outcome | None:
    """Compare two ranges as sets if one of them is joined by "and" or "or"; else return None."""
    if not (_JOINED_BY_OR.search(gold + answer) or _JOINED_BY_AND.search(gold + answer)):
        return None
    case = _is_case_sensitive(gold, answer)
    expected = _parse_range(gold, case)
    written = _parse_range(answer, case) if expected is not None else None
    return None if written is None else EQUAL if values.are_equal(expected, written) else DIFFERENT


def _parse_range(text: str, case: bool) -> Any:
    for word, combined in ((_JOINED_BY_OR, sympy.Union), (_JOINED_BY_AND, sympy.Intersection)):
        if len(joined := word.split(text)) > 1:
            ranges = [_parse_range(member, case) for member in joined]
            # Ranges of a single variable.
            names = {name for member in joined for name in _find_symbols(member)}
            return combined(*ranges) if None not in ranges and len(names) <= 1 else None
    try:
        return values.read_set(_normalise(text), case=case)
    except MemoryError:
        raise
    except Exception:
        return None


def _compare_approximation(gold: str, answer: str) -> Outcome | None:
    r"""Compare ``x=\frac{5}{7} \approx 0.714`` by its value, to which the decimals must round.

    None for other answers, and if the gold answer is an approximation too.
    """
    exact, approx, decimals = answer.rpartition(r"\approx")
    decimals = strip_unit(decimals.strip())
    sides = _strip_names(_split_sides(exact))
    if r"\approx" in gold + exact or not approx or not _DECIMALS.fullmatch(decimals) or not sides or is_name(sides[-1]):
        return None
    number = _parse(_normalise(strip_unit(sides[-1])), _is_case_sensitive(gold, exact))
    if number is None:
        return UNPARSED_ANSWER
    if not values.rounds_to(number, decimals):
        return DIFFERENT
    return EQUAL if "." in gold and exact_number(gold) == exact_number(decimals) else _compare_value(gold, exact)


def _compare_value(gold: str, answer: str) -> Outcome:
    """Compare with a gold answer without equations; an equation in the answer is the value of its equal sides."""
    if not _RELATION.search(answer):
        return _compare_with_units(gold, answer)
    pieces = _split_elements(answer)
    names = [piece.partition("=")[0].strip() for piece in pieces]
    if set(names) <= {*"xyz"}:
        # Named coordinates, in the order of a pair.
        pieces = [piece for _, piece in sorted(zip(names, pieces, strict=True))]
    chains = [_strip_names(_split_sides(piece)) or [""] for piece in pieces]
    outcome = _compare_with_units(gold, answer if ";" in answer else ", ".join(chain[-1] for chain in chains))
    if outcome.equal and not all(_all_equal(chain) for chain in chains):
        return DIFFERENT
    return outcome


def _all_equal(sides: list[str]) -> bool:
    return all(_compare_with_units(sides[-1], side).equal is True for side in sides[:-1])


def _compare_equation(gold: str, answer: str) -> Outcome:
    r"""Compare with a gold answer that has an equation.

    math-verify parses only the ends of ``a=b=c``, ignores everything after ``\approx``, and parses adjacent equations
    as a chain. So each chain must match an element of the other answer.
    """
    outcome = _compare_with_units(gold, answer)
    if not outcome.equal:
        return outcome
    expected, written = _split_elements(gold), _split_elements(answer)
    for piece in filter(_is_chain, expected):
        outcomes = [_compare_chains(piece, other) for other in written]
        if EQUAL not in outcomes:
            return outcomes[0] if len(expected) == len(written) == 1 else DIFFERENT
    for other in filter(_is_chain, written):
        if all(_compare_chains(piece, other) != EQUAL for piece in expected):
            return DIFFERENT
    return EQUAL


def _is_chain(piece: str) -> bool:
    return len(_RELATION.split(piece)) > 2 or r"\approx" in piece


def _compare_chains(gold: str, answer: str) -> Outcome:
    """Compare two equations, at least one a chain: pairwise, or all sides of both as equal values."""
    expected, written = _split_sides(gold), _split_sides(answer)
    if not expected or not written:
        return DIFFERENT
    if len(written) == 1 and len(expected) <= 2:
        return EQUAL
    if _pairwise_equal(expected, written):
        return EQUAL
    (names, expected), (others, written) = _split_names(expected), _split_names(written)
    if names and others and not names & others:
        return DIFFERENT
    if _pairwise_equal(expected, written):
        return EQUAL
    if not _all_equal(expected):
        # Possibly adjacent equations.
        return UNPARSED_GOLD if len(expected) + len(names) > 2 else DIFFERENT
    return EQUAL if _all_equal([*written, expected[-1]]) else DIFFERENT


def _split_names(sides: list[str]) -> tuple[set[str], list[str]]:
    bare = _strip_names(sides)
    return {_remove_spaces(name) for name in sides[: len(sides) - len(bare)]}, bare


def _pairwise_equal(expected: list[str], written: list[str]) -> bool:
    return len(expected) == len(written) and all(
        _compare_with_units(*sides).equal is True for sides in zip(expected, written, strict=True)
    )


def _compare_with_units(gold: str, answer: str) -> Outcome:
    bare_gold, bare_answer = _strip_units(gold), _strip_units(answer)
    outcome = _compare(bare_gold, bare_answer)
    if outcome.equal or (bare_gold == gold) == (bare_answer == answer):
        return outcome
    return EQUAL if _compare(gold, answer).equal else outcome


def _strip_units(text: str) -> str:
    pieces = [piece.strip() for piece in _split_elements(text)]
    if len(pieces) == 1 or ";" in text:
        return strip_unit(text)
    bare = [strip_unit(piece) for piece in pieces]
    return text if bare == pieces else ", ".join(bare)


_NORMALISATION = replace(parser.LatexExtractionConfig().normalization_config, boxed="last", units=False)
_CHOICE = re.compile(r"[A-Ha-h]")
_WORD = re.compile(
    r"\\(?:text|mbox|mathrm|textrm|textnormal|textup|operatorname)(?:bf|it|rm)?\s*\{[A-Za-z ]{2,}\}|\\[A-Za-z]+"
)


def _compare(gold: str, answer: str) -> Outcome:
    if (outcome := compare_plain(gold, answer)) is not None and outcome.reason in ("equal", "different"):
        return outcome
    right_text, left_text = _normalise(gold), _normalise(answer)
    if right_text and right_text == left_text:
        return EQUAL
    if len(_ORDER.findall(gold)) > 1:
        # SymPy shares relations between cached chains, which may be reordered.
        _parse.cache_clear()
    case = _is_case_sensitive(gold, answer)
    unreal = values.has_imaginary_unit(gold) or values.has_imaginary_unit(answer)
    right = _parse(right_text, case, unreal)
    if right is None:
        bare = _remove_spaces(right_text)
        return EQUAL if bare and bare == _remove_spaces(left_text) else UNPARSED_GOLD
    answered = _parse(left_text, case, unreal)
    if answered is None:
        return UNPARSED_ANSWER
    return EQUAL if values.are_equal(right, answered) else DIFFERENT


def _normalise(text: str) -> str:
    return str(parser.normalize_latex(f"\\boxed{{{_AND.sub(', ', text)}}}", config=_NORMALISATION)).strip()


@lru_cache(maxsize=_CACHE_SIZE)
def _parse(text: str, case: bool, unreal: bool = False) -> Any:
    try:
        return values.read_expression(rewrite_for_parser(text), case=case, unreal=unreal)
    except MemoryError:
        raise
    except Exception:
        return None


def _is_case_sensitive(gold: str, answer: str) -> bool:
    """Return whether a letter occurs in both cases; ``b`` is the choice ``B``."""
    if _CHOICE.fullmatch(gold) and _CHOICE.fullmatch(answer):
        return False
    used = _find_symbols(gold) | _find_symbols(answer)
    return any(letter.isupper() and letter.lower() in used for letter in used)


def _find_symbols(text: str) -> set[str]:
    return {character for character in _WORD.sub(" ", text) if character.isalpha()}


def _remove_spaces(text: str) -> str:
    return "".join(text.split())
