"""Whether an expression is certainly not zero, by its value at one point: much faster than simplifying it."""

from __future__ import annotations

from typing import Any

import sympy
from sympy import Add, Expr, Integer, Mul, Number, NumberSymbol, Pow, Rational, Symbol, UnevaluatedExpr
from sympy.functions.elementary import exponential, trigonometric

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
