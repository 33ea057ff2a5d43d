"""Rollouts in which no completion has an advantage: when one is told, and what is said at the end."""

from __future__ import annotations

from typing import Any

import pytest

from rlvr_cli.collapse.alerts import SignalWatch, alert_spans


def watched(states: str, updates: int = 2) -> tuple[SignalWatch, list[dict[str, Any]]]:
    """A run of rollouts with (1) and without (0) a signal, and its lines with the alert in them."""
    watch, rows = SignalWatch(), []
    for rollout, state in enumerate(states):
        for _ in range(updates):
            row = {"rollout": rollout, "nonzero_advantage": int(state) / 2, "reward": -3.0, "accuracy": 0.0}
            watch.see(row)
            rows.append({**row, **watch.fields(rollout)})
    return watch, rows


@pytest.mark.parametrize(
    ("states", "told"),
    [
        ("11111111", []),
        ("00", []),
        ("0010010", []),
        ("000", [2]),
        ("0000000000000000", [2]),
        ("1100011000", [4]),
        ("000" + "1" * 12 + "000", [2, 17]),
    ],
)
def test_three_rollouts_in_a_row_are_told_once(states: str, told: list[int]) -> None:
    watch, rows = watched(states)
    assert [rollout for rollout in range(len(states)) if watch.begins(rollout)] == told
    again = SignalWatch()
    again.see_all(rows)
    assert [rollout for rollout in range(len(states)) if again.begins(rollout)] == told, "a resumed run goes on exactly"
    spans = [span for span in alert_spans(rows) if span.alert == "no_signal"]
    assert {span.first for span in spans} >= set(told) and all(span.evidence for span in spans)


def test_the_end_of_a_run_says_what_was_told() -> None:
    assert watched("1101001")[0].ending() is None
    assert "nothing was learned: in none of the 4 rollouts" in str(watched("0000")[0].ending())
    assert str(watched("110001")[0].ending()).startswith("3 of 6 rollouts")


def test_a_training_that_samples_nothing_has_no_such_alert() -> None:
    watch = SignalWatch()
    watch.see_all({"rollout": number, "loss": 1.0} for number in range(5))
    assert watch.fields(4) == {} and watch.ending() is None
