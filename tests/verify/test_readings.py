"""What an answer means under its ordinary reading: pairs that are worth the gold answer, and pairs that are not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rlvr_cli.verify import algebra
from rlvr_cli.verify.math_answer import DIFFERENT, EQUAL, UNPARSED_GOLD, Outcome, clean, compare_plain
from rlvr_cli.verify.rewrites import strip_unit
from rlvr_cli.verify.values import read_expression

# The gold answer, and answers with " ~ " between them.
WRONG = [
    # Numbers in words, parts and roots are no units.
    ("5", r"5\text{ trillion} ~ 5\text{ bln} ~ 5\text{ millionths} ~ 5\text{ tenfold} ~ 5\text{ nope}"),
    # What nobody sees.
    ("18", r"\phantom{18}"),
    # By however little.
    ("x^2+1", "x^2+1+10^{-30} ~ x^2+1+e^{-100}"),
    # Nothing is computed with infinity.
    (r"-\infty", r"-\infty\infty ~ -\infty-5"),
    (r"\infty", r"|-\infty| ~ e^\infty"),
    # Side by side is multiplied, and two numbers side by side are none.
    ("12", r"4(8) ~ 1\;2"),
    (r"\frac{11}{4}", r"2\left(\frac{3}{4}\right)"),
    ("7", r"3 4 ~ {2}{5} ~ 2\,(5)"),
    # What stands behind words counts.
    ("15", r"15\text{ ft }6\text{ in}"),
    ("7", r"7\text{ m} + 8\text{ s} ~ 3+4\mathrm{i} ~ 7\text{ is too small; the answer is }\frac{1}{2}"),
    ("6.02", r"6.02\text{ mol} \times 10^{23}"),
    ("5", r"5\mathbf{i} + 3\mathbf{j} ~ 5\mathbf{i} ~ 5\textbf{ or 6} ~ 5\text{ {6}}"),
    (r"15\mbox{ cm}^2", r"15 \text{ cm} \times 3 \text{ cm}"),
    # Capitals.
    (r"\frac{r}{R}", "1"),
    (r"\pi r^2", r"\pi R^2"),
    # The names of coordinates say which is which; minutes are no degrees; words that doubt or change.
    ("(2,-3)", "y=2, x=-3 ~ (y,x)=(2,-3)"),
    ("x>3", r"(3,\infty]"),
    ("(1,2,3)", "z=1, y=2, x=3"),
    (r"120^\circ", "120'"),
    ("17", r"17\text{ per mille} ~ 17\text{ unless} ~ 17\text{ ppm} ~ 17\text{ is impossible}"),
    (r"\frac{a b}{2}", r"\frac{A b}{2}"),
    # Powers of ten, small numbers, bases.
    ("3e6", "18e"),
    ("10^{-20}", "10^{-30}"),
    ("1.6e-27", "9.1e-31"),
    ("0", "10^{-20}"),
    ("2516_8", "2516_7 ~ 2516_{10}"),
    ("11111_4", "11111_{2}"),
    # Lists.
    ("1,2", r"1,1,2 ~ 1,2,\ldots ~ (2,1)"),
    ("5", "5,5"),
    # Others.
    ("-2", "3\u20135"),
    ("4", r"\mathbf{8}\in4"),
    ("x^2+y^2=-1", "0=1"),
    ("5", r"-x=5 ~ 2x=5 ~ |x|=5 ~ \frac{x}{y}=5 ~ x\ge 5 ~ 5\text{ or so} ~ \overline{5}"),
    ("5", "\u2460"),
    ("7", r"\text{not}=7 ~ \text{less than}=7 ~ x+y=7=8 ~ 7b"),
    ("10", "n(n-1)=10"),
    (r"[5,\infty)", "x>5"),
    # Primes, indices behind brackets, words that join or say which half of the day.
    ("f(x)", "f'(x)"),
    ("-2x-1", "-2x-1'"),
    ("2e^{-x^{2}}", "2e^{-x^{2}}_7"),
    (r"x<1 \text{ or } x>2", r"x<1 \text{ and } x>2"),
    (r"3:30\text{ p.m.}", r"3:30\text{ a.m.}"),
    # What stands behind an approximation counts.
    (r"\cos (e) \approx-0.912", r"\cos (e) \approx+0.912 ~ \cos (e) \approx 17"),
    (r"x \approx 1, y \approx 2", r"x \approx 2, y \approx 1"),
    (r"1 / \sqrt{3} \approx 58 \%", r"1 / \sqrt{3} \approx 58 \%i"),
    # Lists behind a name; a thousands separator before words.
    ("x=1,2,3", "x=1,2,2,3"),
    ("350,000 pages", "350,0 ~ 350,000 dogs"),
    # Functions and pairs of letters are factors.
    ("5", r"5\text{ sin} ~ 5\text{ repeating} ~ 5\mathrm{ab} ~ 5\text{ xy} ~ \text{square of }x=5"),
    ("y=2x+1", "17=y=2x+1"),
    (r"1,2,\ldots", "1,2"),
    ("x+y-z+1=0", r"x+y-z+1=0\text{ plus }2"),
    # Exact numbers are not rounded.
    ("1-5051/2^{100}", "1-5051/2^{170} ~ 1+5051/2^{100} ~ 1"),
    # Every side of a chain and every one of several equations counts.
    ("x=5", "x=50=5 ~ 50=x=5"),
    (r"t=\frac{\ln 2}{0.1}=10\ln 2", r"t=\frac{\ln 4}{0.1}=10\ln 2 ~ t=7=10\ln 2"),
    ("$y_1=1-x$\n$y_2=y_1 \\ln x$", r"y_1 \ln x"),
    ("$y_1=1-x$\n$y_2=y_1 \\ln x$", "$y_1=2-x$\n$y_2=y_1 \\ln x$"),
    (r"$y=\frac{cx^2}{1-cx} \quad y=-x$", r"$y=\frac{cx^2}{1+cx} \quad y=-x$ ~ y=-x"),
    ("w=l=2, h=3", "w=l=4, h=3 ~ w=7=l=2, h=3"),
    (r"\frac{x-1}{2}=\frac{y}{3}=\frac{z}{4}", r"\frac{x-1}{2}=\frac{y}{5}=\frac{z}{4}"),
    (
        r"$\cos(t)=\frac12$ when $t=\frac{\pi}{3}$ or $t=\frac{5\pi}{3}$",
        r"$\cos(t)=\frac15$ when $t=\frac{\pi}{3}$ or $t=\frac{5\pi}{3}$",
    ),
    # Thousands with a unit, ranges joined by words, kelvin.
    ("350000", r"350,000\text{ thousand} ~ 350,001\text{ pages} ~ 350,000\text{ or }7 ~ 350,00\text{ pages}"),
    ("1,234", r"1,234\text{ and }5"),
    ("(1,2)", r"x>1 and x<3 ~ x\ge1 and x<2 ~ x>1 or x<2 ~ x>1 and y<2 ~ x<1 and x>2 ~ x>1 and x>2"),
    ("(1,2)", "x>1 and x<2 or x>5 ~ (x,y)>1 and x<2 ~ x>1 and x<2 and x<1 ~ -x>1 and x<2"),
    (r"(-\infty,1)\cup(2,\infty)", r"(-\infty,1)\text{ and }(2,\infty) ~ (-\infty,1]\text{ or }(2,\infty)"),
    (r"(-\infty,1)\cup(2,\infty)", r"x<1\text{ and }x>2 ~ (-\infty,1)\text{ or }(3,\infty)"),
    (r"(-\infty,1)\cup(2,\infty)", r"(-\infty,1),(2,\infty) ~ (-\infty,1)\cap(2,\infty)"),
    (r"(1,2)\cup(3,4)", r"(1,2)\text{ or not }(3,4) ~ 1<x<2 or 3<y<4 ~ (1,2)\text{ or }(3,4)\text{ or }(5,6)"),
    ("300", r"300\text{K} ~ 300\mathrm{k} ~ 300K ~ 300\text{ K} ~ x\mathrm{K}"),
    ("(1,2),(3,4)", r"(1,2)\cup(3,4)"),
]

RIGHT = [
    ("5", r"5\text{ ties} ~ 5\text{ months} ~ 5\text{ square kilometers} ~ x_1=5 ~ a_{n+1} = 5 ~ f(2) = 5"),
    ("5", "|AB| = 5 ~ x=y=5 ~ 5'"),
    (r"\infty", r"+\infty"),
    (r"-\infty", r"$-\infty$."),
    (r"(-\infty,3)\cup(5,\infty)", r"x\in\left(-\infty , 3\right) \cup \left(5, +\infty\right)"),
    (r"(-\infty,3)\cup(5,\infty)", r"(-\infty,3)\text{ or }(5,\infty)"),
    (r"\sqrt{6}x", r"\sqrt2\sqrt3x"),
    ("(x+1)^2", "x^2+2x+1"),
    (r"\sin^2x", r"1-\cos^2x"),
    ("20", "4(5)"),
    (r"\frac{3}{2}", r"2(\frac34) ~ 2\left(\frac{3}{4}\right)"),
    (r"\frac{11}{4}", r"2\frac{3}{4} ~ 2 \frac34"),
    ("24", "1(2)(3)(4)"),
    ("3+4i", r"3+4\mathrm{i}"),
    ("15", r"15\text{ cm} ~ 15\mbox{ cm}^2 ~ 15\mathrm{~m}/\mathrm{s}^{2} ~ 15\text{ square feet}"),
    ("15", r"15 square feet ~ 15 m ~ 15\,\text{cm}"),
    ("15,16", r"15\text{ cm}, 16\text{ cm} ~ 15 cm and 16 cm"),
    (r"2\sqrt{3}", r"2\,\sqrt 3"),
    (r"15\mbox{ cm}^2", "15"),
    ("3e8", r"3 \times 10^{8} ~ 300000000 ~ 3 \times 10^{8} \text{ m}"),
    (r"1.6 \times 10^{-27}", "1.6e-27"),
    ("2516_8", "2516_{8} ~ 2516"),
    ("x_1=2", "x\u2081 = 2"),
    ("-5", "\u20135"),
    ("b > a > c", "b>a>c+0"),
    ("60", r"\angle ABC = 60 ~ \angle ABC = 60^\circ"),
    ("12", r"\text{Area} = 12 ~ \mathbf{12} ~ 12\text{ kg} ~ \text{Area of square}=12"),
    (r"\frac12", r"\cos A = \frac12"),
    (r"60\%", "60"),
    ("0.5", r"50\%"),
    (r"\{x|-2\leq x < 1\}", r"\{x|-2\le x < 1\}"),
    (r"\{x|-2\leq x < 1\}", "\\{x|-2\u2264x<1\\}"),
    ("25", "**25**"),
    ("1234", "x=1,234"),
    ("B,E", r"\text{B,E}"),
    ("40, 200", r"40 \text{ and } 200 ~ 200, 40 ~ 40 , 200"),
    ("[-2,1)", r"-2 \leq x < 1"),
    (r"-2 \leq x < 1", "[-2,1)"),
    (r"\text{Yes}", r"\text{yes}"),
    (r"6, 8\text{, and }10", r"y=6, 8\text{, and }10 ~ 6, 8, 10"),
    ("1,2", "x=1, x=2 ~ x_1=2, x_2=1 ~ (1,2)"),
    ("1,-1", r"\pm 1"),
    (r"f^{\prime}(x)", "f'(x)"),
    (r"y^{\prime\prime}=2x", "y''=2x"),
    ("y=2x+4", "y=2(x+2)=2x+4"),
    (r"\cos(4) \approx -0.654", r"y=\cos(4) \approx -0.654"),
    (r"3:30\text{ p.m.}", r"3:30\text{ pm}"),
    (r"x<1 \text{ or } x>2", "$x<1$ or $x>2$"),
    ("x=1,2,3", "x=3,1,2"),
    (r"\$32,\!348", r"y=\$32,348"),
    ("(2,-3)", "y=-3, x=2 ~ (x,y)=(2,-3) ~ m=2, b=-3"),
    ("1-5051/2^{100}", r"1-5051\cdot 2^{-100}"),
    (r"\sqrt{3+2\sqrt2}", r"1+\sqrt2"),
    (r"\cos(2\pi/5)", r"\frac{\sqrt5-1}{4}"),
    ("P(X_{n}=4)=5/8", "5/8"),
    ("$P(X=25)=0.45$, and $P(X=x)=0$ otherwise", "P(X=25)=0.45, and P(X=x)=0 otherwise"),
    (r"t=\frac{\ln 2}{0.1}=10\ln 2", r"10\ln 2 ~ t=10\ln 2 ~ t=\frac{\ln 2}{1/10}=\ln(2^{10})"),
    (r"\frac{x-1}{2}=\frac{y}{3}=\frac{z}{4}", r"\frac{x-1}{2}=\frac y3=\frac z4"),
    # Thousands with a unit, ranges joined by words, kelvin.
    ("350000", r"350,000\text{ pages} ~ 350{,}000\text{ pages} ~ \$350,000\text{ dollars}"),
    (r"350,000\text{ pages}", "350000"),
    ("1234.5", r"1,234.5\text{ cm}^2"),
    ("(1,2)", r"x>1 and x<2 ~ x>1\text{ and }x<2 ~ 1<x and x<2 ~ x>1 and x<2 and x<3"),
    ("[1,2)", r"x\ge 1\text{ and }x<2"),
    (r"(-\infty,1)\cup(2,\infty)", r"(-\infty,1)\text{ or }(2,\infty) ~ x<1\text{ or }x>2 ~ x<1 or x>2"),
    (r"(-\infty,1)\cup(2,\infty)", r"x\in(-\infty,1)\text{ or }x\in(2,\infty)"),
    (r"x<1\text{ or }x>2", r"(-\infty,1)\cup(2,\infty)"),
    (r"(-\infty,1]\cup[2,\infty)", r"(-\infty,1]or[2,\infty)"),
    ("300", r"300\mathrm{~K} ~ 300\,\mathrm{K} ~ 300\text{ kelvin} ~ 300 kelvin"),
]


@pytest.mark.parametrize("word", ["square ", "per ", "ft ", "/ m "])
def test_a_long_run_of_units_takes_no_time(word: str) -> None:
    assert strip_unit(f"5 {word * 400}!").endswith("!")


@pytest.mark.parametrize("depth", [10, 990])
def test_braces_around_the_whole_go_at_any_depth(depth: int) -> None:
    assert clean("{" * depth + "5" + "}" * depth) == "5"


def pairs(table: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    return ((gold, answer) for gold, answers in table for answer in answers.split(" ~ "))


def judged(gold: str, answer: str) -> Outcome:
    return compare_plain(gold, answer) or algebra.judge_strict(gold, answer)


def test_an_answer_that_says_something_else_is_not_paid() -> None:
    for gold, answer in pairs(WRONG):
        assert judged(gold, answer).equal is not True, (gold, answer)


def test_an_answer_that_says_the_same_is_right() -> None:
    for gold, answer in pairs(RIGHT):
        assert judged(gold, answer) == EQUAL, (gold, answer)


def test_of_equations_side_by_side_that_are_spelled_otherwise_nobody_knows() -> None:
    assert judged("$y_1=1-x$\n$y_2=y_1 \\ln x$", "$y_1=-x+1$\n$y_2=y_1 \\ln x$") == UNPARSED_GOLD


def test_what_was_read_before_changes_no_verdict() -> None:
    assert judged("b > a > c", "b>a>c+0") == EQUAL
    judged("b > a > c", "3.5")
    assert judged("b > a > c", "b>a>c+0") == EQUAL
    assert judged("b > a > c", "a>c>b") == DIFFERENT


def test_a_capital_is_another_name_only_where_it_matters() -> None:
    assert read_expression("R", case=True) != read_expression("r", case=True)
    assert read_expression("R", case=False) == read_expression("r", case=False)
