"""`model.attention=flash_attention_2`, whose kernels refuse float32: with a stand-in that does the same on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.training import harness

SEEN: list[torch.dtype] = []


def stand_in(queries: Tensor, keys: Tensor, values: Tensor, attention_mask: Tensor | None, **options: Any) -> Tensor:
    """The kernel below transformers' own flash_attention_2: half precision alone, whatever autocast does not give."""
    tensors = [queries, keys, values]
    if queries.dtype == torch.float32:
        tensors = [tensor.to(options["target_dtype"]) for tensor in tensors]
    if tensors[0].dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    SEEN.append(tensors[0].dtype)
    queries, keys, values = (tensor.transpose(1, 2) for tensor in tensors)
    mask = torch.ones(queries.shape[2], keys.shape[2], dtype=torch.bool).tril(keys.shape[2] - queries.shape[2])
    if attention_mask is not None:
        mask = mask & attention_mask[:, None, None, :].bool()
    with sdpa_kernel(SDPBackend.MATH):
        output = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, scale=options["softmax_scale"], enable_gqa=True
        )
    return output.transpose(1, 2)


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A model in float32, as a training has it, that attends by the stand-in."""
    SEEN.clear()
    monkeypatch.setattr("transformers.integrations.flash_attention._flash_attention_forward", stand_in)
    model = harness.tiny_model().float()
    model.config._attn_implementation = "flash_attention_2"
    return model


def test_a_training_starts_and_steps(tmp_path: Path, flash: Any) -> None:
    """Under autocast, as on a GPU; what is found out about the model before is in float32."""
    sizes = {"micro_batch": 4, "rollouts": 1}
    plain = harness.train(tmp_path, harness.method_of("grpo"), harness.tiny_model().float(), **sizes)
    trainer = harness.train(tmp_path, harness.method_of("grpo"), flash, bf16=True, **sizes)
    assert set(SEEN) == {torch.bfloat16}
    assert trainer.forward.applies_head
    assert flash.config._attn_implementation == "flash_attention_2"
    assert float(torch.cosine_similarity(trainer.gradients[0], plain.gradients[0], dim=0)) > 0.99
