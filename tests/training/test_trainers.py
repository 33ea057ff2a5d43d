"""Trainer classes by name, used as TRL's own are: its generation, its reward functions, its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from trl import GRPOConfig, GRPOTrainer

import rlvr_cli
from experiments.lab.model import make_tokenizer
from rlvr_cli import DGPO
from rlvr_cli.core.errors import UserError
from rlvr_cli.methods.grpo import GroupAdvantage
from rlvr_cli.methods.lopti import ByProbability
from rlvr_cli.tasks import kk_compact as compact
from rlvr_cli.training import trl_arguments
from tests.training.harness import load_base


def small_ids_are_better(completions: list[str], completion_ids: list[list[int]], **columns: Any) -> list[float]:
    return [-float(sum(ids)) for ids in completion_ids]


def arguments(folder: Path, **changes: Any) -> GRPOConfig:
    settings = {
        "output_dir": str(folder / "out"),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 2,
        "num_generations": 4,
        "max_completion_length": 6,
        "max_steps": 8,
        "learning_rate": 0.1,
        "optim": "sgd",
        "logging_steps": 1,
        "report_to": "none",
    }
    return GRPOConfig(**{**settings, **changes})


def trainer(folder: Path, method: str, *overrides: str, **changes: Any) -> rlvr_cli.PolicyTrainer:
    return rlvr_cli.PolicyTrainer(
        load_base(folder),
        reward_funcs=[small_ids_are_better],
        args=arguments(folder, **changes),
        method=method,
        overrides=overrides,
        processing_class=make_tokenizer(compact.vocabulary()),
        train_dataset=Dataset.from_dict({"prompt": ["a knight", "b knave"] * 8}),
    )


def test_a_method_is_a_name_a_whole_or_a_part() -> None:
    config = trl_arguments.resolve_method
    assert config(DGPO(n=2.0)) == config("dgpo", ["policy_loss.n=2"])
    assert config(ByProbability(eta=0.4)) == config("lopti", ["passes.eta=0.4"])
    assert config(GroupAdvantage(scale="none")).name == "grpo"
    assert config(config("gtpo+lopti")) == config("gtpo+lopti")
    with pytest.raises(UserError, match="object itself"):
        config(DGPO(), ["policy_loss.n=2"])


def test_an_evaluation_logs_the_rewards_of_its_own_prompts(tmp_path: Path) -> None:
    seen: list[str] = []

    def watched(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        seen.extend(prompts)
        return [float(len(completion)) for completion in completions]

    held_out = Dataset.from_dict({"prompt": ["c spy", "d spy"]})
    lopti = rlvr_cli.LoptiTrainer(
        load_base(tmp_path),
        [watched],
        arguments(tmp_path, eval_strategy="steps", eval_steps=4, per_device_eval_batch_size=4),
        Dataset.from_dict({"prompt": ["a knight", "b knave"] * 8}),
        held_out,
        processing_class=make_tokenizer(compact.vocabulary()),
    )
    lopti.train()
    evaluations = [row for row in lopti.state.log_history if "eval_reward" in row]
    assert len(evaluations) == 2 and not any("eval_loss" in row for row in evaluations)
    assert {"c spy", "d spy"} <= set(seen)
    assert all("trained" in row for row in lopti.state.log_history if "grad_norm" in row)


def test_reward_functions_read_the_text_that_they_read_in_a_run(tmp_path: Path) -> None:
    """Without the stop id that ended it, with every other token: TRL alone leaves out all that are special."""
    base, tokenizer = load_base(tmp_path), make_tokenizer(compact.vocabulary())
    names = tokenizer.convert_ids_to_tokens(list(range(20, 60)))
    tokenizer.add_special_tokens({"additional_special_tokens": names[:20]})
    base.generation_config.eos_token_id = [tokenizer.eos_token_id, *range(40, 60)]
    seen: list[tuple[str, list[int]]] = []

    def spy(completions: list[Any], completion_ids: list[list[int]], **columns: Any) -> list[float]:
        texts = [one if isinstance(one, str) else one[0]["content"] for one in completions]
        seen.extend(zip(texts, completion_ids, strict=True))
        return [float(row % 2) for row in range(len(completions))]

    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    for prompt in ("a knight", [{"role": "user", "content": "a knight"}]):
        seen.clear()
        policy = rlvr_cli.PolicyTrainer(
            base,
            reward_funcs=[spy],
            args=arguments(tmp_path),
            processing_class=tokenizer,
            train_dataset=Dataset.from_dict({"prompt": [prompt] * 16}),
        )
        policy._collect_rollout(policy.train_dataset.select([0] * 8).to_list())
        assert len(seen) == 8
        for text, ids in seen:
            ended = ids[-1] in base.generation_config.eos_token_id
            assert text == tokenizer.decode(ids[:-1] if ended else ids)
        assert any(ids[-1] in range(40, 60) for _, ids in seen), "else this shows nothing"
        assert any(set(ids) & set(range(20, 40)) for _, ids in seen), "else this shows nothing"


def test_a_name_of_trl_in_the_log_has_the_meaning_of_trl(tmp_path: Path) -> None:
    """`kl` is to the reference, and only where there is one; the loss has another value, and so another name."""
    changes = {"steps_per_generation": 1, "num_iterations": 2, "max_steps": 2, "learning_rate": 0.03}
    made = trainer(tmp_path, "grpo", "kl.beta=0.1", "kl.bias_correction=false", **changes)
    made.train()
    rows = [row for row in made.state.log_history if "grad_norm" in row]
    stock = GRPOTrainer(
        load_base(tmp_path),
        [small_ids_are_better],
        arguments(tmp_path, beta=0.1, use_bias_correction_kl=False, **changes),
        Dataset.from_dict({"prompt": ["a knight", "b knave"] * 8}),
        processing_class=make_tokenizer(compact.vocabulary()),
    )
    stock.train()
    expected = [row for row in stock.state.log_history if "grad_norm" in row]
    assert expected[1]["kl"] > 1e-6
    for mine, other in zip(rows, expected, strict=True):
        for name in ("kl", "grad_norm"):
            assert mine[name] == pytest.approx(other[name], rel=1e-4, abs=1e-9), name
        assert mine["kl"] == mine["kl_reference"] != mine["kl_old"] or mine["kl"] == 0
        assert not {"loss", "entropy"} & set(mine) and {"pseudo_loss", "entropy_trained"} <= set(mine)
    plain = trainer(tmp_path, "grpo", max_steps=2)
    plain.train()
    assert not any("kl" in row for row in plain.state.log_history)


def test_correct_is_a_reward_above_a_number_of_your_own(tmp_path: Path) -> None:
    """Where rewards are functions of one's own nobody has a verdict; PL trains on what is above ``correct_above``."""

    def graded(completions: list[str], **columns: Any) -> list[float]:
        return [0.1 if row % 2 else 1.0 for row in range(len(completions))]

    def estimated(**changes: Any) -> list[float]:
        pl = rlvr_cli.PLTrainer(
            model=load_base(tmp_path),
            args=arguments(tmp_path),
            processing_class=make_tokenizer(compact.vocabulary()),
            train_dataset=Dataset.from_dict({"prompt": ["a knight", "b knave"] * 8}),
            **{"reward_funcs": [graded], **changes},
        )
        rows = pl._collect_rollout(pl.train_dataset.select([0] * 8).to_list())
        found: list[float] = rows["estimated"].squeeze(1).tolist()
        return found

    def penalty(completions: list[str], **columns: Any) -> list[float]:
        return [-1.0 if row % 4 == 0 else 0.0 for row in range(len(completions))]

    assert estimated() == [1.0] * 8
    assert estimated(correct_above=0.5) == [1.0, 0.0] * 4
    # The word of one function, whatever the others give.
    two = [graded, penalty]
    assert estimated(reward_funcs=two, correct_above=0.5) == [1.0, 0.0] * 4
    assert estimated(reward_funcs=two, correct="penalty", correct_above=-0.5) == [0.0, 1.0, 1.0, 1.0] * 2
    with pytest.raises(ValueError, match=r"unknown reward function\..* Did you mean `penalty`"):
        estimated(reward_funcs=two, correct="penalti")
    with pytest.raises(ValueError, match="correct_above"):
        rlvr_cli.GRPOTrainer(
            model=load_base(tmp_path), reward_funcs=[graded], args=arguments(tmp_path), correct_above=0.5
        )


def test_what_a_user_gets_wrong_is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lopty"):
        trainer(tmp_path, "lopty")
    with pytest.raises(UserError, match="etta"):
        trainer(tmp_path, "lopti", "passes.etta=0.4")
    with pytest.raises(ValueError, match="must split into whole"):
        trainer(tmp_path, "lopti", steps_per_generation=4, gradient_accumulation_steps=8)


def test_what_this_trainer_cannot_do_is_refused(tmp_path: Path) -> None:
    """Each of these would run, and silently as something else."""
    with pytest.raises(ValueError, match=r"reward\.noise"):
        trainer(tmp_path, "grpo+noise")
    with pytest.raises(UserError, match=r"use trl\.SFTTrainer"):
        trainer(tmp_path, "sft")
    ppo = {
        "reward_funcs": [small_ids_are_better],
        "args": arguments(tmp_path),
        "processing_class": make_tokenizer(compact.vocabulary()),
    }
    with pytest.raises(ValueError, match="pass the model itself"):
        rlvr_cli.PolicyTrainer(method="ppo", model=str(tmp_path / "base"), **ppo)
    with pytest.raises(ValueError, match="groups of 3"):
        rlvr_cli.PolicyTrainer(method="lopti", model=load_base(tmp_path), group_size=3, **ppo)
    with pytest.warns(UserWarning, match="cannot be resumed"):
        trainer(tmp_path, "lopti", save_steps=3)


def test_a_value_head_survives_a_checkpoint_of_trl(tmp_path: Path) -> None:
    trained = trainer(tmp_path, "ppo", max_steps=4, save_steps=4)
    trained.train()
    folder = tmp_path / "out" / "checkpoint-4"
    assert not any("value_head" in key for key in load_file(folder / "model.safetensors"))
    resumed = trainer(tmp_path, "ppo")
    resumed.train(resume_from_checkpoint=str(folder))
    assert resumed.state.global_step == 8
    assert trained.value_head is not None and resumed.value_head is not None
    saved = load_file(folder / "value_head.safetensors")["weight"]
    assert torch.equal(saved, trained.value_head.layer.weight) and saved.abs().sum() > 0
    assert not torch.equal(saved, resumed.value_head.layer.weight)


def test_the_initial_entropy_is_measured_once_and_not_from_a_checkpoint(tmp_path: Path) -> None:
    gtpo = trainer(tmp_path, "gtpo", max_steps=2, save_steps=2)
    gtpo.train()
    first = gtpo.rollout_state()[1]
    longer = trainer(tmp_path, "gtpo", max_steps=6)
    longer.train()
    assert first is not None and longer.rollout_state()[1] == first
    with pytest.raises(ValueError, match="untrained model"):
        trainer(tmp_path, "gtpo").train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))


def test_trl_checkpoints_resume_between_rollouts_only(tmp_path: Path) -> None:
    """TRL does not save the rollout; going on with another in the middle of a schedule would be silently wrong."""
    trainer(tmp_path, "lopti", max_steps=4, save_steps=3).train()
    with pytest.raises(ValueError, match="in the middle of a rollout"):
        trainer(tmp_path, "lopti").train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    resumed = trainer(tmp_path, "lopti")
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    assert resumed.state.global_step == 8 and resumed.rollout_index == 2
