"""The two rules by which Countdown's answers are read. Both work expressions out themselves: nothing goes to `eval`.

`paper` is TinyZero's (`verl/utils/reward_score/countdown.py`), which checks an answer's characters and evaluates it as
Python: whole and decimal numbers, signs, `+ - * / // **`, parentheses. It differs in three ways, each of which scores
0.1 where no value is found:

- an answer of more than 10,000 characters is not read (the public code scores it as far as Python parses it);
- parentheses and signs may nest as deep as they like below that (Python's parser gives up, at 200 parentheses for one);
- a power of whole numbers with more than 4,096 bits has no value (the public code works `9**9**9**9` out without end).

`strict` is exact rational arithmetic over `+ - * /` and parentheses, each number exactly once. The typographic signs in
``_SPELLINGS`` and white space are normalised. The rest is refused: equations (`3 * 5 = 15`), signs before a number,
decimals, exponents, `**` and `//`, leading zeros, underscores and digits of other scripts.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Any, Literal

from rlvr_cli.tasks.answers import TAG, last_tagged

# A solution of six numbers is shorter than 100 characters; a longer block is not an answer.
MAX_ANSWER = 10_000
_TOLERANCE = 1e-5
_MAX_POWER_BITS = 4096

_NUMBER = r"[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++"
_PYTHON_TOKEN = re.compile(rf"({_NUMBER}|\*\*?|//?|[-+()])|([ \t\f]++)|(\r)")
_STRICT_TOKEN = re.compile(r"[ \t\r\n]*+(?:(0|[1-9][0-9]*+)(?![0-9])|([-+*/()]))")
_END = re.compile(r"<\s*+/\s*+think\s*+>", re.IGNORECASE)
_BLOCK = [("", "answer"), ("/", "answer")]
# Multiplication, division and minus signs that have one meaning, and the no-break space.
_SPELLINGS = str.maketrans("\u00d7\u22c5\u00b7\u2217\u00f7\u2215\u2212\u00a0", "****//- ")

# How tightly operators bind; a sign has a mark behind it.
_RANKS = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "+s": 3, "-s": 3, "**": 4}


@dataclass(frozen=True)
class ParsedExpression:
    """Hold what was read in a response.

    ``outcome`` is `correct`, `wrong` (another value, or none, as of a division by zero), `wrong_numbers` (not those of
    the puzzle, each once), `no_answer` (an answer block without a readable expression) or `bad_format` (no answer
    block). ``expression`` is the expression without white space where there is a readable one.
    """

    outcome: Literal["correct", "wrong", "wrong_numbers", "no_answer", "bad_format"]
    expression: str | None = None


def read_paper(response: str, nums: Sequence[int], target: int) -> ParsedExpression:
    """Judge what a model wrote after TinyZero's prompt (which ends with ``<think>``); time is linear in its length.

    The answer is the last ``<answer>`` block of the last line, whether the reasoning was closed or not. Where
    "Assistant:" occurs in the response, only what follows the first one is read, as in the public code.
    """
    _, header, rest = response.partition("Assistant:")
    answer = last_tagged((rest if header else response).rpartition("\n")[2])
    return ParsedExpression("bad_format") if answer is None else judge_paper(answer, nums, target)


def read_strict(response: str, nums: Sequence[int], target: int) -> ParsedExpression:
    """Judge what a model wrote after a prompt that ends with ``<think>``; time is linear in its length.

    The reasoning ends at the one ``</think>``, and after it stand one ``<answer>`` and one ``</answer>``, in this
    order, with no other of these tags; what the reasoning holds does not count. Letter case and white space inside a
    tag do not count either.
    """
    # One tag too many is enough to refuse it, however many a model wrote.
    ends = list(islice(_END.finditer(response), 2))
    tags = list(islice(TAG.finditer(response, ends[0].end()), len(_BLOCK) + 1)) if len(ends) == 1 else []
    if [(tag[1], tag[2].lower()) for tag in tags] != _BLOCK:
        return ParsedExpression("bad_format")
    return judge_strict(response[tags[0].end() : tags[1].start()], nums, target)


def judge_paper(text: str, nums: Sequence[int], target: int) -> ParsedExpression:
    """Judge the text of an answer block as TinyZero does."""
    tokens = _python_tokens(text)
    steps = postfix(tokens, signs=True)
    if not steps:
        return ParsedExpression("no_answer")
    expression = "".join(tokens)
    # The public code looks for runs of digits, so that `1.5` uses a 1 and a 5.
    runs = [run.lstrip("0") or "0" for token in tokens for run in token.split(".") if run.isdecimal()]
    if sorted(runs) != sorted(map(str, nums)):
        return ParsedExpression("wrong_numbers", expression)
    try:
        value = _evaluate(steps, lambda digits: float(digits) if "." in digits else int(digits))
        right = abs(value - target) < _TOLERANCE
    # Division by zero, a value outside floating point, `//` of a complex power: the public code catches everything.
    except (ArithmeticError, TypeError, ValueError):
        right = False
    return ParsedExpression("correct" if right else "wrong", expression)


def judge_strict(text: str, nums: Sequence[int], target: int) -> ParsedExpression:
    """Judge the text of an answer block in exact arithmetic."""
    tokens = _strict_tokens(text)
    steps = postfix(tokens)
    if not steps:
        return ParsedExpression("no_answer")
    expression = "".join(tokens)
    if sorted(token for token in tokens if token.isdecimal()) != sorted(map(str, nums)):
        return ParsedExpression("wrong_numbers", expression)
    try:
        right = _evaluate(steps, lambda digits: Fraction(int(digits))) == target
    except ZeroDivisionError:
        right = False
    return ParsedExpression("correct" if right else "wrong", expression)


def _python_tokens(text: str) -> list[str]:
    """Return Python's tokens; none where Python's tokenizer, or the public code's check of characters, refuses."""
    tokens: list[str] = []
    depth = position = 0
    while position < len(text) <= MAX_ANSWER:
        match = _PYTHON_TOKEN.match(text, position)
        if match is None or (match[3] and depth == 0):  # a line ends at a carriage return, except in parentheses
            return []
        if match[1]:
            if match[1].isdecimal() and match[1][0] == "0" and match[1].strip("0"):  # Python refuses `07`
                return []
            depth += (match[1] == "(") - (match[1] == ")")
            tokens.append(match[1])
        position = match.end()
    return tokens


def _strict_tokens(text: str) -> list[str]:
    """Return whole numbers, operators and parentheses; nothing when there is anything else."""
    text = text.translate(_SPELLINGS) if len(text) <= MAX_ANSWER else ""
    text = text.rstrip(" \t\r\n")
    tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _STRICT_TOKEN.match(text, position)
        if match is None:
            return []
        tokens.append(match[1] or match[2])
        position = match.end()
    return tokens


def postfix(tokens: Sequence[str], *, signs: bool = False) -> list[str]:
    """Put an expression in postfix order (Dijkstra's shunting yard); empty when it is not one whole expression.

    Args:
        tokens: literals, operators and parentheses. What is no operator and no parenthesis counts as a literal.
        signs: whether + and - may stand before an operand.
    """
    output: list[str] = []
    waiting: list[str] = []
    operand_expected = True
    for token in tokens:
        if token == ")":
            while waiting and waiting[-1] != "(":
                output.append(waiting.pop())
            if operand_expected or not waiting:
                return []
            waiting.pop()
        elif token not in _RANKS:
            if not operand_expected:
                return []
            operand_expected = token == "("
            (waiting if token == "(" else output).append(token)
        elif not operand_expected:
            # `a ** b ** c` is `a ** (b ** c)`.
            while waiting and waiting[-1] != "(" and _RANKS[waiting[-1]] + (token != "**") > _RANKS[token]:
                output.append(waiting.pop())
            waiting.append(token)
            operand_expected = True
        elif signs and token in "+-":
            waiting.append(f"{token}s")
        else:
            return []
    return [] if operand_expected or "(" in waiting else output + waiting[::-1]


def _power(base: Any, exponent: Any) -> Any:
    integers = isinstance(base, int) and isinstance(exponent, int)
    if integers and abs(base) > 1 and base.bit_length() * exponent > _MAX_POWER_BITS:
        raise OverflowError("the power is too large")
    return base**exponent


_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "**": _power,
    "+s": operator.pos,
    "-s": operator.neg,
}


def _evaluate(steps: Sequence[str], literal: Callable[[str], Any]) -> Any:
    """Work out an expression in postfix order. Raises what the operators and ``literal`` raise."""
    values: list[Any] = []
    for step in steps:
        if step not in _OPERATORS:
            values.append(literal(step))
        elif step.endswith("s"):
            values.append(_OPERATORS[step](values.pop()))
        else:
            right = values.pop()
            values.append(_OPERATORS[step](values.pop(), right))
    return values[0]
