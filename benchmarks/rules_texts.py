"""Ways in which models write answers, for `benchmarks.rules`: each with what the response is worth by its meaning."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Answers:
    """The right answer to a problem and a wrong one, as the task's answer is spelled; ``problem`` has its data."""

    right: str
    wrong: str
    data: dict[str, object]
    rng: random.Random


@dataclass(frozen=True)
class Style:
    """A way of writing. ``worth``: whether the one final answer, in the asked-for place after the reasoning, is right.

    ``write`` gives the response; None where the style cannot be written for this problem.
    """

    name: str
    worth: bool
    write: Callable[[Answers], str | None]


def styles(task: str) -> list[Style]:
    """The styles of a task; `gsm8k_tags` is gsm8k with GTPO's tags."""
    return {"kk": _kk, "countdown": _countdown, "math": _boxed, "gsm8k": _gsm8k, "gsm8k_tags": _tags, "hitab": _hitab}[
        task
    ]()


def _fixed(name: str, worth: bool, template: str) -> Style:
    """A style that is a template of the answers: RIGHT and WRONG stand for them."""
    return Style(name, worth, lambda a: template.replace("RIGHT", a.right).replace("WRONG", a.wrong))


def _people(answers: Answers, separator: str, line: Callable[[str, bool], str]) -> str:
    names, solution = answers.data["names"], answers.data["solution"]
    assert isinstance(names, list) and isinstance(solution, list)
    return separator.join(line(name, knight) for name, knight in zip(names, solution, strict=True))


def _role(knight: bool) -> str:
    return "knight" if knight else "knave"


def _kk() -> list[Style]:
    def block(name: str, worth: bool, separator: str, line: Callable[[str, bool], str]) -> Style:
        return Style(name, worth, lambda a: f" Hm. </think><answer>{_people(a, separator, line)}</answer>")

    def groups(answers: Answers) -> str | None:
        names, solution = answers.data["names"], answers.data["solution"]
        assert isinstance(names, list) and isinstance(solution, list)
        sides = [[n for n, knight in zip(names, solution, strict=True) if knight == side] for side in (True, False)]
        if not all(sides):
            return None
        return f" Hm. </think><answer>Knights: {', '.join(sides[0])}. Knaves: {', '.join(sides[1])}.</answer>"

    return [
        _fixed("as the prompt asks, right", True, " Hm. </think><answer>\nRIGHT\n</answer>"),
        _fixed("as the prompt asks, wrong", False, " Hm. </think><answer>\nWRONG\n</answer>"),
        block("commas, `X is a knight`", True, ", ", lambda n, k: f"{n} is a {_role(k)}"),
        block("`X: knight`", True, "\n", lambda n, k: f"{n}: {_role(k)}"),
        block("`X - Knight`, bullets", True, "\n", lambda n, k: f"- {n} - {_role(k).title()}"),
        block("bold role", True, "\n", lambda n, k: f"{n} is a **{_role(k)}**"),
        block("bold name", True, "\n", lambda n, k: f"**{n}** is a {_role(k)}"),
        block("`X is the knight`", True, ", ", lambda n, k: f"{n} is the {_role(k)}"),
        block("`X is not a knave`", True, ", ", lambda n, k: f"{n} is not a {_role(not k)}"),
        Style("`Knights: ... Knaves: ...`", True, groups),
        block("a table", True, "\n", lambda n, k: f"| {n} | {_role(k)} |"),
        _fixed(
            "the answer and why, in the block", True, " Hm. </think><answer>RIGHT\nThis fits all statements.</answer>"
        ),
        _fixed("text after the block", True, " Hm. </think><answer>RIGHT</answer> This fits all statements."),
        _fixed("the answer said twice in the block", True, " Hm. </think><answer>RIGHT\nSo:\nRIGHT</answer>"),
        _fixed("`if` before the answer", False, " Hm. </think><answer>If RIGHT, all statements fit.</answer>"),
        _fixed("the answer denied", False, " Hm. </think><answer>It is false that RIGHT</answer>"),
        _fixed("a question", False, " Hm. </think><answer>RIGHT?</answer>"),
        _fixed("`<think>` written once more", True, "<think> Hm. </think><answer>RIGHT</answer>"),
        _fixed("tags in capitals", True, " Hm. </Think><Answer>RIGHT</Answer>"),
        _fixed("two blocks, right last", False, " Hm. </think><answer>WRONG</answer> Or <answer>RIGHT</answer>"),
        _fixed("`Assistant:` in the reasoning", True, " User: Hm. Assistant: So. </think><answer>RIGHT</answer>"),
        _fixed("a block in the reasoning too", True, " <answer>WRONG</answer>? No. </think><answer>RIGHT</answer>"),
        _fixed("no tags", False, " Hm. </think> RIGHT"),
        _fixed("reasoning not closed", False, " Hm. <answer>RIGHT</answer>"),
        _fixed("cut off", False, " Hm. So RIGHT, but wait"),
    ]


def _countdown() -> list[Style]:
    def block(name: str, worth: bool, inside: str, head: str = " Hm. </think>\n", tail: str = "") -> Style:
        def write(a: Answers) -> str | None:
            text = inside.replace("RIGHT", a.right).replace("WRONG", a.wrong).replace("TARGET", str(a.data["target"]))
            return f"{head}<answer> {text} </answer>{tail.replace('TARGET', str(a.data['target']))}"

        return Style(name, worth, write)

    def signs(a: Answers) -> str | None:
        text = a.right.replace("*", "\u00d7").replace("/", "\u00f7").replace("-", "\u2212")
        return f" Hm. </think>\n<answer> {text} </answer>" if text != a.right else None

    def latex(a: Answers) -> str | None:
        return f" Hm. </think>\n<answer> ${a.right.replace('*', chr(92) + 'times')}$ </answer>"

    def minus_first(a: Answers) -> str | None:
        nums, target = a.data["nums"], a.data["target"]
        assert isinstance(nums, list)
        for place, number in enumerate(nums):
            rest = nums[:place] + nums[place + 1 :]
            if sum(rest) - number == target:
                return f" Hm. </think>\n<answer> -{number} + {' + '.join(map(str, rest))} </answer>"
        return None

    def without_one(a: Answers) -> str | None:
        nums = a.data["nums"]
        assert isinstance(nums, list)
        return f" Hm. </think>\n<answer> {' + '.join(map(str, nums[:-1]))} </answer>"

    return [
        block("as the prompt asks, right", True, "RIGHT"),
        block("as the prompt asks, wrong value", False, "WRONG"),
        Style("a number left out", False, without_one),
        block("the target itself", False, "TARGET"),
        block("a number used twice", False, "RIGHT * 1"),
        block("`... = target` in the block", True, "RIGHT = TARGET"),
        block("`target = ...` in the block", True, "TARGET = RIGHT"),
        block("text on the line of the block", True, "RIGHT", tail=" which is TARGET."),
        block("text on a line after the block", True, "RIGHT", tail="\nSo it equals TARGET."),
        block("a block over three lines", True, "\nRIGHT\n"),
        Style("\u00d7, \u00f7 or \u2212", True, signs),
        Style("LaTeX in the block", True, latex),
        block("bold in the block", True, "**RIGHT**"),
        block(r"`\boxed{}` in the block", True, r"\boxed{RIGHT}"),
        Style(r"`\boxed{}` and no block", False, lambda a: rf" Hm. </think> \boxed{{{a.right}}}"),
        block("words in the block", True, "The equation is RIGHT"),
        Style("a minus before the first number", True, minus_first),
        Style("tags in capitals", True, lambda a: f" Hm. </think>\n<Answer> {a.right} </Answer>"),
        Style(
            "tried in the reasoning, then answered",
            True,
            lambda a: f" <answer> {a.wrong} </answer>? No. </think>\n<answer> {a.right} </answer>",
        ),
        Style(
            "two blocks on a line, right last",
            False,
            lambda a: f" Hm. </think>\n<answer> {a.wrong} </answer> or <answer> {a.right} </answer>",
        ),
        Style(
            "two blocks on a line, right first",
            False,
            lambda a: f" Hm. </think>\n<answer> {a.right} </answer> or <answer> {a.wrong} </answer>",
        ),
        Style("reasoning not closed", False, lambda a: f" Hm.\n<answer> {a.right} </answer>"),
        Style("no tags", False, lambda a: f" Hm. </think>\n{a.right}"),
        Style("cut off in the block", False, lambda a: f" Hm. </think>\n<answer> {a.right}"),
    ]


_SHARED_BOXED = [
    ("as the prompt asks, right", True, r"Hm. So the answer is $\boxed{RIGHT}$."),
    ("as the prompt asks, wrong", False, r"Hm. So the answer is $\boxed{WRONG}$."),
    ("text after the box", True, r"Hm. \[ \boxed{RIGHT} \] This is what was asked for."),
    ("bold box", True, r"**Answer: \boxed{RIGHT}**"),
    ("dollar signs in the box", True, r"\boxed{$RIGHT$}"),
    ("the same box twice", True, r"So $\boxed{RIGHT}$. The final answer is $\boxed{RIGHT}$."),
    ("an earlier result boxed too", True, r"First, $\boxed{WRONG}$. From that, the final answer is $\boxed{RIGHT}$."),
    ("either of two boxes, right last", False, r"The answer is $\boxed{WRONG}$ or $\boxed{RIGHT}$."),
    ("either of two boxes, right first", False, r"The answer is $\boxed{RIGHT}$ or $\boxed{WRONG}$."),
    ("either of two in one box", False, r"\boxed{WRONG \text{ or } RIGHT}"),
    ("a false chain, right last", False, r"\boxed{WRONG = RIGHT}"),
    ("`x = ...` in the box", True, r"\boxed{x = RIGHT}"),
    ("words in the box", True, r"\boxed{The final answer is RIGHT}"),
    ("an unclosed box", False, r"So \boxed{RIGHT"),
    ("no box", False, "The answer is RIGHT."),
    (r"`<answer>` in place of a box", False, "<answer>RIGHT</answer>"),
    (r"a box in `<answer>`", True, r"<answer>\boxed{RIGHT}</answer>"),
    ("thinking, then the box", True, r"<think>Hm, \boxed{WRONG}? No.</think> \boxed{RIGHT}"),
    ("the box in the thinking alone", False, r"<think>So \boxed{RIGHT}.</think> That is it."),
    ("thinking not closed", False, r"<think>Perhaps \boxed{RIGHT}, but wait"),
    ("thinking closed twice", True, r"Hm.</think> So.</think> \boxed{RIGHT}"),
    ("cut off before the box", False, "Hm. So it must be RIGHT, and"),
]  # fmt: skip


def _boxed() -> list[Style]:
    shared = [_fixed(*style) for style in _SHARED_BOXED]
    return [
        *shared,
        Style("a unit in the box", True, lambda a: rf"\boxed{{{a.right}\text{{ units}}}}"),
        Style("`\\dfrac` for `\\frac`", True, lambda a: _changed(a.right, a.right.replace(r"\frac", r"\dfrac"))),
        Style("spaces in the box", True, lambda a: _changed(a.right, a.right.replace(",", " , ").replace("+", " + "))),
    ]


def _changed(old: str, new: str) -> str | None:
    return rf"So $\boxed{{{new}}}$." if new != old else None


def _gsm8k() -> list[Style]:
    inside = [
        ("money", True, r"\boxed{\$RIGHT}"),
        ("money with cents", True, r"\boxed{\$RIGHT.00}"),
        ("a unit in the box", True, r"\boxed{RIGHT\text{ dollars}}"),
        ("a unit of one word", True, r"\boxed{RIGHT miles}"),
        ("per cent", True, r"\boxed{RIGHT\%}"),
        ("a sentence in the box", True, r"\boxed{She has RIGHT left}"),
        ("the sum in the box", True, r"\boxed{1 + 2 = RIGHT}"),
        ("two quantities in the box", False, r"\boxed{RIGHT apples and 3 pears}"),
        ("the number changed by a word", False, r"\boxed{RIGHT thousand}"),
        ("about", False, r"\boxed{more than RIGHT}"),
    ]
    return [*(_fixed(*style) for style in _SHARED_BOXED), *(_fixed(*style) for style in inside)]


def _tags() -> list[Style]:
    full = "<reasoning>\nHm.\n</reasoning>\n<answer>\n{}\n</answer>"
    tail = "<answer>RIGHT</answer>"
    return [
        _fixed("as the prompt asks, right", True, full.format("RIGHT")),
        _fixed("as the prompt asks, wrong", False, full.format("WRONG")),
        _fixed("text after the block", True, full.format("RIGHT") + "\nThis is what was asked for."),
        _fixed("money", True, full.format("$RIGHT")),
        _fixed("a sentence in the block", True, full.format("She has RIGHT left.")),
        _fixed("a box in the block", True, full.format(r"\boxed{RIGHT}")),
        _fixed("the sum in the block", True, full.format("1 + 2 = RIGHT")),
        _fixed("two blocks, right last", False, full.format("WRONG") + "\n<answer>\nRIGHT\n</answer>"),
        _fixed("the block before the reasoning", False, "<answer>RIGHT</answer><reasoning>Hm.</reasoning>"),
        _fixed("the block inside the reasoning", False, "<reasoning>Hm. <answer>RIGHT</answer></reasoning>"),
        _fixed("a block in the reasoning too", True, f"<reasoning><answer>WRONG</answer>? No.</reasoning>{tail}"),
        _fixed("no reasoning tags", False, "Hm. <answer>RIGHT</answer>"),
        _fixed("an unclosed block", False, "<reasoning>Hm.</reasoning><answer>RIGHT"),
        _fixed("a box and no tags", False, r"Hm. \boxed{RIGHT}"),
        _fixed("no tags", False, "The answer is RIGHT."),
    ]  # fmt: skip


def _hitab() -> list[Style]:
    def numbers_only(template: str) -> Callable[[Answers], str | None]:
        def write(a: Answers) -> str | None:
            try:
                float(a.right)
            except ValueError:
                return None
            return template.replace("RIGHT", a.right)

        return write

    def texts_only(template: str) -> Callable[[Answers], str | None]:
        number = numbers_only(template)
        return lambda a: (
            template.replace("RIGHT", a.right).replace("TITLE", a.right.title())
            if number(a) is None and ";" not in a.right
            else None
        )

    def listed(a: Answers) -> str | None:
        return f"<think>Hm.</think><answer>{a.right.replace('; ', ', ')}</answer>" if "; " in a.right else None

    block = "<think>Hm.</think><answer>{}</answer>"
    return [
        _fixed("as the prompt asks, right", True, block.format("RIGHT")),
        _fixed("as the prompt asks, wrong", False, block.format("WRONG")),
        _fixed("text after the block", True, block.format("RIGHT") + " as the table shows."),
        _fixed("no thinking", True, "<answer>RIGHT</answer>"),
        _fixed("`Answer:` in the block", True, block.format("Answer: RIGHT")),
        _fixed("bold", True, block.format("**RIGHT**")),
        Style("several answers, commas", True, listed),
        Style("money", True, numbers_only(block.format("$RIGHT"))),
        Style("per cent sign on a number", True, numbers_only(block.format("RIGHT%"))),
        Style("brackets around a number", True, numbers_only(block.format("(RIGHT)"))),
        Style("a unit", True, numbers_only(block.format("RIGHT people"))),
        Style("a sentence", True, numbers_only(block.format("It was RIGHT."))),
        Style("about", False, numbers_only(block.format("about RIGHT"))),
        Style("capitals", True, texts_only(block.format("TITLE"))),
        Style("a note in brackets", True, texts_only(block.format("RIGHT (2015)"))),
        Style("a footnote mark", True, texts_only(block.format("RIGHT[1]"))),
        _fixed("a box in the block", True, block.format(r"\boxed{RIGHT}")),
        _fixed("a box in place of the block", True, r"<think>Hm.</think> \boxed{RIGHT}"),
        _fixed("a box next to the block, both right", True, block.format("RIGHT") + r" \boxed{RIGHT}"),
        _fixed("two blocks, right last", False, block.format("WRONG") + " or <answer>RIGHT</answer>"),
        _fixed("two blocks, right first", False, block.format("RIGHT") + " or <answer>WRONG</answer>"),
        _fixed("a block in the thinking too", True, "<think><answer>WRONG</answer>? No.</think><answer>RIGHT</answer>"),
        _fixed("thinking not closed", False, "<think>Perhaps <answer>RIGHT</answer>, but wait"),
        _fixed("no tags", False, "<think>Hm.</think> The answer is RIGHT."),
        _fixed("cut off in the block", False, "<think>Hm.</think><answer>RIGHT"),
    ]
