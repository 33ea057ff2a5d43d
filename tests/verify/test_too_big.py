"""Numbers that are not computed, by their spelling."""

from __future__ import annotations

from rlvr_cli.verify.numbers import too_big


def test_too_big() -> None:
    for text in [
        "9**9**9",
        "9^9^9^9",
        "10^{10^{10}}",
        "(9^9)^{(9^9)}",
        "9 ^ {99999999}",
        "2^{-10^{9}}",
        "100000!",
        "(10^9)!",
        "5!!!",
        ")))9**9**9",
        "}9^{9^9}",
        r"9^{\frac{9^9}{1}}",
        "9^+9^9",
        "^" * 1500,
        "{" * 50 + "1" + "}" * 50,
        "(" * 1000,
    ]:
        assert too_big(text), text


def test_ordinary() -> None:
    for text in [
        "",
        "^",
        "2^",
        "!",
        "5!",
        "1000!",
        "2^{2023}",
        "10^{100}",
        "2^{2^{2^{2}}}",
        "e^{e^{x}}",
        "x^{100}",
        "-" * 1900 + "1",
        r"\frac{1}{1+\frac{1}{1+\frac{1}{2}}}",
        "1," * 900,
        "9^{1/9}",
        "3!!",
    ]:
        assert not too_big(text), text
