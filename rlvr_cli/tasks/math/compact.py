r"""The compact form of word problems that the lab's tiny model reads and writes.

    prompt     Ada has 14 . Ben has half of Ada . Cleo has Ben and Ada . Dan ? 6 fewer than Cleo . <think>
    response   Ada 14 ; Ada 14 / 2 = Ben 7 ; Ben 7 + Ada 14 = Cleo 21 ; Cleo 21 - 6 = Dan ? 15 </think>
               \boxed{ 15 }

The question is a mark: the person asked for has `?` in place of `has`. The reasoning takes the sentences in turn: whose
number it starts from with that number, what is done to it, who has the result, and `?` where that is the person asked
for. So every step is local: a look-up finds a name and what stands behind it, and a step has one calculation.
"""

from __future__ import annotations

import random

from rlvr_cli.core.section import Probability, Section
from rlvr_cli.tasks.math.stories import NAMES, SIGNS, Step, Story, operand, result

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


def vocabulary() -> list[str]:
    """Every word of the compact form, in a fixed order."""
    words = ["?", ".", ";", "=", "+", "-", "*", "/", "has", "more", "fewer", "than", "times", "half", "of", "and"]
    return [*words, OPENING, "</think>", r"\boxed{", "}", *NAMES, *map(str, range(TOP + 1))]


def prompt(story: Story, *, opened: bool = True) -> str:
    """The story in compact form; ``opened``: with `<think>`, which is the response's own first word otherwise."""
    words = [f"{story.first} has {story.start} ."]
    words += [_sentence(step, "?" if step.who == story.asked else "has") for step in story.steps]
    return " ".join([*words, *([OPENING] if opened else [])])


def _sentence(step: Step, verb: str) -> str:
    said = {
        "more": f"{step.number} more than {step.of}",
        "fewer": f"{step.number} fewer than {step.of}",
        "times": f"{step.number} times {step.of}",
        "half": f"half of {step.of}",
        "and": f"{step.of} and {step.other}",
    }
    return f"{step.who} {verb} {said[step.kind]} ."


def trace(story: Story, rng: random.Random, noise: Noise = CLEAN) -> str:
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
