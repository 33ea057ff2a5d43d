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
from rlvr_cli.sweeps.search_space import Space
from rlvr_cli.sweeps.search_study import distribution
from rlvr_cli.sweeps.spec import read_sweep
from tests.sweeps.files import problems, sweep

SEARCH = "set: {train.rollouts: 4, eval.every: 1}\nobjective: accuracy\nsearch: {trials: 3}\n"


def space(folder: Path, text: str) -> Space:
    found = sweep(folder, SEARCH + text).space
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("optimizer.lr: {log_range: [1e-6, 1e-4]}", FloatDistribution(1e-6, 1e-4, log=True)),
        ("optimizer.lr: {log_range: [1e-6, 1e-4], count: 3}", FloatDistribution(1e-6, 1e-4, log=True)),
        ("rollout.temperature: {range: [0.5, 1.5]}", FloatDistribution(0.5, 1.5)),
        ("rollout.temperature: {range: [0.5, 1.6], step: 0.25}", FloatDistribution(0.5, 1.5, step=0.25)),
        (
            "rollout.temperature: {range: [0.1, 1.2], step: 0.3333333333}",
            FloatDistribution(0.1, 1.0999999999, step=0.3333333333),
        ),
        ("update.epochs: {range: [1, 4]}", IntDistribution(1, 4)),
        ("rollout.prompts: {range: [8, 30], step: 8}", IntDistribution(8, 24, step=8)),
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


def test_a_suggestion_is_a_configuration_and_back(tmp_path: Path) -> None:
    text = (
        "methods: [grpo, lopti]\ngrid:\n  optimizer.lr: {log_range: [1e-6, 1e-4]}\n  update.epochs: {range: [1, 4]}\n"
    )
    found = space(tmp_path, text)
    assert found.size() is None
    drawn = {"method.name": "method.name=lopti", "optimizer.lr": 1.23456789e-5, "update.epochs": 3}
    points = found.points(drawn)
    values = {key: value for point in points for key, value in point.values.items()}
    assert values == {"method.name": "lopti", "optimizer.lr": 1.23457e-5, "update.epochs": 3}
    located = found.locate({**values, "run.seed": 3})
    assert located is not None and found.points(located) == points
    for other in ({"optimizer.lr": 2e-4}, {"update.epochs": 2.5}, {"method.name": "dapo"}, {"kl.coefficient": 0.1}):
        assert found.locate({**values, **other}) is None


def test_the_example_is_a_search(tmp_path: Path) -> None:
    found = expand(read_sweep(Path(__file__).parents[2] / "configs/sweeps/search.yaml"))
    assert found.space is not None and len(found.space.axes) == 3 and found.bound == 120
    assert found.objective is not None and found.objective.of == "held_out"


def test_bad_searches_are_refused_with_their_lines(tmp_path: Path) -> None:
    for text, said in {
        "search: tqe\nseeds: 2": ["s.yaml:1 search: must be tpe, random, or a mapping of sampler, trials"],
        "search: {sampler: cmaes, trails: 3, pruning: {start: 1}}": [
            "s.yaml:1 search.sampler: must be",
            "s.yaml:1 search.trails: unknown key. Did you mean `search.trials`? Keys of search: sampler, trials",
            "s.yaml:1 search.pruning.start: unknown key. Did you mean `search.pruning.startup`?",
        ],
        "objective: {metrics: reward}\nseeds: 2": [
            "s.yaml:1 objective.metrics: unknown key. Did you mean `objective.metric`?"
        ],
        "objective: {of: test}\nseeds: 2": ["s.yaml:1 objective.of: must be"],
        "search: tpe\nmethods: [grpo, lopti]": [
            "s.yaml:1 search: needs an `objective`, the metric by which configurations are judged",
            "s.yaml:1 search: has no end; give `trials`, how many configurations, or `budget`, how many rollouts",
        ],
        "search: {trials: 3}\nobjective: reward\nseeds: 4": ["s.yaml:1 search: nothing to search in; give methods"],
        "search: {trials: 3}\nobjective: reward\ngrid:\n  run.seed: {range: [0, 9]}": [
            "s.yaml:4 run.seed: every configuration of a search is run with all `seeds`; no axis"
        ],
        "methods: [grpo, lopti]\nseeds: 3\nset: {train.rollouts: 50}\nobjective: reward\nsearch: {trials: 3}\n"
        "budget: 149": ["s.yaml:6 budget: one configuration takes up to 150 rollouts (3 seeds), and 149 are allowed"],
        "methods: [grpo, lopti]\nobjective: accuracy\nsearch:\n  trials: 3\n  pruning: true": [
            "s.yaml:5 search.pruning: looks at the held-out evaluations in training; set eval.every"
        ],
        "methods: [grpo, lopti]\nset: {eval.every: 10, train.rollouts: 10}\nobjective: accuracy\n"
        "search: {trials: 3, pruning: true}": [
            "s.yaml:4 search.pruning: the first held-out evaluation (eval.every=10)"
        ],
        "methods: [grpo, lopti]\nset: {eval.every: 2}\nobjective: {metric: entropy, of: training, "
        "direction: minimize}\nsearch: {trials: 3, pruning: true}": [
            "s.yaml:4 objective: entropy is not recorded; set"
        ],
        "methods: [grpo, loptii]\ngrid:\n  optimizer.lr: {log_range: [1e-4, 2]}\nobjective: pass@64\n"
        "search: {trials: 2}\nset: {eval.every: 2}\neval: {samples: 4}": [
            's.yaml:1 method.name: unknown method "loptii"',
            "s.yaml:3 optimizer.lr: must be a number, above 0 and at most 1",
            "s.yaml:4 objective: pass@64 is not recorded; set eval.pass_at to a list with 64",
        ],
        "grid:\n  optimizer.lr: {range: [1e-6, 1e-4], step: 1e-3}\nobjective: reward\nsearch: {trials: 2}": [
            "s.yaml:2 optimizer.lr: range: its step is larger than all of it"
        ],
        "grid:\n  optimizer.lr: {log_range: [1e-6, 1e-4], step: 1e-6}\nobjective: reward\nsearch: {trials: 2}": [
            "s.yaml:2 optimizer.lr: log_range: has no step"
        ],
        "methods: [grpo, lopti]\ngrid:\n  optimizer.lr: {log_range: [1e-6, 1e-4]}\nobjective: reward\n"
        "search: {trials: 2}\nexclude:\n  - {optimizer.lr: 1e-5}\n  - {method: dapo}\n  - {seed: 3}": [
            "s.yaml:7 exclude: optimizer.lr is searched over a range, which meets no single value",
            "s.yaml:8 exclude: {method: dapo} matches no trial",
            "s.yaml:9 exclude: run.seed is no axis.",
        ],
        "methods: [grpo]\nobjective: reward\nsearch: {trials: 2}\nexclude: [{method: grpo}]": [
            "s.yaml:4 exclude: leaves nothing to search in"
        ],
        "methods: [grpo, lopti]\nobjective: reward\nsearch: {trials: 2}\nseeds: [3, 4, 3]": ["s.yaml:4 seeds: 3 twice"],
    }.items():
        found = problems(tmp_path, text)
        for beginning in said:
            assert any(line.startswith(beginning) for line in found), found
        assert len(found) == len(said), found


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
