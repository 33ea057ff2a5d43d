"""The comparison of two answers by math-verify, for worker processes: it may take any time and any memory.

math-verify catches every exception, the end of memory too, and calls what follows a difference. So that an
undecided pair is not taken for a wrong one, the places where it gives up take note of it (``_noted``).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import math_verify
from math_verify import grader, parser

from rlvr_cli.verify.math_answer import clean
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


parser.parse_latex_cached = _noted(parser.parse_latex_cached)
grader.simplify = _noted(grader.simplify)
grader.solve = _noted(grader.solve)

_LATEX = [parser.LatexExtractionConfig()]
_EQUALS = re.compile(r"(?<![\\<>!:])=")
_NAME = re.compile(r"[A-Za-z](?:_?(?:\w|\{\w+\}))?'*|\\[A-Za-z]+|[A-Za-z]\s*\(\s*[A-Za-z]\s*\)")


def judge(gold: str, answer: str) -> Outcome:
    """Whether ``answer`` is worth ``gold``.

    As math-verify says, but for equations: where the gold answer has none, ``a=b=c`` counts only when every side is
    the gold answer (a name on the left, as in ``x=5``, aside), while math-verify looks at the last side only.
    Numbers too large to compute are not computed (``unparsed``).
    """
    global _out_of_memory
    _out_of_memory = False
    gold, answer = clean(gold), clean(answer)
    if too_big(answer):
        return UNPARSED_ANSWER
    if too_big(gold):
        return UNPARSED_GOLD
    right = _parsed(gold)
    if not _expressions(right):
        return UNPARSED_GOLD
    outcome = EQUAL
    for side in _sides(gold, answer):
        left = _parsed(side)
        if not _expressions(left):
            outcome = UNPARSED_ANSWER
        elif not math_verify.verify(right, left, timeout_seconds=None):
            outcome = DIFFERENT
        if outcome is not EQUAL:
            break
    if _out_of_memory:
        raise Unable
    return outcome


def _parsed(text: str) -> list[Any]:
    return list(math_verify.parse(f"\\boxed{{{text}}}", _LATEX, parsing_timeout=None))


def _expressions(parsed: list[Any]) -> bool:
    return any(not isinstance(value, str) for value in parsed)


def _sides(gold: str, answer: str) -> list[str]:
    if "=" not in answer or _EQUALS.search(gold) or any(mark in answer for mark in ",;"):
        return [answer]
    sides = [side.strip() for side in _EQUALS.split(answer)]
    if len(sides) < 2 or any(not side for side in sides):
        return [answer]
    return sides[1:] if _NAME.fullmatch(sides[0]) and not _NAME.fullmatch(gold) else sides
