"""Alerts of a training: each is raised soon after it begins; noise and success raise none."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from rlvr_cli.collapse.alerts import AlertMonitor, active_alerts, alert_lines

PROBLEMS = 16
STEADY = {"length": 400.0, "entropy": 0.6, "diversity": 0.9, "truncated": 0.05, "accuracy": 0.5}
LEARNED = {"length": 1200.0, "entropy": 0.15, "diversity": 0.5, "accuracy": 0.9}
HARM = {"accuracy": 0.1}
COLLAPSES: dict[str, dict[str, float]] = {
    "accuracy_drop": {**HARM},
    "length_collapse": {"length": 120.0, **HARM},
    "length_explosion": {"length": 1400.0, **HARM},
    "entropy_collapse": {"entropy": 0.2, "diversity": 0.4, **HARM},
    "entropy_explosion": {"entropy": 1.5, **HARM},
}


def line(rollout: int, **numbers: float) -> dict[str, Any]:
    return {"rollout": rollout, "nonzero_advantage": 0.6, **STEADY, "accuracy/se": 0.0, **numbers}


def run_of(*sections: tuple[int, Mapping[str, float]]) -> list[dict[str, Any]]:
    """So many rollouts with such numbers, section after section."""
    numbers = [dict(values) for count, values in sections for _ in range(count)]
    return [line(rollout, **values) for rollout, values in enumerate(numbers)]


def noisy(rng: random.Random, rollouts: int, end: Mapping[str, float], begin: int, length: int) -> list[dict[str, Any]]:
    """A run that moves from ``STEADY`` to ``end`` over ``length`` rollouts; 10% noise, accuracy of 16 x 8 draws."""
    rows = []
    for rollout in range(rollouts):
        moved = min(1.0, max(0.0, (rollout - begin) / length))
        row: dict[str, Any] = {"rollout": rollout, "nonzero_advantage": 0.6}
        for name, start in STEADY.items():
            row[name] = (start + moved * (end.get(name, start) - start)) * rng.lognormvariate(0, 0.1)
        share = STEADY["accuracy"] + moved * (end.get("accuracy", STEADY["accuracy"]) - STEADY["accuracy"])
        row["accuracy"] = sum(rng.random() < share for _ in range(128)) / 128
        rows.append(row)
    return rows


@pytest.mark.parametrize("end", [{}, LEARNED], ids=["steady", "learning"])
def test_noise_and_success_raise_nothing(end: Mapping[str, float]) -> None:
    rng = random.Random(1)
    raised = sum(bool(AlertMonitor(PROBLEMS, rows=noisy(rng, 60, end, 5, 50)).alerts()) for _ in range(100))
    assert raised <= 1


@pytest.mark.parametrize("length", [1, 20])
@pytest.mark.parametrize("name", list(COLLAPSES))
def test_every_collapse_is_reported(name: str, length: int) -> None:
    rng = random.Random(2)
    for _ in range(5):
        alerts = AlertMonitor(PROBLEMS, rows=noisy(rng, 70, COLLAPSES[name], 30, length)).alerts()
        begun = {alert.name: alert for alert in alerts}
        assert name in begun and 28 <= begun[name].first <= 30 + length + 6 and begun[name].lasting


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ({"length": 200.0, **HARM}, {"length_collapse", "accuracy_drop"}),
        ({"length": 201.0, **HARM}, {"accuracy_drop"}),
        ({"length": 200.0}, {"length_collapse"}),
        ({"length": 200.0, "accuracy": 0.51}, set()),
        ({"length": 800.0}, set()),
        ({"length": 800.0, "truncated": 0.5}, {"length_explosion"}),
        ({"entropy": 0.3, "diversity": 0.73}, set()),
        ({"entropy": 0.3, "diversity": 0.72}, {"entropy_collapse"}),
        ({"entropy": 1.2}, set()),
        ({"entropy": 1.2, **HARM}, {"entropy_explosion", "accuracy_drop"}),
        ({"accuracy": 0.41}, set()),
        ({"accuracy": 0.39}, {"accuracy_drop"}),
    ],
)
def test_the_bounds_of_the_rules(after: dict[str, float], expected: set[str]) -> None:
    alerts = AlertMonitor(PROBLEMS, rows=run_of((10, {}), (10, after))).alerts()
    assert {alert.name for alert in alerts} == expected


def test_a_fall_within_its_standard_error_is_noise() -> None:
    rows = [{**row, "accuracy/se": 0.2} for row in run_of((10, {}), (10, {"accuracy": 0.2}))]
    assert not AlertMonitor(PROBLEMS, rows=rows).alerts()


def test_an_alert_that_passes_and_one_that_returns() -> None:
    """Within ten rollouts it is the same alert; the columns of each rollout say what is on."""
    bad = {"length": 900.0, **HARM}
    rows = run_of((10, {}), (8, bad), (8, {}), (8, bad), (30, {}))
    monitor = AlertMonitor(PROBLEMS)
    raised = []
    for row in rows:
        raised += [alert.name for alert in monitor.add(row)]
        row |= monitor.fields(row["rollout"])
    assert raised.count("length_explosion") == 1
    (alert,) = [alert for alert in monitor.alerts() if alert.name == "length_explosion"]
    assert not alert.lasting and alert.first == 12 and "length 900 from 400 at the start" in str(alert)
    assert "length explosion, rollouts 13-20" in alert_lines(rows)
    assert active_alerts(rows[17]) == "accuracy drop, length explosion" and active_alerts(rows[-1]) == ""
    assert AlertMonitor(PROBLEMS, rows=rows).alerts() == monitor.alerts(), "a resumed run raises the same alerts"


def test_an_update_that_is_skipped_late_in_a_rollout_is_of_that_rollout() -> None:
    """Four updates a rollout; the counter of skips grows at the third update of the last rollout."""
    rows = [
        {**row, "skips": int(row["rollout"] == 5 and update >= 2)} for row in run_of((6, {})) for update in range(4)
    ]
    monitor = AlertMonitor(PROBLEMS)
    raised = [(place, alert.name) for place, row in enumerate(rows) for alert in monitor.add(row)]
    assert raised == [(22, "non_finite")]
    assert [(alert.name, alert.first) for alert in monitor.alerts()] == [("non_finite", 5)]
    assert monitor.fields(5)["alert/non_finite"] == 1 and monitor.fields(4)["alert/non_finite"] == 0


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        *(("11111111", []), ("00", []), ("0010010", []), ("000", [2]), ("0000000000000000", [2])),
        *(("1100011000", [4]), ("000" + "1" * 12 + "000", [2, 17])),
    ],
)
def test_three_rollouts_without_a_signal_are_reported_once(states: str, expected: list[int]) -> None:
    rows = [{"rollout": index, "nonzero_advantage": int(state) / 2} for index, state in enumerate(states)]
    monitor = AlertMonitor(PROBLEMS)
    assert [row["rollout"] for row in rows if monitor.add(row)] == expected


def test_the_summary_of_a_run_without_a_signal() -> None:
    def summary(states: str) -> str | None:
        rows = ({"rollout": i, "nonzero_advantage": int(state) / 2, "accuracy": 0.0} for i, state in enumerate(states))
        return AlertMonitor(PROBLEMS, rows=rows).no_signal_summary()

    assert summary("1101001") is None
    assert "nothing was learned: no completion of 4 rollouts" in str(summary("0000"))
    assert "3 of 6 rollouts" in str(summary("110001")) and "recovered" in str(summary("110001"))
    assert "3 of 5 rollouts" in str(summary("11000")) and "the last ones too" in str(summary("11000"))


@pytest.mark.parametrize(
    ("numbers", "reason", "remedy"),
    [
        ({"accuracy": 1.0, "reward": 1.0, "reason/correct": 1.0}, "all completions were correct", "harder problems"),
        ({"accuracy": 0.0, "reward": 0.0, "reason/bad_format": 0.75}, "no completion was correct", "easier problems"),
        ({"accuracy": 0.0, "truncated": 0.9, "reason/too_long": 0.9}, "90% were cut", "rollout.max_new_tokens"),
        ({"accuracy": 0.0, "unscorable": 1.0, "reason/timeout": 1.0}, "100% timeout", "rollouts/"),
        ({"accuracy": 0.5, "reward": 0.5, "diversity": 0.125}, "equal rewards", "rollout.group_size"),
        ({"accuracy": "altered", "reward": None}, "equal rewards", "rollout.group_size"),
    ],
)
def test_the_reason_of_a_missing_signal(numbers: dict[str, Any], reason: str, remedy: str) -> None:
    monitor = AlertMonitor(PROBLEMS, rows=({"rollout": i, "nonzero_advantage": 0.0, **numbers} for i in range(4)))
    (alert,) = monitor.alerts()
    for text in (str(alert), str(monitor.no_signal_summary())):
        assert reason in text and remedy in text
