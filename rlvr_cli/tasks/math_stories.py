r"""Word problems of several steps: each person has what follows from somebody before. Answers are whole numbers.

The compact form, which the lab's tiny model reads and writes:

    prompt     Ada has 14 . Ben has half of Ada . Cleo has Ben and Ada . Dan ? 6 fewer than Cleo . <think>
    response   Ada 14 ; Ada 14 / 2 = Ben 7 ; Ben 7 + Ada 14 = Cleo 21 ; Cleo 21 - 6 = Dan ? 15 </think>
               \boxed{ 15 }

The question is a mark: the person asked for has `?` in place of `has`. The reasoning takes the sentences in turn: whose
number it starts from with that number, what is done to it, who has the result, and `?` where that is the person asked
for. So every step is local: a look-up finds a name and what stands behind it, and a step has one calculation.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.section import Probability, Section
from rlvr_cli.tasks.problem import Problem

Kind = Literal["more", "fewer", "times", "half", "and"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# How a kind is worked out, from the value that it refers to.
SIGNS: Mapping[Kind, str] = {"more": "+", "fewer": "-", "times": "*", "half": "/", "and": "+"}

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ida", "Jon", "Kim", "Lou")
LARGEST = 60
# People are at most 10: the first, one a step, and one behind the person asked for.
MAX_STEPS = 8
_FIRST = (2, 20)
_ADDED, _FACTOR = (1, 12), (2, 5)
# Chances: the sentence goes on from the one before; somebody comes after the person asked for.
_CHAINED, _BEYOND = 0.6, 0.25
_THINGS = ("marbles", "stamps", "shells", "cards", "coins", "beads")


@dataclass(frozen=True)
class Step:
    """One sentence: what ``who`` has by what ``of`` has.

    Attributes:
        number: how many more, fewer or times, 2 for half; None for ``and``.
        other: whose things are added, for ``and``.
    """

    who: str
    kind: Kind
    of: str
    number: int | None = None
    other: str | None = None


@dataclass(frozen=True)
class Story:
    """``first`` has ``start``, each step adds a person, the question is about ``asked``."""

    first: str
    start: int
    steps: tuple[Step, ...]
    asked: str

    @property
    def needed(self) -> tuple[Step, ...]:
        """The steps up to the person asked for."""
        people = [step.who for step in self.steps]
        return self.steps[: people.index(self.asked) + 1]

    def values(self) -> dict[str, int]:
        """Work out what everybody has. Raises KeyError for somebody who is not known yet."""
        values = {self.first: self.start}
        for step in self.steps:
            values[step.who] = result(SIGNS[step.kind], values[step.of], operand(step, values))
        return values

    @property
    def structure(self) -> str:
        """The operations up to the answer with their numbers; stories differ in people and in the first number, too."""
        return " ".join(f"{step.kind}{step.number or ''}" for step in self.needed)


def operand(step: Step, values: Mapping[str, int]) -> int:
    """The second number of a step's calculation. Raises KeyError for somebody who is not known."""
    return step.number if step.number is not None else values[step.other or ""]


def result(sign: str, left: int, right: int) -> int:
    """A calculation in whole numbers; a division leaves the remainder out."""
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    return left * right if sign == "*" else left // right


def draw_story(rng: random.Random, steps: int) -> Story:
    """A story that takes ``steps`` steps to the answer; every value is from 1 to 60."""
    people = rng.sample(NAMES, steps + 1 + (rng.random() < _BEYOND))
    values = {people[0]: rng.randint(*_FIRST)}
    steps_drawn: list[Step] = []
    for person in people[1:]:
        while True:
            people_before = list(values)
            of = people_before[-1] if rng.random() < _CHAINED else rng.choice(people_before)
            step = _step(rng, person, of, rng.choice(people_before))
            value = result(SIGNS[step.kind], values[of], operand(step, values))
            even = step.kind != "half" or values[of] % 2 == 0
            if even and step.other != of and 1 <= value <= LARGEST:
                break
        values[person] = value
        steps_drawn.append(step)
    return Story(people[0], values[people[0]], tuple(steps_drawn), people[steps])


def _step(rng: random.Random, who: str, of: str, other: str) -> Step:
    kind = rng.choice(KINDS)
    if kind == "and":
        return Step(who, kind, of, other=other)
    return Step(who, kind, of, 2 if kind == "half" else rng.randint(*(_FACTOR if kind == "times" else _ADDED)))


def english(story: Story, rng: random.Random) -> str:
    """The story in English; ``rng`` chooses what they have."""
    objects = rng.choice(_THINGS)
    sentences = [f"{story.first} has {story.start} {objects}.", *(_sentence(step, objects) for step in story.steps)]
    return " ".join([*sentences, f"How many {objects} does {story.asked} have?"])


def _sentence(step: Step, objects: str) -> str:
    if step.kind == "and":
        return f"{step.who} has as many as {step.of} and {step.other} together."
    if step.kind == "half":
        return f"{step.who} has half as many as {step.of}."
    if step.kind == "times":
        return f"{step.who} has {step.number} times as many as {step.of}."
    few = "fewer" if step.kind == "fewer" else "more"
    return f"{step.who} has {step.number} {few} {objects if step.number != 1 else objects[:-1]} than {step.of}."


def worked(story: Story) -> str:
    """The calculation, a sentence a person."""
    values = story.values()
    signs = {"*": r"\cdot", "/": r"\div"}
    lines = [f"{story.first} has ${story.start}$."]
    for step in story.needed:
        sign = SIGNS[step.kind]
        sum_ = f"{values[step.of]} {signs.get(sign, sign)} {operand(step, values)} = {values[step.who]}"
        lines.append(f"{step.who} has ${sum_}$.")
    return " ".join(lines)


def story_problem(story: Story, rng: random.Random) -> Problem:
    """The problem that asks for the answer, with its story, so that it can be written in other words."""
    needed, question = len(story.needed), english(story, rng)
    data = {"answer": str(story.values()[story.asked]), "solution": worked(story), "story": to_row(story)}
    subgroup = f"{needed} step{'s' if needed > 1 else ''}"
    return Problem(f"math-{text_digest(question)[:16]}", question, data, subgroup, story.structure)


def with_story(problem: Problem, fields: Mapping[str, Any], where: str) -> Problem:
    """The problem of a row, with the story that the row has, if any: a list. Text by that name is something else.

    Raises UserError where it is malformed or its answer is another one.
    """
    row = fields.get("story")
    if not isinstance(row, list):
        return problem
    story = from_row(row, where)
    answer = str(story.values()[story.asked])
    if answer != problem.data["answer"].strip():
        raise UserError(f"{where}: the answer of its story is {answer}, not {problem.data['answer']}")
    return replace(problem, data={**problem.data, "story": row}, structure=story.structure)


def to_row(story: Story) -> list[list[Any]]:
    """The story as JSON: the first person, the steps, the person asked for, a list each."""
    steps = [[step.who, step.kind, step.of, step.other or step.number] for step in story.steps]
    return [[story.first, story.start], *steps, [story.asked]]


def from_row(value: Any, where: str) -> Story:
    """The story that ``to_row`` wrote. Raises UserError, naming ``where``, for what is none."""
    try:
        (first, start), *rows, (asked,) = value
        story = Story(first, start, tuple(_read_step(*row) for row in rows), asked)
        numbers = [start, *(step.number for step in story.steps if step.number is not None)]
        if asked in story.values() and asked != first and all(type(number) is int for number in numbers):
            return story
    except (TypeError, ValueError, KeyError, ZeroDivisionError):
        pass
    raise UserError(
        f"{where}: story must be [[name, number], [name, kind, name, number or name], ..., [name]], each name defined "
        f"before it is used; kinds are {', '.join(KINDS)}"
    )


def _read_step(who: str, kind: Kind, of: str, last: Any) -> Step:
    return Step(who, kind, of, other=last) if kind == "and" else Step(who, kind, of, last)


# The compact form

# The largest number that there is a word for; stories stay below, wrong steps need not.
TOP = 99
# The word with which the reasoning begins: the prompt's last, or the response's first.
OPENING = "<think>"
_OTHER_SIGN = {"+": "-", "-": "+", "*": "+", "/": "-"}


class Noise(Section):
    """Chances that a step of a trace goes wrong; all zero = a clean trace.

    `sign`: another operation (more as fewer, fewer as more, times as more, half as fewer). `look`: somebody else's
    number is taken. `sum`: the result is off by 1 or 10. `stop`: somebody before is taken for the person asked for.
    """

    sign: Probability = 0.0
    look: Probability = 0.0
    sum: Probability = 0.0
    stop: Probability = 0.0


CLEAN = Noise()


def compact_vocabulary() -> list[str]:
    """Every word of the compact form, in a fixed order."""
    words = ["?", ".", ";", "=", "+", "-", "*", "/", "has", "more", "fewer", "than", "times", "half", "of", "and"]
    return [*words, OPENING, "</think>", r"\boxed{", "}", *NAMES, *map(str, range(TOP + 1))]


def compact_prompt(story: Story, *, opened: bool = True) -> str:
    """The story in compact form; ``opened``: with `<think>`, which is the response's own first word otherwise."""
    words = [f"{story.first} has {story.start} ."]
    words += [_compact_sentence(step, "?" if step.who == story.asked else "has") for step in story.steps]
    return " ".join([*words, *([OPENING] if opened else [])])


def _compact_sentence(step: Step, verb: str) -> str:
    claims = {
        "more": f"{step.number} more than {step.of}",
        "fewer": f"{step.number} fewer than {step.of}",
        "times": f"{step.number} times {step.of}",
        "half": f"half of {step.of}",
        "and": f"{step.of} and {step.other}",
    }
    return f"{step.who} {verb} {claims[step.kind]} ."


def compact_trace(story: Story, rng: random.Random, noise: Noise = CLEAN) -> str:
    """A worked response, behind the prompt's `<think>`. A clean one ends in the right answer."""
    values = {story.first: story.start}
    words = [f"{story.first} {story.start}"]
    for step in story.needed:
        of = rng.choice(list(values)) if rng.random() < noise.look else step.of
        sign = SIGNS[step.kind]
        if rng.random() < noise.sign:
            sign = _OTHER_SIGN[sign]
        right = operand(step, values)
        value = _near(result(sign, values[of], right), rng if rng.random() < noise.sum else None)
        other = f"{step.other} " if step.kind == "and" else ""
        words.append(f"; {of} {values[of]} {sign} {other}{right} = {step.who}")
        if step.who == story.asked or rng.random() < noise.stop:
            break
        words.append(str(value))
        values[step.who] = value
    return " ".join([*words, rf"? {value} </think> \boxed{{ {value} }}"])


def _near(value: int, rng: random.Random | None) -> int:
    """A result that there is a word for; with ``rng`` a wrong one."""
    off = rng.choice((-10, -1, 1, 10)) if rng is not None else 0
    return max(0, min(TOP, value + off))
