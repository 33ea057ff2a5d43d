"""Numbers that need not exist, as of a group without tokens: their quotient, difference, and how they are shown."""

from __future__ import annotations


def over(first: float | None, second: float | None) -> float | None:
    """``first / second``; None where one of them does not exist, or the second is 0."""
    return None if first is None or not second else first / second


def difference(first: float | None, second: float | None) -> float | None:
    """``first - second``; None where one of them does not exist."""
    return None if first is None or second is None else first - second


def shown(value: float | None, form: str) -> str:
    """The number in the format ``form``; `-` where there is none."""
    return "-" if value is None else format(value, form)
