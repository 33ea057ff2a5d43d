"""The forward pass of an update: how often the model's parts are called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rlvr_cli.training import log_probs
from rlvr_cli.training.log_probs import can_share_prompts, chosen_log_probs, has_linear_head
from tests.training.harness import flat_gradient, tiny_model


def test_the_head_is_called_once_however_many_parts_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeRO-3 gathers its weights in each call, and the processes differ in the tokens that they read."""
    model = tiny_model()
    ids = torch.randint(3, 20, (3, 9), generator=torch.Generator().manual_seed(0))
    ones = torch.ones_like(ids)
    calls: list[int] = []
    model.lm_head.register_forward_hook(lambda module, given, output: calls.append(len(given[0])))

    def gradient() -> torch.Tensor:
        model.zero_grad()
        read = ones[:, 3:].bool()
        log_probs, _, _ = chosen_log_probs(
            model, ids[:, :3], ones[:, :3], ids[:, 3:], ones[:, 3:], read, None, 0.7, entropies=True
        )
        log_probs.square().sum().backward()
        return flat_gradient(model)

    whole = gradient()
    monkeypatch.setattr(log_probs, "MAX_LOGITS", 5 * model.lm_head.out_features)
    assert torch.allclose(gradient(), whole, rtol=1e-10, atol=1e-12)
    assert calls == [18, 18]


def padded_gradient(device: str) -> torch.Tensor:
    """Of rows with padding on both sides, in float32."""
    model = tiny_model().float().to(device)
    lengths = [(5, 9), (2, 30), (4, 17)]
    mask = torch.tensor([[0] * (5 - p) + [1] * (p + c) + [0] * (30 - c) for p, c in lengths], device=device)
    ids = torch.randint(3, 20, mask.shape, generator=torch.Generator().manual_seed(0)).to(device) * mask
    log_probs, _, _ = chosen_log_probs(
        model, ids[:, :5], mask[:, :5], ids[:, 5:], mask[:, 5:], mask[:, 5:].bool(), None, 1.0, entropies=False
    )
    log_probs.square().sum().backward()
    return flat_gradient(model).cpu()


@pytest.mark.gpu
def test_a_gradient_on_a_gpu_is_the_cpus(gpu: str) -> None:
    ours, right = padded_gradient(gpu), padded_gradient("cpu")
    assert float((ours - right).norm()) < 1e-4 * float(right.norm())


SIZES = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}


def untrained(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **options}))


@pytest.mark.parametrize(
    ("kind", "options", "linear"),
    [
        pytest.param("gemma2", {**HEADS, "final_logit_softcapping": None}, True, id="no cap"),
        pytest.param("gemma2", {**HEADS, "final_logit_softcapping": 30.0}, False, id="cap"),
        pytest.param("granite", {**HEADS, "logits_scaling": 8.0}, False, id="scale"),
        pytest.param(
            "opt", {"num_attention_heads": 2, "ffn_dim": 32, "word_embed_proj_dim": 16}, False, id="layers of its own"
        ),
    ],
)
def test_a_head_that_does_more_than_a_product_is_told(kind: str, options: dict[str, Any], linear: bool) -> None:
    """With untrained weights, whose logits are far below any cap; what cannot be told is not."""
    assert has_linear_head(untrained(kind, **options)) is linear


@pytest.mark.parametrize(
    ("rope", "shared"),
    [
        pytest.param({"rope_type": "default", "rope_theta": 1e4}, True, id="default"),
        pytest.param({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, False, id="dynamic"),
    ],
)
def test_prompts_are_shared_where_positions_do_not_depend_on_what_follows(rope: dict[str, Any], shared: bool) -> None:
    assert can_share_prompts(untrained("llama", **HEADS, rope_parameters=rope)) is shared


def test_a_cache_of_more_than_keys_and_values_is_not_shared() -> None:
    model = untrained("falcon_h1", **HEADS, mamba_d_ssm=16, mamba_n_heads=2, mamba_d_head=8, mamba_d_state=4)
    assert not can_share_prompts(model)
