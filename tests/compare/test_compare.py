"""What `rlvr compare` counts: known differences, the same whatever the order, with the signs of the baseline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlvr_cli.stats.passk import pass_at_k
from rlvr_cli.stats.power import PlannedTest
from tests.compare.conftest import BASE, BETTER
from tests.compare.made_runs import contrasts, evaluate, make_run

Compared = Callable[..., dict[str, Any]]


def arm(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in found["arms"] if one["arm"] == name)


def test_a_known_difference(two_arms: Path, compared: Compared) -> None:
    found = compared("grpo-s*", "lopti-s*")
    assert (found["metric"], found["problems"], found["samples"], found["paired"]) == ("avg@4", 12, 4, True)
    assert found["baseline"] == "grpo"
    lopti, grpo = arm(found, "lopti"), arm(found, "grpo")
    assert [one["arm"] for one in found["arms"]] == ["lopti", "grpo"]
    # Each seed has 12 more right of 48, less 1, less 1, 2 or 3.
    expected = (12 - 1 - 2) / 48
    assert lopti["difference"]["value"] == pytest.approx(expected)
    assert lopti["mean"]["value"] - grpo["mean"]["value"] == pytest.approx(expected)
    assert lopti["difference"]["seeds"] == 3 and lopti["difference"]["problems"] == 12
    assert lopti["outcomes"] == {"wins": 11, "ties": 1, "losses": 0}
    assert lopti["verdict"] == "higher" and lopti["p_holm"] < 0.05
    assert grpo["difference"] is None and grpo["verdict"] == "baseline"


def test_costs_are_those_of_the_records_and_relative_to_the_baseline(two_arms: Path, compared: Compared) -> None:
    found = compared("grpo-s*", "lopti-s*")
    # 4 rollouts of 16 x 8 completions of 10 tokens; Lopti makes two passes, of 1.5 s and not 2 s.
    lopti, grpo = arm(found, "lopti"), arm(found, "grpo")
    spent = {"rollouts": 4, "updates": 4, "tokens": 5120, "update_tokens": 2560, "seconds": 12, "update_seconds": 8}
    assert grpo["spent"] == spent
    assert lopti["cost"]["updates"] == 2 and lopti["cost"]["tokens"] == 1
    assert lopti["cost"]["update_seconds"] == 1.5
    assert lopti["seconds"]["update_seconds"] == {"value": 1.5, "low": 1.5, "high": 1.5}
    assert "it cost 2x the updates" in lopti["sentence"] and "time" not in lopti["sentence"]


def test_swapping_the_baseline_flips_the_signs(two_arms: Path, compared: Compared) -> None:
    one = arm(compared("grpo-s*", "lopti-s*", "--permutation"), "lopti")
    other = arm(compared("grpo-s*", "lopti-s*", "--permutation", "--baseline", "lopti"), "grpo")
    assert other["difference"]["value"] == -one["difference"]["value"]
    assert other["difference"]["low"] == pytest.approx(-one["difference"]["high"])
    assert other["p_holm"] == pytest.approx(one["p_holm"])
    assert other["permutation"] == one["permutation"] and one["permutation"]["permutations"] == 20
    assert arm(compared("grpo-s*", "lopti-s*"), "lopti")["permutation"] is None, "deals are drawn when asked for"
    assert (other["verdict"], one["verdict"]) == ("lower", "higher")
    assert other["outcomes"] == {"wins": 0, "ties": 1, "losses": 11}
    by_run = compared("grpo-s*", "lopti-s*", "--baseline", "lopti-s1")
    assert by_run["baseline"] == "lopti"


def test_the_last_checkpoint_is_compared_in_whatever_order_it_was_evaluated(
    root: Path, compared: Callable[..., dict[str, Any]]
) -> None:
    for name, steps in (("grpo", (2, 4, 3)), ("lopti", (4, 1))):
        run = make_run(root, name, method=name)
        for step in steps:
            evaluate(run, [3 if step == 4 else 1] * 8, step=step)
    arms = {arm["arm"]: arm for arm in compared("grpo", "lopti")["arms"]}
    assert [arms[name]["mean"]["value"] for name in ("grpo", "lopti")] == [0.75, 0.75]
    # Of a tie, the larger one: the same step, evaluated by another engine on fewer problems.
    evaluate(run, [1] * 4, step=4, folder=run.eval_dir / "zzz")
    assert compared("grpo", "lopti")["arms"][0]["mean"]["value"] == 0.75


def test_contrasts_do_not_depend_on_the_order_of_problems_or_replicates() -> None:
    rng = np.random.default_rng(0)
    scores = {name: rng.random((4, 30)) for name in "abc"}
    before = contrasts(scores, target=0.02)
    rows, columns = rng.permutation(4), rng.permutation(30)
    after = contrasts({name: scores[name][rows][:, columns] for name in "acb"}, target=0.02)
    for name in "bc":
        one, other = before[name], after[name]
        assert other.difference.value == pytest.approx(one.difference.value)
        assert other.difference.low == pytest.approx(one.difference.low)
        assert other.p_holm == pytest.approx(one.p_holm)
        assert (other.verdict, other.outcomes, other.needed) == (one.verdict, one.outcomes, one.needed) or (
            other.needed is not None
        )


def test_what_it_would_take_is_counted_with_the_corrected_alpha() -> None:
    rng = np.random.default_rng(1)
    scores = {name: rng.normal(0, 0.02, (6, 1)) + rng.normal(0, 0.3, (6, 100)) for name in "abcde"}
    found = contrasts(scores, target=0.05)["b"]
    assert found.needed is not None and found.difference.components is not None
    assert found.needed.seeds == PlannedTest(found.difference.components, alpha=0.05 / 4).required_seeds(0.05, 100)


def test_a_difference_without_a_p_is_counted_in_the_family() -> None:
    rng = np.random.default_rng(0)
    base = rng.integers(0, 5, (3, 10)) / 8
    found = contrasts({"a": base, "constant": base + 0.25, "b": rng.random((3, 10))})
    assert found["constant"].p_holm is None and found["constant"].verdict == "unknown"
    single = found["b"].difference.p_value
    assert single is not None and found["b"].p_holm == pytest.approx(min(1.0, 2 * single))


def test_no_end_of_an_interval_is_where_no_share_can_be(root: Path, compared: Compared) -> None:
    for seed in range(2):
        make_run(root, f"a{seed}", seed=seed, right=[2 * seed] * 12)
        make_run(root, f"b{seed}", method="lopti", seed=seed, right=[4 - seed] * 12)
    found = arm(compared("a*", "b*"), "lopti")
    assert (found["mean"]["low"], found["mean"]["high"]) == (0.0, 1.0)
    assert (found["difference"]["low"], found["difference"]["high"]) == (-1.0, 1.0)
    reward = arm(compared("a*", "b*", "--metric", "reward"), "lopti")
    assert reward["difference"]["low"] < -4


def test_other_metrics(two_arms: Path, compared: Compared) -> None:
    def value(metric: str) -> float:
        return float(arm(compared("grpo-s0", "lopti-s0", "--metric", metric), "grpo")["mean"]["value"])

    right = [1, *BASE[1:]]
    # pass@2 was not asked for by `rlvr eval`: it is taken from the samples.
    assert value("pass@2") == pytest.approx(np.mean([pass_at_k(4, count, 2) for count in right]))
    assert value("accuracy") == value("avg@n") == value("pass@1") == pytest.approx(sum(right) / 48)
    assert value("maj@4") == pytest.approx(np.mean([count >= 2 for count in right]))
    assert value("reward") == pytest.approx(np.mean([4 * count / 4 - 1 for count in right]))
    assert value("length") == 10
    assert value("greedy") == pytest.approx(np.mean([count > 0 for count in right]))


def test_fewer_samples_are_compared_with_as_many(root: Path, compared: Compared) -> None:
    for seed in range(2):
        make_run(root, f"a{seed}", seed=seed, right=BASE, samples=2)
        make_run(root, f"b{seed}", method="lopti", seed=seed, right=BETTER, samples=4)
    found = compared("a*", "b*")
    assert (found["metric"], found["samples"]) == ("avg@2", 2)
    assert arm(found, "lopti")["mean"]["value"] == pytest.approx(np.mean([min(2, count) / 2 for count in BETTER]))
    assert any("2, 4 samples a problem; the first 2 of each are compared" in note for note in found["notes"])


def test_the_greedy_completion_is_compared_whatever_was_sampled_beside_it(root: Path, compared: Compared) -> None:
    for name, method, right, samples in (("a", "grpo", BASE, 0), ("b", "lopti", BETTER, 4), ("c", "dapo", BETTER, 2)):
        make_run(root, name, method=method, right=right, samples=samples)
    for names, options in (
        (("a", "b"), ()),
        (("a", "b"), ("--metric", "greedy")),
        (("c", "b"), ("--metric", "greedy")),
    ):
        found = compared(*names, *options)
        assert (found["metric"], found["samples"]) == ("greedy", 0)
        assert arm(found, "lopti")["mean"]["value"] == pytest.approx(np.mean([count > 0 for count in BETTER]))
        assert (
            "12 problems, one greedy completion each" in found["compared"][0]
            and "the greedy completion of each" in found["notes"][0]
        )
    reward = compared("a", "b", "--metric", "reward")
    assert arm(reward, "lopti")["mean"]["value"] == pytest.approx(np.mean([4 * (count > 0) - 1 for count in BETTER]))


def test_each_arm_is_compared_with_the_baseline_on_the_seeds_that_both_have(two_arms: Path, compared: Compared) -> None:
    """An arm of fewer seeds takes none from the others."""
    for seed in (1, 2, 9):
        make_run(two_arms, f"dapo-s{seed}", method="dapo", seed=seed, right=BETTER)
    found = compared("grpo-s*", "lopti-s*", "dapo-s*")
    seeds = {name: [run["seed"] for run in arm(found, name)["runs"]] for name in ("grpo", "lopti", "dapo")}
    assert seeds == {"grpo": [0, 1, 2], "lopti": [0, 1, 2], "dapo": [1, 2]}
    assert arm(found, "lopti")["difference"] == arm(compared("grpo-s*", "lopti-s*"), "lopti")["difference"]
    alone = arm(compared("grpo-s[12]", "dapo-s[12]"), "dapo")
    assert arm(found, "dapo")["difference"] == alone["difference"] and arm(found, "dapo")["cost"] == alone["cost"]
    assert found["notes"][:2] == [
        "left out because grpo does not have them: seed 9 of dapo.",
        "dapo is compared with grpo on seeds 1, 2 alone.",
    ]
    assert "2 to 3 seeds" in found["compared"][2]


def test_the_default_baseline(two_arms: Path, compared: Compared) -> None:
    make_run(two_arms, "dapo+lopti-s0", method="dapo+lopti", right=BASE)
    assert compared("lopti-s0", "grpo-s0")["baseline"] == "lopti"
    assert compared("*-s0")["baseline"] == "grpo"
