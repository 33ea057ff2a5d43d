"""The spelling that answers are compared in, and the pairs that need no algebra."""

from __future__ import annotations

from rlvr_cli.verify.math_answer import (
    DIFFERENT,
    EQUAL,
    MAX_LENGTH,
    TOO_LONG_ANSWER,
    TOO_LONG_GOLD,
    UNPARSED_ANSWER,
    UNPARSED_GOLD,
    clean,
    compare_plain,
    compare_plain_paper,
)


def test_short_whole_numbers_need_no_math_verify() -> None:
    assert compare_plain_paper("5", "5") == EQUAL and compare_plain_paper("5", "-5") == DIFFERENT
    assert compare_plain_paper("5", "5.0") is None and compare_plain_paper("007", "7") is None
    assert compare_plain_paper("4", "4" * (MAX_LENGTH + 1)) == TOO_LONG_ANSWER


def test_clean() -> None:
    for text, plain in [
        *((r" $\dfrac{1}{2}$. ", r"\frac{1}{2}"), (r"\(x\)", "x"), (r"\left( 1 , 2 \right)", "(1,2)")),
        *(("$1$ and $2$", "$1$and$2$"), ("1 1/2", "1 1/2"), ("48, 384", "48, 384"), ("48 , 38", "48,38")),
        *((r"24\ -\ 8\ \sqrt{5}", r"24-8\sqrt{5}"), (r"{(1,2)}", "(1,2)"), (r"{{5}}", "5"), (r"{1}{2}", "{1}{2}")),
        *((r"\{1,2\}", r"\{1,2\}"), (r"{\{1,2\}}", r"\{1,2\}"), (r"35~\mathrm{cm}", r"35\mathrm{cm}")),
        *((r"1\\ 2", r"1\\2"), ("\u22125.", "-5")),
    ]:
        assert clean(text) == plain, (text, plain)


def test_pairs_without_algebra() -> None:
    for gold, answer, outcome in [
        *(("5", "5.000", EQUAL), ("5", "\uff15", EQUAL), ("-5", "\u22125", EQUAL), ("1234", "1,234", EQUAL)),
        *(("1/2", "0.5", EQUAL), (r"\frac{1}{2}", r"\dfrac12", EQUAL), ("No solution", "No solution", EQUAL)),
        *(("5", "6", DIFFERENT), ("58,500", "x=58,500", EQUAL), ("58500", "$x = 58,500$", EQUAL)),
        *(("x=58,500", "58500", EQUAL), ("x_1=5", "x_1=5.0", EQUAL), ("5", r"\theta=5", EQUAL)),
        *(("5", "f(x)=5", EQUAL), ("5", "x=6", DIFFERENT), ("58,500", "x=58,501", DIFFERENT)),
        *(("x=5", "y=5.0", None), ("5", r"\not=5", None), ("5", r"\ne=5", None), ("5", "x=4=5", None)),
        *(("5", "10x=5", None), ("5", "xy=5", EQUAL), ("11/2", "1 1/2", None), ("50", r"50\%", EQUAL)),
        *(("0.333333", "1/3", None), ("4", "5=4", None), ("x", "y", None), ("48384", "48, 384", None)),
        *(("4", "9**9**9", None), ("4", "", UNPARSED_ANSWER), ("", "4", UNPARSED_GOLD)),
        *(("4", "4" * (MAX_LENGTH + 1), TOO_LONG_ANSWER), ("4" * (MAX_LENGTH + 1), "4", TOO_LONG_GOLD)),
    ]:
        assert compare_plain(gold, answer) == outcome, (gold, answer, outcome)
