r"""Word problems of several steps: each person's number follows from an earlier person's. Answers are whole numbers.

The compact language of the lab's tiny model:

    prompt     Ada has 14 . Ben has half of Ada . Cleo has Ben and Ada . Dan ? 6 fewer than Cleo . <think>
    response   Ada 14 ; Ada 14 / 2 = Ben 7 ; Ben 7 + Ada 14 = Cleo 21 ; Cleo 21 - 6 = Dan ? 15 </think>
               \boxed{ 15 }

The target person has `?` in place of `has`. The reasoning follows the sentences: the referenced person and number, the
operation, the person with the result, and `?` for the target. So every step is local: a look-up of a name and its
number, and a calculation.
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
# The operation of each kind on the referenced value.
SIGNS: Mapping[Kind, str] = {"more": "+", "fewer": "-", "times": "*", "half": "/", "and": "+"}

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ida", "Jon", "Kim", "Lou")
LARGEST = 60
# At most 10 people: the first, one per step, and one after the target.
MAX_STEPS = 8
_FIRST = (2, 20)
_ADDED, _FACTOR = (1, 12), (2, 5)
# Probabilities: a sentence refers to the previous person; a person follows the target.
_P_PREVIOUS, _P_AFTER_TARGET = 0.6, 0.25
_OBJECTS = ("marbles", "stamps", "shells", "cards", "coins", "beads")


@dataclass(frozen=True)
class Step:
    """A sentence that derives the number of ``person`` from that of ``of``.

    ``number``: the second operand, 2 for half; None for ``and``. ``other``: the second person of ``and``.
    """

    person: str
    kind: Kind
    of: str
    number: int | None = None
    other: str | None = None


@dataclass(frozen=True)
class Story:
    """A word problem: ``first`` has ``start``, each step adds a person, the question asks for ``target``."""

    first: str
    start: int
    steps: tuple[Step, ...]
    target: str

    @property
    def needed(self) -> tuple[Step, ...]:
        people = [step.person for step in self.steps]
        return self.steps[: people.index(self.target) + 1]

    def values(self) -> dict[str, int]:
        """Return each person's number. Raises KeyError for a reference to an undefined person."""
        values = {self.first: self.start}
        for step in self.steps:
            values[step.person] = apply_operation(SIGNS[step.kind], values[step.of], operand(step, values))
        return values

    @property
    def structure(self) -> str:
        """The operations up to the target with their numbers, without people and the first number."""
        return " ".join(f"{step.kind}{step.number or ''}" for step in self.needed)


def operand(step: Step, values: Mapping[str, int]) -> int:
    return step.number if step.number is not None else values[step.other or ""]


def apply_operation(sign: str, lhs: int, rhs: int) -> int:
    if sign == "+":
        return lhs + rhs
    if sign == "-":
        return lhs - rhs
    return lhs * rhs if sign == "*" else lhs // rhs


def draw_story(rng: random.Random, steps: int) -> Story:
    """Draw a story with ``steps`` steps to the target and values of 1 to 60."""
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
    values = story.values()
    signs = {"*": r"\cdot", "/": r"\div"}
    lines = [f"{story.first} has ${story.start}$."]
    for step in story.needed:
        sign = SIGNS[step.kind]
        sum_ = f"{values[step.of]} {signs.get(sign, sign)} {operand(step, values)} = {values[step.person]}"
        lines.append(f"{step.person} has ${sum_}$.")
    return " ".join(lines)


def story_problem(story: Story, rng: random.Random) -> Problem:
    """Return the problem of a story, with the story in its data for other prompt styles."""
    needed, question = len(story.needed), write_question(story, rng)
    data = {"answer": str(story.values()[story.target]), "solution": write_solution(story), "story": to_row(story)}
    subgroup = f"{needed} step{'s' if needed > 1 else ''}"
    return Problem(f"math-{text_digest(question)[:16]}", question, data, subgroup, story.structure)


def add_story(problem: Problem, fields: Mapping[str, Any], where: str) -> Problem:
    """Add the row's story, if it is a list. Raises UserError if it is malformed or has another answer."""
    row = fields.get("story")
    if not isinstance(row, list):
        return problem
    story = from_row(row, where)
    answer = str(story.values()[story.target])
    if answer != problem.data["answer"].strip():
        raise UserError(f"{where}: answer must be the story's, {answer}; got {problem.data['answer']}")
    return replace(problem, data={**problem.data, "story": row}, structure=story.structure)


def to_row(story: Story) -> list[list[Any]]:
    """Convert a story to JSON lists: first person, steps, target."""
    steps = [[step.person, step.kind, step.of, step.other or step.number] for step in story.steps]
    return [[story.first, story.start], *steps, [story.target]]


def from_row(value: Any, where: str) -> Story:
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

# The largest number in the vocabulary; wrong steps may exceed LARGEST.
TOP = 99
# The first word of the reasoning: the last of the prompt, or the first of the response.
OPENING = "<think>"
_OTHER_SIGN = {"+": "-", "-": "+", "*": "+", "/": "-"}


class Noise(Section):
    """Probabilities of errors in a trace; all zero = a clean trace.

    `sign`: another operation (more as fewer, fewer as more, times as more, half as fewer). `look`: another person's
    number. `sum`: a result off by 1 or 10. `stop`: the answer is an earlier person's.
    """

    sign: Probability = 0.0
    look: Probability = 0.0
    sum: Probability = 0.0
    stop: Probability = 0.0


CLEAN = Noise()


def compact_vocabulary() -> list[str]:
    words = ["?", ".", ";", "=", "+", "-", "*", "/", "has", "more", "fewer", "than", "times", "half", "of", "and"]
    return [*words, OPENING, "</think>", r"\boxed{", "}", *NAMES, *map(str, range(TOP + 1))]


def write_compact_prompt(story: Story, *, opened: bool = True) -> str:
    """Return the compact prompt; if ``opened`` it ends in `<think>`, else the response begins with that."""
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
    """Return a response after the prompt's `<think>`. A clean one ends in the correct answer."""
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
    """Clip ``value`` to the vocabulary, after adding an error if ``rng`` is set."""
    off = rng.choice((-10, -1, 1, 10)) if rng is not None else 0
    return max(0, min(TOP, value + off))
