"""The comparison of two answers by math-verify, for worker processes: it may take any time and any memory.

Of math-verify, what reads one LaTeX expression and what compares two are used. Its search for an expression in running
text is not: it takes the last number of a garbled answer for the answer.

Its comparison catches every exception, the end of memory too, and calls what follows a difference. So that an undecided
pair is not taken for a wrong one, the places where it gives up take note of it (``_noted``).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from math_verify import grader, parser
from sympy import Expr, UnevaluatedExpr

from rlvr_cli.verify.math_answer import clean, without_stop
from rlvr_cli.verify.nonzero import simplified
from rlvr_cli.verify.outcome import DIFFERENT, EQUAL, UNPARSED_ANSWER, UNPARSED_GOLD, Outcome
from rlvr_cli.verify.size import too_big

logging.disable(logging.CRITICAL)


class Unable(BaseException):
    """Memory ran out somewhere below, so what came of the comparison says nothing."""


_out_of_memory = False


def _noted(function: Callable[..., Any]) -> Callable[..., Any]:
    def noting(*arguments: Any, **keywords: Any) -> Any:
        global _out_of_memory
        try:
            return function(*arguments, **keywords)
        except MemoryError:
            _out_of_memory = True
            raise

    return noting


def _some_solution(solve: Callable[..., Any]) -> Callable[..., Any]:
    """Two equations without a solution are not the same equation; the comparison takes two empty lists for equal."""

    def solving(*arguments: Any, **keywords: Any) -> Any:
        found = solve(*arguments, **keywords)
        if not found:
            raise ValueError
        return found

    return solving


grader.simplify = _noted(simplified)
grader.solve = _noted(_some_solution(grader.solve))
# math-verify takes other versions too, with other insides.
if version("antlr4-python3-runtime").startswith("4.13."):
    from rlvr_cli.verify import prediction

    prediction.install()

# Expressions that are kept: a gold answer is compared with the answers of a whole group.
_KEPT = 500
_NORMALISATION = replace(parser.LatexExtractionConfig().normalization_config, boxed="last")
_DELIMITER = re.compile(r"(?<!\\)\$|\\[()\[\]]")
_LOOSE_SPACE = re.compile(r" +(?![A-Za-z0-9 ])")
# math-verify reads 1.5e3 as 1.5 times e times 3.
_SCIENTIFIC = re.compile(r"\A((?:[A-Za-z]=)?[+-]?\d+(?:\.\d+)?)[eE]([+-]?\d{1,3})\Z")
_BOX = re.compile(r"\\(?:boxed|fbox)")
# The reader takes each digit behind a fraction for a factor of its own: 20 would be 2 times 0.
_SCALED_FRACTION = re.compile(r"\\[dt]?frac\s*\{[^{}]*\}\s*\{[^{}]*\}\s*\d")
_BRACE = re.compile(r"\\.|[{}]")
_TOP = re.compile(r"\\.|[{}()\[\],;]")
_AND = re.compile(r"\\(?:text|mbox|mathrm)\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b")
_EQUALS = re.compile(r"(?<![\\<>!:])=|\\(?:equiv|approx)(?![A-Za-z])")
# math-verify takes what stands behind a number for its unit and leaves it out.
_DIGITS_IN_TEXT = re.compile(r"\\(?:text|mbox)\s*\{[^{}]*\d")
_NAME = re.compile(r"[A-Za-z](?:_?(?:\w|\{\w+\}))?'*|\\[A-Za-z]+|[A-Za-z]\s*\(\s*[A-Za-z]\s*\)")


def judge(gold: str, answer: str) -> Outcome:
    r"""Whether ``answer`` is worth ``gold``.

    As math-verify says, but for equations: where the gold answer has none, the sides of ``a=b=c`` must equal each
    other (a name on the left, as in ``x=5``, aside), while math-verify looks at the last one only. Numbers too large
    to compute are not computed, braces must be balanced, and no number may stand behind a fraction (all
    ``unparsed``); a second number hidden in a ``\text`` is no unit.
    """
    global _out_of_memory
    _out_of_memory = False
    gold, answer = _plain(gold), _plain(answer)
    if _malformed(answer):
        return UNPARSED_ANSWER
    if _malformed(gold):
        return UNPARSED_GOLD
    if _DIGITS_IN_TEXT.search(answer) and not _DIGITS_IN_TEXT.search(gold) and not answer.startswith("\\text"):
        return DIFFERENT
    outcome = _compared(gold, answer)
    if outcome.equal and not _EQUALS.search(gold):
        for left, right in _sides(answer):
            if _compared(right, left).equal is not True:
                outcome = DIFFERENT
                break
    if _out_of_memory:
        raise Unable
    return outcome


def _compared(gold: str, answer: str) -> Outcome:
    right_text, left_text = _normalised(gold), _normalised(answer)
    if right_text and right_text == left_text:
        return EQUAL
    right = _parsed(right_text)
    if right is None:
        return EQUAL if _squeezed(right_text) and _squeezed(right_text) == _squeezed(left_text) else UNPARSED_GOLD
    left = _parsed(left_text)
    if left is None:
        return UNPARSED_ANSWER
    equal = grader.verify(right, left, timeout_seconds=None)
    return EQUAL if equal and not _tiny_and_apart(right, left) else DIFFERENT


def _tiny_and_apart(right: Any, left: Any) -> bool:
    """Whether both are numbers below 0.001 which differ by more than a hundredth.

    math-verify rounds to six decimals, so that 0.0 is 6.6 times ten to the minus 34.
    """
    values = []
    for expression in (right, left):
        if not isinstance(expression, Expr) or not expression.is_number or expression.has(UnevaluatedExpr):
            return False
        try:
            value = expression.evalf(15)
        except MemoryError as error:
            raise Unable from error
        except Exception:
            return False
        # A precision of 1: what is left of a difference that may be zero.
        if not (value.is_zero or (value.is_Float and value._prec > 1)):
            return False
        values.append(float(value))
    largest = max(map(abs, values))
    return largest < 1e-3 and abs(values[0] - values[1]) > largest / 100


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _plain(text: str) -> str:
    # `$$ ... .$$` ends in a full stop too.
    plain = without_stop(" ".join(_LOOSE_SPACE.sub("", _DELIMITER.sub(" ", clean(text))).split()))
    return _SCIENTIFIC.sub(r"\1\\times 10^{\2}", plain)


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
def _parsed(text: str) -> Any:
    """The expression, or None when there is none."""
    try:
        return parser.parse_latex_cached(text)
    except MemoryError as error:
        raise Unable from error
    except Exception:
        return None


def _sides(answer: str) -> list[tuple[str, str]]:
    """Each side of the answer's equations with the last side of the same one; names on the left are left out."""
    pairs = []
    for piece in _pieces(answer):
        sides = [side.strip() for side in _EQUALS.split(piece) if side.strip()]
        if sides and _NAME.fullmatch(sides[0]):
            sides = sides[1:]
        pairs += [(side, sides[-1]) for side in sides[:-1]]
    return pairs


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
