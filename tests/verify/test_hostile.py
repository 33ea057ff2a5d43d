"""A few hundred hostile completions through each task's public judge; the whole table: benchmarks/hostile.py."""

from __future__ import annotations

import random
import sys

import pytest

from benchmarks.hostile import RULES, TASKS, run
from benchmarks.hostile_texts import BOXED, completions, problems_of, right_answer, wrong_answer
from rlvr_cli.config.load import choose_task
from rlvr_cli.verify.pool import MathPool

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")

COUNT = 400
# math-verify, which the paper rule calls, has no guard of size: one pair in three takes all of its deadline.
COUNTS = {("math", "paper"): 4, ("math", "strict"): 60}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", TASKS)
def test_no_crash_and_no_verdict_missing(name: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = MathPool(deadline=1.0)
    monkeypatch.setattr("rlvr_cli.verify.pool._shared", pool)
    count = COUNTS.get((name, rule), COUNT)
    with pool:
        result = run(name, rule, count, seed=1)
    assert (result.completions, result.labelled) == (count, count // 2)
    assert (result.crashes, result.missing) == (0, 0), result.examples
    assert result.unharmed
    if rule == "strict":
        assert result.false_rewards == 0, result.examples
        assert set(result.by_design) <= ({"several, right last"} if name in BOXED else set())


@pytest.mark.parametrize("name", TASKS)
def test_the_labelled_part_is_wrong_and_its_parts_are_not(name: str) -> None:
    """The right answer in the same wrapping earns the reward, so a wrong verdict is not for the wrapping's sake."""
    config = choose_task(name, rule="strict", generated=True)
    task = config.for_model("logic_rl")
    problems = problems_of(task, "dev", 20, 1)
    made = list(completions(task, problems, COUNT, seed=1))
    assert made == list(completions(task, problems, COUNT, seed=1))
    swapped = 0
    for completion in made:
        if completion.kind != "wrong":
            continue
        head, _, tail = completion.text.rpartition("</think> ")
        opening, closing = (r"\boxed{", "}") if name in ("math", "gsm8k") else ("<answer> ", " </answer>")
        assert tail.startswith(opening) and tail.endswith(closing)
        right = right_answer(task, completion.problem)
        text = f"{head}</think> {opening}{right}{closing}"
        (verdict,) = task.judge_many([completion.problem], [text], [False])
        # Tags in the reasoning are refused by the strict rule, whatever follows.
        swapped += verdict.correct
    assert swapped >= 5


def test_wrong_answers_differ_from_right_ones() -> None:
    for name in TASKS:
        config = choose_task(name, generated=True)
        task = config.for_model("logic_rl")
        for index, problem in enumerate(problems_of(task, "dev", 30, 2)):
            assert wrong_answer(task, problem, random.Random(index)) != right_answer(task, problem)
