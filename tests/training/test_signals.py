"""What the metrics say of the verifier, and of a format that is learned in place of answers."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from benchmarks.hostile_texts import problems_of
from rlvr_cli.config.load import choose_task
from rlvr_cli.training.metrics import rollout_summary


def row(reason: str, *, scorable: bool = True, format: float = 1.0, problem: str = "a") -> dict[str, Any]:
    return {
        "problem": problem,
        "completion": reason,
        "reward": format if scorable else None,
        "clean_reward": format if scorable else None,
        "parts": {"format": format if scorable else 0.0},
        "correct": reason == "correct",
        "reason": reason,
        "scorable": scorable,
        "tokens": 3,
        "log_prob": -1.5,
        "entropy": 0.9,
        "truncated": False,
        "advantage": 0.0,
    }


def test_timeouts_and_unparsed_answers_have_rates_of_their_own() -> None:
    """A gold answer that cannot be read is as unparsed as a response's; a death is a timeout."""
    rows = [
        row("correct"),
        row("wrong"),
        row("unparsed"),
        row("unparsed", scorable=False),
        row("timeout", scorable=False),
        row("timeout", scorable=False),
        row("died", scorable=False),
        row("no_answer"),
    ]
    summary = rollout_summary(rows, ("correct", "wrong", "no_answer", "timeout", "unparsed"))
    assert summary["verifier/timeout"] == 3 / 8 and summary["verifier/unparsed"] == 2 / 8
    assert summary["unscorable"] == 4 / 8
    assert "format" not in summary


def test_the_format_is_a_share_of_its_range_over_what_could_be_scored() -> None:
    rows = [row("wrong", format=-1.0), row("correct"), row("correct"), row("wrong"), row("timeout", scorable=False)]
    summary = rollout_summary(rows, ("correct", "wrong"), (-1.0, 1.0))
    assert summary["reward/format"] == 0.5 and summary["format"] == 0.75
    assert "format/se" not in summary, "one problem has no spread"


def test_a_part_that_a_verdict_lacks_is_0_for_it() -> None:
    """As of a user's judge that returns a number for some responses, and a dict with parts for others."""
    rows = [{**row("wrong"), "parts": {"reward": 0.5}}, {**row("correct"), "parts": {"answer": 1.0, "bonus": 0.5}}]
    summary = rollout_summary(rows, ("correct", "wrong"))
    assert [summary[f"reward/{name}"] for name in ("reward", "answer", "bonus")] == [0.25, 0.5, 0.25]


def test_diversity_is_of_the_completions_of_the_same_problem() -> None:
    rows = [row(text, problem=problem) for problem in "ab" for text in ("correct", "correct", "wrong", "no_answer")]
    assert rollout_summary(rows, ("correct",))["diversity"] == 6 / 8
    assert rollout_summary([row("wrong", problem=problem) for problem in "abcd"], ("wrong",))["diversity"] == 1


def test_the_entropy_is_a_mean_over_tokens_and_estimated_where_the_engine_does_not_tell() -> None:
    rows = [{**row("wrong"), "tokens": 1, "entropy": 0.5, "log_prob": -0.25}, row("correct")]
    assert rollout_summary(rows, ())["entropy"] == pytest.approx((0.5 + 0.9) / 4)
    rows[1]["entropy"] = None
    assert rollout_summary(rows, ())["entropy"] == pytest.approx((0.25 + 1.5) / 4)
    rows[0]["log_prob"] = None
    assert rollout_summary(rows, ())["entropy"] == pytest.approx(1.5 / 3)
    rows[1]["log_prob"] = None
    assert rollout_summary(rows, ())["entropy"] is None


def test_standard_errors_take_the_problem_as_the_unit() -> None:
    """Completions that agree within a problem are one piece of evidence, however many they are.

    A completion without a verdict is not correct, and its reward is in no mean.
    """
    means = {"a": 1.0, "b": 0.0, "c": 1.0, "d": 0.0}
    rows = [
        row("correct" if mean else "wrong", format=mean, problem=name) for name, mean in means.items() for _ in range(8)
    ]
    summary = rollout_summary(rows, ("correct",), (0.0, 1.0))
    assert summary["accuracy/se"] == summary["format/se"] == pytest.approx(statistics.stdev(means.values()) / 2)
    timeouts = [row("timeout", scorable=False, problem="e") for _ in range(8)]
    summary = rollout_summary([*rows, *timeouts], ("correct",), (0.0, 1.0))
    assert summary["accuracy"] == 0.4 and summary["format"] == 0.5
    assert summary["accuracy/se"] == pytest.approx(statistics.stdev([*means.values(), 0.0]) / 5**0.5)
    assert summary["format/se"] == pytest.approx(statistics.stdev(means.values()) / 2)


@pytest.mark.parametrize(
    ("name", "overrides", "expected"), [("kk", (), (-1.0, 1.0)), ("countdown", (), (0.0, 0.1)), ("math", (), None)]
)
def test_what_each_task_pays_for_the_format(
    name: str, overrides: tuple[str, ...], expected: tuple[float, float] | None
) -> None:
    config = choose_task(name, overrides, generated=True)
    task = config.for_model("logic_rl")
    assert task.format_range == expected
    judged = task.judge(problems_of(task, "train", 1, 0)[0], "No tags at all.")
    if expected is not None:
        assert judged.parts["format"] == expected[0]
    else:
        assert "format" not in judged.parts, "a part for the format has a range"
