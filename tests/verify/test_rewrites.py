"""Each rewrite of the strict rule with an example, and what it must not make equal; then the paper rule."""

from __future__ import annotations

import pytest
from trl.rewards import accuracy_reward

from rlvr_cli.verify import algebra, rewrites
from rlvr_cli.verify.math_answer import Outcome, compare_plain


def judged(gold: str, answer: str) -> Outcome:
    return compare_plain(gold, answer) or algebra.judge_strict(gold, answer)


@pytest.mark.parametrize("change", [*rewrites.REWRITES, *rewrites.PARSER_REWRITES], ids=lambda change: change.example)
def test_a_rewrite_makes_of_its_example_what_it_promises(change: rewrites.Rewrite) -> None:
    assert change.apply(change.example) == change.result


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        (r"\frac\pi3", r"\frac{\pi}{3}"),
        (r"\frac2\pi-1", r"\frac{2}{\pi}-1"),
        (r"\frac{c}a+\frac ab", r"\frac{c}{a}+\frac{a}{b}"),
        (r"\sqrt\pi+\sqrt[3]2", r"\sqrt{\pi}+\sqrt[3]{2}"),
        (r"\sin(6^{\circ}+x)+15^\circ", r"\sin((\frac{6\pi}{180})+x)+15^\circ"),
        (r"\pi (\approx 3.14)", r"\pi\approx 3.14"),
        (r"\mathbf{12}", "12"),
        (r"$\log_2(8)$", r"\log_2(8)"),
    ],
)
def test_rewrites_together(text: str, rewritten: str) -> None:
    assert rewrites.rewrite(text) == rewritten


@pytest.mark.parametrize("text", ["3 4", "{2}{5}", r"2\frac{5}{3}", "x{2}{5}"])
def test_numbers_side_by_side_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="side by side"):
        rewrites.rewrite_for_parser(text)


@pytest.mark.parametrize("text", [r"\frac{2}{5}", r"\log_2 5", "40, 200", r"\binom{10}{3}", "x^2 3", r"2\sqrt{3}"])
def test_what_only_looks_like_two_numbers(text: str) -> None:
    assert rewrites.rewrite_for_parser(text) == text


RIGHT = [
    (r"\cos 15^\circ", "0.965925826"),
    (r"\cos(6^\circ)\sin(12^\circ)\csc(18^\circ)", "0.6691306"),
    (r"\frac12", r"\sin 30^\circ"),
    ("1", r"\tan 45\degree"),
    (r"\frac14", r"\sin^2 30^\circ"),
    (r"2\sin 40^\circ", r"2\sin\left(40^{\circ}\right)"),
    ("2i", "(1+i)^2"),
    ("-1", "e^{i\\pi}"),
    (r"1+i\sqrt{3}", r"2e^{i\pi/3}"),
    (r"\frac{1-i}{2}", r"\frac{1}{1+i}"),
    ("5", "|3+4i|"),
    ("2i", r"\sqrt{-4}"),
    (r"\frac{5}{7}", r"\frac57 \approx 0.714"),
    (r"2\sqrt{5}", r"x = 2\sqrt{5} \approx 4.47"),
    (r"\frac{737}{39}", r"\frac{737}{39}\;\text{(about 18.9)}"),
    ("31.4", r"10\pi \approx 31.4"),
    ("1,-2", r"x=1 \text{ or } x=-2"),
    ("1,-2", r"x=1 \lor x=-2"),
    (r"\emptyset", r"\{\}"),
    (r"33\frac13\%", r"\frac{100}{3}\%"),
    ("120", r"\binom{10}3"),
    ("113", r"\textbf{(113) }"),
    (r"p = 5, q = 2 \quad \text{and} \quad p = 7, q = 2", "p=5,q=2;p=7,q=2"),
    ("(1,2)", r"\langle 1,2\rangle"),
    ("E", "E. some option text"),
    ("E", "(E) 12"),
    ("E", r"\text{(E)}"),
]
WRONG = [
    ("113", r"\textbf{(113) }4"),
    ("113", r"\textbf{(114) }"),
    (r"\cos 15^\circ", r"\cos 15"),
    (r"\cos 15^\circ", "-0.759687913"),
    (r"2\sin 40^\circ", r"2\sin 40"),
    ("2i", "(1-i)^2"),
    ("5", "|3+5i|"),
    ("-1", "i"),
    (r"10\pi", r"10\pi \approx 32.9"),
    ("7", r"8\approx 7"),
    ("7", r"7.4\approx 7"),
    (r"\frac{5}{7}", r"\frac{4}{7} \approx 0.714"),
    (r"\frac57", r"\approx 0.7"),
    ("1,-2", r"x=1 \text{ or } x=2"),
    (r"\emptyset", "0"),
    (r"33\frac13\%", r"\frac{1}{3}\%"),
    (r"p = 5, q = 2 \text{ and } p = 7, q = 2", "p=5,q=2;p=7,q=3"),
    ("E", "E or B"),
    ("E", "E. or B. both"),
    ("E", "(E) or (B)"),
    ("(1,2)", r"\langle 2,1\rangle"),
]


def test_what_the_rewrites_make_right() -> None:
    for gold, answer in RIGHT:
        assert judged(gold, answer).equal is True, (gold, answer)


def test_what_they_leave_wrong() -> None:
    for gold, answer in WRONG:
        assert judged(gold, answer).equal is False, (gold, answer)


def test_values_decide_what_takes_algebra_long() -> None:
    gold, answer = r"\sin(x)^{40}+\cos(y)^{35}", r"\sin(x)^{40}+\cos(y)^{34}"
    assert judged(gold, answer).equal is False


def test_the_paper_rule_is_the_call_that_trl_makes() -> None:
    golds = [r"\frac{1}{2}", "$x^2-1$", "(1,2)", "1,2", r"50\%", r"6\text{ cm}", "x>3", r"\cos 15^\circ", "5"]
    answers = ["0.5", "(x-1)(x+1)", "(1, 2)", "1,2,2", "50", "6", r"(3,\infty)", r"\cos 15", r"9-5=5=5", "2+3", "no"]
    pairs = [(gold, answer) for gold in golds for answer in answers]
    solutions = [gold if "$" in gold else rf"\boxed{{{gold}}}" for gold, _ in pairs]
    paid = accuracy_reward([[{"content": rf"So $\boxed{{{answer}}}$."}] for _, answer in pairs], solutions)
    for (gold, answer), reward in zip(pairs, paid, strict=True):
        assert algebra.judge_paper(gold, answer).equal == bool(reward), (gold, answer)
