"""What rlvr_cli/training/trainer.py relies on inside TRL and transformers.

When a release changes one of these, the first test fails and names it: read the change, check the adapter against it,
run tests/training, and only then record the new hash.
"""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer

from experiments.lab.model import make_tokenizer
from rlvr_cli.tasks import kk_compact as compact
from rlvr_cli.training import trl_arguments
from rlvr_cli.training.run_trainer import RunTrainer
from rlvr_cli.training.sft import sft_config
from rlvr_cli.training.trainer import PolicyTrainer
from rlvr_cli.training.trl_arguments import COMMON_ARGUMENTS, apply_method, trl_config
from tests.training.harness import load_base, method_of, train

# Two hashes: transformers 5.17, which vLLM 0.31 needs, and 5.23, which adds models that are sharded as they load.
SOURCES = {
    "GRPOTrainer._generate_and_score_completions": "1fa48922792dcd5c",
    "GRPOTrainer._calculate_rewards": "736ae29b083840b5",
    "GRPOTrainer._get_per_token_logps_and_entropies": "ea73c3909275851d",
    "GRPOTrainer._get_train_sampler": "36497afb4d311dc9",
    "GRPOTrainer.training_step": "9e18632f7dd8e8d8",
    "GRPOTrainer._save_checkpoint": "ec91bde123649111",
    "GRPOTrainer._load_optimizer_and_scheduler": "5c1772becdfd7fdb",
    "GRPOTrainer.log": "1e7772819cc8cf09",
    "Trainer._save": "bf720120f407bab3 b136889e87928376",
    "Trainer._run_epoch": "ebe374933064ecd6 31aff00f34c302a2",
    "Trainer._maybe_log_save_evaluate": "af101534f0f7b2d7",
    "Trainer._prepare_for_training": "0a4d89b3fdfdd070 f55950593d7e10c0",
    "Trainer._init_training_state": "8fbd17ebb7d3793d",
    "Trainer._load_from_checkpoint": "4711d0506786db15 a2804e8d93a297e3",
    "Trainer._clip_grad_norm": "ebfa9dc91d3088ab",
    "Trainer.create_optimizer": "daff86cde6ccc56d c798977d9dca3601",
    "Trainer.training_step": "a95f8c94253a5148 e9760c8ee10308d5",
    "Trainer._get_grad_norm": "913ba6f52f074d10",
    "Trainer.create_scheduler": "a9edec70a59bffa5",
}


def test_the_source_we_were_written_against_is_unchanged() -> None:
    for name in SOURCES:
        owner, method = name.split(".")
        source = inspect.getsource(getattr({"GRPOTrainer": GRPOTrainer, "Trainer": Trainer}[owner], method))
        found = hashlib.sha256(source.encode()).hexdigest()[:16]
        assert found in SOURCES[name].split(), f"{name} changed: check rlvr_cli/training/trainer.py against it"


def test_every_kind_of_training_has_the_same_settings(tmp_path: Path) -> None:
    on_cpu = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False}
    # transformers reads "none" as an empty list.
    expected = {**COMMON_ARGUMENTS, "report_to": []}
    for config in (trl_config(**on_cpu), sft_config(**on_cpu)):
        assert {name: getattr(config, name) for name in expected} == expected


OWN = {
    "_accumulate_gradients",
    "_advantage_inputs",
    "_adapt_entropy_bonus",
    "_decode_for_rewards",
    "_backward_options",
    "_check_arguments",
    "_empty_cache",
    "_gather_numbers",
    "_generate_with_trl",
    "_grad_mask",
    "_sync_gradients",
    "_log_advantages",
    "_loss",
    "_pad_batch",
    "_get_step_rows",
    "_sample_with_trl",
    "_collect_rollout",
    "_prepare_teacher",
    "_store_rollout",
    "_begin_step",
}


def test_every_override_overrides_something() -> None:
    """A private method that TRL renames would silently never be called."""
    members = {**vars(PolicyTrainer), **vars(RunTrainer)}
    private = {name for name, value in members.items() if inspect.isfunction(value) and name.startswith("_")}
    private -= {"__init__"}
    assert {name for name in private - OWN if not hasattr(GRPOTrainer, name)} == set()
    assert private >= OWN and not any(hasattr(GRPOTrainer, name) for name in OWN)


def watch(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The counter, pass and keys of every optimizer step that a loss is computed for."""
    seen: list[dict[str, Any]] = []
    whole = PolicyTrainer._begin_step

    def spy(self: PolicyTrainer, rows: dict[str, Any]) -> Any:
        where = {"step": self.state.global_step, "rollout": self.rollout_index, "pass": self.current_pass}
        seen.append({**where, "keys": set(rows)})
        return whole(self, rows)

    monkeypatch.setattr(PolicyTrainer, "_begin_step", spy)
    return seen


def test_the_counter_counts_steps_and_names_rollout_and_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch(monkeypatch)
    train(tmp_path, method_of("lopti"), load_base(tmp_path), micro_batch=4, updates=2, epochs=2)
    assert [call["step"] for call in seen] == list(range(16))
    assert [call["rollout"] for call in seen] == [0] * 8 + [1] * 8
    assert [call["pass"] for call in seen] == (["low"] * 2 + ["high"] * 2) * 4


@pytest.mark.parametrize(("updates", "epochs"), [(1, 1), (2, 2)])
def test_old_log_probs_are_there_exactly_when_the_policy_may_have_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, updates: int, epochs: int
) -> None:
    """In a rollout's first step the policy is the one that sampled: its log-probs are kept for later passes."""
    seen = watch(monkeypatch)
    train(tmp_path, method_of("grpo"), load_base(tmp_path), micro_batch=4, updates=updates, epochs=epochs)
    for call in seen:
        assert ("old_log_probs" in call["keys"]) == (call["step"] % (updates * epochs) > 0)


def test_options_that_the_method_decides_are_refused(tmp_path: Path) -> None:
    """TRL's own loss does not run, so what configures it would silently do nothing. What does decide it is named."""
    method = method_of("grpo")
    for option, value, said in (
        ("loss_type", "grpo", 'overrides=\\["aggregation=sequence_mean"'),
        ("loss_type", "cispo", 'method="cispo", overrides=\\["policy_loss.eps_low=null"'),
        ("loss_type", "sapo", 'method="sapo"'),
        ("loss_type", "bnpo", "aggregation=token_mean"),
        ("scale_rewards", "none", "advantage.scale=none"),
        ("scale_rewards", "batch", "advantage.scale=batch"),
        ("use_adaptive_entropy", True, "entropy_bonus.target=0.2"),
        ("entropy_coef", 0.01, "entropy_bonus.coef=0.01"),
        ("off_policy_mask_threshold", 0.5, "rlvr train rollout.correction=opsm rollout.correction.delta=0.5"),
        ("delta", 1.5, "policy_loss.dual_clip.*, the same for a delta above 1 \\+ eps_high"),
        ("beta", 0.1, "kl.beta"),
        ("epsilon", 0.1, 'overrides=\\["policy_loss.eps_low='),
        ("epsilon_high", 0.4, "policy_loss.eps_high"),
        ("top_entropy_quantile", 0.2, "shaping.high_entropy.share"),
        ("importance_sampling_level", "sequence", 'method="gspo"'),
        ("sapo_temperature_pos", 2.0, 'method="sapo", overrides=\\["policy_loss.tau_pos=2.0"'),
    ):
        settings = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, option: value}
        with pytest.raises(ValueError, match=f"the method grpo decides.*{option} .*{said}"):
            PolicyTrainer(method=method, model=load_base(tmp_path), reward_funcs=[], args=GRPOConfig(**settings))


def test_the_largest_weight_of_cispo_is_one_less_here(tmp_path: Path) -> None:
    config = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, epsilon_high=5.0)
    with pytest.raises(ValueError, match=r"policy_loss\.eps_high.*minus 1"):
        apply_method(config, trl_arguments.resolve_method("cispo"))


@pytest.mark.parametrize("option", [True, False])
def test_a_kl_term_that_is_added_has_the_correction_that_trl_is_told(tmp_path: Path, option: bool) -> None:
    """TRL's option has no value that says "not set": a key of ours, and a method's own KL term, come before it."""

    def correction(method: Any, *overrides: str) -> bool:
        config = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, use_bias_correction_kl=option)
        trainer = PolicyTrainer(
            load_base(tmp_path),
            [len],
            config,
            Dataset.from_dict({"prompt": ["a knight"]}),
            processing_class=make_tokenizer(compact.vocabulary()),
            method=method,
            overrides=overrides,
        )
        assert trainer.method.kl.beta > 0
        return bool(trainer.method.kl.bias_correction)

    assert correction("grpo", "kl.beta=0.1") == option
    assert correction("grpo", "kl.beta=0.1", "kl.bias_correction=false") is False
    assert correction("lopti") is False and correction("lopti", "kl.beta=0.1") is False
    assert correction(method_of("grpo", "kl.beta=0.1")) is False
    if option:
        assert correction("grpo", "kl.beta=0.1", "kl.bias_correction=true") is True
    else:
        with pytest.raises(ValueError, match=r"use_bias_correction_kl=False.*kl\.bias_correction=true"):
            correction("grpo", "kl.beta=0.1", "kl.bias_correction=true")


def test_options_that_no_method_decides_stay_open(tmp_path: Path) -> None:
    given = {"reward_weights": [1.0, 0.2], "chat_template_kwargs": {"enable_thinking": False}, "min_p": 0.1}
    arguments = apply_method(GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, **given), method_of("grpo"))  # type: ignore[arg-type]
    assert {name: getattr(arguments, name) for name in given} == given
