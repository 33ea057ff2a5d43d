"""The number of parameters from config.json: against transformers' own models and the published sizes of weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.config.load import preset_document, preset_names
from rlvr_cli.core.errors import UserError
from rlvr_cli.models.architecture import Architecture, find_architecture, from_config
from rlvr_cli.models.source import PRESETS, hub_presets, resolve_model

SMALL = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 101,
    "max_position_embeddings": 64,
}
# `total_size` of model.safetensors.index.json on the hub, bfloat16: two bytes a parameter.
PUBLISHED_BYTES = {
    "qwen2.5-0.5b": 988_065_536,
    "qwen2.5-0.5b-instruct": 988_065_536,
    "qwen2.5-1.5b": 3_087_428_608,
    "qwen2.5-1.5b-instruct": 3_087_428_608,
    "qwen2.5-3b": 6_171_877_376,
    "qwen2.5-3b-instruct": 6_171_877_376,
    "qwen2.5-7b": 15_231_233_024,
    "qwen2.5-7b-instruct": 15_231_233_024,
    "qwen2.5-7b-instruct-1m": 15_231_233_024,
    "llama-3.1-8b-instruct": 16_060_522_496,
    "deepseek-r1-distill-qwen-1.5b": 3_554_176_000,
    "deepseek-r1-distill-qwen-7b": 15_231_233_024,
    "deepseek-r1-distill-qwen-14b": 29_540_067_328,
}


def shape(**changes: Any) -> Architecture:
    return from_config({**SMALL, **changes})


@pytest.mark.parametrize(
    ("family", "options", "tied"),
    [
        ("qwen2", {}, True),
        ("qwen3", {"head_dim": 16, "attention_bias": True}, False),
        ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 12}, False),
    ],
)
def test_as_many_parameters_as_the_model_has(family: str, options: dict[str, Any], tied: bool) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {**SMALL, **options, "tie_word_embeddings": tied}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **values))
    found = shape(model_type=family, **options, tie_word_embeddings=tied)
    assert found.parameters == model.num_parameters()
    assert found.kv_bytes_per_token(2) == 2 * 3 * 2 * options.get("head_dim", 8) * 2
    assert found.outside_embedding == found.parameters - found.embedding * (1 if tied else 2)
    linear = [layer for name, layer in model.named_modules() if name.endswith("_proj")]
    assert found.linear_parameters() == sum(layer.weight.numel() for layer in linear)
    rank = 4
    assert found.adapter_parameters(rank) == sum(rank * (x.in_features + x.out_features) for x in linear)
    attention = [layer for name, layer in model.named_modules() if name.endswith(("q_proj", "v_proj"))]
    assert found.adapter_parameters(rank, ("q_proj", "v_proj")) == sum(
        rank * (x.in_features + x.out_features) for x in attention
    )


def test_presets_have_the_parameters_of_the_published_weights() -> None:
    for name, size in PUBLISHED_BYTES.items():
        values = dict(preset_document("models", name).data["architecture"])
        parameters = values.pop("parameters")
        assert from_config(values).parameters == parameters == size // 2, name
    assert set(hub_presets()) == set(PUBLISHED_BYTES)
    assert set(preset_names("model")) == set(PUBLISHED_BYTES) | set(PRESETS)


def test_the_lab_model() -> None:
    import torch
    from safetensors import safe_open

    folder: Path = PRESETS["lab"]
    architecture = find_architecture("lab").architecture
    assert architecture is not None
    with safe_open(folder / "model.safetensors", "pt") as weights:
        sizes = [torch.Size(weights.get_slice(key).get_shape()).numel() for key in weights.keys()]  # noqa: SIM118
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert architecture.parameters == sum(sizes) == from_config(values).parameters


def test_another_family_has_the_number_that_was_counted() -> None:
    assert from_config({**SMALL, "model_type": "gpt_oss"}, 12345).parameters == 12345
    with pytest.raises(KeyError):
        from_config({"model_type": "gpt2", "n_embd": 12}, 5)


def test_a_preset_stands_for_a_hub_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=r"cannot get Qwen/Qwen2\.5-7B from the Hugging Face hub: HF_HUB_OFFLINE"):
        resolve_model("qwen2.5-7b")
    snapshot = tmp_path / "models--Qwen--Qwen2.5-7B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}", encoding="utf-8")
    source = resolve_model("qwen2.5-7b")
    assert (source.name, source.kind, source.location) == ("qwen2.5-7b", "hub", "Qwen/Qwen2.5-7B")
    with pytest.raises(UserError, match=r"a preset \(lab, lab-countdown, lab-math, deepseek-r1-distill-qwen-1\.5b, "):
        resolve_model("./no/such/folder")
