"""The format that is learned in place of answers: when reward hacking is named, and when it must not be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rlvr_cli.collapse.rules import Mean, RewardHacking, Shift, Thresholds, change, point_of, reward_hacking
from rlvr_cli.collapse.watch import CollapseWatch, detect

Points = list[tuple[Mean, Mean]]
LIMITS = Thresholds()
ROLLOUTS = 200
PROBLEMS, GROUP = 16, 8


def rollout_means(shares: np.ndarray, rng: np.random.Generator) -> list[Mean]:
    """Each rollout's share of successes where problems differ in difficulty and a group shares its problem."""
    means = np.clip(shares, 1e-6, 1 - 1e-6)[:, None]
    of_groups = rng.beta(3 * means, 3 * (1 - means), size=(len(shares), PROBLEMS))
    found = rng.binomial(GROUP, of_groups) / GROUP
    errors = found.std(axis=1, ddof=1) / PROBLEMS**0.5
    return [Mean(float(mean), float(error)) for mean, error in zip(found.mean(axis=1), errors, strict=True)]


def ramp(first: float, last: float, begins: int = 40, length: int = 60) -> np.ndarray:
    """A share that goes from ``first`` to ``last`` within ``length`` rollouts."""
    return first + (last - first) * np.clip((np.arange(ROLLOUTS) - begins) / length, 0, 1)


def found(points: Points, problems: int = PROBLEMS) -> RewardHacking | None:
    return reward_hacking(points, problems, LIMITS)


def alerts(points: Points) -> list[bool]:
    """Whether the alert is on after each rollout."""
    longest = max(map(sum, LIMITS.reward_windows))
    return [found(points[max(0, number + 1 - longest) : number + 1]) is not None for number in range(len(points))]


def simulated(form: np.ndarray, accuracy: np.ndarray, runs: int, seed: int) -> list[list[bool]]:
    rng = np.random.default_rng(seed)
    return [alerts(list(zip(rollout_means(form, rng), rollout_means(accuracy, rng), strict=True))) for _ in range(runs)]


def test_the_format_rises_and_accuracy_stays_or_falls() -> None:
    for first, last in [(0.2, 0.2), (0.02, 0.02), (0.3, 0.2)]:
        for length in [10, 30, 60, 100]:
            runs = simulated(ramp(0.3, 0.9, length=length), ramp(first, last, length=length), runs=5, seed=1)
            for run in runs:
                assert not any(run[:40]), "nothing has happened yet"
                assert any(run[40 : 60 + length]), "it is raised while the format rises or soon after"


@pytest.mark.parametrize("length", [10, 30, 60, 100])
@pytest.mark.parametrize(("first", "last"), [(0.1, 0.5), (0.3, 0.9)])
def test_both_rise(length: int, first: float, last: float) -> None:
    runs = simulated(ramp(0.3, 0.9, length=length), ramp(first, last, length=length), runs=5, seed=2)
    assert not any(itertools.chain(*runs))


@pytest.mark.parametrize(
    ("form", "accuracy"),
    [
        (ramp(0.9, 0.3), ramp(0.4, 0.1)),
        (ramp(0.9, 0.3), ramp(0.1, 0.4)),
        (ramp(0.99, 0.995), ramp(0.4, 0.4)),
        (ramp(1.0, 1.0), ramp(0.4, 0.1)),
        (ramp(0.0, 0.0), ramp(0.0, 0.0)),
    ],
    ids=["both fall", "format falls, accuracy rises", "a rise too small", "format is right", "nothing is learned"],
)
def test_no_alert(form: np.ndarray, accuracy: np.ndarray) -> None:
    assert not any(itertools.chain(*simulated(form, accuracy, runs=5, seed=3)))


def exact(*values: float, error: float = 0.0) -> list[Mean]:
    return [Mean(value, error) for value in values]


def test_the_format_is_learned_in_the_first_rollouts() -> None:
    """As a run on the lab learned to answer within 20 tokens: the format at once, the answers never."""
    form = exact(0.60, 0.83, 0.96, 0.98, 1.0, 0.99, 1.0, 0.98, error=0.02)
    accuracy = exact(0.09, 0.03, 0.05, 0.06, 0.04, 0.06, 0.06, 0.06, error=0.02)
    states = [found(list(zip(form[:n], accuracy[:n], strict=True))) for n in range(1, 9)]
    assert states[:6] == [None] * 6 and states[6] is not None
    assert (states[6].before, states[6].since) == (2, 5)
    rising = exact(0.05, 0.08, 0.12, 0.16, 0.2, 0.22, 0.25, 0.3, error=0.02)
    assert found(list(zip(form, rising, strict=True))) is None


def test_an_accuracy_too_noisy_to_tell_is_no_alert() -> None:
    """A rise of a quarter of the format's would not be seen either."""
    form = exact(*[0.2] * 5, *[0.4] * 5)
    assert found(list(zip(form, exact(*[0.25] * 10, error=0.1), strict=True))) is None
    assert found(list(zip(form, exact(*[0.25] * 10), strict=True))) is not None


@pytest.mark.parametrize(("form", "accuracy"), [(0.5, 0.0), (0.5, 0.2), (0.95, 0.0)])
def test_false_alarms_under_noise(form: float, accuracy: float) -> None:
    """At most five runs of 200 rollouts in a hundred; docs/training-signals.md has the rates of 2,000 runs."""
    runs = simulated(ramp(form, form), ramp(accuracy, accuracy), runs=60, seed=4)
    assert sum(any(run) for run in runs) <= 3


def test_too_few_rollouts_or_problems_say_nothing() -> None:
    points = list(zip(exact(*[0.0] * 2, *[1.0] * 5), exact(*[0.1] * 7), strict=True))
    assert found(points, 8) is not None
    assert found(points, 7) is None, "two rollouts of seven problems"
    assert found(points[:-1], 8) is None
    assert found([points[0]] * 3 + points, 4) is not None, "five rollouts of four"


def test_the_standard_error_is_of_the_difference_of_the_means() -> None:
    means = exact(9.0, 1.0, 3.0, error=0.3) + exact(6.0, 6.0, 9.0, error=0.6)
    expected = (0.3**2 / 2 + 0.6**2 / 3) ** 0.5
    assert change(means, 2, 3) == Shift(2.0, 7.0, pytest.approx(expected))


def lines(points: Points, updates: int = 2) -> list[dict[str, float]]:
    """Lines of metrics.jsonl, ``updates`` for each rollout."""
    return [
        {
            "rollout": number,
            "format": form.value,
            "format/se": form.error,
            "accuracy": accuracy.value,
            "accuracy/se": accuracy.error,
            "unscorable": 0.0,
        }
        for number, (form, accuracy) in enumerate(points)
        for _ in range(updates)
    ]


def crafted() -> Points:
    rng = np.random.default_rng(5)
    return list(zip(rollout_means(ramp(0.3, 0.9), rng), rollout_means(ramp(0.1, 0.1), rng), strict=True))


def hacked(watch: CollapseWatch) -> list[bool]:
    return ["reward_hacking" in watch.on(rollout) for rollout in range(ROLLOUTS)]


def test_a_watch_of_a_run_s_lines_says_what_the_rule_says() -> None:
    watch = CollapseWatch(PROBLEMS)
    watch.see_all(lines(crafted()))
    assert hacked(watch) == alerts(crafted()) and any(hacked(watch))


def test_it_is_told_once_when_it_starts_and_again_only_after_a_pause() -> None:
    watch = CollapseWatch(PROBLEMS)
    watch.see_all(lines(crafted()))
    on = hacked(watch)
    told = detect(lines(crafted()), PROBLEMS)
    assert {collapse.pattern for collapse in told} == {"reward_hacking"}
    assert told[0].first == on.index(True)
    for collapse in told:
        assert on[collapse.first] and not any(on[max(0, collapse.first - LIMITS.pause) : collapse.first])
    text = str(told[0])
    assert text.startswith("reward hacking: format ") and "before, accuracy " in text and "\n" not in text


def test_completions_that_could_not_be_judged_are_no_fall_of_accuracy() -> None:
    """Half of the judged ones are right throughout, however many time out."""
    rows = [
        {
            "rollout": number,
            "format": 0.5,
            "format/se": 0.1,
            "accuracy/se": 0.1,
            "accuracy": 0.5 * (1 - share),
            "unscorable": share,
        }
        for number, share in enumerate([0.0] * 10 + [0.5] * 10)
    ]
    points = [point_of(row, PROBLEMS) for row in rows]
    assert {(point.format_paid, point.accuracy) for point in points} == {(Mean(0.5, 0.1), Mean(0.5, 0.1))}
    nothing = point_of({"rollout": 20, "format": 0.0, "accuracy": 0.0, "unscorable": 1.0}, PROBLEMS)
    assert nothing.accuracy is nothing.format is nothing.format_paid is None


def test_a_task_that_rewards_no_format_has_no_such_alert() -> None:
    watch = CollapseWatch(PROBLEMS)
    watch.see_all([{"rollout": number, "accuracy": 0.5, "unscorable": 0.0} for number in range(40)])
    assert watch.on(39) == {} and "alert/reward_hacking" not in watch.fields(39)
    assert "alert/length_collapse" in watch.fields(39)
