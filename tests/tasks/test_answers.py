"""The box that holds the answer of a response."""

from __future__ import annotations

from rlvr_cli.tasks.answers import LONGEST_BOX, MOST_BOXES, boxed_answer, last_tagged


def test_the_last_closed_box_behind_the_thinking() -> None:
    for text, answer in [
        (r"so \boxed{5}", "5"),
        (r"\boxed{4} no, \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\fbox{7}", "7"),
        (r"\boxed {7}", "7"),
        (r"$\boxed 7$", "7"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{5", None),
        (r"\boxed{4} and \boxed{5", "4"),
        (r"\boxed{4 and \boxed{5}", "5"),
        (r"\boxed{4} and \boxed{}", None),
        (r"\boxedness{4}", None),
        ("5", None),
        ("", None),
        (r"<think>\boxed{4}</think> \boxed{5}", "5"),
        (r"<think>\boxed{5}</think> five", None),
        (r"\boxed{4}</think>\boxed{5}</think>\boxed{6}", "6"),
        (r"<think>\boxed{4}", "4"),
    ]:
        assert boxed_answer(text) == answer, (text, answer)


def test_a_box_closes_within_so_many_characters_or_never() -> None:
    longest = "5" * (LONGEST_BOX - 2)
    assert boxed_answer(rf"\boxed{{{longest}}}") == longest
    assert boxed_answer(rf"\boxed{{{longest}5}}") is None
    assert boxed_answer(rf"\boxed{{5{' ' * LONGEST_BOX}}}") is None


def test_of_unclosed_boxes_only_the_last_ones_are_looked_at() -> None:
    assert boxed_answer(r"\boxed{5}" + r"\boxed{" * (MOST_BOXES - 1)) == "5"
    assert boxed_answer(r"\boxed{5}" + r"\boxed{" * MOST_BOXES) is None


def test_every_reading_takes_linear_time() -> None:
    """What is not linear in it takes hours."""
    for piece in (
        *("\\boxed{", "\\boxed{}", "}", "{", "\\", "\\boxed   ", "<answer>", "</answer>", "\\fbox", "\\boxed{5}"),
    ):
        text = piece * (1_000_000 // len(piece))
        boxed_answer(text)
        last_tagged(text)
