"""The weights that vLLM is given: those of the policy, by the names of files."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from rlvr_cli.training.value_head import NAME
from rlvr_cli.training.vllm_engine import compute_checksums, policy_tensors, vllm_policy_config
from tests.training.harness import tiny_model

IDS = torch.arange(2, 22).reshape(2, 10)


@pytest.mark.parametrize("untie", [False, True])
def test_what_vllm_gets_is_the_policy(tmp_path: Path, untie: bool) -> None:
    model = tiny_model().float().eval()
    model.register_module(NAME, torch.nn.Linear(2, 1))
    weights = {name: weight.clone() for name, weight in policy_tensors(model, untie=untie).items()}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    vllm_policy_config(model, untie=untie).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, loaded(IDS).logits)
    assert loaded.config.tie_word_embeddings is not untie
    assert ("lm_head.weight" in weights) is untie


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_were_not_taken_show(dtype: torch.dtype) -> None:
    trained = tiny_model().float()
    held = copy.deepcopy(trained).to(dtype)
    weights = policy_tensors(trained, untie=False)
    sums = compute_checksums(held, weights=weights)
    assert sums.keys() == weights.keys() and all(ours == theirs for ours, theirs in sums.values())
    # vLLM pads the vocabulary, and what it joins or packs is of another shape.
    embedding = held.get_parameter("model.embed_tokens.weight")
    embedding.data = torch.nn.functional.pad(embedding.data, (0, 0, 0, 7))
    held.get_parameter("model.layers.0.mlp.down_proj.weight").data = torch.zeros(0)
    padded = compute_checksums(held, weights=weights)
    assert padded == {name: pair for name, pair in sums.items() if name != "model.layers.0.mlp.down_proj.weight"}
    with torch.no_grad():
        for weight in trained.parameters():
            weight.add_(0.01)
    assert all(ours != theirs for ours, theirs in compute_checksums(held, weights=weights).values())
