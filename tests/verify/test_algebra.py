"""What the comparison says, and where it says other things than math-verify."""

from __future__ import annotations

import math_verify
import pytest

from rlvr_cli.verify import algebra
from rlvr_cli.verify.math_answer import DIFFERENT, EQUAL, UNPARSED_ANSWER, UNPARSED_GOLD

HOSTILE = [
    *("9**9**9", "10^{10^{10}}", "100000!", "__import__('os').system('true')", r"\frac{"),
    *("{" * 40 + "7" + "}" * 39, r"\sqrt{" * 40 + "7" + "}" * 40, "^" * 1000, r"\x00", "import os; 7"),
    *(r"7}+\boxed{7", r"8\boxed{7}", r"\frac{=8=7", "8. The final answer is $7$. I hope", "8 and 7", "7, 8"),
    *("7 or 8", r"8\to 7", r"8\Rightarrow 7", r"8\approx 7", r"8\equiv 7", r"8 \text{ or } 7", "8 7", r"8\\7"),
    *("8&7", "8%7", r"8\%7", "8:7", "8;7", "8|7", "8~7", "8\n7", r"8\quad 7", r"8\neq 7", "8>7", "8<7", "8->7"),
    *(r"7\text{8}", r"8 \text{no: }7", r"\text{7}8", r"\phantom{8}7", r"\cancel{8}7", r"\sum_{n=1}^{10^9} 8"),
    *(r"\underline{8}7", r"\color{red}{8}7", r"\text{The answer is }7\text{ but not }8", r"\not 7", r"\neg 7"),
    *(r"\not=7", r"\ne=7", r"\neq=7", "x!=7", r"x\not=7", r"x\ne7", "x=8,x=7", "x=8=7", "x=7=8", "8=x=7"),
    *(r"8 \implies x=7", r"x \in \{7, 8\}", r"x\ne 7", "8=7,"),
]


def test_equal() -> None:
    for gold, answer in [
        *(("1/2", "0.5"), ("x^2-1", "(x-1)(x+1)"), (r"2\sqrt{2}", r"\sqrt{8}"), (r"\frac{\pi}{2}", "\u03c0/2")),
        *((r"\frac{\pi}{2}", r"$\dfrac{\pi}{2}$."), ("1,2", "2,1"), ("$48$, $384$", "48, 384"), ("5", "x=5")),
        *(("5", "2+3=5"), ("5", "x=2+3=5"), ("x=5", "5"), ("50", r"50\%"), ("6", r"6\text{ cm}")),
        *(("1/3", "0.333333"), ("4.5e33", r"4.5\times 10^{33}"), (r"4.5\cdot 10^{33}", "4.5e33")),
        *(("1.04e-3", "0.00104"), ("3e8", "300000000"), ("2e27", "m=2e27"), ("1/3000", "0.000333")),
        *((r"9.6\times 10^{-10}", "0.00000000096"), ("0", r"\sqrt{2}\sqrt{2}-2"), ("0", "0.0")),
        *(("(2,3)", r"x=2 \text{ and } y=3"), ("We have\n$$\nx=[1] .\n$$", "We have x=[1]")),
        ("$y=x+1$ ft", "y=x+1 ft"),
    ]:
        assert algebra.judge_strict(gold, answer) == EQUAL, (gold, answer)


def test_different() -> None:
    for gold, answer in [
        *(("4", "5=4"), ("4", "5==4"), (r"\{3,4\}", "3,5=4"), ("4", "4=5"), ("4", "x=5=4"), ("5", "10x=50=5")),
        *(("x+1", "x-1"), (r"6.6\times 10^{-34}", "0.0"), (r"6.6\times 10^{-34}", r"3\times 10^{-30}")),
        *(("10^{-20}", "10^{-21}"), ("0.00000001", "0.00000002"), ("3e8", "3e7"), ("3e8", "24")),
        *(("7", r"8=7 \text{ and } 7"), ("48384", "48, 384"), ("2", "1,2"), ("(1,2)", "[1,2]")),
        ("No solution", "5"),
    ]:
        assert algebra.judge_strict(gold, answer) == DIFFERENT, (gold, answer)


def test_hostile_answers_are_not_the_gold_answer() -> None:
    for answer in HOSTILE:
        assert algebra.judge_strict("7", answer).equal is False, answer


def test_sides_that_cannot_be_read() -> None:
    assert algebra.judge_strict("7", r"\frac{") == UNPARSED_ANSWER
    assert algebra.judge_strict(r"\frac{", "7") == UNPARSED_GOLD
    assert algebra.judge_strict("9**9**9", "7") == UNPARSED_GOLD


@pytest.mark.parametrize(
    ("gold", "answer"), [("0", r"\frac{1}{3}20"), ("5", r"5+\frac{1}{3}20"), ("0", r"\dfrac{1}{3} 20")]
)
def test_a_number_behind_a_fraction_is_not_read_digit_by_digit(gold: str, answer: str) -> None:
    """math-verify reads a third times 2 times 0."""
    assert algebra.judge_strict(gold, answer) == UNPARSED_ANSWER


def test_memory_that_ran_out_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object, **__: object) -> object:
        raise MemoryError

    monkeypatch.setattr(algebra.values, "read_expression", no_memory)
    with pytest.raises(MemoryError):
        algebra.judge_strict("5", "6+1")


@pytest.mark.parametrize(("gold", "answer"), [("x^2+1=0", "x=x+1"), ("x^2+4=0", "y^2+9=0")])
def test_equations_without_solutions_are_not_all_the_same(gold: str, answer: str) -> None:
    """math-verify compares two empty lists."""
    assert algebra.judge_strict(gold, answer) == DIFFERENT
    parsed = (math_verify.parse(rf"\boxed{{{text}}}") for text in (gold, answer))
    assert isinstance(math_verify.verify(*parsed), bool)
