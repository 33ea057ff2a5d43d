"""The rollouts in which an alert was on, read from the lines of a run."""

from __future__ import annotations

from typing import Any

from rlvr_cli.collapse.alerts import AlertSpan, alert_spans


def lines(states: str, updates: int = 2, name: str = "alert/a_b") -> list[dict[str, Any]]:
    return [{"rollout": number, name: int(state)} for number, state in enumerate(states) for _ in range(updates)]


def test_spans_have_their_first_and_last_rollout() -> None:
    assert alert_spans(lines("0011010")) == [AlertSpan("a_b", 2, 3, now=False), AlertSpan("a_b", 5, 5, now=False)]
    assert alert_spans(lines("0111")) == [AlertSpan("a_b", 1, 3, now=True)]
    assert alert_spans(lines("000")) == alert_spans([]) == alert_spans([{"rollout": 0}]) == []


def test_a_rollout_that_is_half_trained_counts() -> None:
    assert alert_spans(lines("001")[:-1]) == [AlertSpan("a_b", 2, 2, now=True)]


def test_spans_of_several_alerts_are_in_the_order_of_time() -> None:
    rows = [{**one, **other} for one, other in zip(lines("0011"), lines("0110", name="alert/c"), strict=True)]
    assert [span.alert for span in alert_spans(rows)] == ["c", "a_b"]


def test_a_span_has_the_numbers_with_which_it_began() -> None:
    rows = lines("0110100000000011", updates=1, name="alert/length_collapse")
    moves = [
        {"number": "length", "before": 40.0, "after": 9.5, "against": "start"},
        {"number": "accuracy", "before": 0.5, "after": 0.125, "against": "best"},
    ]
    rows[1]["collapse"] = [{"pattern": "length_collapse", "first": 1, "evidence": moves, "beside": []}]
    first, second, _ = alert_spans(rows)
    assert first.evidence == "length 9.5 from 40 at the start, accuracy 12.5% from 50.0% at best"
    assert str(first) == f"length collapse, rollouts 2-3: {first.evidence}"
    assert second.evidence == "", "it had been told of shortly before"


def test_people_count_rollouts_from_one() -> None:
    assert str(AlertSpan("format_without_accuracy", 30, 44, now=True)) == (
        "format without accuracy, rollouts 31-45 (the newest)"
    )
    assert str(AlertSpan("a_b", 5, 5, now=False)) == "a b, rollout 6"
