"""What a sweep file means: its trials, their names, their order and what makes two of them the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.config.keys import KEYS
from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import RUN_NAME
from rlvr_cli.core.layers import format_override, parse_override
from rlvr_cli.sweeps.expand import expand
from rlvr_cli.sweeps.folder import SweepDir
from rlvr_cli.sweeps.naming import abbreviate_keys, abbreviate_value, config_digest, make_unique, trial_name
from rlvr_cli.sweeps.prepare import find_same_gradient_arms, prepare_sweep
from rlvr_cli.sweeps.spec import read_sweep
from tests.sweeps.files import names, sweep

CASES = {
    "methods: [grpo, ar-lopti]\nseeds: 2": ["grpo-s0", "grpo-s1", "reweight+lopti-s0", "reweight+lopti-s1"],
    "seeds: [3, 7]": ["grpo-s3", "grpo-s7"],
    "methods: lopti": ["lopti"],
    "grid: {optimizer.lr: [1e-6, 3.0e-6]}\nset: {method: dgpo}": ["lr1e-6", "lr3e-6"],
    "grid:\n  optimizer.lr: [1e-3, 2e-3]\n  update.epochs: [1, 2]\nseeds: 1": [
        "lr1e-3-epochs1",
        "lr1e-3-epochs2",
        "lr2e-3-epochs1",
        "lr2e-3-epochs2",
    ],
    "zip: {rollout.prompts: [8, 16], rollout.group_size: [16, 8]}": ["prompts8-gs16", "prompts16-gs8"],
    "list:\n  - {method: dgpo, method.policy_loss.n: 2.0}\n  - {method: grpo}\nseeds: 1": ["dgpo-n2", "grpo"],
    "list:\n  - {name: ours, method: dgpo, method.policy_loss.n: 2.0}\n  - {method: grpo}\nseeds: 2": [
        "ours-s0",
        "ours-s1",
        "grpo-s0",
        "grpo-s1",
    ],
    "list:\n  - {name: low, optimizer.lr: 1e-3}\n  - {name: high, optimizer.lr: 2e-3}\nmethods: [grpo, dgpo]": [
        "low-grpo",
        "high-grpo",
        "low-dgpo",
        "high-dgpo",
    ],
    "methods: [grpo, dgpo]\ngrid: {optimizer.lr: [1e-3, 2e-3]}\nexclude: [{method: GRPO, optimizer.lr: 2e-3}]": [
        "grpo-lr1e-3",
        "dgpo-lr1e-3",
        "dgpo-lr2e-3",
    ],
    "methods: [grpo, dgpo]\nseeds: 4\nexclude: [{method: grpo, seed: [1, 2, 3]}]": [
        "grpo-s0",
        "dgpo-s0",
        "dgpo-s1",
        "dgpo-s2",
        "dgpo-s3",
    ],
    "grid: {method.policy_loss: [ppo_clip, cispo]}\nset: {update.mini_batches: 2}": ["plppo_clip", "plcispo"],
}


@pytest.mark.parametrize("text", CASES)
def test_trials_in_order_by_what_varies(tmp_path: Path, text: str) -> None:
    assert names(tmp_path, text) == CASES[text]


VALUES: dict[str, Any] = {
    "64": 64,
    "-1": -1,
    "0.2": 0.2,
    "3e-6": 3e-6,
    "1e-3": 0.001,
    "100": 100.0,
    "0.3333333333333333": 1 / 3,
    "on": True,
    "none": None,
    "0.9_0.95": [0.9, 0.95],
    "2_0.5": {2: 0.5},
    "Qwen3-0.6B": "Qwen/Qwen3-0.6B",
    "a-b": "a *b",
}


def test_values_in_names() -> None:
    for text in VALUES:
        assert abbreviate_value("some.key", VALUES[text]) == text, text


def test_names_are_unique_and_fit_every_file_system() -> None:
    assert abbreviate_keys(["a.eps_low", "b.eps_large", "optimizer.lr"]) == {
        "a.eps_low": "eps_low",
        "b.eps_large": "eps_large",
        "optimizer.lr": "lr",
    }
    assert abbreviate_keys(["method.policy_loss.eta", "method.passes.eta"]) == {
        "method.policy_loss.eta": "policy_loss.eta",
        "method.passes.eta": "passes.eta",
    }
    assert make_unique("GRPO-s0", "abcdef0123", ["grpo-s0"]) == "GRPO-s0-abcdef"
    long = trial_name({"task.data": "x" * 300}, abbreviate_keys(["task.data"]), "grpo")
    name = make_unique(long, "abcdef0123", [])
    assert len(name) <= 100 and name.endswith("-abcdef")
    hostile = trial_name({"task.data": "../../etc/..", "run.seed": 1}, {"task.data": "", "run.seed": "s"}, "grpo")
    assert re.fullmatch(RUN_NAME, hostile)


SAME = [
    (["optimizer.lr=1e-3"], ["optimizer.lr=0.001"]),
    ([], ["rollout.prompts=16"]),
    (["method=REINFORCE++"], ["method=reinforce-pp"]),
    ([], ["run.name=x", "run.dir=/elsewhere", "track=[tensorboard]", "track.group=g"]),
    ([], ["checkpoint.every=1", "checkpoint.keep=9", "slurm.time=1:00:00"]),
]
OTHER = [["optimizer.lr=2e-3"], ["run.seed=1"], ["method=dgpo"], ["method.kl.beta=0.1"], ["run.threads=2"]]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_what_does_not_decide_the_numbers_is_not_in_the_identity(first: list[str], second: list[str]) -> None:
    assert config_digest(load_config([], overrides=first)) == config_digest(load_config([], overrides=second))


@pytest.mark.parametrize("changes", OTHER, ids=str)
def test_what_decides_the_numbers_is(changes: list[str]) -> None:
    assert config_digest(load_config([], overrides=changes)) != config_digest(load_config([]))


def test_a_trial_is_what_train_makes_of_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("update: {mini_batches: 4}\noptimizer: {lr: 1.0e-5}\n")
    text = (
        "base: base.yaml\nset: {task: countdown, train.on_no_signal: 'off'}\nmethods: [lopti]\n"
        "grid: {optimizer.betas: [[0.9, 0.99]]}\nseeds: [5]"
    )
    made = sweep(tmp_path, text, "train.rollouts=3")
    (trial,) = made.trials
    (entry,) = prepare_sweep(made, SweepDir(made.folder)).plan.trials
    assert entry.train_arguments() == [
        *["-c", f"{made.folder}/base/1-base.yaml", "--method", "lopti"],
        *[
            "task=countdown",
            "train.on_no_signal='off'",
            f"run.dir={tmp_path}/runs",
            "train.rollouts=3",
            "optimizer.betas=[0.9, 0.99]",
            "run.seed=5",
        ],
    ]
    config = load_config([tmp_path / "base.yaml"], "lopti", None, None, list(trial.overrides))
    assert config == trial.config and config_digest(config) == trial.id
    assert (config.optimizer.lr, config.task.name, config.optimizer.betas) == (1e-5, "countdown", (0.9, 0.99))


@pytest.mark.parametrize("value", [1e-6, 3, True, None, "a: b", "true", [0.9, "x, y"], {2: 0.5}, "1e-3"], ids=repr)
def test_an_override_reads_back_to_its_value(value: Any) -> None:
    assert parse_override(KEYS, format_override("some.key", value)).data == {"some": {"key": value}}


def test_identical_arms_share_one_run_and_first_steps_do_not(tmp_path: Path) -> None:
    text = "methods: [grpo, cispo, lopti]\nseeds: 2\nset: {train.rollouts: 5, update.mini_batches: %d}"
    once, twice = (sweep(tmp_path, text % updates) for updates in (1, 2))
    assert [(group.names, group.when) for group in find_same_gradient_arms(once)] == [(("grpo", "cispo"), "one_step")]
    assert {group.when for group in find_same_gradient_arms(twice)} == {"first_step"}
    entries = prepare_sweep(twice, SweepDir(twice.folder)).plan.trials
    costs = [sum(getattr(entry, key) for entry in entries) for key in ("rollouts", "completions", "steps")]
    assert costs == [30, 6 * 5 * 128, 2 * 5 * (2 + 2 + 4)]


FILES = sorted((Path(__file__).parents[2] / "configs" / "sweeps").glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_example_expands(file: Path) -> None:
    sweep = expand(read_sweep(file))
    assert sweep.corners and (sweep.trials or sweep.space is not None)
    assert not any(group.cannot_differ for group in find_same_gradient_arms(sweep))


def test_the_worker_loads_the_configuration_of_the_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the environment sets a folder that the sweep's overrides leave out."""
    monkeypatch.setenv("RLVR_DATA_DIR", str(tmp_path))
    (trial,) = sweep(tmp_path, "set: {task.name: kk, task.data_dir: null}\ngrid:\n  task.data: [kk]\n").trials
    assert trial.config.task.data_dir is None
    assert config_digest(load_config([], overrides=trial.overrides)) == trial.id
