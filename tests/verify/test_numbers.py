"""Unicode put into ASCII on purpose, and numbers read exactly."""

from __future__ import annotations

from fractions import Fraction

from rlvr_cli.verify.numbers import exact_number, is_too_big, normalise


def test_signs_and_digits() -> None:
    for text, plain in [
        *(("\u22125", "-5"), ("\u20135", "-5"), ("\uff15\uff0e\uff12\uff15", "5.25")),
        *(("\uff0d\uff11\uff12\uff05", "-12%"), ("\u0665\u0664", "54"), ("\U0001d7d3", "5")),
        *(("x\u00b2+y\u00b9\u2070", "x^{2}+y^{10}"), ("10\u207b\u00b3", "10^{-3}"), ("\u221a2", r"\sqrt{2}")),
        *(("3\u00d74\u00f72", r"3\times 4\div 2"), ("1\u00a0234", "1 234"), ("5\u200b4\x00\x07", "54")),
        *(("\u03c0/2", r"\pi /2"), ("plain", "plain")),
    ]:
        assert normalise(text) == plain, (text, plain)


def test_exact_numbers() -> None:
    for text, value in [
        *(("5", Fraction(5)), ("-0", Fraction(0)), ("+3.50", Fraction(7, 2)), (".5", Fraction(1, 2))),
        *(("5.", Fraction(5)), ("0.1", Fraction(1, 10)), ("1,234,567.80", Fraction(6172839, 5))),
        *((r"1{,}234", Fraction(1234)), (r"1\,234", Fraction(1234)), ("3/4", Fraction(3, 4))),
        *(("-3/4", Fraction(-3, 4)), (r"\frac{-3}{4}", Fraction(-3, 4)), (r"-\dfrac{3}{4}", Fraction(-3, 4))),
        *((r"\frac34", Fraction(3, 4)), ("007", Fraction(7))),
    ]:
        assert exact_number(text) == value, (text, value)


def test_what_is_no_plain_number() -> None:
    for text in (
        *("", ".", "-", "50%", "$5", "1,23", "12,34,567", "48, 384", "1/0", r"\frac{1}{0}", "1e5", "1_000", "0x10"),
        *("nan", "inf", "5=4", "9" * 5000),
    ):
        assert exact_number(text) is None, text


def test_numbers_that_are_not_computed_are_known_by_their_spelling() -> None:
    for text in (
        *("9**9**9", "9^9^9^9", "10^{10^{10}}", "(9^9)^{(9^9)}", "9 ^ {99999999}", "2^{-10^{9}}", "100000!", "5!!!"),
        *(")))9**9**9", "}9^{9^9}", r"9^{\frac{9^9}{1}}", "9^+9^9", "^" * 1500, "{" * 50 + "1" + "}" * 50, "(" * 1000),
    ):
        assert is_too_big(text), text
    for text in (
        *(
            *("", "^", "2^", "!", "1000!", "2^{2023}", "10^{100}", "2^{2^{2^{2}}}", "e^{e^{x}}", "x^{100}"),
            *("9^{1/9}", "3!!"),
        ),
        *("-" * 1900 + "1", r"\frac{1}{1+\frac{1}{1+\frac{1}{2}}}", "1," * 900),
    ):
        assert not is_too_big(text), text
