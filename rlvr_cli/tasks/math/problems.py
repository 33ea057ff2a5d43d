"""Arithmetic and algebra with answers in LaTeX, worked out exactly with whole numbers and fractions."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from math import gcd, isqrt

from rlvr_cli.tasks.math.answers import generated_problem
from rlvr_cli.tasks.problem import Problem

_NAMES = ("x", "y", "t", "n", "z", "k")
_COMPUTE = ("Compute ${}$.", "What is ${}$?", "Evaluate ${}$.", "Find the value of ${}$.")
_SOLVE = ("Solve for ${0}$: ${1}$.", "Find ${0}$ if ${1}$.", "What value of ${0}$ satisfies ${1}$?")
_OPERATORS = {"+": "+", "-": "-", "*": r"\cdot", "/": r"\div"}


def draw(rng: random.Random) -> Problem:
    """A random problem with its gold answer and worked solution; its family is its subgroup."""
    family = rng.choice(list(FAMILIES))
    structure, question, answer, solution = FAMILIES[family](rng)
    return generated_problem("math", family, structure, question, answer, solution)


_Made = tuple[str, str, str, str]
"""Structure, question, answer, solution."""


def _fractions(rng: random.Random) -> _Made:
    left, right = (Fraction(rng.choice((-1, 1)) * rng.randint(1, 60), rng.randint(2, 40)) for _ in range(2))
    sign = rng.choice(list(_OPERATORS))
    shown = f"{_number(left)} {_OPERATORS[sign]} {_grouped(right)}"
    if sign in "+-":
        value = left + right if sign == "+" else left - right
        common = left.denominator * right.denominator // gcd(left.denominator, right.denominator)
        tops = [fraction.numerator * (common // fraction.denominator) for fraction in (left, right)]
        total = tops[0] + tops[1] if sign == "+" else tops[0] - tops[1]
        step = (
            f"Over the common denominator ${common}$ this is "
            f"$\\frac{{{tops[0]} {sign} {_bracketed(tops[1])}}}{{{common}}} = \\frac{{{total}}}{{{common}}}$."
        )
    else:
        value = left * right if sign == "*" else left / right
        other = right if sign == "*" else 1 / right
        turned = "" if sign == "*" else f"Dividing by a fraction is multiplying by ${_number(other)}$. "
        top, bottom = left.numerator * other.numerator, left.denominator * other.denominator
        step = f"{turned}Multiplying tops and bottoms gives $\\frac{{{top}}}{{{bottom}}}$."
    operands = sorted([left, right]) if sign in "+*" else [left, right]
    key = f"{operands[0]}{sign}{operands[1]}"
    return (
        key,
        rng.choice(_COMPUTE).format(shown),
        _number(value),
        f"{step} In lowest terms that is ${_number(value)}$.",
    )


def _arithmetic(rng: random.Random) -> _Made:
    a, b, c, d = (rng.randint(2, 99) for _ in range(4))
    shown, product, rest = rng.choice(
        [
            (f"{a} + {b} \\cdot {c} - {d}", (b, c), a - d),
            (f"({a} - {b}) \\cdot {c} + {d}", (a - b, c), d),
            (f"{d} - {a} \\cdot ({b} + {c})", (-a, b + c), d),
        ]
    )
    value = product[0] * product[1] + rest
    solution = (
        f"Brackets and products come first: ${product[0]} \\cdot {product[1]} = {product[0] * product[1]}$. What is "
        f"left adds ${rest}$, so the value is ${product[0] * product[1]} {signed(str(rest))} = {value}$."
    )
    key = f"{sorted(product)},{rest}"
    return key, rng.choice(_COMPUTE).format(shown), str(value), solution


def _powers(rng: random.Random) -> _Made:
    base = rng.choice((2, 3, 4, 5, 6, 7, 10))
    first, second = rng.randint(1, 9), rng.randint(1, 9)
    low, high = max(1, first + second - 5), first + second + 4
    third = rng.randint(low, high)
    exponent = first + second - third
    value = Fraction(base) ** exponent
    shown = f"\\frac{{{base}^{{{first}}} \\cdot {base}^{{{second}}}}}{{{base}^{{{third}}}}}"
    solution = (
        f"The base is the same, so exponents add and subtract: ${base}^{{{first} + {second} - {third}}} = "
        f"{base}^{{{exponent}}} = {_number(value)}$."
    )
    key = f"{base},{min(first, second)},{max(first, second)},{third}"
    return key, rng.choice(_COMPUTE).format(shown), _number(value), solution


def _linear(rng: random.Random) -> _Made:
    name = rng.choice(_NAMES)
    a, c = rng.sample([value for value in range(-15, 16) if value], 2)
    b, d = rng.randint(-40, 40), rng.randint(-40, 40)
    value = Fraction(d - b, a - c)
    equation = f"{linear(a, name, b)} = {linear(c, name, d)}"
    solution = (
        f"Terms with ${name}$ to the left, numbers to the right: ${term(a - c, name)} = {d - b}$. Dividing by "
        f"${a - c}$ gives ${name} = {_number(value)}$."
    )
    return f"{a},{b},{c},{d}", rng.choice(_SOLVE).format(name, equation), _number(value), solution


def _system(rng: random.Random) -> _Made:
    while True:
        a, b, d, e = (rng.choice([value for value in range(-9, 10) if value]) for _ in range(4))
        determinant = a * e - b * d
        if determinant:
            break
    c, f = rng.randint(-30, 30), rng.randint(-30, 30)
    x, y = Fraction(c * e - b * f, determinant), Fraction(a * f - c * d, determinant)
    first, second = f"{term(a, 'x')} {signed(term(b, 'y'))} = {c}", f"{term(d, 'x')} {signed(term(e, 'y'))} = {f}"
    answer = f"({_number(x)}, {_number(y)})"
    solution = (
        f"Multiply the first equation by ${e}$, the second by ${b}$, and subtract: ${term(determinant, 'x')} = "
        f"{c * e - b * f}$, so $x = {_number(x)}$. In the same way ${term(determinant, 'y')} = {a * f - c * d}$, so "
        f"$y = {_number(y)}$."
    )
    question = f"Solve the system ${first}$, ${second}$. Give the answer as an ordered pair $(x, y)$."
    return f"{a},{b},{c},{d},{e},{f}", question, answer, solution


def _roots(rng: random.Random) -> _Made:
    while True:
        outside, inside = rng.randint(2, 40), rng.randint(2, 400)
        if square_part(inside)[0] == 1:
            break
    inner = outside * outside * inside
    shown = f"\\sqrt{{{inner}}}"
    solution = f"${inner} = {outside}^2 \\cdot {inside}$, so ${shown} = {root(inner)}$."
    question = rng.choice(("Simplify ${}$.", "Write ${}$ in simplest radical form.")).format(shown)
    return str(inner), question, root(inner), solution


def _quadratic(rng: random.Random) -> _Made:
    name = rng.choice(_NAMES)
    if rng.random() < 0.5:
        return _factored(rng, name)
    middle, under = rng.randint(-20, 20), rng.randint(2, 120)
    # (name - middle)^2 = under
    equation = _polynomial(1, -2 * middle, middle * middle - under, name)
    radical = root(under)
    if square_part(under)[1] == 1:
        answer = str(middle + int(radical))
    else:
        answer = f"{middle} + {radical}" if middle else radical
    solution = (
        f"Completing the square gives $({linear(1, name, -middle)})^2 = {under}$. The larger solution takes the "
        f"positive root of ${under}$, ${radical}$, so ${name} = {answer}$."
    )
    return f"1,{-2 * middle},{middle * middle - under}", _larger(name, equation), answer, solution


def _factored(rng: random.Random, name: str) -> _Made:
    p, q = rng.randint(1, 6), rng.randint(1, 6)
    r, s = rng.randint(-12, 12), rng.randint(-12, 12)
    # (p name + r)(q name + s) = 0
    equation = _polynomial(p * q, p * s + q * r, r * s, name)
    first, second = Fraction(-r, p), Fraction(-s, q)
    value = max(first, second)
    solution = (
        f"It factors as $({linear(p, name, r)})({linear(q, name, s)}) = 0$, so ${name} = {_number(first)}$ or ${name} "
        f"= {_number(second)}$. The larger one is ${_number(value)}$."
    )
    return f"{p * q},{p * s + q * r},{r * s}", _larger(name, equation), _number(value), solution


def _polynomial(square: int, slope: int, constant: int, name: str) -> str:
    text = term(square, f"{name}^2")
    if slope:
        text += f" {signed(term(slope, name))}"
    return f"{text} {signed(str(constant))} = 0" if constant else f"{text} = 0"


def _larger(name: str, equation: str) -> str:
    return f"What is the largest solution of ${equation}$ for ${name}$?"


def _grouped(value: Fraction) -> str:
    return f"\\left({_number(value)}\\right)" if value < 0 else _number(value)


def _bracketed(value: int) -> str:
    return f"({value})" if value < 0 else str(value)


FAMILIES: dict[str, Callable[[random.Random], _Made]] = {
    "fractions": _fractions,
    "arithmetic": _arithmetic,
    "powers": _powers,
    "linear equations": _linear,
    "systems": _system,
    "roots": _roots,
    "quadratics": _quadratic,
}


def _number(value: Fraction | int) -> str:
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
