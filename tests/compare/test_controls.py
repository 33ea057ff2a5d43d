"""How far each arm is above the best of its controls, and which tests correct one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from rlvr_cli.compare.read import find_controls
from rlvr_cli.compare.request import CompareRequest
from rlvr_cli.compare.results import TaskComparison, compare_task
from rlvr_cli.compare.scores import RunScores, TaskScores
from rlvr_cli.stats.clustered import crossed_difference
from rlvr_cli.stats.intervals import UNBOUNDED
from rlvr_cli.store.arm import Replicate, group_arms
from rlvr_cli.store.find import load_runs
from rlvr_cli.store.training import COSTS
from tests.compare.conftest import BASE, BETTER
from tests.compare.made_runs import make_run

Tables = Mapping[str, Mapping[int, np.ndarray]]
CONTROLS = ("random", "format")


def comparison_of(tables: Tables, *, metric: str = "avg@4", baseline: str = "grpo") -> TaskComparison:
    """Of scores by arm and seed; ``random`` and ``format`` are the controls of the other arms."""
    spent = dict.fromkeys(COSTS, 1.0)
    arms = {
        name: {Replicate(seed): RunScores(cast(Any, None), row, spent) for seed, row in table.items()}
        for name, table in tables.items()
    }
    controls = tuple(name for name in CONTROLS if name in tables)
    problems = len(next(iter(next(iter(tables.values())).values())))
    scores = TaskScores(
        request=CompareRequest((), Path()),
        arms=arms,
        baseline=baseline,
        controls={name: controls for name in tables if controls and name not in controls},
        by_path={},
        metric=metric,
        samples=4,
        problems=tuple(map(str, range(problems))),
        settings={},
        bounds=UNBOUNDED,
        notes=(),
    )
    return compare_task(scores)


@pytest.fixture
def tables() -> dict[str, dict[int, np.ndarray]]:
    draw = np.random.default_rng(0)
    level, difficulty = {"grpo": 0.1, "dapo": 0.25, "random": -0.1, "format": 0.02}, draw.normal(size=40)
    seeds = {"grpo": range(4), "dapo": (0, 1, 3), "random": (0, 1, 2, 3), "format": (1, 2, 3)}
    return {
        name: {seed: level[name] + 0.2 * difficulty + 0.2 * draw.normal(size=40) for seed in seeds[name]}
        for name in level
    }


def stepped_down(p_values: list[float]) -> list[float]:
    """Holm (1979), as printed: the j-th smallest of m times m - j + 1, never below an earlier one."""
    order, corrected, least = np.argsort(p_values), [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = least
    return corrected


def paired(tables: Tables, arm: str, other: str) -> tuple[np.ndarray, np.ndarray]:
    common = sorted(set(tables[arm]) & set(tables[other]))
    first, second = (np.stack([tables[name][seed] for seed in common]) for name in (arm, other))
    return first, second


def test_each_arm_against_the_control_that_leaves_least_of_it(tables: Tables) -> None:
    """On the seeds that both have, its p corrected among the comparisons of arms with controls alone."""
    rows = {row.arm: row for row in comparison_of(tables).rows}
    pairs = [(arm, control) for arm in ("grpo", "dapo") for control in CONTROLS]
    single = [crossed_difference(*([side] for side in paired(tables, *pair)), paired=True) for pair in pairs]
    corrected = stepped_down([cast(float, each.p_value) for each in single])
    p_holm = dict(zip(pairs, corrected, strict=True))
    for arm in ("grpo", "dapo"):
        means = {control: float(np.subtract(*paired(tables, arm, control)).mean()) for control in CONTROLS}
        best = min(means, key=means.__getitem__)
        above = rows[arm].above
        assert above is not None and above.base == best == "format" and above.family == 4
        assert above.difference.value == pytest.approx(means[best])
        assert above.difference.seeds == len(paired(tables, arm, best)[0])
        interval = single[pairs.index((arm, best))]
        assert (above.difference.low, above.difference.high) == (interval.low, interval.high)
        assert above.p_holm == pytest.approx(p_holm[arm, best])
    # A control is not compared with controls; its difference to the baseline is one of their family.
    for control in CONTROLS:
        row = rows[control]
        assert row.above is None and row.contrast is not None and row.contrast.family == 4
        assert row.contrast.p_holm == pytest.approx(p_holm["grpo", control])


def test_controls_cost_the_comparison_of_methods_nothing(tables: Tables) -> None:
    with_controls = comparison_of(tables)
    alone = comparison_of({name: table for name, table in tables.items() if name not in CONTROLS})
    assert (with_controls.family, with_controls.control_family) == (1, 4)
    assert (alone.family, alone.control_family) == (1, 0)
    assert [each.contrast for each in with_controls.rows if each.arm == "dapo"] == [
        each.contrast for each in alone.rows if each.arm == "dapo"
    ]


def test_the_best_control_is_the_lowest_where_less_is_better_and_none_where_neither_is(tables: Tables) -> None:
    rows = {row.arm: row for row in comparison_of(tables, metric="truncated").rows}
    assert rows["dapo"].above is not None and rows["dapo"].above.base == "random"
    assert not any(row.above for row in comparison_of(tables, metric="length").rows)


def test_a_control_as_the_baseline_is_tested_once(tables: Tables) -> None:
    compared = comparison_of(tables, baseline="format")
    assert (compared.family, compared.control_family) == (3, 2)
    dapo = next(row for row in compared.rows if row.arm == "dapo")
    assert dapo.above is not None and dapo.above == dapo.contrast


@pytest.fixture
def swept(root: Path) -> Path:
    """Two learning rates, the controls of each, and a single arm of a rate without any."""
    for rate, shift in (("1e-3", 0), ("1e-4", 1)):
        for seed in range(3):
            for method, right in (("grpo", BETTER), ("grpo+random-reward", BASE), ("grpo+majority-reward", BASE)):
                counts = [min(4, count + (shift if method == "grpo" else 0)) for count in right]
                counts[seed] = max(0, counts[seed] - 1)
                name = f"{method}-{rate}-s{seed}"
                make_run(root, name, method=method, seed=seed, overrides=[f"optimizer.lr={rate}"], right=counts)
    for seed in range(3):
        make_run(root, f"dapo-s{seed}", method="dapo", seed=seed, overrides=["optimizer.lr=1e-2"], right=BETTER)
    return root


def test_the_controls_of_an_arm_have_its_settings_or_at_least_its_task(swept: Path) -> None:
    found = find_controls(group_arms(load_runs(("*",), swept).runs))
    assert {arm: set(names) for arm, names in found.items()} == {
        **{
            f"grpo lr={rate}": {f"grpo+{control}-reward lr={rate}" for control in ("random", "majority")}
            for rate in ("0.001", "0.0001")
        },
        "dapo lr=0.01": {
            f"grpo+{control}-reward lr={rate}" for control in ("random", "majority") for rate in ("0.001", "0.0001")
        },
    }


def test_the_command_says_how_far_an_arm_is_above_its_control(
    swept: Path, told: Callable[..., str], compared: Callable[..., dict[str, Any]]
) -> None:
    names = ("grpo-1e-3-*", "grpo+*-1e-3-*")
    found = compared(*names)
    assert found["baseline"] == "grpo"
    arm = next(each for each in found["arms"] if each["arm"] == "grpo")
    control = arm["control"]
    assert control["difference"]["value"] == pytest.approx(sum(BETTER) / 48 - sum(BASE) / 48, abs=0.03)
    assert control["verdict"] == "higher" and control["arm"] in ("grpo+random-reward", "grpo+majority-reward")
    assert control["sentence"].startswith(f"grpo is above its control {control['arm']} by ")
    printed = " ".join(told(*names).split())
    assert control["sentence"] in printed and "above its control" in printed
    assert "p of differences to controls: Holm's correction over 2 comparisons" in printed
    assert not any("control" in each for each in found["arms"] if each["arm"] != "grpo")
    assert "control" not in told("grpo-1e-3-*", "grpo-1e-4-*")
