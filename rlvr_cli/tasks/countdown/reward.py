"""The reward of Countdown, and what its two rules have in common: what they read, and expressions worked out.

Nothing is handed to Python's `eval`. The rules are in `paper` and `strict`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from rlvr_cli.tasks.problem import Verdict

RewardKind = Literal["tiny_zero", "zero_one"]

FORMAT, ANSWER = 0.1, 0.9
REASONS = ("correct", "wrong", "wrong_numbers", "no_answer", "bad_format", "too_long")

# A solution of six numbers is shorter than 100 characters; a longer block is not an answer.
MAX_ANSWER = 10_000


@dataclass(frozen=True)
class ParsedExpression:
    """What was read in a response.

    ``outcome`` is `correct`, `wrong` (another value, or none, as of a division by zero), `wrong_numbers` (not the given
    ones, each once), `no_answer` (an answer block without a readable expression) or `bad_format` (no answer block).
    ``expression`` is the expression without white space where there is a readable one.
    """

    outcome: Literal["correct", "wrong", "wrong_numbers", "no_answer", "bad_format"]
    expression: str | None = None


def countdown_verdict(kind: RewardKind, reading: ParsedExpression, *, truncated: bool) -> Verdict:
    """``tiny_zero``: 1.0 for a correct answer, 0.1 for any other answer block, 0 without one; ``zero_one``: 1 or 0.

    ``too_long``: the token limit cut the response off before an answer could be read.
    """
    correct = reading.outcome == "correct"
    if kind == "zero_one":
        parts = {"answer": float(correct)}
    else:
        parts = {
            "format": 0.0 if reading.outcome == "bad_format" else FORMAT,
            "answer": ANSWER if correct else 0.0,
        }
    unread = reading.outcome in ("bad_format", "no_answer")
    reason = "too_long" if truncated and unread else reading.outcome
    return Verdict(sum(parts.values()), parts, correct, reading.expression, reason)


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


Token = str | Operator[Any] | Sign[Any]


def postfix(
    tokens: Sequence[str], binary: Mapping[str, Operator[Any]], signs: Mapping[str, Sign[Any]] | None = None
) -> list[Token] | None:
    """The expression in postfix order (literals stay text); None when it is not one whole expression.

    Args:
        tokens: literals, operators and parentheses. What is no operator and no parenthesis counts as a literal.
        binary: the operators between operands. signs: the operators before an operand, none by default.
    """
    output: list[Token] = []
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


def evaluate_expression(steps: Sequence[Token], literal: Callable[[str], V]) -> V:
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
