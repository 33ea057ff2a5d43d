"""The list of keys is complete and says what each takes."""

from __future__ import annotations

import pytest

from rlvr_cli.config.keys import all_keys, describe_field, suggest_key
from rlvr_cli.config.schema import Config, RunConfig, UpdateConfig


def test_every_key_is_documented() -> None:
    keys = all_keys()
    assert len(keys) == sum(len(type(section).model_fields) for section in vars(Config()).values())
    for key in keys:
        assert key.meaning.endswith("."), f"{key.name} has no meaning"
        assert key.type, f"{key.name} has no type"


def test_bounds_are_in_the_words() -> None:
    assert describe_field(RunConfig.model_fields["threads"]) == "null, or a whole number, at least 1 and at most 1024"
    assert describe_field(UpdateConfig.model_fields["max_grad_norm"]) == "a number, above 0"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (["optimizer", "learning_rate"], None),
        (["optimizer", "lrr"], "lr"),
        (["optimizer", "LR"], "lr"),
        (["lr"], "optimizer.lr"),
        (["every"], "eval.every or checkpoint.every"),
        (["rolout", "prompts"], "rollout.prompts"),
        (["evaluation"], None),
        (["checkpoints"], "checkpoint"),
    ],
)
def test_the_nearest_key(written: list[str], meant: str | None) -> None:
    assert suggest_key(written) == meant
