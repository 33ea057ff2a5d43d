"""The table of reasoning-gym's verdicts against ours: every disagreement has a cause that its way of writing shows."""

from __future__ import annotations

import pytest

from benchmarks import rg_verdicts
from benchmarks.rg_verdicts import PAIRS, RULES, judged, read_back, responses, told_in, ways

TERMS = {"knight": "angel", "knave": "devil", "a_knight": "an angel", "a_knave": "a devil"}


def test_words_of_a_puzzle_are_put_in_and_back() -> None:
    text = "Zoey is a knight. Mia IS A KNAVE, Knights: none; not a Knave"
    told = told_in(text, TERMS)
    assert told == "Zoey is an angel. Mia IS A DEVIL, Angels: none; not a Devil"
    assert read_back(told, TERMS).lower() == text.lower()


@pytest.mark.parametrize("name", PAIRS)
def test_verdicts_differ_for_reasons_alone(name: str) -> None:
    pytest.importorskip("reasoning_gym")
    rows = judged(name, responses(name, 24, 2 * len(ways(name)), seed=1))
    right = [one for one in rows if one.style.name in ("as the prompt asks, right", "reasoning-gym's own answer")]
    assert right and all(one.theirs and {one.ours[rule] for rule in RULES} == {"correct"} for one in right)
    wrong = [one for one in rows if "wrong" in one.style.name or "flipped" in one.style.name or "out" in one.style.name]
    assert wrong and not any(one.theirs or "correct" in one.ours.values() for one in wrong)
    # `strict` pays for nothing that is not right; reasoning-gym does.
    assert {one.style.name for one in rows if one.ours["strict"] == "correct" and not one.style.worth} == set()
    paid = {one.style.name for one in rows if one.theirs and not one.style.worth}
    assert ("the answer denied" if name == "knights_knaves" else "reasoning not closed") in paid
    causes = rg_verdicts.differences(name, rows)
    assert sum(int(line.split("|")[3]) for line in causes) == sum(
        one.theirs != (one.ours[rule] == "correct") for rule in RULES for one in rows
    )
