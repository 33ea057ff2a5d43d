"""GSM8K: equivalent spellings and near misses of numbers, prompts' two styles, rows of the hub and of files."""

import random
import time
from fractions import Fraction

import pytest

from rlvr_cli.config.errors import UserError
from rlvr_cli.config.task_kinds import GSM8KTaskConfig
from rlvr_cli.tasks.gsm8k.number import read_number
from rlvr_cli.tasks.gsm8k.task import GSM8K, problem_from

STRICT = GSM8K(GSM8KTaskConfig(rule="strict"))
PAPER = GSM8K(GSM8KTaskConfig())
TAGS = GSM8K(GSM8KTaskConfig(rule="strict", reward="gtpo"))

EQUAL = [
    "{n}",
    "{n}.",
    "{n}.0",
    "{n}.00",
    "{n:,}",
    "{n:,}.00",
    "+{n}",
    "0{n}",
    "${n}",
    r"\${n}",
    r"$\${n}$",
    "${n:,}.00",
    "$ {n}",
    "US${n}",
    "\u20ac{n}",
    "{n}\u20ac",
    "\u00a3{n:,}",
    "{n} dollars",
    "{n} apples",
    "{n} km/h",
    "{n}kg",
    "{n} miles per hour",
    r"{n}\text{{ eggs}}",
    r"{n}\ \text{{eggs}}",
    r"\text{{{n} eggs}}",
    "{n}%",
    r"{n}\%",
    "{n} percent",
    "x = {n}",
    "**{n}**",
    "`{n}`",
    r"\({n}\)",
    "${n}$",
    "#### {n}",
    " {n}\n",
    "{n}/1",
    r"\frac{{{n}}}{{1}}",
    "{wide}",
    "{latex}",
    "{thin}",
]
DIFFERENT = [
    "{more}",
    "{less}",
    "-{n}",
    "{n}.5",
    "{n}.01",
    "0.{n}",
    "{n}0",
    "{n}k",
    "{n} thousand",
    "{n} dozen",
    "{n} million",
    "{n}e1",
    "{n}^2",
    "{n}\u00b2",
    "{n}!",
    "5={n}",
    "{n}={n}+0",
    "{n} or {more}",
    "{n}, {more}",
    "{more} not {n}",
    "{n} hours and 30 minutes",
    "1/{n}",
    r"\frac{{1}}{{{n}}}",
    r"\sqrt{{{n}}}",
    "{n}*1",
    "{n}+0",
    "2 {n}",
    "--{n}",
    "{n},5",
    "1,{n}2,3",
    "minus {n}",
    "half of {n}",
    "",
    "many",
    "0x{n}",
    "{n}/0",
    "{n}:30",
    "more than {n}",
    "{n}_0",
    "({more})({n})",
]


def spelled(pattern, number):
    grouped = f"{number:,}"
    return pattern.format(
        n=number,
        more=number + 1,
        less=number - 1,
        wide="".join(chr(0xFF10 + int(digit)) for digit in str(number)),
        latex=grouped.replace(",", "{,}"),
        thin=grouped.replace(",", "\u202f"),
    )


def cases():
    rng = random.Random(11)
    for _ in range(50):
        number = rng.choice((rng.randint(2, 99), rng.randint(100, 9999), rng.randint(10_000, 5_000_000)))
        yield from ((number, spelled(pattern, number), True) for pattern in EQUAL)
        yield from ((number, spelled(pattern, number), False) for pattern in DIFFERENT)


def test_equivalent_spellings_and_near_misses():
    assert len(EQUAL) == len(DIFFERENT) == 40
    counted = {True: 0, False: 0}
    for number, text, equal in cases():
        problem = problem_from({"question": "How many?", "answer": str(number)}, "here")
        for task, response in (
            (STRICT, f"So \\boxed{{{text}}}"),
            (PAPER, f"So \\boxed{{{text}}}"),
            (TAGS, f"<reasoning>So</reasoning><answer>{text}</answer>"),
        ):
            assert task.judge(problem, response).correct == equal, (number, text, task.settings)
        counted[equal] += 1
    assert counted == {True: 2000, False: 2000}


@pytest.mark.parametrize(
    ("text", "strict", "paper"),
    [
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
    ],
)
def test_a_sentence_with_one_number_is_read_by_the_paper_rule_alone(text, strict, paper):
    assert (read_number(text), read_number(text, "paper")) == (strict, paper)


def test_rewards():
    problem = problem_from({"question": "How many?", "answer": "18"}, "here")
    for reward, right, wrong, none in (("zero_one", 1, 0, 0), ("plus_minus", 1, -1, -1)):
        task = GSM8K(GSM8KTaskConfig(reward=reward))
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
    hub = problem_from({"question": "?", "answer": "He pays <<2*600=1200>>1200.\n#### 1,200"}, "here")
    assert hub.data["answer"] == "1,200"
    assert PAPER.judge(hub, r"\boxed{\$1200}").correct
    solution = next(PAPER.solutions(hub))
    assert solution == "He pays 1200.\n\nThe answer is $\\boxed{1,200}$." and PAPER.judge(hub, solution).correct
    assert problem_from({"question": "?", "answer": 18.0}, "here").data["answer"] == "18"
    for fields, message in (
        ({"question": "?"}, "no field answer"),
        ({"answer": "1"}, "no field question"),
        ({"question": " ", "answer": "1"}, "question must be text"),
        ({"question": "?", "answer": "a lot"}, "is not a number"),
        ({"question": "?", "answer": True}, "no field answer"),
    ):
        with pytest.raises(UserError, match=f"line 3: .*{message}"):
            problem_from(fields, "line 3")


def test_hostile_texts_are_read_in_time():
    problem = problem_from({"question": "?", "answer": "4"}, "here")
    pieces = ["9**9**9", "1" * 100_000, "1,111" * 60, "1 " * 150, "-" * 300, "$" * 300, "{" * 300, "1/1" * 100]
    pieces += [
        "\x00\ud800",
        "__import__('os')",
        r"\text{" * 50,
        "a " * 150,
        "1 a-" * 75,
        r"\frac{1}{" * 30,
        "4\n" * 100,
    ]
    started = time.monotonic()
    for piece in pieces:
        for task in (STRICT, PAPER, TAGS):
            for response in (f"\\boxed{{{piece}}}", f"<reasoning></reasoning><answer>{piece}</answer>", piece * 1000):
                judged = task.judge(problem, response)
                assert not judged.correct and judged.reason in task.reasons
    assert time.monotonic() - started < 30
