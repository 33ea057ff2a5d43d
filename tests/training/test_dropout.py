"""Dropout in updates: off unless a key asks for it, wherever an architecture keeps it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, FalconConfig, GPT2Config, OPTConfig

import rlvr_cli
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.models.source import LAB_BASES
from rlvr_cli.training.dropout import disable_dropouts, find_dropouts
from rlvr_cli.training.policy_run import _sampler_exact
from tests.matrix import metrics
from tests.training.harness import load_base, method_of, tiny_model, train
from tests.training.sft_runs import start
from tests.training.test_trainers import trainer

GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2}
PLAIN = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
# Layers, numbers in layers, whole layers, and two that read the configuration at every pass.
ARCHITECTURES = {
    "gpt2": GPT2Config(vocab_size=64, **GPT2),
    "opt": OPTConfig(vocab_size=64, **PLAIN, ffn_dim=16, word_embed_proj_dim=16, layerdrop=0.5),
    "falcon": FalconConfig(vocab_size=64, **PLAIN, attention_dropout=0.5, hidden_dropout=0.5),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_all_that_an_architecture_drops_is_switched_off_and_on_again(name: str) -> None:
    model = AutoModelForCausalLM.from_config(ARCHITECTURES[name])
    ids, before = torch.arange(12).unsqueeze(0), model.config.to_dict()
    expected = model.eval()(ids).logits
    model.train()
    found = find_dropouts(model)
    with disable_dropouts(found):
        assert torch.equal(model(ids).logits, expected)
    assert not torch.equal(model(ids).logits, expected)
    assert model.config.to_dict() == before and find_dropouts(model) == found


def test_the_dropout_of_adapters_has_a_setting_of_its_own() -> None:
    model = get_peft_model(
        AutoModelForCausalLM.from_config(ARCHITECTURES["gpt2"]),
        LoraConfig(r=2, lora_dropout=0.5, target_modules=["c_attn"], init_lora_weights=False, fan_in_fan_out=True),
    ).train()
    ids = torch.arange(12).unsqueeze(0)
    with disable_dropouts(find_dropouts(model)):
        assert not torch.equal(model(ids).logits, model(ids).logits)
        with model.disable_adapter():
            assert torch.equal(model(ids).logits, model(ids).logits)


def test_a_model_that_is_updated_with_dropout_is_not_the_one_that_sampled() -> None:
    model = tiny_model().float()
    assert _sampler_exact(load_config(), model, bf16=False)
    assert not _sampler_exact(load_config(overrides=["update.dropout=true"]), model, bf16=False)


def with_dropout(folder: Path) -> Any:
    model = load_base(folder)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    return model


def test_a_gradient_is_that_of_the_model_without_dropout(tmp_path: Path) -> None:
    method = method_of("grpo")
    plain = train(tmp_path, method, load_base(tmp_path), micro_batch=4, epochs=2).gradients
    default = train(tmp_path, method, with_dropout(tmp_path), micro_batch=4, epochs=2).gradients
    asked = train(tmp_path, method, with_dropout(tmp_path), micro_batch=4, epochs=2, dropout=True).gradients
    assert all(torch.equal(mine, other) for mine, other in zip(default, plain, strict=True))
    assert any(not torch.allclose(mine, other) for mine, other in zip(asked, plain, strict=True))


def test_the_reference_of_an_adapter_drops_nothing(tmp_path: Path) -> None:
    made = rlvr_cli.PolicyTrainer(
        with_dropout(tmp_path), **settings(tmp_path), peft_config=LoraConfig(r=2, target_modules=["q_proj"]),
        method="grpo", overrides=["kl.beta=0.1"], dropout=True,
    )  # fmt: skip
    rows = {"prompt_ids": torch.tensor([[3, 4]]), "completion_ids": torch.tensor([[5, 6, 7]])}
    rows |= {key.replace("ids", "mask"): torch.ones_like(value) for key, value in rows.items()}
    made.model.train()
    assert torch.equal(made.reference_log_probs(rows), made.reference_log_probs(rows))
    assert made.model.training


def settings(folder: Path) -> dict[str, Any]:
    made = trainer(folder, "grpo")
    return {
        "reward_funcs": made.reward_funcs,
        "args": made.args,
        "processing_class": made.processing_class,
        "train_dataset": made.train_dataset,
    }


SMALL = {
    "train__rollouts": 1,
    "validation__every": 0,
    "optimizer__lr": 1e-9,
    "rollout__max_new_tokens": 80,
    "update__mini_batches": 1,
    "update__epochs": 1,
}


@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_a_run_has_it_where_its_key_says_so(tmp_path: Path, method: str) -> None:
    model = tmp_path / "model"
    shutil.copytree(LAB_BASES / "kk", model)
    config = json.loads((model / "config.json").read_text())
    small = {**SMALL, "model__name": str(model)}
    plain = start(tmp_path, "plain", method, **small).run
    with pytest.raises(UserError, match=r"update.dropout=true has no effect: .*model has no dropout"):
        start(tmp_path, "none", method, **small, update__dropout=True)
    (model / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.3}))
    default = start(tmp_path, "default", method, **small).run
    assert default.metrics_path.read_bytes() == plain.metrics_path.read_bytes()
    asked = start(tmp_path, "asked", method, **small, update__dropout=True).run
    # Of what is left out alone the old log-probs would differ, in their last digits.
    norms = [metrics(run)[0]["grad_norm"] for run in (plain, asked)]
    assert norms[0] > 0 and norms[1] != pytest.approx(norms[0], rel=1e-2)
    assert "dropout: true" in (asked.path / "config.yaml").read_text()
    assert "dropout: false" in (default.path / "config.yaml").read_text()
