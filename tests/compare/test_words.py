"""The sentence says what the table says, in every case."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlvr_cli.compare.words import amount, to_see
from tests.compare.conftest import BASE, BETTER
from tests.compare.made_runs import contrasts, evaluate, make_run

Compared = Callable[..., dict[str, Any]]


def first(found: dict[str, Any], name: str = "lopti") -> dict[str, Any]:
    return next(one for one in found["arms"] if one["arm"] == name)


def numbers_of(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", text)


def test_better_and_worse(two_arms: Path, compared: Compared) -> None:
    better = first(compared("grpo-s*", "lopti-s*"))
    value, low, high = (100 * better["difference"][key] for key in ("value", "low", "high"))
    numbers = [f"{number:.1f}" for number in (value, low, high)]
    assert numbers_of(better["sentence"]) == [*numbers[:1], "95", *numbers[1:], "3", "12", "2", "2"]
    assert better["sentence"].startswith("lopti is better than grpo")
    worse = first(compared("grpo-s*", "lopti-s*", "--baseline", "lopti"), "grpo")
    assert numbers_of(worse["sentence"]) == [*numbers[:1], "95", *numbers[1:], "3", "12", "0.5", "0.5"]
    assert worse["sentence"].startswith("grpo is worse than lopti")


def test_no_difference_says_what_it_takes(root: Path, compared: Compared) -> None:
    for seed, shift in enumerate((1, -1, 1, -1)):
        make_run(root, f"a{seed}", seed=seed, right=BASE)
        right = [min(4, max(0, count + shift * (-1) ** place)) for place, count in enumerate(BASE)]
        make_run(root, f"b{seed}", method="lopti", seed=seed, right=right)
    found = first(compared("a*", "b*"))
    assert found["verdict"] == "unseen" and found["difference"]["low"] < 0 < found["difference"]["high"]
    assert "no difference" in found["sentence"]
    needed = found["needed"]
    assert needed["difference"] == 0.02 < needed["detectable"]
    assert "2 points" in found["sentence"]
    # Of a number that is worked out from an estimated spread, two digits, rounded up.
    assert needed["seeds"] == 131 and "140 seeds" in found["sentence"]
    assert "1 point " in compared("a*", "b*", "--power", "0.01")["power"][0]
    wanted = compared("a*", "b*", "--power", "0.4")
    assert first(wanted)["needed"]["difference"] == 0.4
    assert re.search(r"40 points .* 4 seeds x 12 problems .*\d+", wanted["power"][0])


def test_what_two_seeds_cannot_tell(root: Path, compared: Compared, told: Callable[..., str]) -> None:
    """Their wide intervals end where no number can be, and a reader is told why they are wide."""
    for seed, (low, high) in enumerate([(0, 4), (4, 0)]):
        make_run(root, f"a{seed}", seed=seed, right=[low] * 12, tokens=[9, 90][seed])
        make_run(root, f"b{seed}", method="lopti", seed=seed, right=[high] * 11 + [3 * seed], tokens=50, seconds=120)
    found = compared("a*", "b*", "--power", "0.02")
    arm = first(found)
    assert (arm["difference"]["low"], arm["difference"]["high"]) == (-1, 1)
    assert (arm["mean"]["low"], arm["mean"]["high"]) == (0, 1)
    assert arm["needed"]["detectable"] > 1 and "2 seeds x 12 problems" in found["power"][0]
    assert found["notes"][0].startswith("2 runs an arm")
    # Seconds say how loaded the machine was too: they are no cost of the method.
    assert arm["cost"]["update_seconds"] > 100 and "120x" not in arm["sentence"]
    assert first(compared("a*", "b*", "--metric", "length"), "grpo")["mean"]["low"] == 0
    assert "12 problems" in told("a*", "b*", "--metric", "greedy")


@pytest.mark.parametrize("better", [BETTER, BASE, [4] * 12], ids=["clear", "equal", "everywhere"])
def test_one_run_an_arm_gets_neither_p_nor_verdict(
    root: Path, compared: Compared, told: Callable[..., str], better: list[int]
) -> None:
    """However clear their difference is: the luck of a seed is in it."""
    make_run(root, "grpo-s0", right=BASE if better != [4] * 12 else [0] * 12)
    make_run(root, "lopti-s0", method="lopti", right=better)
    data = compared("grpo-s0", "lopti-s0")
    found = first(data)
    assert found["verdict"] == "single" and found["p_holm"] is None and found["difference"]["p_value"] is None
    assert found["sentence"].startswith("this run of lopti minus this run of grpo: +")
    assert "over 12 problems" in found["sentence"] and "one run says nothing of its method" in found["sentence"]
    assert any("`rlvr sweep` with 3 or more seeds" in note for note in data["notes"])
    for form in ("table", "markdown", "csv", "latex"):
        text = told("grpo-s0", "lopti-s0", "--format", form)
        assert not re.search(r"p \(Holm\)|p_holm|better|worse|no difference", text), form


def test_an_arm_with_one_run_gets_no_verdict_among_others(root: Path, compared: Compared) -> None:
    for seed in range(3):
        make_run(root, f"grpo-s{seed}", seed=seed, right=BASE)
    make_run(root, "lopti-s7", method="lopti", seed=7, right=BETTER)
    found = first(compared("grpo-s*", "lopti-s7", "--unpaired"))
    assert found["verdict"] == "single" and found["p_holm"] is None
    assert found["sentence"].startswith("this run of lopti minus these 3 runs of grpo: +")


def test_one_seed_does_not_tell_what_it_takes(two_arms: Path, compared: Compared) -> None:
    found = first(compared("grpo-s0", "lopti-s0"))
    assert found["needed"] is None and found["permutation"] is None
    lines = compared("grpo-s0", "lopti-s0", "--power", "0.02")["power"]
    assert "two seeds" in lines[0]


def test_a_difference_that_does_not_survive_the_correction(root: Path, compared: Compared) -> None:
    """Alone it is clear; among eight comparisons it is said to be doubtful."""
    lengths = ["dapo", "dgpo", "gspo", "cispo", "gppo", "aspo", "rloo"]
    right = [min(4, count + (place % 3 == 0) * (count < 4)) for place, count in enumerate(BASE)]
    for method, counts in [("grpo", BASE), ("lopti", right), *((name, BASE[::-1]) for name in lengths)]:
        for seed in range(2):
            make_run(root, f"{method}-s{seed}", method=method, seed=seed, right=counts)
    alone = first(compared("grpo-s*", "lopti-s*"))
    assert alone["verdict"] == "higher" and 0.01 < alone["p_holm"] < 0.05
    among = first(compared("grpo-s*", "lopti-s*", *(f"{name}-s*" for name in lengths)))
    assert among["difference"] == alone["difference"] and among["verdict"] == "uncertain"
    assert among["sentence"].startswith("lopti may be better")
    assert f"p = {among['p_holm']:.3f}" in among["sentence"] and "8 comparisons" in among["sentence"]


def test_equal_arms_are_not_told_apart(root: Path, compared: Compared) -> None:
    for seed in range(2):
        make_run(root, f"a{seed}", seed=seed, right=BASE)
        make_run(root, f"b{seed}", method="lopti", seed=seed, right=BASE)
    found = first(compared("a*", "b*"))
    assert (found["verdict"], found["p_holm"], found["difference"]["low"]) == ("unseen", 1, None)
    assert "no difference" in found["sentence"] and "+0.0 points" in found["sentence"]


def test_identical_arms_tell_nothing_of_what_it_takes(root: Path, compared: Compared) -> None:
    for seed in range(2):
        make_run(root, f"a{seed}", seed=seed, right=BASE)
        make_run(root, f"b{seed}", method="lopti", seed=seed, right=BASE)
    found = compared("a*", "b*", "--power", "0.02")
    assert "would" not in first(found)["sentence"] and first(found)["needed"] is None
    assert found["power"][0]


def test_what_the_interval_holds_is_not_said_to_be_ruled_out() -> None:
    """Four of five repetitions see 2 points, and this one, which saw nothing, does not exclude them."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.02, (2, 8, 200)) + rng.normal(0, 0.012, (2, 8, 1))
    noise[0] += 0.01 - noise[0].mean() + noise[1].mean()
    contrast = contrasts({"a": noise[1], "b": noise[0]}, target=0.02)["b"]
    low, high = contrast.difference.low, contrast.difference.high
    assert low is not None and high is not None and contrast.needed is not None
    assert contrast.verdict == "unseen" and contrast.needed.detectable < 0.02 < high
    assert "does not rule" in to_see("avg@4", contrast, "seed")
    noise[0] -= 0.01
    equal = contrasts({"a": noise[1], "b": noise[0]}, target=0.02)["b"]
    assert "2 points" in (said := to_see("avg@4", equal, "seed")) and "rule" not in said
    open_question = contrasts({"a": noise[1], "b": noise[0] + 0.01}, metric="reward")["b"]
    assert amount("reward", high) in to_see("reward", open_question, "seed")


def test_few_seeds_only_guess_what_it_takes_and_pooled_runs_are_no_seeds(root: Path, compared: Compared) -> None:
    for lr in ("1e-5", "1e-6"):
        for seed in range(2):
            shifted = [min(4, max(0, count + (-1) ** (seed + place))) for place, count in enumerate(BASE)]
            make_run(root, f"a{seed}-{lr}", seed=seed, right=BASE, overrides=[f"optimizer.lr={lr}"])
            make_run(root, f"b{seed}-{lr}", seed=seed, method="lopti", right=shifted, overrides=[f"optimizer.lr={lr}"])
    found = compared("a*", "b*", "--by", "method.name", "--power", "0.02")
    sentence = first(found)["sentence"]
    assert "4 runs x 12 problems" in sentence and "seed" not in sentence and "seed" not in found["power"][0]
    assert any(note.startswith("4 runs an arm") for note in found["notes"])
    make_run(root, "b7", seed=7, method="lopti", right=BASE)
    apart = compared("a*", "b*", "--by", "method.name", "--unpaired")
    assert "4 to 5 runs" in apart["compared"][2]


def test_lengths_are_neither_better_nor_worse(root: Path, compared: Compared) -> None:
    for seed in range(2):
        make_run(root, f"a{seed}", seed=seed, right=BASE, tokens=10 + seed)
        make_run(root, f"b{seed}", method="lopti", seed=seed, right=BETTER, tokens=30 + seed)
    found = first(compared("a*", "b*", "--metric", "length"))
    assert found["difference"]["value"] == 20
    assert found["verdict"] == "unknown"
    assert numbers_of(found["sentence"])[:3] == ["20.0", "2", "12"] and "better" not in found["sentence"]
    for seed in range(2):
        make_run(root, f"c{seed}", method="dapo", seed=seed, right=BASE, tokens=10)
        long = make_run(root, f"d{seed}", method="dgpo", seed=seed)
        evaluate(long, BASE, step=4, tokens=[10 + place for place in range(12)])
    longer = first(compared("c*", "d*", "--metric", "length"), "dgpo")
    assert (
        longer["verdict"] == "higher"
        and longer["sentence"].startswith("dgpo is longer")
        and "5.5 tokens" in longer["sentence"]
    )


@pytest.mark.parametrize("option", [(), ("--baseline", "lopti"), ("--metric", "reward"), ("--metric", "pass@2")])
def test_the_text_has_the_table_and_the_sentences(
    option: tuple[str, ...], two_arms: Path, told: Callable[..., str], compared: Compared
) -> None:
    found, text = compared("grpo-s*", "lopti-s*", *option), told("grpo-s*", "lopti-s*", *option)
    for one in found["arms"]:
        if one["sentence"]:
            assert one["sentence"] in text
            shown = (
                f"{one['difference']['value']:+.3f} [{one['difference']['low']:+.3f}, {one['difference']['high']:+.3f}]"
            )
            assert shown in text
    assert "after 4 rollouts" in text
