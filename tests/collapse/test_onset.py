"""Where a collapse began: the last rollout that a run may go back to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from benchmarks.collapse import COLLAPSES, LEARNING, STARTS, moving, simulated
from rlvr_cli.collapse import rules as collapse_rules
from rlvr_cli.collapse.rules import Mean
from rlvr_cli.collapse.watch import PATTERNS, CollapseWatch
from tests.collapse.test_watch import line, run_of

PROBLEMS = 16
BEGINS = 40


def last_sound(rows: list[dict[str, Any]], after: int = 0) -> tuple[int, int]:
    """The last sound rollout of the first collapse that is named after ``after``, and the rollout that showed it."""
    watch = CollapseWatch(PROBLEMS)
    for row in rows:
        watch.see(row)
        if (found := watch.begins(row["rollout"])) and row["rollout"] > after:
            return watch.last_sound(found), row["rollout"]
    raise AssertionError("no collapse")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_breaks_down_at_once_was_sound_until_then(pattern: str) -> None:
    rng = np.random.default_rng(1)
    curves = moving(COLLAPSES[pattern], BEGINS + 40, BEGINS, 1, **STARTS.get(pattern, {}))
    for _ in range(10):
        sound, _ = last_sound(simulated(curves, rng), BEGINS)
        assert BEGINS - 8 <= sound <= BEGINS


def test_what_goes_slowly_was_sound_until_it_was_nearer_to_its_end_than_to_its_beginning() -> None:
    slow = [(1, {"length": 400.0 - 10 * step, "accuracy": 0.4 - 0.01 * step}) for step in range(30)]
    sound, shown = last_sound(run_of((20, {}), *slow))
    half = next(20 + step for step, (_, numbers) in enumerate(slow) if numbers["length"] < (400 * 200) ** 0.5)
    assert sound < half < shown - 5, "long before it is named, and before half of the way"


def test_it_is_never_later_than_the_rollouts_that_show_it_nor_before_the_first() -> None:
    for rollouts in (3, 8):
        sound, shown = last_sound(run_of((rollouts, {}), (12, {"length": 100.0, "accuracy": 0.1})))
        assert 0 <= sound <= shown + 1 - CollapseWatch(PROBLEMS).window and sound == rollouts - 1


def test_a_policy_that_learned_before_was_not_collapsed_when_it_knew_less() -> None:
    """Its accuracy was low at first and it got longer and surer by learning: like after the fall."""
    learning = moving(LEARNING, 45, 0, 40)
    numbers = [{name: float(curve[rollout]) for name, curve in learning.items()} for rollout in range(45)]
    rows = [line(rollout, **values) for rollout, values in enumerate(numbers)]
    after = {**numbers[-1], "accuracy": 0.3, "diversity": 0.1, "entropy": 0.01}
    rows += [line(45 + number, **after) for number in range(10)]
    sound, _ = last_sound(rows)
    assert 38 <= sound <= 44, "where it was at its best"


def test_no_rule_looks_at_more_of_a_long_run_than_its_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read again at a resume must not take the square of a run's length."""
    seen: list[int] = []

    def counting(points: Sequence[tuple[Mean, Mean]], *rest: Any) -> None:
        seen.append(len(points))

    monkeypatch.setattr(collapse_rules, "reward_hacking", counting)
    CollapseWatch(PROBLEMS).see_all(run_of((200, {})))
    assert len(seen) == 200 and max(seen) == 80
