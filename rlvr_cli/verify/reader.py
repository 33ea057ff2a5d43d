"""math-verify's reader of one LaTeX expression and its comparison, where they take one thing for another.

Imported by worker processes only; importing it changes math-verify in this process.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy2, logic
from math_verify import grader, parser
from sympy import Add, Basic, Expr, Integer, Mul, Number, NumberSymbol, Pow, Rational, Symbol, UnevaluatedExpr
from sympy.functions.elementary import exponential, trigonometric

_EXPR = (sympy.Expr, sympy.Matrix)
_DIGITS = re.compile(r"\d+\Z")
_NUMBER = re.compile(r"\{*[\d.,]+\}*\Z|\\frac")
_NUMBER_START = re.compile(r"\{*\.?\d")
_FRACTION = re.compile(r"\\frac(?:\{(\d+)\}|(\d))(?:\{(\d+)\}|(\d))\Z")
# Below this six decimals say little or nothing, so numbers are compared by their ratio.
_SMALL = 1e-4
_RATIO = 1e-6


class Unreadable(Exception):
    """The text may mean several things."""


class _Reader(latex2sympy2._Latex2Sympy):
    """What stands side by side is multiplied; a mixed number is a whole number before a fraction and nothing else.

    A number next to a number is refused, and a number with a base that is not ten is a name.
    """

    def convert_postfix_list(self, arr: Any, i: int = 0) -> Any:
        if i + 1 >= len(arr):
            return super().convert_postfix_list(arr, i)
        left, right = arr[i].getText(), arr[i + 1].getText()
        fraction = _FRACTION.match(right)
        if _DIGITS.match(left) and fraction is not None:
            top, bottom = int(fraction[1] or fraction[2]), int(fraction[3] or fraction[4])
            if bottom == 0 or top >= bottom:
                raise Unreadable
            mixed = sympy.Integer(left) + sympy.Rational(top, bottom)
            return mixed if i + 2 == len(arr) else self.mul_flat(mixed, self.convert_postfix_list(arr, i + 2))
        if _NUMBER.match(left) and _NUMBER_START.match(right):
            raise Unreadable
        value = self.convert_postfix(arr[i])
        if not isinstance(value, _EXPR):
            return super().convert_postfix_list(arr, i)
        rest = self.convert_postfix_list(arr, i + 1)
        matrices = getattr(value, "is_Matrix", False) or getattr(rest, "is_Matrix", False)
        return self.mat_mul_flat(value, rest) if matrices else self.mul_flat(value, rest)

    def convert_atom(self, atom: Any) -> Any:
        number = atom.number_subexpr()
        if number is not None and number.subexpr() is not None:
            base = number.subexpr().getText().lstrip("_").strip("{}")
            if base != "10":
                return sympy.Symbol(f"{number.NUMBER().getText()}_{base}")
        return super().convert_atom(atom)


def read_expression(text: str, *, case: bool) -> Any:
    """The expression that ``text`` spells. Raises what the parser raises for text that is none.

    ``case``: capital letters are other names than small ones.
    """
    try:
        return _read(text, case)
    except (MemoryError, Unreadable):
        raise
    except Exception:
        last = parser.get_last_eq(text)
        if last == text:
            raise
        return _read(last, case)


def _read(text: str, case: bool) -> Any:
    config = latex2sympy2.ConversionConfig(lowercase_symbols=not case)
    return _Reader(is_real=not parser.should_treat_as_complex(text), config=config).parse(text)


def same(gold: Any, answer: Any) -> bool:
    """Whether math-verify takes the two for equal; lists with their repetitions, and pairs in their order."""
    if repeated(gold) != repeated(answer):
        return False
    written = getattr(gold, "_unsorted_args", None)
    pair = isinstance(answer, sympy.Tuple) or (isinstance(answer, sympy.Interval) and answer.is_open)
    if isinstance(gold, sympy.FiniteSet) and written and pair:
        gold = sympy.Tuple(*written)
    return bool(grader.verify(gold, answer, timeout_seconds=None, allow_set_relation_comp=True))


def repeated(value: Any) -> int:
    """How many elements of a list, or of ``x = `` a list, are there already."""
    if isinstance(value, sympy.Equality):
        value = value.rhs
    written = getattr(value, "_unsorted_args", None)
    return len(written) - len(value.args) if isinstance(value, sympy.FiniteSet) and written else 0


def _separate(cls: Any, *arguments: Any, **keywords: Any) -> Any:
    """A chain of relations with its own order; SymPy's cache would share one object among chains."""
    arguments = tuple(sympy.sympify(argument) for argument in arguments)
    shared = sympy.And.__new__(cls, *arguments, **keywords)
    if not isinstance(shared, logic.And):
        return shared
    own = Basic.__new__(cls, *shared.args)
    own._argset = shared._argset
    own._unsorted_args = list(arguments)
    return own


def _by_ratio(equal: Callable[..., bool]) -> Callable[..., bool]:
    """Two small numbers are not equal because both are nearly nothing."""

    def comparing(a: Any, b: Any, *arguments: Any) -> bool:
        if not equal(a, b, *arguments):
            return False
        if _tell_apart(a, b):
            return False
        if not (getattr(a, "is_number", False) and getattr(b, "is_number", False)):
            return True
        try:
            first, second = a.doit().evalf(20), b.doit().evalf(20)
            largest = max(abs(first), abs(second))
            return bool(largest == 0 or largest >= _SMALL or abs(first - second) <= _RATIO * largest)
        except MemoryError:
            raise
        except Exception:
            return True

    return comparing


def _tell_apart(a: Any, b: Any) -> bool:
    """Whether two exact expressions certainly differ, by however little: ``1-2^{-100}`` and ``1``, ``x+2^{-9}``, ``x``.

    Names stand for positive numbers without relation: identities hold there too.
    """
    try:
        if a.has(sympy.Float) or b.has(sympy.Float):
            return False
        difference = a.doit() - b.doit()
        difference = (
            difference.evalf(15, subs=positive_point(difference)) if difference.free_symbols else difference.evalf(15)
        )
        return bool(difference.is_Float and difference != 0 and difference._prec > 1)
    except MemoryError:
        raise
    except Exception:
        return False


# Whether an expression is certainly not zero, by its value at one point: much faster than simplifying it.


# Only where every node is one of these: they have one value at a point, and evalf knows how exact it is.
_KNOWN = (
    Add,
    Mul,
    Pow,
    Number,
    NumberSymbol,
    Symbol,
    UnevaluatedExpr,
    exponential.exp,
    exponential.log,
    trigonometric.sin,
    trigonometric.cos,
    trigonometric.tan,
    trigonometric.sec,
    trigonometric.csc,
    trigonometric.cot,
    trigonometric.asin,
    trigonometric.acos,
    trigonometric.atan,
)
_MOST_NODES = 400
_LARGEST_EXPONENT = 10_000
_LEAST = 1e-6


def certainly_nonzero(expression: Any) -> bool:
    """Whether ``expression`` has a real value other than 0 where its symbols are positive numbers without relation.

    False means that nobody knows. Identities hold wherever both sides are defined, so an expression that this finds
    nonzero is not identically zero.
    """
    if not isinstance(expression, Expr):
        return False
    for count, node in enumerate(sympy.preorder_traversal(expression)):
        if count > _MOST_NODES or not isinstance(node, _KNOWN):
            return False
        if isinstance(node, Pow) and isinstance(node.exp, Number) and abs(node.exp) > _LARGEST_EXPONENT:
            return False
    point = positive_point(expression)
    try:
        value = expression.evalf(15, subs=point)
        if not value.is_Number:
            value = expression.doit().evalf(15, subs=point)
        return bool(value.is_Float and value.is_finite and abs(value) > _LEAST and value._prec > 1)
    except MemoryError:
        raise
    except Exception:
        return False


def positive_point(expression: Expr) -> dict[Any, Rational]:
    """A positive number for each name, near 1, so that powers neither vanish nor explode."""
    names = sorted(expression.free_symbols, key=str)
    return {name: Rational(7919 + 613 * index, 7001 + 101 * index) for index, name in enumerate(names, start=1)}


def simplified(expression: Any) -> Any:
    """What sympy.simplify makes of ``expression``; 1 for what is certainly not zero."""
    return Integer(1) if certainly_nonzero(expression) else sympy.simplify(expression)


logic.And.__new__ = _separate
grader.sympy_numeric_eq = _by_ratio(grader.sympy_numeric_eq)
