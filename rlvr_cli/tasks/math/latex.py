"""Numbers and terms as LaTeX, and roots in simplest form. Exact: whole numbers and fractions only."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt


def number(value: Fraction | int) -> str:
    r"""A number in lowest terms: ``-\\frac{3}{4}``, ``5``."""
    value = Fraction(value)
    if value.denominator == 1:
        return str(value.numerator)
    return f"{'-' if value < 0 else ''}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def term(coefficient: int, name: str) -> str:
    """``3x``, ``x``, ``-x``."""
    return {1: name, -1: f"-{name}"}.get(coefficient, f"{coefficient}{name}")


def signed(text: str) -> str:
    """A term to follow others: ``+ 3x``, ``- 3x``."""
    return f"- {text[1:]}" if text.startswith("-") else f"+ {text}"


def linear(coefficient: int, name: str, constant: int) -> str:
    """``3x - 4``; a constant of 0 is not written."""
    return f"{term(coefficient, name)} {signed(str(constant))}" if constant else term(coefficient, name)


def square_part(value: int) -> tuple[int, int]:
    """``value`` = outside**2 * inside with the largest possible outside."""
    outside = next(root for root in range(isqrt(value), 0, -1) if value % (root * root) == 0)
    return outside, value // (outside * outside)


def root(value: int) -> str:
    r"""The square root of a positive whole number in simplest form: ``6``, ``\\sqrt{2}``, ``6\\sqrt{2}``."""
    outside, inside = square_part(value)
    if inside == 1:
        return str(outside)
    return f"{outside if outside > 1 else ''}\\sqrt{{{inside}}}"
