"""A few kinds of word problems, for work without the data set. Their language is poorer than GSM8K's."""

from __future__ import annotations

import random
from collections.abc import Callable

from rlvr_cli.tasks.math.answers import generated_problem
from rlvr_cli.tasks.problem import Problem

_PEOPLE = (
    "Ana",
    "Ben",
    "Carla",
    "Dev",
    "Elif",
    "Farid",
    "Grace",
    "Hugo",
    "Ines",
    "Jonas",
    "Kofi",
    "Lena",
    "Mei",
    "Omar",
)
_THINGS = ("apples", "pencils", "marbles", "stickers", "cookies", "books", "shells", "stamps", "cards", "oranges")

_Made = tuple[tuple[int, ...], str, int, list[str]]
"""The numbers, the question, the answer, the steps."""


def draw(rng: random.Random) -> Problem:
    """A random problem with a whole-number answer of at least 1 and its worked solution."""
    while True:
        kind = rng.choice(list(KINDS))
        numbers, question, answer, steps = KINDS[kind](rng)
        if answer >= 1:
            break
    family = f"{len(steps)} steps"
    structure = f"{kind}:{','.join(map(str, numbers))}"
    return generated_problem("gsm8k", family, structure, question, str(answer), "\n".join(steps))


def _packs(rng: random.Random) -> _Made:
    name, thing = rng.choice(_PEOPLE), rng.choice(_THINGS)
    have, packs, each, given = rng.randint(2, 60), rng.randint(2, 12), rng.randint(2, 25), rng.randint(1, 80)
    question = (
        f"{name} has {have} {thing} and buys {packs} packs with {each} {thing} in each. Then {name} gives {given} "
        f"{thing} away. How many {thing} does {name} have now?"
    )
    steps = [
        f"The packs hold {packs} * {each} = {packs * each} {thing}.",
        f"With those {name} has {have} + {packs * each} = {have + packs * each} {thing}.",
        f"After giving some away there are {have + packs * each} - {given} = {have + packs * each - given} {thing}.",
    ]
    return (have, packs, each, given), question, have + packs * each - given, steps


def _shopping(rng: random.Random) -> _Made:
    name = rng.choice(_PEOPLE)
    first, second = rng.sample(_THINGS, 2)
    a, b, c, d = rng.randint(2, 15), rng.randint(1, 20), rng.randint(2, 15), rng.randint(1, 20)
    paid = rng.choice((50, 100, 200, 500))
    cost = a * b + c * d
    question = (
        f"{name} buys {a} {first} at ${b} each and {c} {second} at ${d} each, and pays with ${paid}. How many dollars "
        f"does {name} get back?"
    )
    steps = [
        f"The {first} cost {a} * {b} = {a * b} dollars.",
        f"The {second} cost {c} * {d} = {c * d} dollars.",
        f"Together that is {a * b} + {c * d} = {cost} dollars.",
        f"{name} gets back {paid} - {cost} = {paid - cost} dollars.",
    ]
    return (a, b, c, d, paid), question, paid - cost, steps


def _wages(rng: random.Random) -> _Made:
    name = rng.choice(_PEOPLE)
    rate, hours, days, spent = rng.randint(8, 40), rng.randint(2, 9), rng.randint(2, 20), rng.randint(10, 400)
    earned = rate * hours * days
    question = (
        f"{name} earns ${rate} an hour and works {hours} hours a day for {days} days. {name} then spends ${spent}. How "
        "many dollars are left?"
    )
    steps = [
        f"A day brings {rate} * {hours} = {rate * hours} dollars.",
        f"{days} days bring {rate * hours} * {days} = {earned} dollars.",
        f"What is left is {earned} - {spent} = {earned - spent} dollars.",
    ]
    return (rate, hours, days, spent), question, earned - spent, steps


def _sharing(rng: random.Random) -> _Made:
    name, thing = rng.choice(_PEOPLE), rng.choice(_THINGS)
    friends, each, kept = rng.randint(2, 15), rng.randint(2, 40), rng.randint(1, 60)
    total = friends * each + kept
    question = (
        f"{name} keeps {kept} of {total} {thing} and shares the rest equally among {friends} friends. How many {thing} "
        "does each friend get?"
    )
    steps = [
        f"There are {total} - {kept} = {friends * each} {thing} to share.",
        f"Each friend gets {friends * each} / {friends} = {each} {thing}.",
    ]
    return (friends, each, kept), question, each, steps


def _discount(rng: random.Random) -> _Made:
    name = rng.choice(_PEOPLE)
    percent, hundreds, count = rng.choice((5, 10, 20, 25, 30, 40, 50, 75)), rng.randint(1, 12), rng.randint(2, 12)
    price = 100 * hundreds
    off = price * percent // 100
    question = (
        f"A bicycle costs ${price:,}. During a sale it costs {percent}% less. How many dollars does {name}'s club pay "
        f"for {count} bicycles in the sale?"
    )
    steps = [
        f"The price falls by {price} * {percent} / 100 = {off} dollars.",
        f"A bicycle then costs {price} - {off} = {price - off} dollars.",
        f"{count} bicycles cost {count} * {price - off} = {count * (price - off)} dollars.",
    ]
    return (percent, hundreds, count), question, count * (price - off), steps


KINDS: dict[str, Callable[[random.Random], _Made]] = {
    "packs": _packs,
    "shopping": _shopping,
    "wages": _wages,
    "sharing": _sharing,
    "discount": _discount,
}
