"""The weights that vLLM is given: those of the policy, by the names of files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from rlvr_cli.training.value_head import NAME
from rlvr_cli.training.vllm_engine import policy_tensors, vllm_policy_config
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
