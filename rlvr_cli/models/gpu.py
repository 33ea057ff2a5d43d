"""Disable attention kernels with wrong gradients, and test the others before use.

cuDNN's kernel, which torch 2.13 prefers on H100 and H200, returns NaN gradients with a mask, a width of 64 mod 128 and
a row whose logits are all below -88 (pytorch/pytorch#196678), as in Qwen2.5. On Blackwell its forward pass is wrong
with few key heads (pytorch/pytorch#193893).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rlvr_cli.core.errors import UserError

# A broken kernel returns NaN or an error of the size of the result.
_TOLERANCE = 0.1
_WIDTH = 704  # 64 mod 128
_LOGIT = -120.0


def disable_cudnn_attention() -> None:
    torch.backends.cuda.enable_cudnn_sdp(False)


def has_bfloat16() -> bool:
    """Return whether this process's GPU has native bfloat16, unlike V100 and T4, which emulate it slowly."""
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


def prepare_attention(device: torch.device, *, gradients: bool) -> None:
    """On a GPU, disable broken attention kernels and test the others. Raises UserError if the test fails."""
    if device.type != "cuda":
        return
    disable_cudnn_attention()
    dtype = torch.bfloat16 if has_bfloat16() else torch.float32
    problem, alternative = find_attention_problem(device, dtype, gradients=False), ""
    if problem is None and gradients:
        problem = find_attention_problem(device, dtype)
        alternative = ", or set model.attention=eager, which avoids these kernels"
    if problem is not None:
        raise UserError(
            f"attention on {torch.cuda.get_device_name(device)}: {problem} Its results would be wrong. "
            f"The cause is a kernel of torch {torch.__version__} (CUDA {torch.version.cuda}, cuDNN "
            f"{torch.backends.cudnn.version()}) or the GPU's driver. Install another version of torch{alternative}."
        )


def find_attention_problem(
    device: torch.device,
    dtype: torch.dtype,
    *,
    gradients: bool = True,
    attend: Callable[..., Tensor] = F.scaled_dot_product_attention,
    width: int = _WIDTH,
) -> str | None:
    """Compare ``attend`` on ``device`` with float64 arithmetic; return the problem, or None.

    The input is known to break kernels: a left-padded row in a mask, a width of 64 mod 128, and logits near -120, so
    that the sum of their exponentials is 0 in float32.
    """
    size, padding = 64, 32
    level = math.sqrt(-_LOGIT * math.sqrt(size))
    generator = torch.Generator().manual_seed(0)
    noise = [torch.randn(2, 2, width, size, generator=generator, dtype=torch.float64) for _ in range(4)]
    queries, keys, values, upstream = (tensor.to(dtype) for tensor in noise)
    # One dimension gives every pair a logit near _LOGIT, as the biases of Qwen2.5's keys.
    queries[..., 0], keys[..., 0] = level, -level
    inputs = (queries, keys, values)
    mask = torch.ones(width, width, dtype=torch.bool).tril().expand(2, 1, width, width).clone()
    mask[0, :, :, :padding] = False
    upstream[0, :, :padding] = 0  # nothing depends on padding
    read = torch.ones(2, 1, width, 1, dtype=torch.bool)
    read[0, :, :padding] = False

    def results(attend: Callable[..., Tensor], device: Any, dtype: torch.dtype) -> list[Tensor]:
        leaves = [tensor.to(device, dtype).detach().requires_grad_(gradients) for tensor in inputs]
        output = attend(*leaves, attn_mask=mask.to(device))
        outputs = [torch.where(read.to(device), output.detach(), 0)]
        if gradients:
            outputs += torch.autograd.grad(output, leaves, upstream.to(device, dtype))
        return [tensor.double().cpu() for tensor in outputs]

    names = ("output", "gradient of the queries", "gradient of the keys", "gradient of the values")
    expected = results(_reference_attention, "cpu", torch.float64)
    for name, tensor, reference in zip(names, results(attend, device, dtype), expected, strict=False):
        if not bool(tensor.isfinite().all()):
            return f"the {name} is not finite."
        error = float((tensor - reference).norm() / reference.norm())
        if error > _TOLERANCE:
            return f"the {name} is off by {error:.0%}."
    return None


def _reference_attention(queries: Tensor, keys: Tensor, values: Tensor, *, attn_mask: Tensor) -> Tensor:
    scores = queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1])
    # A row of padding attends to nothing.
    weights = torch.where(attn_mask, scores, -torch.inf).softmax(dim=-1).nan_to_num(0.0)
    return weights @ values
