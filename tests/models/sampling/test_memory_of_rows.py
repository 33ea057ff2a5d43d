"""Rows that are sampled together by the memory that there is; `rlvr plan` computes with the same numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rlvr_cli.models.architecture import from_config
from rlvr_cli.models.sampling import local as sampler
from rlvr_cli.models.sampling.decoder import row_memory
from rlvr_cli.models.sampling.engine import SamplingParams
from rlvr_cli.models.sampling.memory import (
    RowMemory,
    SamplingMemoryError,
    activation_bytes,
    explain_out_of_memory,
    is_out_of_memory,
    kv_bytes,
)
from rlvr_cli.planning.memory import Sampling, Training, rows_at_once
from rlvr_cli.planning.memory import planned_row_memory as planned_memory
from tests.models.tiny import make

# Qwen2.5-7B in bfloat16.
SEVEN = RowMemory(kv_bytes(28, 4, 128, 2), activation_bytes(3584, 18944, 28, 4, 128, 2), vocabulary=152064)


def test_rows_come_in_coarse_steps_and_never_are_none() -> None:
    one = SEVEN.row(1000)
    steps = [SEVEN.rows(100, fitting * one, 1000) for fitting in range(1, 26)]
    assert sorted(set(steps)) == [1, 2, 3, 4, 6, 8, 12, 16, 24]
    assert all(step <= fitting < 1.5 * step + 1 for fitting, step in enumerate(steps, start=1))
    assert SEVEN.rows(100, -5.0, 1000) == SEVEN.rows(100, 0.0, 1000) == 1
    # All of them are no step.
    assert SEVEN.rows(23, 25 * one, 1000) == 23 and SEVEN.rows(23, 22 * one, 1000) == 16


@pytest.mark.parametrize("name", ["qwen2", "qwen3-gqa-wide-heads-tied", "llama"])
def test_the_plan_knows_the_model_as_the_sampler_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(name)
    values = {**model.config.to_dict(), "head_dim": getattr(model.config, "head_dim", None)}
    architecture = from_config(values, model.num_parameters())
    monkeypatch.setattr(sampler, "_free_memory", lambda device: 1_500_000)
    planned = planned_memory(architecture, 4, gpu=False)
    assert planned_memory(architecture, 4, gpu=True) == replace(planned, scores=model.config.num_attention_heads)
    assert planned_memory(architecture, 2, gpu=True) == planned_memory(architecture, 2, gpu=False)
    assert planned == row_memory(model)
    assert planned_memory(architecture, 2, gpu=False) == row_memory(make(name).to(torch.bfloat16))
    training = Training(1, 30, 70, autocast=False, gpu=False)
    rows = rows_at_once(planned, training, Sampling("local", 64, group=64), 1_500_000)
    assert 1 < rows == sampler.rows_that_fit(model, [[1] * 30] * 64, SamplingParams(max_new_tokens=70)) < 64
    assert rows_at_once(planned, training, Sampling("local", 64, batch=50), 1_500_000) == 50


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:116] DefaultCPUAllocator: can't allocate memory: you tried ..."),
    ],
)
def test_a_want_of_memory_says_how_many_rows_and_what_to_change(error: Exception) -> None:
    assert is_out_of_memory(error)
    with pytest.raises(SamplingMemoryError) as told, explain_out_of_memory(64, 4096):
        raise error
    text = str(told.value)
    assert text.startswith("out of memory while sampling 64 completions of up to 4096 tokens at once (")
    assert "rollout.batch=32 (validation.batch, eval.batch)" in text and "\n" not in text
    with pytest.raises(SamplingMemoryError) as told, explain_out_of_memory(1, 4096):
        raise error
    assert "1 completion of" in str(told.value) and "batch" not in str(told.value)
