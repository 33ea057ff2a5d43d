"""The names that TRL, Hugging Face and verl give the keys, and single words where a list is expected."""

from __future__ import annotations

import pytest

from rlvr_cli.config.keys import KEYS, OTHER_NAMES
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError

HINTS = sorted({hint for values in KEYS.other_values.values() for hint in values.values() if hint})


@pytest.mark.parametrize("name", sorted(OTHER_NAMES))
def test_every_name_stands_for_a_key_that_exists_and_is_none_itself(name: str) -> None:
    assert OTHER_NAMES[name] in KEYS.key_names
    assert name not in KEYS.key_names


@pytest.mark.parametrize("hint", HINTS)
def test_a_value_that_a_hint_names_is_accepted(hint: str) -> None:
    if hint != "rollout.engine=vllm_server":  # needs an address
        load_config(overrides=hint.split())


def test_hints_are_given() -> None:
    for wrong, right in (("algorithm.adv_estimator=gae", "method=ppo"), ("trainer.total_epochs=2", "train.rollouts")):
        with pytest.raises(UserError, match=f"Did you mean `{right}`"):
            load_config(overrides=[wrong])
    with pytest.raises(UserError, match="data: unknown section"):
        load_config(overrides=["data.val_files=x.jsonl"])
    for wrong in ("tools=[search]", "sync_ref_model=true"):
        with pytest.raises(UserError, match=r"no equivalent in a run.*PolicyTrainer.*takes it"):
            load_config(overrides=[wrong])


def test_one_word_or_a_list_stands_for_a_section_whose_main_key_is_a_list() -> None:
    assert load_config(overrides=["track=wandb"]).track.to == ("wandb",)
    assert load_config(overrides=["track=[wandb, mlflow]", "track.tags=first"]).track.to == ("wandb", "mlflow")
