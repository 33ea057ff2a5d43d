"""TinyZero's reward for Countdown, as the public code computes it, without its `eval`.

Source: TinyZero's `verl/utils/reward_score/countdown.py`. The public code checks an answer's characters and hands it to
Python's `eval`; here a tokenizer and a loop read the same grammar (whole and decimal numbers, signs, `+ - * / // **`,
parentheses) with Python's own numbers, so that floats are floats. It differs in three places:

- an answer of more than 10,000 characters is not read (the public code scores it as far as Python parses it);
- parentheses and signs may nest as deep as they like below that (Python's parser gives up, at 200 parentheses for one);
- a power of whole numbers with more than 4,096 bits has no value (the public code works `9**9**9**9` out without end).

Each scores 0.1 where no value is found.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import Any

from rlvr_cli.tasks.answers import last_tagged
from rlvr_cli.tasks.countdown.reward import MAX_ANSWER, Operator, ParsedExpression, Sign, evaluate_expression, postfix

_TOLERANCE = 1e-5
_MAX_POWER_BITS = 4096

_NUMBER = r"[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++"
_TOKEN = re.compile(rf"({_NUMBER}|\*\*?|//?|[-+()])|([ \t\f]++)|(\r)")


def _power(base: Any, exponent: Any) -> Any:
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and abs(base) > 1 and base.bit_length() * exponent > _MAX_POWER_BITS:
        raise OverflowError("the power is too large")
    return base**exponent


_BINARY = {
    "+": Operator(1, operator.add),
    "-": Operator(1, operator.sub),
    "*": Operator(2, operator.mul),
    "/": Operator(2, operator.truediv),
    "//": Operator(2, operator.floordiv),
    "**": Operator(4, _power, from_right=True),
}
_SIGNS: dict[str, Sign[Any]] = {"+": Sign(3, operator.pos), "-": Sign(3, operator.neg)}


def read(response: str, nums: Sequence[int], target: int) -> ParsedExpression:
    """Judge what a model wrote after TinyZero's prompt (which ends with ``<think>``); time is linear in its length.

    The answer is the last ``<answer>`` block of the last line, whether the reasoning was closed or not. Where
    "Assistant:" occurs in the response, only what follows the first one is read, as in the public code.
    """
    _, found, rest = response.partition("Assistant:")
    answer = last_tagged((rest if found else response).rpartition("\n")[2])
    return ParsedExpression("bad_format") if answer is None else judge_expression(answer, nums, target)


def judge_expression(text: str, nums: Sequence[int], target: int) -> ParsedExpression:
    """Judge the text of an answer block."""
    tokens = _tokens(text) if len(text) <= MAX_ANSWER else None
    steps = postfix(tokens, _BINARY, _SIGNS) if tokens else None
    if not tokens or steps is None:
        return ParsedExpression("no_answer")
    expression = "".join(tokens)
    # The public code looks for runs of digits, so that `1.5` uses a 1 and a 5.
    runs = [run.lstrip("0") or "0" for token in tokens for run in token.split(".") if run.isdecimal()]
    if sorted(runs) != sorted(map(str, nums)):
        return ParsedExpression("wrong_numbers", expression)
    try:
        right = abs(evaluate_expression(steps, _literal) - target) < _TOLERANCE
    # Division by zero, a value outside floating point, `//` of a complex power: the public code catches everything.
    except (ArithmeticError, TypeError, ValueError):
        right = False
    return ParsedExpression("correct" if right else "wrong", expression)


def _tokens(text: str) -> list[str] | None:
    """Python's tokens; None where Python's tokenizer, or the public code's check of characters, refuses the text."""
    tokens: list[str] = []
    depth = position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or (match[3] and depth == 0):  # a line ends at a carriage return, except in parentheses
            return None
        if match[1]:
            if match[1].isdecimal() and match[1][0] == "0" and match[1].strip("0"):  # Python refuses `07`
                return None
            depth += (match[1] == "(") - (match[1] == ")")
            tokens.append(match[1])
        position = match.end()
    return tokens


def _literal(digits: str) -> Any:
    return float(digits) if "." in digits else int(digits)
