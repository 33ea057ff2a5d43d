"""Arithmetic expressions without evaluating code: tokens to postfix order, and postfix order to a value.

Both are loops, so no nesting is too deep, and take time linear in the number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

V = TypeVar("V")


@dataclass(frozen=True)
class Operator(Generic[V]):
    """A binary operator. ``rank``: higher binds tighter. ``from_right``: `a ** b ** c` is `a ** (b ** c)`."""

    rank: int
    apply: Callable[[V, V], V]
    from_right: bool = False


@dataclass(frozen=True)
class Sign(Generic[V]):
    """An operator before its operand; it takes everything to its right that binds tighter than ``rank``."""

    rank: int
    apply: Callable[[V], V]


Step = str | Operator[Any] | Sign[Any]


def postfix(
    tokens: Sequence[str], binary: Mapping[str, Operator[Any]], signs: Mapping[str, Sign[Any]] | None = None
) -> list[Step] | None:
    """The expression in postfix order (literals stay text); None when it is not one whole expression.

    Args:
        tokens: literals, operators and parentheses. What is no operator and no parenthesis counts as a literal.
        binary: the operators between operands. signs: the operators before an operand, none by default.
    """
    output: list[Step] = []
    waiting: list[Operator[Any] | Sign[Any] | None] = []  # None is an open parenthesis
    operand_expected = True
    for token in tokens:
        if token == "(":
            if not operand_expected:
                return None
            waiting.append(None)
        elif token == ")":
            if operand_expected:
                return None
            while waiting and (top := waiting[-1]) is not None:
                output.append(top)
                waiting.pop()
            if not waiting:
                return None
            waiting.pop()
        elif operand_expected and signs and token in signs:
            waiting.append(signs[token])
        elif token in binary:
            if operand_expected:
                return None
            operator = binary[token]
            while waiting and (top := waiting[-1]) is not None and _goes_first(top, operator):
                output.append(top)
                waiting.pop()
            waiting.append(operator)
            operand_expected = True
        else:
            if not operand_expected:
                return None
            output.append(token)
            operand_expected = False
    if operand_expected or None in waiting:
        return None
    output += [step for step in reversed(waiting) if step is not None]
    return output


def _goes_first(earlier: Operator[Any] | Sign[Any], later: Operator[Any]) -> bool:
    return earlier.rank > later.rank or (earlier.rank == later.rank and not later.from_right)


def evaluate(steps: Sequence[Step], literal: Callable[[str], V]) -> V:
    """The value of an expression in postfix order. Raises what the operators and ``literal`` raise."""
    values: list[V] = []
    for step in steps:
        if isinstance(step, str):
            values.append(literal(step))
        elif isinstance(step, Sign):
            values.append(step.apply(values.pop()))
        else:
            right = values.pop()
            values.append(step.apply(values.pop(), right))
    return values[0]
