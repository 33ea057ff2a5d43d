r"""Word problems of several steps: each person's number follows from an earlier person's. Answers are whole numbers.

The compact form, which the lab's tiny model reads and writes:

    prompt     Ada has 14 . Ben has half of Ada . Cleo has Ben and Ada . Dan ? 6 fewer than Cleo . <think>
    response   Ada 14 ; Ada 14 / 2 = Ben 7 ; Ben 7 + Ada 14 = Cleo 21 ; Cleo 21 - 6 = Dan ? 15 </think>
               \boxed{ 15 }

The question is a mark: the target person has `?` in place of `has`. The reasoning takes the sentences in turn: the
person referred to and their number, the operation, the person with the result, and `?` if that is the target. So every
step is local: one look-up of a name and its number, and one calculation.
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
# The operation of each kind on the value that it refers to.
SIGNS: Mapping[Kind, str] = {"more": "+", "fewer": "-", "times": "*", "half": "/", "and": "+"}

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ida", "Jon", "Kim", "Lou")
LARGEST = 60
# At most 10 people: the first, one for each step, and one after the target.
MAX_STEPS = 8
_FIRST = (2, 20)
_ADDED, _FACTOR = (1, 12), (2, 5)
# Probabilities: a sentence refers to the previous person; a person follows the target.
_P_PREVIOUS, _P_AFTER_TARGET = 0.6, 0.25
_OBJECTS = ("marbles", "stamps", "shells", "cards", "coins", "beads")


@dataclass(frozen=True)
class Step:
    """One sentence: the number of ``person`` from the number of ``of``.

    Attributes:
        number: how many more, fewer or times, 2 for half; None for ``and``.
        other: whose things are added, for ``and``.
    """

    person: str
    kind: Kind
    of: str
    number: int | None = None
    other: str | None = None


@dataclass(frozen=True)
class Story:
    """A word problem: ``first`` has ``start``, each step adds a person, the question is about ``target``."""

    first: str
    start: int
    steps: tuple[Step, ...]
    target: str

    @property
    def needed(self) -> tuple[Step, ...]:
        """The steps up to the target."""
        people = [step.person for step in self.steps]
        return self.steps[: people.index(self.target) + 1]

    def values(self) -> dict[str, int]:
        """Return each person's number. Raises KeyError for a person who is used before being defined."""
        values = {self.first: self.start}
        for step in self.steps:
            values[step.person] = apply_operation(SIGNS[step.kind], values[step.of], operand(step, values))
        return values

    @property
    def structure(self) -> str:
        """The operations up to the answer, with their numbers but without people and the first number."""
        return " ".join(f"{step.kind}{step.number or ''}" for step in self.needed)


def operand(step: Step, values: Mapping[str, int]) -> int:
    """Return the second operand of a step. Raises KeyError for an undefined person."""
    return step.number if step.number is not None else values[step.other or ""]


def apply_operation(sign: str, lhs: int, rhs: int) -> int:
    """Return the result in whole numbers; division rounds down."""
    if sign == "+":
        return lhs + rhs
    if sign == "-":
        return lhs - rhs
    return lhs * rhs if sign == "*" else lhs // rhs


def draw_story(rng: random.Random, steps: int) -> Story:
    """Draw a story with ``steps`` steps to the answer; every value is from 1 to 60."""
    people = rng.sample(NAMES, steps + 1 + (rng.random() < _P_AFTER_TARGET))
    values = {people[0]: rng.randint(*_FIRST)}
    steps_drawn: list[Step] = []
    for person in people[1:]:
        while True:
            people_before = list(values)
            of = people_before[-1] if rng.random() < _P_PREVIOUS else rng.choice(people_before)
            step = _draw_step(rng, person, of, rng.choice(people_before))
            value = apply_operation(SIGNS[step.kind], values[of], operand(step, values))
            even = step.kind != "half" or values[of] % 2 == 0
            if even and step.other != of and 1 <= value <= LARGEST:
                break
        values[person] = value
        steps_drawn.append(step)
    return Story(people[0], values[people[0]], tuple(steps_drawn), people[steps])


def _draw_step(rng: random.Random, person: str, of: str, other: str) -> Step:
    kind = rng.choice(KINDS)
    if kind == "and":
        return Step(person, kind, of, other=other)
    return Step(person, kind, of, 2 if kind == "half" else rng.randint(*(_FACTOR if kind == "times" else _ADDED)))


def write_question(story: Story, rng: random.Random) -> str:
    """Write the story in English; ``rng`` chooses the objects."""
    objects = rng.choice(_OBJECTS)
    sentences = [f"{story.first} has {story.start} {objects}.", *(_format_step(step, objects) for step in story.steps)]
    return " ".join([*sentences, f"How many {objects} does {story.target} have?"])


def _format_step(step: Step, objects: str) -> str:
    if step.kind == "and":
        return f"{step.person} has as many as {step.of} and {step.other} together."
    if step.kind == "half":
        return f"{step.person} has half as many as {step.of}."
    if step.kind == "times":
        return f"{step.person} has {step.number} times as many as {step.of}."
    few = "fewer" if step.kind == "fewer" else "more"
    return f"{step.person} has {step.number} {few} {objects if step.number != 1 else objects[:-1]} than {step.of}."


def write_solution(story: Story) -> str:
    """Write the calculation, one sentence for each person."""
    values = story.values()
    signs = {"*": r"\cdot", "/": r"\div"}
    lines = [f"{story.first} has ${story.start}$."]
    for step in story.needed:
        sign = SIGNS[step.kind]
        sum_ = f"{values[step.of]} {signs.get(sign, sign)} {operand(step, values)} = {values[step.person]}"
        lines.append(f"{step.person} has ${sum_}$.")
    return " ".join(lines)


def story_problem(story: Story, rng: random.Random) -> Problem:
    """Return the problem of a story; it keeps the story, from which other wordings are made."""
    needed, question = len(story.needed), write_question(story, rng)
    data = {"answer": str(story.values()[story.target]), "solution": write_solution(story), "story": to_row(story)}
    subgroup = f"{needed} step{'s' if needed > 1 else ''}"
    return Problem(f"math-{text_digest(question)[:16]}", question, data, subgroup, story.structure)


def add_story(problem: Problem, fields: Mapping[str, Any], where: str) -> Problem:
    """Add to ``problem`` the story of its row, if it has one as a list (text in that column is another data set's).

    Raises UserError where the story is malformed or has another answer.
    """
    row = fields.get("story")
    if not isinstance(row, list):
        return problem
    story = from_row(row, where)
    answer = str(story.values()[story.target])
    if answer != problem.data["answer"].strip():
        raise UserError(f"{where}: the answer of its story is {answer}, not {problem.data['answer']}")
    return replace(problem, data={**problem.data, "story": row}, structure=story.structure)


def to_row(story: Story) -> list[list[Any]]:
    """Return the story as JSON lists: first person, steps, target."""
    steps = [[step.person, step.kind, step.of, step.other or step.number] for step in story.steps]
    return [[story.first, story.start], *steps, [story.target]]


def from_row(value: Any, where: str) -> Story:
    """Read a story that ``to_row`` wrote. Raises UserError naming ``where``."""
    try:
        (first, start), *rows, (target,) = value
        story = Story(first, start, tuple(_read_step(*row) for row in rows), target)
        numbers = [start, *(step.number for step in story.steps if step.number is not None)]
        if target in story.values() and target != first and all(type(number) is int for number in numbers):
            return story
    except (TypeError, ValueError, KeyError, ZeroDivisionError):
        pass
    raise UserError(
        f"{where}: story must be [[name, number], [name, kind, name, number or name], ..., [name]], each name defined "
        f"before it is used; kinds are {', '.join(KINDS)}"
    )


def _read_step(person: str, kind: Kind, of: str, last: Any) -> Step:
    return Step(person, kind, of, other=last) if kind == "and" else Step(person, kind, of, last)


# The compact form

# The largest number in the vocabulary; stories stay below, wrong steps may not.
TOP = 99
# The first word of the reasoning: the prompt's last, or the response's first.
OPENING = "<think>"
_OTHER_SIGN = {"+": "-", "-": "+", "*": "+", "/": "-"}


class Noise(Section):
    """Probabilities of errors in a trace; all zero = a clean trace.

    `sign`: another operation (more as fewer, fewer as more, times as more, half as fewer). `look`: another person's
    number. `sum`: a result that is off by 1 or 10. `stop`: an earlier person is taken for the target.
    """

    sign: Probability = 0.0
    look: Probability = 0.0
    sum: Probability = 0.0
    stop: Probability = 0.0


CLEAN = Noise()


def compact_vocabulary() -> list[str]:
    """Return every word of the compact form, in a fixed order."""
    words = ["?", ".", ";", "=", "+", "-", "*", "/", "has", "more", "fewer", "than", "times", "half", "of", "and"]
    return [*words, OPENING, "</think>", r"\boxed{", "}", *NAMES, *map(str, range(TOP + 1))]


def write_compact_prompt(story: Story, *, opened: bool = True) -> str:
    """Write the story in compact form; ``opened``: with `<think>`, else the response's first word."""
    words = [f"{story.first} has {story.start} ."]
    words += [_format_compact_step(step, "?" if step.person == story.target else "has") for step in story.steps]
    return " ".join([*words, *([OPENING] if opened else [])])


def _format_compact_step(step: Step, verb: str) -> str:
    claims = {
        "more": f"{step.number} more than {step.of}",
        "fewer": f"{step.number} fewer than {step.of}",
        "times": f"{step.number} times {step.of}",
        "half": f"half of {step.of}",
        "and": f"{step.of} and {step.other}",
    }
    return f"{step.person} {verb} {claims[step.kind]} ."


def write_compact_trace(story: Story, rng: random.Random, noise: Noise = CLEAN) -> str:
    """Write a worked response after the prompt's `<think>`. A clean one ends in the right answer."""
    values = {story.first: story.start}
    words = [f"{story.first} {story.start}"]
    for step in story.needed:
        of = rng.choice(list(values)) if rng.random() < noise.look else step.of
        sign = SIGNS[step.kind]
        if rng.random() < noise.sign:
            sign = _OTHER_SIGN[sign]
        right = operand(step, values)
        value = _perturb(apply_operation(sign, values[of], right), rng if rng.random() < noise.sum else None)
        other = f"{step.other} " if step.kind == "and" else ""
        words.append(f"; {of} {values[of]} {sign} {other}{right} = {step.person}")
        if step.person == story.target or rng.random() < noise.stop:
            break
        words.append(str(value))
        values[step.person] = value
    return " ".join([*words, rf"? {value} </think> \boxed{{ {value} }}"])


def _perturb(value: int, rng: random.Random | None) -> int:
    """Return ``value`` clipped to the vocabulary; with ``rng``, a wrong value near it."""
    off = rng.choice((-10, -1, 1, 10)) if rng is not None else 0
    return max(0, min(TOP, value + off))
