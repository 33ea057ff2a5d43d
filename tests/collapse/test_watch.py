"""Which pattern a run shows: every one is named soon after it begins, noise and success are not."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from benchmarks.collapse import COLLAPSES, LEARNING, STARTS, STEADY, found_in, moving
from rlvr_cli.collapse.rules import Movement, Thresholds, point_of
from rlvr_cli.collapse.watch import MEANINGS, PATTERNS, Collapse, CollapseWatch, detect

PROBLEMS = 16
BEGINS = 30
# Rollouts from the beginning of an abrupt collapse, and of one over 20 rollouts, until it is named.
SOON, LATER = 6, 25


def names(found: list[Collapse]) -> list[str]:
    return [collapse.pattern for collapse in found]


# --- runs with noise -----------------------------------------------------------------------------------------------


def test_a_thousand_steady_runs_raise_nothing() -> None:
    assert not any(found_in(moving({}, 50, 0, 1), 1000, seed=1))


def test_runs_that_learn_raise_nothing() -> None:
    """Three times as long, a quarter of the entropy, half of the diversity: and right."""
    assert not any(found_in(moving(LEARNING, 80, 5, 60), 100, seed=2))


@pytest.mark.parametrize("problems", [4, 64])
def test_neither_do_small_and_large_batches(problems: int) -> None:
    assert not any(found_in(moving(LEARNING, 80, 5, 60), 50, seed=3, problems=problems))


def test_every_collapse_is_named_as_what_it_is() -> None:
    for pattern, length, within in [
        *((pattern, 1, SOON) for pattern in PATTERNS),
        # What goes slowly is another pattern before it is broken.
        *((pattern, 20, LATER) for pattern in PATTERNS if pattern != "broken_policy"),
    ]:
        curves = moving(COLLAPSES[pattern], BEGINS + 60, BEGINS, length, **STARTS.get(pattern, {}))
        for found in found_in(curves, 20, seed=4):
            assert names(found)[:1] == [pattern], (pattern, length, within)
            assert BEGINS <= found[0].first < BEGINS + within, (pattern, length, within)


# --- single numbers ------------------------------------------------------------------------------------------------


def line(rollout: int, **numbers: float) -> dict[str, Any]:
    exact = {"accuracy/se": 0.0, "format/se": 0.0, "unscorable": 0.0}
    return {"rollout": rollout, **STEADY, **exact, **numbers}


def run_of(*parts: tuple[int, dict[str, float]]) -> list[dict[str, Any]]:
    """So many rollouts with such numbers, one part after the other."""
    numbers = [dict(part) for count, part in parts for _ in range(count)]
    return [line(rollout, **values) for rollout, values in enumerate(numbers)]


HARM = {"accuracy": 0.3}


def test_the_bounds_of_the_rules() -> None:
    for after, expected in [
        ({"length": 200.0, **HARM}, ["length_collapse"]),
        ({"length": 201.0, **HARM}, []),
        ({"length": 200.0}, ["length_collapse"]),
        ({"length": 200.0, "accuracy": 0.41}, []),
        ({"length": 800.0, **HARM}, ["length_explosion"]),
        ({"length": 799.0, **HARM}, []),
        ({"length": 800.0}, []),
        ({"length": 800.0, "truncated": 0.5}, ["length_explosion"]),
        ({"length": 800.0, "truncated": 0.49}, []),
        ({"entropy": 0.15, "diversity": 0.71, **HARM}, ["entropy_collapse"]),
        ({"entropy": 0.15, "diversity": 0.71}, ["entropy_collapse"]),
        ({"entropy": 0.15, "diversity": 0.71, "accuracy": 0.41}, []),
        ({"entropy": 0.16, "diversity": 0.71, **HARM}, []),
        ({"entropy": 0.15, "diversity": 0.73, **HARM}, []),
        ({"entropy": 0.6, **HARM}, ["entropy_explosion"]),
        ({"entropy": 0.59, **HARM}, []),
        ({"entropy": 0.6}, []),
        ({"format": 0.69}, ["format_loss"]),
        ({"format": 0.71}, []),
        (HARM, []),
        ({"grad_norm": 100.0}, []),
        ({"length": 100.0, "entropy": 0.9, **HARM}, ["length_collapse", "entropy_explosion"]),
    ]:
        assert names(detect(run_of((10, {}), (10, after)), PROBLEMS)) == expected, (after, expected)


def test_a_fall_of_accuracy_that_may_be_noise_is_none() -> None:
    after = {"length": 900.0, "accuracy": 0.3}
    for error, expected in ((0.07, []), (0.05, ["length_explosion"])):
        rows = run_of((10, {"accuracy/se": error}), (10, {**after, "accuracy/se": error}))
        assert names(detect(rows, PROBLEMS)) == expected


def test_accuracy_falls_from_its_best_and_not_from_the_start() -> None:
    learned = {"accuracy": 0.8, "length": 700.0}
    assert names(detect(run_of((5, {}), (10, learned), (10, {"length": 900.0})), PROBLEMS)) == ["length_explosion"]


def test_who_was_right_from_the_start_may_become_brief_and_sure() -> None:
    brief = {"length": 100.0, "entropy": 0.05, "diversity": 0.2, "accuracy": 0.85}
    assert detect(run_of((10, {"accuracy": 0.85}), (20, brief)), PROBLEMS) == []


def test_a_spike_is_no_collapse_and_neither_is_an_odd_first_rollout() -> None:
    bad = {"length": 2000.0, "truncated": 0.9, "format": 0.2, "accuracy": 0.0}
    assert detect(run_of((10, {}), (2, bad), (10, {})), PROBLEMS) == []
    assert detect(run_of((1, {"length": 10.0, "entropy": 5.0}), (30, {})), PROBLEMS) == []


def test_the_evidence_is_what_moved_from_what_to_what() -> None:
    after = {"length": 900.0, "accuracy": 0.2, "grad_norm": 4.0, "entropy": 0.4}
    (collapse,) = detect(run_of((10, {}), (10, after)), PROBLEMS)
    assert collapse.first == 13, "four of the last five rollouts"
    assert collapse.evidence == (
        Movement("length", 400.0, 900.0, "start"),
        Movement("accuracy", 0.4, pytest.approx(0.24), "best"),
    )
    assert {move.number for move in collapse.beside} == {"truncated", "entropy", "diversity", "grad_norm"}
    assert str(collapse).startswith("length explosion: length 900 from 400 at the start, accuracy 24.0% from 40.0% at")
    assert "grad norm 4 from 0.3 at the start" in str(collapse) and "\n" not in str(collapse)
    assert json.loads(json.dumps(collapse.as_json()))["evidence"][0] == {
        "number": "length",
        "before": 400.0,
        "after": 900.0,
        "against": "start",
    }


def test_several_lines_of_a_rollout_count_once_and_the_first_counts() -> None:
    rows = run_of((10, {}), (10, {"length": 900.0, **HARM}))
    doubled = [{**row, **later} for row in rows for later in ({}, {"entropy": 9.0, "grad_norm": 9.0})]
    assert detect(doubled, PROBLEMS) == detect(rows, PROBLEMS) != []


def test_a_pattern_that_comes_again_is_told_again_only_after_a_pause() -> None:
    bad = {"length": 900.0, **HARM}
    for between, times in ((4, 1), (30, 2)):
        assert names(detect(run_of((10, {}), (10, bad), (between, {}), (10, bad)), PROBLEMS)) == (
            ["length_explosion"] * times
        )


@pytest.mark.parametrize(
    ("after", "lasting"),
    [((0, {}), {"length_explosion"}), ((10, {}), set()), ((10, HARM), {"length_explosion"})],
    ids=["at the end", "got over it", "as long as before, and still wrong"],
)
def test_a_collapse_lasts_until_its_harm_is_gone(after: tuple[int, dict[str, float]], lasting: set[str]) -> None:
    watch = CollapseWatch(PROBLEMS)
    watch.see_all(run_of((10, {}), (10, {"length": 900.0, **HARM}), after))
    assert names(watch.told()) == ["length_explosion"] and watch.lasting() == lasting


def test_a_watch_begun_again_from_the_lines_goes_on_exactly() -> None:
    rows = run_of((10, {}), (10, {"length": 900.0, **HARM}), (20, {}), (10, {"format": 0.3}))
    whole = CollapseWatch(PROBLEMS)
    expected = []
    for row in rows:
        whole.see(row)
        expected.append(whole.fields(row["rollout"]))
    for broken in (1, 9, 13, 25, 43):
        watch = CollapseWatch(PROBLEMS)
        watch.see_all(rows[:broken])
        for row in rows[broken:]:
            watch.see(row)
            assert watch.fields(row["rollout"]) == expected[row["rollout"]]


def test_numbers_that_are_not_known_raise_nothing() -> None:
    """As of a run that an older version began, or whose loss was not finite."""
    unknown = dict.fromkeys(("entropy", "grad_norm", "diversity"))
    assert names(detect([{**row, **unknown} for row in run_of((10, {}), (10, {"format": 0.3}))], PROBLEMS)) == [
        "format_loss"
    ]
    assert detect([{"rollout": number, "loss": 1.0} for number in range(30)], PROBLEMS) == []
    assert detect([], PROBLEMS) == []


def test_the_form_is_that_of_the_verdicts_where_it_is_not_paid_for() -> None:
    reasons = {"reason/correct": 0.4, "reason/wrong": 0.3, "reason/no_answer": 0.1, "reason/too_long": 0.2}
    point = point_of({"rollout": 0, "accuracy": 0.4, "unscorable": 0.0, **reasons}, PROBLEMS)
    assert point.format is not None and point.format.value == pytest.approx(0.7)
    assert point.format.error == pytest.approx((0.7 * 0.3 / PROBLEMS) ** 0.5)
    assert point.format_paid is None
    halved = {name: share / 2 for name, share in reasons.items()}
    judged = point_of({"rollout": 0, "accuracy": 0.2, "unscorable": 0.5, **halved}, PROBLEMS)
    assert judged.format == point.format, "what cannot be judged says nothing of the form"


def test_few_prompts_are_looked_at_over_more_rollouts() -> None:
    assert [Thresholds().rollouts(problems) for problems in (1, 4, 16, 17, 1024)] == [80, 20, 5, 5, 5]
    rows = run_of((60, {}), (60, {"length": 900.0, **HARM}))
    found = {problems: detect(rows, problems)[0].first for problems in (4, 16, 128)}
    assert found[4] > found[16] == found[128]


def test_a_policy_that_an_update_broke_is_named_after_two_rollouts_and_from_the_second_on() -> None:
    broken = {"accuracy": 0.0, "format": 0.0, "truncated": 1.0}
    for sound in (1, 2, 30):
        watch = CollapseWatch(16)
        watch.see_all(run_of((sound, {}), (12, broken)))
        (first, *_) = watch.told()
        assert (first.pattern, first.first) == ("broken_policy", sound + 1)
        assert [(move.number, move.after) for move in first.evidence] == [("accuracy", 0.0), ("format", 0.0)]
        assert all("broken_policy" in watch.on(rollout) for rollout in range(sound + 1, sound + 12)), "while it lasts"
    for harmless in (
        run_of((5, {}), (1, broken), (5, {})),
        run_of((12, {**broken, "format": 0.0})),
        run_of((5, {"accuracy": 0.0}), (6, broken)),
        run_of((5, {"format": 0.3}), (6, broken)),
        run_of((5, {}), (6, {"accuracy": 0.0})),
    ):
        assert "broken_policy" not in names(detect(harmless, 16))


def test_every_pattern_has_a_meaning_and_every_threshold_a_value_that_counts() -> None:
    assert MEANINGS.keys() == COLLAPSES.keys() == set(PATTERNS)
    assert all(isinstance(field.default, (int, float, tuple)) for field in dataclasses.fields(Thresholds))
