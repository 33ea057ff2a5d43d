"""Compare two answers by math-verify, for worker processes: it may take any time and any memory.

``judge_paper`` calls math-verify as TRL's ``accuracy_reward`` does. ``judge_answer`` is the strict rule: rewrites
(``rlvr_cli.verify.rewrites``), values at a few points, then math-verify's comparison of two expressions. Its search for
an expression in running text is not used there: it takes the last number of a garbled answer for the answer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, parser, verify

from rlvr_cli.verify import reader
from rlvr_cli.verify.math_answer import (
    DIFFERENT,
    EQUAL,
    UNPARSED_ANSWER,
    UNPARSED_GOLD,
    Outcome,
    check,
    clean,
    is_name,
)
from rlvr_cli.verify.numbers import exact_number, too_big
from rlvr_cli.verify.rewrites import chosen_letter, for_parser, rewrite, without_shared_percent
from rlvr_cli.verify.spelling import alike, hides_digits, letters, marks_differ, spelled, without_unit

logging.disable(logging.CRITICAL)

# Expressions that are kept: a gold answer is compared with the answers of a whole group.
_KEPT = 500
_NORMALISATION = replace(parser.LatexExtractionConfig().normalization_config, boxed="last", units=False)
_BOX = re.compile(r"\\(?:boxed|fbox)")
# The reader takes each digit behind a fraction for a factor of its own: 20 would be 2 times 0.
_SCALED_FRACTION = re.compile(r"\\[dt]?frac\s*\{[^{}]*\}\s*\{[^{}]*\}\s*\d")
_BRACE = re.compile(r"\\.|[{}]")
_TOP = re.compile(r"\\.|[{}()\[\],;]")
_AND = re.compile(r"\\(?:text|mbox|mathrm)\s*\{\s*,?\s*(?:and|or)\s*\}|\b(?:and|or)\b")
_EQUALS = re.compile(r"(?<![\\<>!:])=|\\(?:equiv|approx|in)(?![A-Za-z])")
_APPROX = re.compile(r"\\approx(?![A-Za-z])")
_COORDINATES = re.compile(r"\(\s*([xyz](?:\s*,\s*[xyz])+)\s*\)\s*=")
_DELIMITED = re.compile(r"\$|\\[(\[]|\\boxed")
_DECIMALS = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
_DOTS = re.compile(r"\\[lcd]?dots|\.\.\.|\u2026")
# What takes room and shows nothing; the reader passes over the command and reads what is in it.
_HIDDEN = re.compile(r"\\[hv]?phantom(?![A-Za-z])")
_CHOICE = re.compile(r"[A-Ha-h]\Z")
# Judged before any pair of a user's, as importing and the parser's first looks at common forms take long.
_WARM = [
    ("1/2", r"\frac{2}{4}"),
    ("x^2-1", "(x-1)(x+1)"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    ("(1,2)", "[1,2)"),
    ("5", "x=5"),
    (r"\frac{\pi}{2}", r"\{1,2\}"),
    (r"6\text{ cm}", r"50\%"),
    ("y=3x^{2}+6x-1", r"x\in(-\infty,3]\cup[5,7)"),
]


def ready(_: Any) -> Callable[[list[str]], list[Any]]:
    """Make what workers do with a pair, once the algebra is warm: ``[rule, gold, answer]`` to ``[equal, reason]``."""
    for gold, answer in _WARM:
        judge_answer(gold, answer)
        judge_paper(gold, answer)
    return _answer


def _answer(job: list[str]) -> list[Any]:
    rule, gold, answer = job
    judge: dict[str, Callable[[str, str], Outcome]] = {"paper": judge_paper, "strict": judge_answer}
    try:
        outcome = judge[rule](gold, answer)
    except MemoryError:
        raise
    except Exception:
        # A recursion too deep, or a text that nobody thought of: no answer that can be read, and no reason to die.
        outcome = UNPARSED_ANSWER
    return [outcome.equal, outcome.reason]


# The arguments of trl.rewards.accuracy_reward (TRL 1.16), which sets no alarms where it is not in the main thread; here
# the worker's deadline takes their place.
_PAPER = LatexExtractionConfig(
    normalization_config=NormalizationConfig(units=True), boxed_match_priority=0, try_extract_without_anchor=False
)


def judge_paper(gold: str, answer: str) -> Outcome:
    r"""Compare as TRL's ``accuracy_reward`` does. A gold answer without delimiters is read as ``\boxed{gold}``."""
    expected = _parsed_gold(gold)
    if not expected:
        return UNPARSED_GOLD
    text = rf"\boxed{{{answer}}}"
    written = parse(text, extraction_config=[_PAPER], extraction_mode="first_match", parsing_timeout=None)
    return EQUAL if verify(expected, written, timeout_seconds=None) else DIFFERENT


@lru_cache(maxsize=_KEPT)
def _parsed_gold(gold: str) -> list[Any]:
    return list(parse(gold if _DELIMITED.search(gold) else rf"\boxed{{{gold}}}", parsing_timeout=None))


def judge_answer(gold: str, answer: str) -> Outcome:
    r"""Whether ``answer`` is worth ``gold``.

    As math-verify says, but for equations: where the gold answer has none, the sides of ``a=b=c`` must equal each
    other (names on the left, as in ``x=5``, aside), while math-verify looks at the last one only. Numbers too large
    to compute are not computed, braces must be balanced, and no number may stand behind a fraction (all
    ``unparsed``). Units are left out at the end of an answer only. See docs/verifiers.md for the rest.
    """
    marked = marks_differ(clean(gold), clean(answer))
    gold, answer = alike(gold, chosen_letter(gold, answer))
    gold, answer = without_shared_percent(rewrite(spelled(gold)), rewrite(spelled(answer)))
    if _malformed(answer):
        return UNPARSED_ANSWER
    if _malformed(gold):
        return UNPARSED_GOLD
    if _HIDDEN.search(answer) and not _HIDDEN.search(gold):
        return UNPARSED_ANSWER
    if hides_digits(answer) and not hides_digits(gold) and not answer.startswith("\\text"):
        return DIFFERENT
    if _turned(answer) and not _turned(gold):
        return DIFFERENT
    if (_DOTS.search(answer) is None) != (_DOTS.search(gold) is None):
        return DIFFERENT
    if not marked and _same_pieces(gold, answer):
        return EQUAL
    if not _APPROX.search(gold) and (sides := _approximation(answer)) is not None:
        return _of_approximation(gold, *sides)
    outcome = _with_units(gold, answer) if _EQUALS.search(gold) else _of_value(gold, answer)
    if outcome.equal and (marked or not _same_approximations(gold, answer)):
        outcome = DIFFERENT
    if outcome.equal and _EQUALS.search(gold):
        outcome = _chains_agree(gold, answer)
    return outcome


def _same_pieces(gold: str, answer: str) -> bool:
    """Whether both list the same texts in the same order, with commas, semicolons or words between them."""
    expected, written = ([_squeezed(piece) for piece in _pieces(text)] for text in (gold, answer))
    return len(expected) > 1 and "=" in gold and expected == written


def _approximation(answer: str) -> tuple[str, str] | None:
    """The value and the decimals of an answer such as ``x=\\frac{5}{7} \\approx 0.714``."""
    value, *decimals = map(str.strip, _APPROX.split(answer))
    if len(decimals) != 1 or not _DECIMALS.fullmatch(without_unit(decimals[0])):
        return None
    names, equals, last = value.rpartition("=")
    value = last.strip() if equals and is_name(names) else value
    return None if not value or is_name(value) or "=" in value else (value, without_unit(decimals[0]))


def _of_approximation(gold: str, value: str, decimals: str) -> Outcome:
    """The value counts, and its decimals must be its own, rounded."""
    case = _cases_differ(gold, value)
    exact = _parsed(_normalised(without_unit(value)), case)
    if exact is None:
        return UNPARSED_ANSWER
    if not reader.rounds_to(exact, decimals):
        return DIFFERENT
    outcome = _of_value(gold, value)
    return EQUAL if "." in gold and exact_number(gold) == exact_number(decimals) else outcome


def _of_value(gold: str, answer: str) -> Outcome:
    """The outcome where the gold answer is no equation."""
    pieces = _pieces(answer)
    if len(pieces) == 1:
        sides = _values(answer)
        if len(sides) == 1:
            return _with_units(gold, sides[0])
    values = [_values(piece) for piece in _in_order(pieces)]
    if "=" in answer and ";" not in answer and all(len(sides) == 1 for sides in values):
        return _with_units(gold, ", ".join(sides[0] for sides in values))
    outcome = _with_units(gold, answer)
    if outcome.equal:
        for sides in values:
            if sides and any(_with_units(sides[-1], side).equal is not True for side in sides[:-1]):
                return DIFFERENT
    return outcome


def _turned(text: str) -> bool:
    """Whether coordinates are listed in another order than a pair has them: ``(y,x)=(1,2)``."""
    return any("".join(sorted(names)) != names for names in map(_letters_only, _COORDINATES.findall(text)))


def _letters_only(text: str) -> str:
    return "".join(filter(str.isalpha, text))


def _in_order(pieces: list[str]) -> list[str]:
    """Coordinates that are named, ``y=2, x=3``, in the order in which a pair holds them."""
    names = [piece.partition("=")[0].strip() for piece in pieces]
    return sorted(pieces, key=lambda piece: piece.partition("=")[0].strip()) if set(names) <= {*"xyz"} else pieces


def _values(text: str) -> list[str]:
    """The sides of a chain of equations, without the names on its left."""
    return _without_names([side.strip() for side in _EQUALS.split(text) if side.strip()])


def _without_names(sides: list[str]) -> list[str]:
    while len(sides) > 1 and is_name(sides[0]):
        sides = sides[1:]
    return sides


def _chains_agree(gold: str, answer: str) -> Outcome:
    """Of ``a=b=c`` the comparison sees the ends only, and of equations side by side it makes such a chain.

    So each piece of either side that has several equals signs must have its like among the other's pieces.
    """
    expected, written = _pieces(gold), _pieces(answer)
    for piece in expected:
        if _is_chain(piece):
            outcomes = [_chain_agrees(piece, other) for other in written]
            if EQUAL not in outcomes:
                return outcomes[0] if len(expected) == len(written) == 1 else DIFFERENT
    for other in written:
        if _is_chain(other) and all(_chain_agrees(piece, other) != EQUAL for piece in expected):
            return DIFFERENT
    return EQUAL


def _is_chain(piece: str) -> bool:
    return len(_EQUALS.split(piece)) > 2


def _chain_agrees(gold: str, answer: str) -> Outcome:
    """Whether two equations, one of them at least a chain, agree side by side, or all sides of both are one value."""
    expected, written = _sides(gold), _sides(answer)
    if not expected or not written:
        return DIFFERENT
    if len(written) == 1 and len(expected) <= 2:
        return EQUAL
    if len(expected) == len(written) and all(
        _with_units(*sides).equal is True for sides in zip(expected, written, strict=True)
    ):
        return EQUAL
    *others, last = _without_names(expected)
    if any(_with_units(last, side).equal is not True for side in others):
        # Perhaps several equations side by side.
        return UNPARSED_GOLD if len(expected) > 2 else DIFFERENT
    agree = all(_with_units(last, side).equal is True for side in _without_names(written))
    return EQUAL if agree else DIFFERENT


def _sides(piece: str) -> list[str]:
    """The sides of a chain of equations; an equals sign in brackets belongs to a side, as in ``P(X=4)=1/8``."""
    sides, start, place, depth = [], 0, 0, 0
    for equals in _EQUALS.finditer(piece):
        for match in _TOP.finditer(piece, place, equals.start()):
            depth += (match[0] in "{([") - (match[0] in "})]")
        place = equals.end()
        if depth <= 0:
            sides.append(piece[start : equals.start()])
            start = place
    return [side.strip() for side in [*sides, piece[start:]] if side.strip()]


def _same_approximations(gold: str, answer: str) -> bool:
    r"""Whether what stands behind ``\approx`` is the same in both; the reader leaves it out."""
    expected, written = ([_APPROX.split(piece) for piece in _pieces(text)] for text in (gold, answer))
    if not any(len(sides) > 1 for sides in expected) or not any(len(sides) > 1 for sides in written):
        return True
    if len(expected) != len(written):
        return False
    return all(
        len(one) == len(other) and (len(one) == 1 or _with_units(one[-1], other[-1]).equal is True)
        for one, other in zip(expected, written, strict=True)
    )


def _with_units(gold: str, answer: str) -> Outcome:
    bare_gold, bare_answer = _bare(gold), _bare(answer)
    outcome = _compared(bare_gold, bare_answer)
    if outcome.equal or (bare_gold == gold) == (bare_answer == answer):
        return outcome
    return EQUAL if _compared(gold, answer).equal else outcome


def _bare(text: str) -> str:
    """``text`` without its unit; a list without the units of its elements."""
    pieces = _pieces(text)
    if len(pieces) == 1 or ";" in text:
        return without_unit(text)
    bare = [without_unit(piece.strip()) for piece in pieces]
    return text if bare == [piece.strip() for piece in pieces] else ", ".join(bare)


def _compared(gold: str, answer: str) -> Outcome:
    if (outcome := check(gold, answer)) is not None and outcome.reason in ("equal", "different"):
        return outcome
    right_text, left_text = _normalised(gold), _normalised(answer)
    if right_text and right_text == left_text:
        return EQUAL
    case = _cases_differ(gold, answer)
    unreal = reader.has_imaginary_unit(gold) or reader.has_imaginary_unit(answer)
    right = _parsed(right_text, case, unreal)
    if right is None:
        return EQUAL if _squeezed(right_text) and _squeezed(right_text) == _squeezed(left_text) else UNPARSED_GOLD
    left = _parsed(left_text, case, unreal)
    if left is None:
        return UNPARSED_ANSWER
    return EQUAL if reader.same(right, left) else DIFFERENT


def _cases_differ(gold: str, answer: str) -> bool:
    """Whether a letter is used in both sizes; ``b`` is the choice ``B``."""
    if _CHOICE.match(gold) and _CHOICE.match(answer):
        return False
    used = letters(gold) | letters(answer)
    return any(letter.isupper() and letter.lower() in used for letter in used)


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _malformed(text: str) -> bool:
    depth = 0
    for match in _BRACE.finditer(text):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth < 0:
            return True
    return depth != 0 or _BOX.search(text) is not None or _SCALED_FRACTION.search(text) is not None or too_big(text)


def _normalised(text: str) -> str:
    return str(parser.normalize_latex(f"\\boxed{{{text}}}", config=_NORMALISATION)).strip()


@lru_cache(maxsize=_KEPT)
def _parsed(text: str, case: bool, unreal: bool = False) -> Any:
    """The expression, or None when there is none."""
    try:
        return reader.read_expression(for_parser(text), case=case, unreal=unreal)
    except MemoryError:
        raise
    except Exception:
        return None


def _pieces(text: str) -> list[str]:
    """``text`` split at the commas and semicolons that stand in no bracket, and at "and" and "or"."""
    text = _AND.sub(",", text)
    pieces, depth, start = [], 0, 0
    for match in _TOP.finditer(text):
        if match[0] in "{([":
            depth += 1
        elif match[0] in "})]":
            depth -= 1
        elif match[0] in ",;" and depth <= 0:
            pieces.append(text[start : match.start()])
            start = match.end()
    return [*pieces, text[start:]]
