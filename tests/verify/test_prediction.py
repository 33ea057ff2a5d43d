"""The fast parser gives the trees that the runtime's own gives, and the numerical test finds no zero nonzero."""

from __future__ import annotations

import pytest
import sympy
from antlr4 import CommonTokenStream, InputStream
from antlr4.error.ErrorListener import ErrorListener
from latex2sympy2_extended.antlr_parser import PSLexer, PSParser

from rlvr_cli.verify.prediction import _FastParser
from rlvr_cli.verify.reader import certainly_nonzero

TEXTS = [
    "5",
    "x^2-1",
    "x^{2}+3x y-\\frac{1}{2}",
    "(1,2)",
    "[1,2)\\cup(3,\\infty)",
    "\\{1,2,3\\}",
    "x=5",
    "x=2,y=3",
    "x\\in\\{1,2\\}",
    "1;2;3",
    "\\sqrt[3]{x+\\sqrt{2}}",
    "\\sum_{n=0}^{\\infty}(n+1)(n+2)x^{n}",
    "y=c_{1}e^{-x}+e^{-2x}(c_{1}\\cos x+c_{2}\\sin x)",
    "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
    "[\\begin{array}{r}-1\\\\1\\end{array}]e^{t}",
    "\\lim_{t\\rightarrow\\infty}P(t)=1/\\alpha",
    "\\int_{0}^{2\\pi}\\sin t d t=0",
    "0\\leq c<8",
    "\\text{No solution}",
    "The answer is 5",
    "\\frac{1}{",
    "5 5 )",
    "|x-1|<3",
    "-3\\frac{1}{2}",
    "50\\%",
    "73.4^{\\circ}",
    "x\\mid y",
    "a\\equiv 3\\pmod{7}",
    "n!/2!",
    "2^{2^{2}}",
    "\\{x\\mid x<0\\}",
]


class Refusing(ErrorListener):  # type: ignore[misc]
    def syntaxError(self, *_: object) -> None:
        raise SyntaxError


def tree(kind: type, text: str) -> str | None:
    lexer = PSLexer(InputStream(text))
    parser = kind(CommonTokenStream(lexer))
    for recogniser in (lexer, parser):
        recogniser.removeErrorListeners()
        recogniser.addErrorListener(Refusing())
    try:
        return str(parser.math().toStringTree(recog=parser))
    except SyntaxError:
        return None


def test_trees() -> None:
    for text in TEXTS:
        # The runtime's parser reads with tables of its own: what one has learnt must not help the other.
        kept = PSParser.decisionsToDFA
        try:
            PSParser.decisionsToDFA = [type(table)(table.atnStartState, table.decision) for table in kept]
            expected = tree(PSParser, text)
            PSParser.decisionsToDFA = [type(table)(table.atnStartState, table.decision) for table in kept]
            assert [tree(_FastParser, text) for _ in range(3)] == [expected] * 3, text
        finally:
            PSParser.decisionsToDFA = kept


def test_some_trees_exist() -> None:
    assert sum(tree(PSParser, text) is not None for text in TEXTS) > 20
    assert tree(PSParser, "5 5 )") is None


x, y = sympy.symbols("x y", real=True)
ZERO = [
    sympy.sin(x) ** 2 + sympy.cos(x) ** 2 - 1,
    sympy.sqrt(2) * sympy.sqrt(3) - sympy.sqrt(6),
    (x + 1) ** 2 - x**2 - 2 * x - 1,
    sympy.log(x * y) - sympy.log(x) - sympy.log(y),
    sympy.UnevaluatedExpr(sympy.Rational(1, 100)) * x - x / 100,
    sympy.sqrt(x**2) - sympy.Abs(x),
    sympy.sqrt(5 + 2 * sympy.sqrt(6)) - sympy.sqrt(2) - sympy.sqrt(3),
    sympy.exp(sympy.log(x)) - x,
    sympy.tan(x) - sympy.sin(x) / sympy.cos(x),
    sympy.atan(1) * 4 - sympy.pi,
]


@pytest.mark.parametrize("expression", ZERO, ids=str)
def test_zeros_are_not_found_nonzero(expression: sympy.Expr) -> None:
    assert not certainly_nonzero(expression)
    assert certainly_nonzero(expression + 1) == (not expression.has(sympy.Abs))


@pytest.mark.parametrize(
    "expression", [x - y, x**2 - x, sympy.sin(x) - x, sympy.pi - 3, -sympy.Integer(2), (x + y) ** 200], ids=str
)
def test_what_is_certainly_nonzero(expression: sympy.Expr) -> None:
    assert certainly_nonzero(expression)


def test_what_nobody_knows() -> None:
    for expression in [
        sympy.Integer(0),
        sympy.nan,
        sympy.zoo,
        sympy.oo,
        sympy.I,
        sympy.sqrt(-x),
        10**-9 + x - x,
        (x + y) ** 20_000,
        sympy.Sum(x, (x, 1, 3)),
        sympy.Interval(0, 1),
        sympy.Matrix([1]),
    ]:
        assert not certainly_nonzero(expression), expression
