"""Rollouts in which no completion has an advantage: when one is reported, and what is said at the end."""

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
    again = SignalWatch(rows)
    assert [rollout for rollout in range(len(states)) if again.begins(rollout)] == told, "a resumed run goes on exactly"
    spans = [span for span in alert_spans(rows) if span.alert == "no_signal"]
    assert {span.first for span in spans} >= set(told) and all(span.evidence for span in spans)


def test_the_end_of_a_run_says_what_was_told() -> None:
    assert watched("1101001")[0].ending() is None
    assert "nothing was learned: in none of 4 rollouts" in str(watched("0000")[0].ending())
    recovered, ended = str(watched("110001")[0].ending()), str(watched("11000")[0].ending())
    assert recovered.startswith("3 of 6 rollouts") and "got over it" in recovered
    assert ended.startswith("3 of 5 rollouts") and "ended so" in ended


@pytest.mark.parametrize(
    ("numbers", "why", "help_"),
    [
        ({"accuracy": 1.0, "reward": 1.0, "reason/correct": 1.0}, "all were right", "harder problems"),
        ({"accuracy": 0.0, "reward": 0.0, "reason/bad_format": 0.75}, "none was right", "easier problems"),
        ({"accuracy": 0.0, "truncated": 0.9, "reason/too_long": 0.9}, "90% were cut", "rollout.max_new_tokens"),
        ({"accuracy": 0.0, "unscorable": 1.0, "reason/timeout": 1.0}, "100% timeout", "rollouts/"),
        ({"accuracy": 0.5, "reward": 0.5, "diversity": 0.125}, "rewarded alike", "rollout.group_size"),
        ({"accuracy": "altered", "reward": None}, "rewarded alike", "rollout.group_size"),
    ],
)
def test_it_says_why_and_what_helps(numbers: dict[str, Any], why: str, help_: str) -> None:
    rows = [
        {"rollout": number, "nonzero_advantage": 0.0, **numbers, "alert/no_signal": number > 1} for number in range(4)
    ]
    watch = SignalWatch(rows)
    (span,) = alert_spans(rows)
    for said in (watch.sentence(), str(watch.ending()), span.evidence):
        assert why in said and help_ in said
    assert "since rollout 1:" in span.evidence


def test_a_training_that_samples_nothing_has_no_such_alert() -> None:
    watch = SignalWatch({"rollout": number, "loss": 1.0} for number in range(5))
    assert watch.fields(4) == {} and watch.ending() is None
