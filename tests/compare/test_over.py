"""Several benchmarks, or several training tasks, in one comparison."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlvr_cli.stats.permutation import holm
from tests.compare.conftest import BASE, BETTER
from tests.compare.made_runs import evaluate, make_run

Compared = Callable[..., dict[str, Any]]
HARD = [0, 0, 1, 0, 1, 0, 2, 0, 1, 0]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds of two methods on three benchmarks: lopti is better on kk-gen, a little on hard, and no different on
    easy; a fourth, on which not all runs were evaluated."""
    root = tmp_path_factory.mktemp("over") / "runs"
    for seed in range(3):
        for method, kk, luck in (("grpo", BASE, 0), ("lopti", BETTER, seed % 2)):
            right = [count - (luck and number > 9) for number, count in enumerate(shifted(kk, seed))]
            made = make_run(root, f"{method}-s{seed}", method=method, seed=seed, right=right)
            evaluate(made, shifted(HARD, seed + luck), step=made.read_manifest()["step"], benchmark="hard")
            evaluate(made, shifted([3] * 8, 7 - seed), step=made.read_manifest()["step"], benchmark="easy")
            if seed:
                evaluate(made, [1] * 8, step=made.read_manifest()["step"], benchmark="rare")
    return root


def shifted(right: list[int], place: int) -> list[int]:
    return [min(4, count + (number == place)) for number, count in enumerate(right)]


def arm(found: dict[str, Any], name: str = "lopti") -> dict[str, Any]:
    return next(one for one in found["arms"] if one["arm"] == name)


def test_over_the_benchmarks_that_all_runs_have(compared: Compared) -> None:
    found = compared("grpo-s*", "lopti-s*", "--over", "benchmark")
    assert list(found["tasks"]) == ["easy", "hard", "kk-gen"] and found["one_run_on_all_tasks"]
    assert any("rare" in note for note in found["notes"])
    for name, one in found["tasks"].items():
        alone = arm(compared("grpo-s*", "lopti-s*", "--benchmark", name))
        joint = arm(one)
        assert (joint["mean"], joint["difference"]) == (alone["mean"], alone["difference"])
    lopti = arm(found)
    differences = [arm(one)["difference"] for one in found["tasks"].values()]
    assert lopti["difference"]["value"] == pytest.approx(np.mean([one["value"] for one in differences]))
    # Every p that is shown is one of the family, the mean's too; where arms do not differ at all it is 1.
    single = [lopti["difference"]["p_value"], *(one["p_value"] for one in differences)]
    assert found["comparisons"] == 4
    corrected = [lopti["p_holm"], *(arm(one)["p_holm"] for one in found["tasks"].values())]
    assert corrected == pytest.approx(holm(single))
    scores = np.array([lopti["scores"][name] for name in found["tasks"]])
    assert scores.shape == (3, 3) and lopti["mean"]["value"] == pytest.approx(scores.mean())
    assert lopti["verdict"] == ("higher" if lopti["p_holm"] < 0.05 else "uncertain")


def test_over_benchmarks_each_arm_is_paired_with_the_baseline_that_is_asked_for(root: Path, compared: Compared) -> None:
    """And not with the one that would be taken without: that has fewer seeds."""
    folder = root / "unequal"
    for method, seeds in (("dapo", 2), ("grpo", 4), ("gspo", 4)):
        for seed in range(seeds):
            made = make_run(folder, f"{method}-s{seed}", method=method, seed=seed, right=shifted(BASE, seed))
            evaluate(made, shifted(HARD, seed), step=made.read_manifest()["step"], benchmark="hard")
    found = compared("unequal/*", "--over", "benchmark", "--baseline", "grpo")
    alone = compared("unequal/*", "--benchmark", "hard", "--baseline", "grpo")
    for name, number in (("gspo", 4), ("dapo", 2)):
        assert arm(found["tasks"]["hard"], name)["difference"] == arm(alone, name)["difference"]
        assert (
            arm(found["tasks"]["hard"], name)["difference"]["seeds"]
            == number
            == arm(found, name)["difference"]["seeds"]
        )
    assert "dapo is compared with grpo on seeds 0, 1 alone." in " ".join(found["notes"])


def test_over_a_key_every_task_has_runs_of_its_own(root: Path, compared: Compared, refused: Callable[..., str]) -> None:
    for people, shift in ((2, 1), (3, 0)):
        for seed in range(3 if people == 2 else 2):
            settings = [f"task.people={{{people}: 1}}"]
            for method, right in (("grpo", BASE), ("lopti", BETTER)):
                counts = shifted([count * shift for count in right], seed)
                name = f"{method}-p{people}-s{seed}"
                make_run(root / "people", name, method=method, seed=seed, overrides=settings, right=counts)
    names = ("people/grpo-*", "people/lopti-*")
    found = compared(*names, "--over", "task")
    assert len(found["tasks"]) == 2 and not found["one_run_on_all_tasks"]
    assert any("seed 2 of lopti" in note for note in found["notes"])
    first, second = (arm(one)["difference"] for one in found["tasks"].values())
    assert (first["value"], second["value"]) == (pytest.approx(0.25, abs=0.05), pytest.approx(0.0))
    assert {one["difference"]["seeds"] for one in map(arm, found["tasks"].values())} == {2}
    assert arm(found)["difference"]["value"] == pytest.approx((first["value"] + second["value"]) / 2)
    assert compared(*names, "--over", "task.people")["arms"] == found["arms"]
    assert "optimizer.lr" in refused(*names, "--over", "optimizer.lr")
    said = refused("people/grpo-p2*", "people/lopti-*", "--over", "task")
    assert "2 runs" in said
