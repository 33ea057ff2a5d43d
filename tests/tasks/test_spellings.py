"""Spellings of numbers under the documented conventions of HiTab and GSM8K, made from known values.

A family writes a value in one way; who reads it is copied from the tasks' pages and not from their code. Each case is
judged against the value, and against values near it, which must not pass.
"""

import random
from collections import Counter
from fractions import Fraction

import pytest

from rlvr_cli.tasks.gsm8k import GSM8K
from rlvr_cli.tasks.hitab import HiTab
from rlvr_cli.tasks.hitab_tables import problem_from as hitab_problem
from tests.tasks.rows import texts

# Families by who reads them. {p}: plain, {g}: with thousands commas, both with their sign; {a}, {A}: the same without
# it; {s}: the sign.
BOTH = texts(r"""
{p} ¦ {g} ¦ {p}{zeros} ¦ {g}{zeros} ¦ {s}0{a} ¦ {spaced} ¦ {thin} ¦ {nobreak} ¦ {braced} ¦ {thinlatex} ¦ {bang}
{unicode} ¦ {s}${A} ¦ ${s}{A} ¦ {s}\${A} ¦ {s}€{A} ¦ {s}£{A} ¦ {s}US${A} ¦ {g} € ¦ {g}£ ¦ {g} dollars ¦ {g} CAD
{p}% ¦ {p}\% ¦ {p} % ¦ {p} percent ¦ ${p}$ ¦ $ {g} $ ¦ **{g}** ¦ `{p}` ¦ \text{{{g}}} ¦ \mathbf{{{p}}}
{fraction} ¦ {latexfraction}
""")
HITAB_ONLY = texts(r'{s}C${A} ¦ *{p}* ¦ "{p}" ¦ {exponent} ¦ Answer: {p}')
GSM8K_ONLY = texts(r"""
\({p}\) ¦ \[{p}\] ¦ $${p}$$ ¦ {p} apples ¦ {p} km/h ¦ {p} miles per hour ¦ {p}\text{{ m}} ¦ #### {g} ¦ y = {p} ¦ ${p}%
""")
NEITHER = texts(r"""
{p} thousand ¦ {p} million ¦ {p} billion ¦ {p}k ¦ {p}M ¦ {p} bn ¦ {p} dozen ¦ half of {p} ¦ double {p} ¦ twice {p}
{p} squared ¦ {p}² ¦ {p} or {p} ¦ {p} and {p} ¦ {p} to {p} ¦ not {p} ¦ minus {a} ¦ negative {a} ¦ more than {p}
at least {p} ¦ {p} and a half ¦ {p} hours and 30 minutes ¦ --{a} ¦ -${s}-{A} ¦ {p}={p} ¦ 5={p} ¦ {p}+0 ¦ {p}*1 ¦ {p}^1
{p}! ¦ \sqrt{{{p}}} ¦ 1/{p} ¦ {p}/0 ¦ {p}; {p} ¦ {p}, {p} ¦ {p} ({p}) ¦ ({p})({p}) ¦ {p}:30 ¦ {p}_0 ¦ 0x{a}
{misgrouped} ¦ {misspaced} ¦ {commas} ¦ {p} or more ¦ {p} to one ¦ {p} less than before ¦ {p} times as many
{p} false ¦ wrong: {p}
""")
FAMILIES = {
    family: readers
    for families, readers in (
        (BOTH, ("hitab", "gsm8k")),
        (HITAB_ONLY, ("hitab",)),
        (GSM8K_ONLY, ("gsm8k",)),
        (NEITHER, ()),
    )
    for family in families
}
RULES = ("strict", "paper")
TASKS = {
    **{("hitab", rule): HiTab(rule=rule, style="answer_tag") for rule in RULES},
    **{("gsm8k", rule): GSM8K(rule=rule) for rule in RULES},
    ("hitab", "ratio"): HiTab(rule="strict", percent="ratio", style="answer_tag"),
    ("hitab", "either"): HiTab(rule="strict", percent="either", style="answer_tag"),
}


def _two(value):
    hundreds = int(value * 100)
    return f"{hundreds // 100}.{hundreds % 100:02d}".rstrip("0").rstrip(".")


def spelled(family, value, rng):
    sign = "-" if value < 0 else ""
    bare = _two(abs(value))
    whole, _, decimals = bare.partition(".")
    tail = f".{decimals}" if decimals else ""
    grouped = f"{int(whole):,}{tail}"
    zeros = "0" * rng.randint(1, 4)
    digits = len(whole)
    fields = {
        "p": sign + bare,
        "g": sign + grouped,
        "a": bare,
        "A": grouped,
        "s": sign,
        "zeros": zeros if decimals else "." + zeros,
        "spaced": sign + grouped.replace(",", " "),
        "thin": sign + grouped.replace(",", "\u202f"),
        "nobreak": sign + grouped.replace(",", "\u00a0"),
        "braced": sign + grouped.replace(",", "{,}"),
        "thinlatex": sign + grouped.replace(",", r"\,"),
        "bang": sign + grouped.replace(",", r",\!"),
        "unicode": sign.replace("-", "\u2212") + grouped,
        "exponent": f"{sign}{whole[0]}.{whole[1:]}{decimals or '0'}e{digits - 1}",
        "fraction": f"{sign}{abs(value).numerator}/{abs(value).denominator}",
        "latexfraction": rf"{sign}\frac{{{abs(value).numerator}}}{{{abs(value).denominator}}}",
        "misgrouped": f"{sign}{whole},{'5' * rng.choice((1, 2, 4))}",
        "misspaced": f"{sign}{whole} {'5' * rng.choice((1, 2, 4))}",
        "commas": f"{sign}{whole}5555,555",
    }
    return family.format(**fields)


def values(count, rng):
    sizes = ((2, 99), (100, 9_999), (10_000, 9_999_999))
    for number in range(count):
        value = Fraction(rng.randint(*rng.choice(sizes)))
        if number % 3 == 1:
            value += Fraction(rng.randint(1, 99), 100)
        yield -value if number % 4 == 3 else value


def near(value):
    """Values that no spelling of ``value`` may be taken for."""
    return [value + 1, value - 1, value + Fraction(1, 100), -value, value * 10, value / 10, value * 1000, value / 100]


def correct(task, rule, gold, text):
    if task == "hitab":
        problem = hitab_problem({"answer": [float(gold)]}, "here")
        response = f"<think>x</think><answer>{text}</answer>"
    else:
        problem = GSM8K().problem_from({"question": "?", "answer": written(gold)}, "here")
        response = rf"So \boxed{{{text}}}"
    return TASKS[task, rule].judge(problem, response).correct


def written(value):
    return ("-" if value < 0 else "") + (_two(abs(value)) if (value * 100).denominator == 1 else f"{abs(value)}")


@pytest.mark.parametrize("task", ["hitab", "gsm8k"])
def test_every_family_is_read_as_its_page_says_and_as_no_other_number(task):
    rng = random.Random(5)
    cases = Counter()
    for value in values(8, rng):
        for family, readers in FAMILIES.items():
            text = spelled(family, value, rng)
            assert correct(task, "strict", value, text) == (task in readers), (family, text, value)
            cases["same" if task in readers else "refused"] += 1
            for other in near(value):
                assert not correct(task, "strict", other, text), (family, text, other)
                cases["other value"] += 1
    assert cases["same"] >= 300 and cases["refused"] >= 400, cases


@pytest.mark.parametrize("task", ["hitab", "gsm8k"])
def test_what_strict_reads_paper_reads_too_and_as_no_other_number(task):
    rng = random.Random(6)
    for value in values(6, rng):
        for family, readers in FAMILIES.items():
            if task in readers:
                text = spelled(family, value, rng)
                assert correct(task, "paper", value, text), (family, text, value)
                assert not any(correct(task, "paper", other, text) for other in near(value)), (family, text)


@pytest.mark.parametrize("family", ["{p}%", r"{g}\%", "{p} %", "{g} percent", "{p} per cent", "**{p}%**"])
def test_a_percentage_in_hitab_is_as_written_or_a_ratio_or_either(family):
    rng = random.Random(7)
    for value in values(8, rng):
        text = spelled(family, value, rng)
        read = {rule: [correct("hitab", rule, gold, text) for gold in (value, value / 100)] for rule in RULES}
        read |= {
            rule: [correct("hitab", rule, gold, text) for gold in (value, value / 100)] for rule in ("ratio", "either")
        }
        assert read == {"strict": [True, False], "paper": [True, False], "ratio": [False, True], "either": [True, True]}
        assert correct("hitab", "ratio", value, text.rstrip("*%centpr \\").lstrip("*"))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("task", ["hitab", "gsm8k"])
def test_digits_that_are_no_groups_of_three_are_not_one_number(task, rule):
    texts = ["1 23", "12 5", "1234 567", "1 234 5", "215, 197", "1,234 567", "1, 234", "1 ,234"]
    # HiTab's own scorer drops every comma, and so does its paper rule.
    texts += [] if (task, rule) == ("hitab", "paper") else ["1,8", "12,34", "1234,567", "1,2345", "1,23,456"]
    for text in texts:
        joined = Fraction(text.replace(",", "").replace(" ", ""))
        assert not correct(task, rule, joined, text), text
