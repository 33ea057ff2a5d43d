"""GSM8K: equivalent spellings and near misses of numbers, prompts' two styles, rows of the hub and of files."""

import random
from fractions import Fraction

import pytest

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.gsm8k import GSM8K, problem_from, read_number

STRICT = GSM8K(rule="strict")
PAPER = GSM8K()
TAGS = GSM8K(rule="strict", reward="gtpo")

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


OTHER_NUMBERS = [
    *("5 Thousand", "5 Dozen", "5 HUNDRED", "5 Million", "5 Times", "5 Half", "5 Squared", "5thousand", "5 dozens"),
    *(
        "5 mio",
        "5 kilo",
        "5 zeros",
        "5 root",
        "5 power",
        "5 ish",
        "5 incorrectly",
        "5 octal",
        "opposite = 5",
        "lnx = 5",
    ),
    *("5 tenths", "5 fifths", "5 fifth", "5 thousandths", "5 twentieths", "5 halves", "5 lakh", "5 crore", "5 tens"),
    *("5 grand", "5 score", "5 gross", "5 mil", "5 thou", "5M", "5B", "5K", "5MM", "$5m", "$5 mm", "5m dollars", "$5b"),
    *(
        "5x",
        "5 x",
        "5pi",
        "5 pi",
        "5\u03c0",
        "5e",
        "5i",
        "5y",
        "5 t",
        "5-x",
        "5-m",
        "5 kg x",
        "5 m/x",
        "x5",
        "x 5",
        "5 I",
    ),
    *(
        "5 twenty",
        "5 remainder",
        "5 apples remainder",
        "5 is too big",
        "5 too many",
        "5 is wrong",
        "5 isn't",
        "5 point",
    ),
    *(
        "Minus 5",
        "Negative 5",
        "Not 5",
        "isn't 5",
        "isn\u2019t 5",
        "never 5",
        "neither 5",
        "nor 5",
        "Half of 5",
        "No 5",
    ),
    *(
        "Twenty 5",
        "twenty-5",
        "square root of 5",
        "cube of 5",
        "log 5",
        "opposite of 5",
        "Double 5",
        "under 5",
        "almost 5",
    ),
    *(
        "5\u215b",
        "5\u2030",
        "\u221b5",
        "5\u203c",
        "\u00ac5",
        "=\u03385",
        "5\u4e07",
        "5\u2026",
        "5\u2075",
        "\u22485\u2030",
    ),
    *(
        "5 kk",
        "5 ppm",
        "5 couples",
        "5 reversed",
        "5 excluded",
        "5 fails",
        "any number except 5",
        "5 dz",
        "neg 5",
        "anything but 5",
        "all but 5",
        "5 repeating",
        "5 mille",
        "5 fortieths",
        "(5)(1)",
        "($5)",
        "-(5)",
        r"5 x^2",
        r"(5 cm)^2",
        r"5^2 cm",
        "5^\u00b0^2",
    ),
]


@pytest.mark.parametrize("rule", ["strict", "paper"])
def test_a_number_beside_a_word_or_a_sign_that_changes_it_is_not_that_number(rule):
    for text in OTHER_NUMBERS:
        assert read_number(text, rule) != 5, text
        assert read_number(rf"\text{{{text}}}", rule) != 5, text
        assert read_number(f"The answer: {text}.", rule) != 5, text


@pytest.mark.parametrize("rule", ["strict", "paper"])
def test_units_labels_degrees_and_parentheses_leave_the_number(rule):
    for text in (
        *(r"18\text{ cm}^2", "18 cm\u00b2", r"18\text{ m}^{3}", "18 square feet", "18 cubic inches", "18 feet^2"),
        *(r"18^\circ", r"18^{\circ}", "18\u00b0", "18\u00b0C", "18 degrees F", "(18)", "(18 apples)", r"$(18)$"),
        *(r"\approx 18", "\u2248 18", r"x \approx 18", r"\text{Total} = 18", r"\text{Cost per pack} = \$18", "x=18"),
        *(
            "18 m",
            "18m",
            "18 g",
            "18h",
            "18 s",
            "18 l",
            "18 L",
            "18 m/s",
            "18 km/h",
            "18 months",
            "18 depths",
            "18 seconds",
        ),
        *("$18 a week", "18 miles a day", "18 points", "18 logs", "18-year-old", "18 inches", "18 CAD", "18 pairs"),
    ):
        assert read_number(text, rule) == 18, text


def test_a_sentence_may_hold_other_letters_and_a_verb():
    for text in (
        *(
            "Jos\u00e9 has 18 eggs",
            "18 is the answer",
            "\u201c18\u201d",
            "Bob\u2019s total is 18",
            "He earns $18 in all",
        ),
        *(
            "The grand total is 18",
            "Gross pay is $18",
            "The remainder is 18",
            "His test score is 18",
            "As shown above: 18",
        ),
    ):
        assert (read_number(text), read_number(text, "paper")) == (None, 18), text


def test_rewards():
    problem = problem_from({"question": "How many?", "answer": "18"}, "here")
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


def test_hostile_texts_are_read():
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
    for piece in pieces:
        for task in (STRICT, PAPER, TAGS):
            for response in (f"\\boxed{{{piece}}}", f"<reasoning></reasoning><answer>{piece}</answer>", piece * 1000):
                judged = task.judge(problem, response)
                assert not judged.correct and judged.reason in task.reasons
