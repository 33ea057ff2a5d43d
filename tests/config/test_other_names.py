"""The names that TRL, Hugging Face and verl give the keys, and single words where a list is expected."""

from __future__ import annotations

import re

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.config.keys import KEYS, OTHER_NAMES
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError


def test_every_name_stands_for_a_key_that_exists_and_is_none_itself() -> None:
    keys = set(KEYS.key_names)
    assert set(OTHER_NAMES.values()) <= keys
    assert not keys & set(OTHER_NAMES)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("learning_rate", "optimizer.lr"),
        ("optimizer.learning_rate", "optimizer.lr"),
        ("num_generations", "rollout.group_size"),
        ("per_device_train_batch_size", "update.micro_batch"),
        ("beta", "method.kl.beta"),
        ("epsilon", "method.policy_loss.eps_low"),
        ("max_completion_length", "rollout.max_new_tokens"),
        ("report_to", "track.to"),
        ("steps", "train.rollouts"),
        ("rollout.n", "rollout.group_size"),
        ("actor_rollout_ref.rollout.n", "rollout.group_size"),
        ("actor_rollout_ref.actor.clip_ratio_high", "method.policy_loss.eps_high"),
        ("actor_rollout_ref.rollout.temperature", "rollout.temperature"),
        ("data.max_response_length", "rollout.max_new_tokens"),
        ("trainer.total_epochs", "train.rollouts"),
    ],
)
def test_another_librarys_name_is_answered_with_ours(name: str, key: str) -> None:
    with pytest.raises(UserError, match=f"Did you mean `{key}`"):
        load_config(overrides=[f"{name}=1"])


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        *(("loss_type=" + kind, None) for kind in ("sapo", "vespo", "luspo", "bnpo")),
        ("loss_type=cispo", "method=cispo"),
        ("loss_type=dr_grpo", "method.aggregation=constant_length"),
        ("scale_rewards=batch", None),
        ("scale_rewards=false", "method.advantage.scale=none"),
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean", "method.aggregation=sequence_mean"),
        ("algorithm.adv_estimator=gae", "method=ppo"),
        ("importance_sampling_level=sequence", "method=gspo"),
    ],
)
def test_a_hint_for_a_value_works_when_it_is_followed(written: str, ours: str | None) -> None:
    with pytest.raises(UserError) as caught:
        load_config(overrides=[written])
    assert (f"Did you mean `{ours}`?" if ours else "Nothing here does what") in str(caught.value)
    if ours:
        load_config(overrides=[ours])


def test_keys_whose_values_differ_say_how() -> None:
    for written, said in (
        ("delta=1.5", "the same above 1 + eps_high"),
        ("epsilon_high=3", "For cispo, TRL's value minus"),
    ):
        with pytest.raises(UserError, match=re.escape(said)):
            load_config(overrides=[written])


def test_an_option_with_one_value_is_given_once(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["train", "--method", "grpo", "--method=dapo"], ["eval", "lab", "-n", "4", "--samples", "8"]):
        assert run(words) == 2 and "is there 2 times; it takes one value" in capsys.readouterr().err
    assert run(["train", "--method", "gpro"]) == 2 and "Did you mean `grpo`?" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "key"), [("--lr", "optimizer.lr"), ("--num-generations", "rollout.group_size")])
def test_as_an_option_too(option: str, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", option, "8"]) == 2
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert f"{key}=VALUE" in said


def test_one_word_is_a_list_of_one() -> None:
    assert load_config(overrides=["track=wandb"]).track.to == ("wandb",)


def test_overwrite_needs_the_name_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "--overwrite"]) == 2
    assert "run.name=" in capsys.readouterr().err


def test_a_plain_list_stands_for_a_section_whose_main_key_is_a_list() -> None:
    assert load_config(overrides=["track=[wandb, mlflow]", "track.tags=first"]).track.to == ("wandb", "mlflow")
    with pytest.raises(UserError, match=r"track\.to.*tensorboard, wandb, trackio, mlflow"):
        load_config(overrides=["track=[tensorbord]"])
