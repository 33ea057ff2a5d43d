"""GSM8K: numbers beside words, rewards, gold answers of both layouts; spellings of numbers are in test_spellings.py."""

from fractions import Fraction

import pytest

from rlvr_cli.tasks.gsm8k import GSM8K, read_number
from tests.tasks.rows import texts

STRICT = GSM8K(rule="strict")
PAPER = GSM8K()
TAGS = GSM8K(rule="strict", reward="gtpo")


def test_a_sentence_with_one_number_is_read_by_the_paper_rule_alone() -> None:
    for text, strict, paper in [
        ("She has 18 eggs.", None, 18),
        ("It costs $1,234.50 in total.", None, Fraction("1234.5")),
        ("The change is -5", None, -5),
        ("She has 18 eggs and 4 ducks", None, None),
        ("x-18", None, None),
        ("about twice 18", None, None),
        ("-$5", -5, -5),
        ("$-5", -5, -5),
        ("\u22125", -5, -5),
        ("1 1/2", Fraction(3, 2), Fraction(3, 2)),
        ("5\u00bd", Fraction(11, 2), Fraction(11, 2)),
        (".5", Fraction(1, 2), Fraction(1, 2)),
        ("1" * 301, None, None),
    ]:
        assert (read_number(text), read_number(text, "paper")) == (strict, paper), (text, strict, paper)


OTHER_NUMBERS = texts(
    r"""
5 Thousand ¦ 5 Dozen ¦ 5 Million ¦ 5 Times ¦ 5 Half ¦ 5 Squared ¦ 5thousand ¦ 5 dozens ¦ 5 mio ¦ 5 kilo
5 zeros ¦ 5 root ¦ 5 power ¦ 5 ish ¦ 5 incorrectly ¦ 5 octal ¦ opposite = 5 ¦ lnx = 5 ¦ 5 tenths ¦ 5 fifth
5 thousandths ¦ 5 halves ¦ 5 lakh ¦ 5 crore ¦ 5 tens ¦ 5 grand ¦ 5 score ¦ 5 gross ¦ 5M ¦ 5B ¦ 5K ¦ 5MM ¦ $5m
$5 mm ¦ 5m dollars ¦ 5x ¦ 5 x ¦ 5pi ¦ 5π ¦ 5e ¦ 5i ¦ 5y ¦ 5 t ¦ 5-x ¦ 5-m ¦ 5 kg x ¦ 5 m/x ¦ x5 ¦ x 5 ¦ 5 I
5 twenty ¦ 5 remainder ¦ 5 apples remainder ¦ 5 is too big ¦ 5 too many ¦ 5 is wrong ¦ 5 isn't ¦ 5 point
Minus 5 ¦ Negative 5 ¦ Not 5 ¦ isn't 5 ¦ never 5 ¦ neither 5 ¦ Half of 5 ¦ No 5 ¦ twenty-5
square root of 5 ¦ cube of 5 ¦ log 5 ¦ opposite of 5 ¦ Double 5 ¦ under 5 ¦ almost 5 ¦ 5⅛ ¦ 5‰ ¦ ∛5 ¦ 5‼ ¦ ¬5
≠5 ¦ 5万 ¦ 5… ¦ 5⁵ ¦ 5 kk ¦ 5 ppm ¦ 5 couples ¦ 5 reversed ¦ 5 excluded ¦ 5 fails ¦ any number except 5 ¦ neg 5
all but 5 ¦ 5 repeating ¦ 5 mille ¦ 5 fortieths ¦ (5)(1) ¦ ($5) ¦ -(5) ¦ 5 x^2 ¦ (5 cm)^2 ¦ 5^2 cm ¦ 5^°^2
"""
)


@pytest.mark.parametrize("rule", ["strict", "paper"])
def test_a_number_beside_a_word_or_a_sign_that_changes_it_is_not_that_number(rule):
    for text in (*OTHER_NUMBERS, "isn\u2019t 5"):
        assert read_number(text, rule) != 5, text
        assert read_number(rf"\text{{{text}}}", rule) != 5, text
        assert read_number(f"The answer: {text}.", rule) != 5, text


SENTENCES = texts(
    r"""
José has 18 eggs ¦ 18 is the answer ¦ “18” ¦ He earns $18 in all ¦ The grand total is 18
Gross pay is $18 ¦ The remainder is 18 ¦ His test score is 18 ¦ As shown above: 18
"""
)


def test_a_sentence_may_hold_other_letters_and_a_verb():
    for text in (*SENTENCES, "Bob\u2019s total is 18"):
        assert (read_number(text), read_number(text, "paper")) == (None, 18), text


def test_rewards():
    problem = GSM8K().problem_from({"question": "How many?", "answer": "18"}, "here")
    for reward, right, wrong, none in (("zero_one", 1, 0, 0), ("plus_minus", 1, -1, -1)):
        task = GSM8K(reward=reward)
        rewards = [task.judge(problem, text).reward for text in (r"\boxed{18}", r"\boxed{81}", "18")]
        assert rewards == [right, wrong, none]
    for text, reward, reason in (
        ("<reasoning>9 + 9</reasoning><answer>18</answer>", 20, "correct"),
        ("<reasoning>9 + 9</reasoning><answer>19</answer>", 10, "wrong"),
        ("<reasoning>9 + 9</reasoning><answer>a few</answer>", 10, "unparsed"),
        ("<reasoning>9 + 9</reasoning>", 1, "bad_format"),
        ("18", 0, "bad_format"),
    ):
        judged = TAGS.judge(problem, text)
        assert (judged.reward, judged.reason, judged.scorable) == (reward, reason, True)
    assert PAPER.judge(problem, r"\boxed{$18.00}").answer == "18"
    assert PAPER.judge(problem, "9 + 9 is", truncated=True).reason == "too_long"


def test_gold_answers_of_both_layouts():
    hub = GSM8K().problem_from({"question": "?", "answer": "He pays <<2*600=1200>>1200.\n#### 1,200"}, "here")
    assert hub.data["answer"] == "1,200"
    assert PAPER.judge(hub, r"\boxed{\$1200}").correct
    solution = next(PAPER.solutions(hub))
    assert solution == "He pays 1200.\n\nThe answer is $\\boxed{1,200}$." and PAPER.judge(hub, solution).correct
    assert GSM8K().problem_from({"question": "?", "answer": 18.0}, "here").data["answer"] == "18"


def test_hostile_texts_are_read():
    problem = GSM8K().problem_from({"question": "?", "answer": "4"}, "here")
    pieces = ["9**9**9", "1" * 100_000, "1,111" * 60, "1 " * 150, "-" * 300, "$" * 300, "{" * 300, "1/1" * 100]
    pieces += [
        *("\x00\ud800", "__import__('os')", r"\text{" * 50, "a " * 150, "1 a-" * 75, r"\frac{1}{" * 30),
        "4\n" * 100,
    ]
    for piece in pieces:
        for task in (STRICT, PAPER, TAGS):
            for response in (f"\\boxed{{{piece}}}", f"<reasoning></reasoning><answer>{piece}</answer>", piece * 1000):
                judged = task.judge(problem, response)
                assert not judged.correct and judged.reason in task.reasons
