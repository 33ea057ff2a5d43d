"""Parse LaTeX expressions with math-verify's parser, and compare them, first by their values at a few points.

Imported in worker processes only.
"""

from __future__ import annotations

import re
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import parser, verify
from sympy import Add, Expr, Mul, Number, NumberSymbol, Pow, Rational, Symbol, UnevaluatedExpr
from sympy.core.cache import clear_cache
from sympy.functions.elementary import exponential, trigonometric

_ORDER = re.compile(r"[<>]|\\(?:le|ge|lt|gt|leq|geq)(?![A-Za-z])")
_RUNNING = re.compile(r"\\(?:sum|prod|mathbf|vec|hat|bigcup|bigcap)(?![A-Za-z])|_\{?i")
_WORD = re.compile(r"\\(?:text|mbox|operatorname)[a-z]*\s*\{[^{}]*\}|\\[A-Za-z]+|[A-Za-z]{4,}")
_UNIT = re.compile(r"(?<![A-Za-z])(?:[a-z]?i|i[a-z]?)(?![A-Za-z])")
# Types of nodes with a unique value at a point, of which evalf tracks the precision.
_EVALUABLE_TYPES = (
    *(Add, Mul, Pow, Number, NumberSymbol, Symbol, UnevaluatedExpr, type(sympy.I)),
    *(sympy.Abs, sympy.binomial, sympy.factorial, exponential.exp, exponential.log),
    *(trigonometric.TrigonometricFunction, trigonometric.InverseTrigonometricFunction),
)
_MOST_NODES = 400
_LARGEST_EXPONENT = 10_000
_POINTS = 3
_DIGITS_SURE = 15
# Smaller numbers are compared by their ratio, since six decimals are too few.
_SMALL, _RATIO = 1e-4, 1e-6


def read_expression(text: str, *, case: bool, unreal: bool = False) -> Any:
    """Parse ``text`` as an expression. Raises the parser's exceptions.

    ``case``: names are case-sensitive. ``unreal``: i is the imaginary unit.
    """
    if len(_ORDER.findall(text)) > 1:
        # SymPy caches a single object for all chains of the same relations, in any order.
        clear_cache()
    real = not unreal and not parser.should_treat_as_complex(text)
    config = ConversionConfig(lowercase_symbols=not case)
    try:
        value = latex2sympy(text, is_real=real, normalization_config=None, conversion_config=config)
        if unreal and isinstance(value, (sympy.Basic, sympy.MatrixBase)):
            value = value.subs({name: sympy.I for name in value.free_symbols if name.name == "i"})
        return value
    except MemoryError:
        raise
    except Exception:
        if (last := parser.get_last_eq(text)) == text:
            raise
        return read_expression(last, case=case, unreal=unreal)


def has_imaginary_unit(text: str) -> bool:
    """Return whether the letter i may be the imaginary unit: not an index, in a word, or a vector with j."""
    if "i" not in text or _RUNNING.search(text):
        return False
    text = _WORD.sub(" ", text)
    return _UNIT.search(text) is not None and "j" not in text


def read_set(text: str, *, case: bool) -> Any:
    """Return the set of an interval, a union or inequalities in a single variable; None for other texts."""
    value = read_expression(text, case=case)
    if isinstance(value, sympy.Equality):
        value = value.rhs
    elif isinstance(value, (sympy.core.relational.Relational, sympy.And)) and len(value.free_symbols) == 1:
        value = value.as_set()
    return value if isinstance(value, (sympy.Interval, sympy.Union)) or value is sympy.S.EmptySet else None


def are_equal(gold: Any, answer: Any) -> bool:
    """Return whether two values are equal by their values at a few points or, if inconclusive, by math-verify.

    Repetitions in lists and the order of pairs count.
    """
    if _count_repeats(gold) != _count_repeats(answer):
        return False
    if isinstance(gold, sympy.Equality) and isinstance(answer, sympy.Equality) and not _may_be_equivalent(gold, answer):
        return False
    if (decided := compare_values(gold, answer)) is not None:
        return decided
    written = getattr(gold, "_unsorted_args", None)
    pair = isinstance(answer, sympy.Tuple) or (isinstance(answer, sympy.Interval) and answer.is_open)
    if isinstance(gold, sympy.FiniteSet) and written and pair:
        gold = sympy.Tuple(*written)
    try:
        return bool(verify(gold, answer, timeout_seconds=None, allow_set_relation_comp=True, raise_on_error=True))
    except MemoryError:
        raise
    except Exception:
        return False


def _may_be_equivalent(gold: sympy.Equality, answer: sympy.Equality) -> bool:
    """Return whether two equations may be equivalent; math-verify equates any two without solutions.

    Both must have the same variables, and neither may be an identity or a contradiction.
    """
    if not all(isinstance(side, Expr) for side in (*gold.args, *answer.args)):
        return True
    if gold.lhs == answer.lhs and isinstance(gold.lhs, Symbol) and compare_values(gold.rhs, answer.rhs) is False:
        return False
    named = all(sympy.expand(side.lhs - side.rhs).free_symbols for side in (gold, answer))
    return named and bool(gold.free_symbols == answer.free_symbols)


def _count_repeats(value: Any) -> int:
    """Count the repeated elements of a list, or of ``x = `` a list."""
    if isinstance(value, sympy.Equality):
        value = value.rhs
    written = getattr(value, "_unsorted_args", None)
    return len(written) - len(value.args) if isinstance(value, sympy.FiniteSet) and written else 0


def compare_values(a: Any, b: Any) -> bool | None:
    """Return whether two expressions have equal values at a few points; None if inconclusive.

    Numbers with a decimal point are equal to six places, small ones (below 0.0001) to a relative 1e-6; exact numbers
    must be identical. Variables are independent positive numbers.
    """
    if not (_is_evaluable(a) and _is_evaluable(b)):
        return None
    rounded = a.has(sympy.Float) or b.has(sympy.Float)
    names = sorted(a.free_symbols | b.free_symbols, key=str)
    if rounded and names:
        return None
    try:
        if rounded:
            return _are_close(a.doit().evalf(20), b.doit().evalf(20))
        difference = a.doit() - b.doit()
        for point in range(_POINTS if names else 1):
            # Near 1, so that powers neither underflow nor overflow.
            values = {
                name: Rational(7919 + 613 * index + 211 * point, 7001 + 101 * index)
                for index, name in enumerate(names, start=1)
            }
            value = difference.evalf(_DIGITS_SURE, subs=values, maxn=200)
            if not value.is_number or value.has(sympy.nan, sympy.zoo, sympy.oo):
                return None
            components = value.as_real_imag()
            # evalf has no significant digit of an unproven zero.
            if not all(component == 0 or component._prec == 1 for component in components):
                return False if all(component.is_zero or component._prec > 1 for component in components) else None
        return True if not names else None
    except MemoryError:
        raise
    except Exception:
        return None


def _is_evaluable(expression: Any) -> bool:
    if not isinstance(expression, Expr):
        return False
    for count, node in enumerate(sympy.preorder_traversal(expression)):
        if count > _MOST_NODES or not isinstance(node, _EVALUABLE_TYPES):
            return False
        if isinstance(node, Pow) and isinstance(node.exp, Number) and abs(node.exp) > _LARGEST_EXPONENT:
            return False
    return True


def _are_close(first: Any, second: Any) -> bool:
    largest, distance = max(abs(first), abs(second)), abs(first - second)
    return bool(distance <= (_RATIO * largest if largest < _SMALL else max(5e-7, 1e-12 * largest)))


def rounds_to(value: Any, decimals: str) -> bool:
    """Return whether a number rounds, or truncates, to ``decimals`` at their number of places."""
    digits = decimals.replace(",", "")
    unit = Rational(1, 10 ** len(digits.partition(".")[2]))
    number, written = sympy.N(value, 20), Rational(digits)
    return bool(number.is_real) and bool(
        abs(number - written) <= unit / 2 or (number * written >= 0 and 0 <= abs(number) - abs(written) < unit)
    )
