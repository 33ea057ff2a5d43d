"""From the axes of a sweep file to a sampler's distributions and back, and what a search refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from rlvr_cli.core.errors import UserError
from rlvr_cli.sweeps.driver import WorkerOptions, run_sweep
from rlvr_cli.sweeps.search import distribution
from rlvr_cli.sweeps.search_space import Space
from tests.sweeps.files import sweep

SEARCH = "set: {train.rollouts: 4, validation.every: 1}\nobjective: accuracy\nsearch: {trials: 3}\n"


def space(folder: Path, text: str) -> Space:
    found = sweep(folder, SEARCH + text).space
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("optimizer.lr: {log_range: [1e-6, 1e-4]}", FloatDistribution(1e-6, 1e-4, log=True)),
        ("rollout.temperature: {range: [0.5, 1.5]}", FloatDistribution(0.5, 1.5)),
        ("update.epochs: {range: [1, 4]}", IntDistribution(1, 4)),
        ("rollout.prompts: {log_range: [4, 64]}", IntDistribution(4, 64, log=True)),
        ("optimizer.lr: [1e-4, 1e-3]", CategoricalDistribution(["optimizer.lr=0.0001", "optimizer.lr=0.001"])),
    ],
)
def test_ranges_are_numbers_and_lists_are_categories(tmp_path: Path, written: str, wanted: BaseDistribution) -> None:
    (axis,) = space(tmp_path, f"grid:\n  {written}\n").axes
    assert distribution(axis) == wanted


def test_points_that_belong_together_are_one_category(tmp_path: Path) -> None:
    text = (
        "methods: [grpo, dgpo+lopti]\nzip: {rollout.prompts: [8, 16], rollout.group_size: [16, 8]}\n"
        "list: [{update.epochs: 1}, {update.epochs: 2, optimizer.weight_decay: 0.1}]\nseeds: [4, 7]\n"
    )
    found = space(tmp_path, text)
    assert [distribution(axis) for axis in found.axes] == [
        CategoricalDistribution(["method.name=grpo", "method.name=dgpo+lopti"]),
        CategoricalDistribution(
            ["update.epochs=1", "update.epochs=2, optimizer.weight_decay=0.1"],
        ),
        CategoricalDistribution(
            ["rollout.prompts=8, rollout.group_size=16", "rollout.prompts=16, rollout.group_size=8"]
        ),
    ]
    assert [point.values["run.seed"] for point in found.seeds] == [4, 7] and found.size() == 8


def test_a_suggestion_is_a_configuration(tmp_path: Path) -> None:
    text = (
        "methods: [grpo, lopti]\ngrid:\n  optimizer.lr: {log_range: [1e-6, 1e-4]}\n  update.epochs: {range: [1, 4]}\n"
    )
    found = space(tmp_path, text)
    assert found.size() is None
    drawn = {"method.name": "method.name=lopti", "optimizer.lr": 1.23456789e-5, "update.epochs": 3}
    points = found.decode(drawn)
    values = {key: value for point in points for key, value in point.values.items()}
    assert values == {"method.name": "lopti", "optimizer.lr": 1.23457e-5, "update.epochs": 3}


def test_without_optuna_a_search_is_refused_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "rlvr\[search\]"'):
        run_sweep(sweep(tmp_path, f"{SEARCH}methods: [grpo, lopti]\n"), WorkerOptions(), console=None)  # type: ignore[arg-type]
    assert not (tmp_path / "runs").exists()
