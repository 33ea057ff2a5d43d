"""From the axes of a sweep file to a sampler's distributions and back, and what a search refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from rlvr_cli.core.errors import UserError
from rlvr_cli.sweeps.driver import Orders, run_sweep
from rlvr_cli.sweeps.expand import expand
from rlvr_cli.sweeps.search import distribution
from rlvr_cli.sweeps.search_space import Space
from rlvr_cli.sweeps.spec import read_sweep
from tests.sweeps.files import sweep

SEARCH = "set: {train.rollouts: 4, eval.every: 1}\nobjective: accuracy\nsearch: {trials: 3}\n"


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
    points = found.points(drawn)
    values = {key: value for point in points for key, value in point.values.items()}
    assert values == {"method.name": "lopti", "optimizer.lr": 1.23457e-5, "update.epochs": 3}


def test_the_example_is_a_search(tmp_path: Path) -> None:
    found = expand(read_sweep(Path(__file__).parents[2] / "configs/sweeps/search.yaml"))
    assert found.space is not None and len(found.space.axes) == 3 and found.bound == 120
    assert found.objective is not None and found.objective.of == "held_out"


def test_optuna_is_loaded_by_no_grid_and_its_absence_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(f"set: {{run.dir: {tmp_path}/runs}}\nmethods: [grpo, lopti]\nobjective: reward\n")
    code = (
        "import sys\nfrom rlvr_cli.cli.app import run\ncode = run(['sweep', sys.argv[1], '--dry-run'])\n"
        "import rlvr_cli.sweeps.worker\nprint(code, 'optuna' in sys.modules, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.endswith("0 False False\n"), done.stdout + done.stderr
    file.write_text(file.read_text() + "search: {trials: 2}\n")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.endswith("0 False False\n") and "at most" in done.stdout

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "rlvr\[search\]"'):
        run_sweep(expand(read_sweep(file)), Orders(), console=None)  # type: ignore[arg-type]
    assert not (tmp_path / "runs").exists()
