"""The sentence says what the table says, in every case."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.compare.conftest import BASE, BETTER
from tests.compare.made_runs import evaluate, make_run

Compared = Callable[..., dict[str, Any]]


def first(found: dict[str, Any], name: str = "lopti") -> dict[str, Any]:
    return next(one for one in found["arms"] if one["arm"] == name)


def numbers_of(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", text)


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
    assert "over 12 problems" in found["sentence"] and "single runs do not compare methods" in found["sentence"]
    assert any("`rlvr sweep` with 3 or more seeds" in note for note in data["notes"])
    for form in ("table", "markdown", "csv", "latex"):
        text = told("grpo-s0", "lopti-s0", "--format", form)
        assert not re.search(r"p \(Holm\)|p_holm|better|worse|no difference", text), form


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
