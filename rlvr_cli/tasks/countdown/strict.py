"""The strict rule: exact rational arithmetic over + - * / and parentheses, each given number exactly once.

What stands for nothing else is normalised on purpose: the typographic signs in ``_SPELLINGS`` and white space. All the
rest is refused: equations (`3 * 5 = 15`), signs before a number, decimals, exponents, `**` and `//`, leading zeros,
underscores and digits of other scripts.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import islice

from rlvr_cli.tasks.countdown.reward import MAX_ANSWER, Operator, ParsedExpression, evaluate_expression, postfix

_TAG = re.compile(r"<\s*+(/?)\s*+(think|answer)\s*+>", re.IGNORECASE)
_END = re.compile(r"<\s*+/\s*+think\s*+>", re.IGNORECASE)
_BLOCK = [("", "answer"), ("/", "answer")]

# Multiplication, division and minus signs that have one meaning, and the no-break space.
_SPELLINGS = str.maketrans(
    {
        "\u00d7": "*",
        "\u22c5": "*",
        "\u00b7": "*",
        "\u2217": "*",
        "\u00f7": "/",
        "\u2215": "/",
        "\u2212": "-",
        "\u00a0": " ",
    }
)
_TOKEN = re.compile(r"[ \t\r\n]*+(?:(0|[1-9][0-9]*+)(?![0-9])|([-+*/()]))")
_BINARY = {
    "+": Operator(1, operator.add),
    "-": Operator(1, operator.sub),
    "*": Operator(2, operator.mul),
    "/": Operator(2, operator.truediv),
}


def read(response: str, nums: Sequence[int], target: int) -> ParsedExpression:
    """Judge what a model wrote after a prompt that ends with ``<think>``; time is linear in its length.

    The reasoning ends at the one ``</think>``, and after it stand one ``<answer>`` and one ``</answer>``, in this
    order, with no other of these tags; what the reasoning holds does not count. Letter case and white space inside a
    tag do not count either.
    """
    # One tag too many is enough to refuse it, however many a model wrote.
    ends = list(islice(_END.finditer(response), 2))
    if len(ends) != 1:
        return ParsedExpression("bad_format")
    tags = list(islice(_TAG.finditer(response, ends[0].end()), len(_BLOCK) + 1))
    if [(tag[1], tag[2].lower()) for tag in tags] != _BLOCK:
        return ParsedExpression("bad_format")
    return judge_expression(response[tags[0].end() : tags[1].start()], nums, target)


def judge_expression(text: str, nums: Sequence[int], target: int) -> ParsedExpression:
    """Judge the text of an answer block."""
    tokens = _tokens(text) if len(text) <= MAX_ANSWER else None
    steps = postfix(tokens, _BINARY) if tokens else None
    if not tokens or steps is None:
        return ParsedExpression("no_answer")
    expression = "".join(tokens)
    if sorted(token for token in tokens if token.isdecimal()) != sorted(map(str, nums)):
        return ParsedExpression("wrong_numbers", expression)
    try:
        value = evaluate_expression(steps, lambda digits: Fraction(int(digits)))
    except ZeroDivisionError:
        return ParsedExpression("wrong", expression)
    return ParsedExpression("correct" if value == target else "wrong", expression)


def _tokens(text: str) -> list[str] | None:
    """Whole numbers, operators and parentheses; None when there is anything else."""
    text = text.translate(_SPELLINGS).rstrip(" \t\r\n")
    tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        tokens.append(match[1] or match[2])
        position = match.end()
    return tokens
