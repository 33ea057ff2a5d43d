"""What the two rules of Countdown mean, by Python's own parser, and texts to try them on."""

from __future__ import annotations

import ast
import operator
import random
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

_EXACT = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_PYTHON = {**_EXACT, ast.FloorDiv: operator.floordiv, ast.Pow: operator.pow}
_SIGNS = {ast.UAdd: operator.pos, ast.USub: operator.neg}


class Unreadable(Exception):
    """Not an expression of the rule."""


def strict_outcome(text: str, nums: Sequence[int], target: int) -> str:
    # The typographic signs by name: multiplication, dot operator, middle dot, asterisk operator; division, division
    # slash; minus.
    for signs, plain in (
        ("\u00d7\u22c5\u00b7\u2217", "*"),
        ("\u00f7\u2215", "/"),
        ("\u2212", "-"),
        ("\u00a0\n\t", " "),
    ):
        text = re.sub(f"[{signs}]", plain, text)
    text = text.strip(" ")
    if not re.fullmatch(r"[-+*/() 0-9]+", text) or re.search(r"(?<![0-9])0[0-9]", text):
        return "no_answer"
    try:
        tree = ast.parse(text, mode="eval").body
        found: list[int] = []
        _check(tree, found)
    except (SyntaxError, Unreadable):
        return "no_answer"
    if sorted(found) != sorted(nums):
        return "wrong_numbers"
    try:
        return "correct" if _value(tree, _EXACT, Fraction) == target else "wrong"
    except ZeroDivisionError:
        return "wrong"


def paper_outcome(text: str, nums: Sequence[int], target: int) -> str:
    """The public code's three answers of 0.1 are one here: `wrong`."""
    if sorted(int(run) for run in re.findall(r"\d+", text)) != sorted(nums):
        return "wrong"
    if not re.fullmatch(r"[\d+\-*/().\s]+", text):
        return "wrong"
    try:
        value = _value(ast.parse(text, mode="eval").body, _PYTHON, lambda number: number)
        return "correct" if abs(value - target) < 1e-5 else "wrong"
    except (SyntaxError, Unreadable, ArithmeticError, TypeError, ValueError):
        return "wrong"


def paper_reward(text: str, nums: Sequence[int], target: int) -> float:
    """Of a whole text, prompt and response: found as the public code finds it, with its patterns."""
    headers = [header for header in ("Assistant:", "<|im_start|>assistant") if header in text]
    blocks = re.findall(r"<answer>(.*?)</answer>", text.split(headers[0], 1)[1].split("\n")[-1]) if headers else []
    if not blocks:
        return 0.0
    return 1.0 if paper_outcome(blocks[-1].strip(), nums, target) == "correct" else 0.1


def exact_value(text: str) -> Fraction | None:
    """The value of an expression of the strict rule; None when it divides by zero."""
    try:
        value = _value(ast.parse(text, mode="eval").body, _EXACT, Fraction)
    except ZeroDivisionError:
        return None
    return Fraction(value)


def _check(node: ast.AST, found: list[int]) -> None:
    if isinstance(node, ast.BinOp) and type(node.op) in _EXACT:
        _check(node.left, found)
        _check(node.right, found)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        found.append(node.value)
    else:
        raise Unreadable


def _value(node: ast.AST, operators: dict[Any, Callable[[Any, Any], Any]], number: Callable[[Any], Any]) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return number(node.value)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
        return _SIGNS[type(node.op)](_value(node.operand, operators, number))
    if not isinstance(node, ast.BinOp):
        raise Unreadable
    left, right = _value(node.left, operators, number), _value(node.right, operators, number)
    if isinstance(node.op, ast.Pow) and type(left) is type(right) is int and abs(left) > 1 and right > 4096:
        raise OverflowError  # else a test would take for ever; nothing above this limit has a value
    return operators[type(node.op)](left, right)


def expression(rng: random.Random, nums: Sequence[int], operators: str = "+-*/") -> str:
    """A random expression with every number once; now and then with parentheses that it does not need."""
    if len(nums) == 1:
        return str(nums[0]) if rng.random() < 0.95 else f"({nums[0]})"
    middle = rng.randrange(1, len(nums))
    left, right = expression(rng, nums[:middle], operators), expression(rng, nums[middle:], operators)
    space = rng.choice(("", " "))
    text = f"{left}{space}{rng.choice(operators)}{space}{right}"
    return f"({text})" if rng.random() < 0.6 else text


def damaged(rng: random.Random, text: str, signs: Sequence[str]) -> str:
    """One to three signs put in, taken out or replaced."""
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(text) + 1)
        text = text[:place] + rng.choice(signs) * rng.choice((0, 1, 1)) + text[place + rng.choice((0, 1)) :]
    return text
