"""What GPUs get wrong: cuDNN's attention is off, and the test of the other kernels finds what it is for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from rlvr_cli.config.load import load_config
from rlvr_cli.launch.world import ALONE
from rlvr_cli.models import gpu as gpu_module
from rlvr_cli.models.gpu import find_attention_problem, has_bfloat16, prepare_attention
from rlvr_cli.models.load import load_model
from rlvr_cli.training.prepare import set_up_process

CPU = torch.device("cpu")


def attention(*tensors: Tensor, **options: Any) -> Tensor:
    """By the plain kernel: the other may need instructions that ATEN_CPU_CAPABILITY has switched off."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*tensors, **options)


@pytest.fixture(autouse=True)
def cudnn_allowed() -> Iterator[None]:
    """cuDNN's kernel as torch starts, and afterwards as it was."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


class _NanQueries(torch.autograd.Function):
    """cuDNN's fault: no gradient of queries whose exponentials, without their largest taken off, are all 0."""

    @staticmethod
    def forward(context: Any, queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        scores = (queries @ keys.transpose(-1, -2) / queries.shape[-1] ** 0.5).float()
        lost = torch.where(mask, scores, -torch.inf).logsumexp(-1, keepdim=True) < -88.7
        context.save_for_backward(lost & (queries.shape[-2] % 128 == 64))
        return queries.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (lost,) = context.saved_tensors
        return gradient.masked_fill(lost, torch.nan), None, None


def cudnn_like(queries: Tensor, keys: Tensor, values: Tensor, *, attn_mask: Tensor) -> Tensor:
    queries = _NanQueries.apply(queries, keys, attn_mask)
    return attention(queries, keys, values, attn_mask=attn_mask)


def wrong_heads(queries: Tensor, keys: Tensor, values: Tensor, *, attn_mask: Tensor) -> Tensor:
    return attention(queries, keys, values.flip(1), attn_mask=attn_mask)


def without_mask(queries: Tensor, keys: Tensor, values: Tensor, *, attn_mask: Tensor) -> Tensor:
    return attention(queries, keys, values, is_causal=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_attention_of_a_cpu_passes(dtype: torch.dtype) -> None:
    assert find_attention_problem(CPU, dtype, attend=attention) is None


def test_gradients_that_are_not_finite_are_found() -> None:
    problem = find_attention_problem(CPU, torch.bfloat16, attend=cudnn_like)
    assert problem is not None and "gradient of the queries is not finite" in problem
    assert find_attention_problem(CPU, torch.bfloat16, gradients=False, attend=cudnn_like) is None


@pytest.mark.parametrize("attend", [wrong_heads, without_mask])
def test_wrong_numbers_are_found(attend: Any) -> None:
    problem = find_attention_problem(CPU, torch.bfloat16, gradients=False, attend=attend)
    assert problem is not None and "output is off" in problem


def test_a_training_on_a_gpu_begins_with_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(gpu_module, "find_attention_problem", lambda device, dtype, **options: asked.append(device))
    config = load_config(overrides=["run.threads=1"])
    set_up_process(config, ALONE)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert asked and all(device.type == "cuda" for device in asked)


def test_a_model_on_a_gpu_has_no_cudnn_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever loads one: analyses too."""
    with pytest.raises((AssertionError, RuntimeError)):  # torch has no CUDA here
        load_model("lab", device="cuda")
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_a_gpu_that_only_emulates_bfloat16_trains_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """V100 and T4: torch says that they support it, including emulation."""
    from rlvr_cli.models.load import _resolve_dtype

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert not has_bfloat16()
    assert _resolve_dtype("auto", torch.device("cuda")) == torch.float32
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    assert has_bfloat16()
    assert _resolve_dtype("auto", torch.device("cuda")) == torch.bfloat16


@pytest.mark.gpu
def test_attention_of_this_gpu(gpu: str) -> None:
    prepare_attention(torch.device(gpu), gradients=True)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert find_attention_problem(torch.device(gpu), torch.float32) is None
