"""The two rules for judging Countdown's answers. Expressions are parsed with ``ast``; there is no `eval`.

`paper` is TinyZero's (`verl/utils/reward_score/countdown.py`), which checks an answer's characters and evaluates it as
Python: whole and decimal numbers, signs, `+ - * / // **`, parentheses. There are two differences, which score 0.1:

- an answer of more than 10,000 characters, or more than 100 nested operators, is not parsed (the public code scores it
  as far as Python parses it);
- a power of whole numbers with more than 4,096 bits has no value (the public code hangs on `9**9**9**9`).

`strict` is exact rational arithmetic over `+ - * /` and parentheses, each number exactly once. The typographic signs in
``_ASCII`` and white space are normalised. Refused are equations (`3 * 5 = 15`), signs before a number, decimals,
exponents, `**` and `//`, leading zeros, underscores and digits of other scripts.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Any, Literal

from rlvr_cli.tasks.answers import TAG, last_tagged

# Characters. A solution of six numbers has less than 100.
MAX_ANSWER = 10_000
_TOLERANCE = 1e-5
_MAX_POWER_BITS = 4096
# At greater depth, whether Python can parse an expression depends on the caller's stack.
_MAX_DEPTH = 100

_PAPER_SIGNS = re.compile(r"[0-9+\-*/(). \t\f\r]+")
_STRICT_SIGNS = re.compile(r"(?:(?:0|[1-9][0-9]*+)(?![0-9])|\*(?!\*)|/(?!/)|[-+() ])+")
_END = re.compile(r"<\s*+/\s*+think\s*+>", re.IGNORECASE)
_BLOCK = [("", "answer"), ("/", "answer")]
# Unambiguous multiplication, division and minus signs, and the no-break space.
_ASCII = str.maketrans("\u00d7\u22c5\u00b7\u2217\u00f7\u2215\u2212\u00a0", "****//- ")


@dataclass(frozen=True)
class ParsedExpression:
    """The answer parsed from a response.

    ``outcome`` is `correct`, `wrong` (another value, or none after a division by zero), `wrong_numbers` (not those of
    the puzzle, each once), `no_answer` (an answer block without a readable expression) or `bad_format` (no answer
    block). ``expression`` is the expression without white space, or None.
    """

    outcome: Literal["correct", "wrong", "wrong_numbers", "no_answer", "bad_format"]
    expression: str | None = None


def read_paper(response: str, nums: Sequence[int], target: int) -> ParsedExpression:
    """Judge a response to TinyZero's prompt (which ends with ``<think>``), in linear time.

    The answer is the last ``<answer>`` block of the last line, even in unclosed reasoning. Text up to a first
    "Assistant:" is ignored, as in the public code.
    """
    _, header, rest = response.partition("Assistant:")
    answer = last_tagged((rest if header else response).rpartition("\n")[2])
    return ParsedExpression("bad_format") if answer is None else judge_paper(answer, nums, target)


def read_strict(response: str, nums: Sequence[int], target: int) -> ParsedExpression:
    """Judge a response to a prompt that ends with ``<think>``, in linear time.

    The reasoning ends at the only ``</think>``, followed by exactly one ``<answer>`` and one ``</answer>``. Tags in the
    reasoning, letter case and white space inside a tag are ignored.
    """
    # Stop at the first excess tag.
    ends = list(islice(_END.finditer(response), 2))
    tags = list(islice(TAG.finditer(response, ends[0].end()), len(_BLOCK) + 1)) if len(ends) == 1 else []
    if [(tag[1], tag[2].lower()) for tag in tags] != _BLOCK:
        return ParsedExpression("bad_format")
    return judge_strict(response[tags[0].end() : tags[1].start()], nums, target)


def judge_paper(text: str, nums: Sequence[int], target: int) -> ParsedExpression:
    return _judge(text, _parse(text, _PAPER_SIGNS), nums, lambda value: bool(abs(value - target) < _TOLERANCE))


def judge_strict(text: str, nums: Sequence[int], target: int) -> ParsedExpression:
    text = re.sub(r"[ \t\r\n]+", " ", text.translate(_ASCII))
    tree = _parse(text, _STRICT_SIGNS)
    if tree is not None and any(isinstance(node, ast.UnaryOp) for node in ast.walk(tree)):
        tree = None
    return _judge(text, tree, nums, lambda value: bool(value == target), Fraction)


def _judge(
    text: str,
    tree: ast.expr | None,
    nums: Sequence[int],
    reaches: Callable[[Any], bool],
    literal: Callable[[Any], Any] = lambda number: number,
) -> ParsedExpression:
    if tree is None:
        return ParsedExpression("no_answer")
    expression = "".join(text.split())
    # As in the public code, `1.5` uses a 1 and a 5.
    runs = [run.lstrip("0") or "0" for run in re.findall("[0-9]+", text)]
    if sorted(runs) != sorted(map(str, nums)):
        return ParsedExpression("wrong_numbers", expression)
    try:
        right = reaches(_evaluate(tree, literal))
    # Division by zero, overflow, `//` of a complex power: the public code catches every exception.
    except (ArithmeticError, TypeError, ValueError):
        right = False
    return ParsedExpression("correct" if right else "wrong", expression)


def _parse(text: str, signs: re.Pattern[str]) -> ast.expr | None:
    """Parse an expression of numbers and operators as Python; None for anything else or other ``signs``."""
    if len(text) > MAX_ANSWER or signs.fullmatch(text) is None:
        return None
    try:
        tree = ast.parse(text.lstrip(" \t"), mode="eval").body
    except (MemoryError, RecursionError, SyntaxError):
        return None
    nodes: list[ast.AST] = [tree]
    for _ in range(_MAX_DEPTH + 1):
        if not all(map(_is_arithmetic, nodes)):
            return None
        nodes = [child for node in nodes for child in ast.iter_child_nodes(node)]
    return None if nodes else tree


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    return isinstance(node, ast.BinOp | ast.UnaryOp) or type(node) in _OPERATORS


def _power(base: Any, exponent: Any) -> Any:
    integers = isinstance(base, int) and isinstance(exponent, int)
    if integers and abs(base) > 1 and base.bit_length() * exponent > _MAX_POWER_BITS:
        raise OverflowError("the power is too large")
    return base**exponent


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: _power,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def _evaluate(node: Any, literal: Callable[[Any], Any]) -> Any:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_evaluate(node.left, literal), _evaluate(node.right, literal))
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_evaluate(node.operand, literal))
    return literal(node.value)
