"""The ledger's arms are trainings that could start, on bases whose recipes are there, and each is another training."""

from pathlib import Path
from typing import Any

import yaml

from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.layers import override_text
from rlvr_cli.lab import LABS

DATA = Path(__file__).parents[2] / "rlvr_cli" / "ledger" / "data"
ARMS: dict[str, Any] = yaml.safe_load((DATA / "arms.yaml").read_text(encoding="utf-8"))


def config_of(arm: dict[str, Any]) -> Config:
    model = "lab" if arm["base"] == "lab" else f"./{arm['base']}"
    return load_config(overrides=[f"model.name={model}", *(override_text(key, arm["set"][key]) for key in arm["set"])])


def test_an_arm_is_a_training_that_could_start() -> None:
    for name in ARMS:
        arm = ARMS[name]
        config = config_of(arm)
        assert arm["base"] == "lab" or LABS["kk"].read_recipe(DATA / "bases" / f"{arm['base']}.yaml").phases, name
        assert config.batch.steps_per_rollout == config.checkpoint.every, (
            "a checkpoint after each rollout, so that the policy that sampled the last one is kept"
        )
        assert config.checkpoint.keep >= 2, name


def test_no_two_arms_are_the_same_training() -> None:
    configs = [config_of(arm).model_dump_json() for arm in ARMS.values()]
    assert len(set(configs)) == len(ARMS)


def test_the_arms_of_one_regime_have_one_schedule() -> None:
    """Methods differ, not the learning rate that they are given: no method's rate was chosen for it."""
    schedules: dict[tuple[bool, int], set[tuple[Any, ...]]] = {}
    for name, arm in ARMS.items():
        config = config_of(arm)
        regime = (name.endswith("-collapse"), config.update.mini_batches)
        schedules.setdefault(regime, set()).add(
            (arm["base"], config.optimizer.lr, config.train.rollouts, config.rollout, config.optimizer)
        )
    assert {regime: len(found) for regime, found in schedules.items()} == dict.fromkeys(schedules, 1)
