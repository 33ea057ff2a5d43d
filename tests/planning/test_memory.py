"""The memory estimate: what each setting does to it, and the exact parts against real tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlvr_cli.config.load import load_config
from rlvr_cli.config.methods import preset_document
from rlvr_cli.planning import advice
from rlvr_cli.planning.architecture import Architecture, from_config
from rlvr_cli.planning.memory import (
    GIB,
    Adapter,
    Estimate,
    Sampling,
    Training,
    block_activations,
    estimate,
    trained_parameters,
)

ROWS, LENGTH = 2, 96
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 211,
    "max_position_embeddings": 256,
}
SERVER = Sampling("vllm_server", 512)


def preset(name: str) -> Architecture:
    found = from_config(preset_document("models", name).data["architecture"])
    assert found is not None
    return found


SEVEN = preset("qwen2.5-7b")
ONE_GPU = Training(micro_batch=4, prompt_tokens=1024, completion_tokens=3072)


def of(training: Training, sampling: Sampling = SERVER) -> Estimate:
    return estimate(SEVEN, training, sampling)


def term(found: Estimate, name: str) -> int:
    phases = [entry for entries in found.phases.values() for entry in entries]
    return max((entry.bytes for entry in (*found.states, *phases) if entry.name == name), default=0)


def test_states_of_float32_training() -> None:
    found = of(ONE_GPU)
    assert term(found, "weights") == 4 * SEVEN.parameters
    assert term(found, "gradients") == 4 * SEVEN.parameters
    assert term(found, "optimizer states") == 8 * SEVEN.parameters
    assert term(found, "reference policy") == 0
    assert found.peak == max(found.total(phase) for phase in found.phases)
    assert sum(entry.bytes for entry in found.terms) == found.peak


@pytest.mark.parametrize(
    # bytes a parameter of weights, gradients and optimizer states: ZeRO (arXiv:1910.02054), figure 1, K = 12
    ("strategy", "weights", "gradients", "optimizer"),
    [("ddp", 4, 4, 8), ("zero2", 2, 2 / 8, 12 / 8), ("zero3", 2 / 8, 2 / 8, 12 / 8), ("fsdp", 4 / 8, 4 / 8, 8 / 8)],
)
def test_states_by_strategy(strategy: Any, weights: float, gradients: float, optimizer: float) -> None:
    found = of(replace(ONE_GPU, strategy=strategy, processes=8))
    sizes = [term(found, name) for name in ("weights", "gradients", "optimizer states")]
    for size, each in zip(sizes, (weights, gradients, optimizer), strict=True):
        assert size == pytest.approx(each * SEVEN.parameters, rel=1e-6)


def test_offloading_moves_states_to_the_computer() -> None:
    found = of(replace(ONE_GPU, strategy="zero3-offload", processes=8))
    assert term(found, "optimizer states") == term(found, "gradients") == 0
    assert found.host > 16 * SEVEN.parameters // 8


def test_a_reference_is_a_second_model_but_not_beside_adapters() -> None:
    with_kl = replace(ONE_GPU, reference=True)
    assert of(with_kl).peak - of(ONE_GPU).peak == 4 * SEVEN.parameters
    adapted = replace(ONE_GPU, adapter=Adapter(64))
    assert of(replace(adapted, reference=True)).peak == of(adapted).peak


def test_adapters_train_a_little() -> None:
    lora, qlora = replace(ONE_GPU, adapter=Adapter(64)), replace(ONE_GPU, adapter=Adapter(64, quantized=True))
    assert trained_parameters(SEVEN, lora) == SEVEN.adapter_parameters(64) < SEVEN.parameters / 40
    assert term(of(lora), "optimizer states") == 8 * SEVEN.adapter_parameters(64)
    assert term(of(qlora), "weights") < term(of(lora), "weights") / 3
    assert of(qlora).peak < of(lora).peak < of(ONE_GPU).peak


@pytest.mark.parametrize("checkpointing", [True, False])
def test_more_rows_and_longer_ones_take_more(checkpointing: bool) -> None:
    here = replace(ONE_GPU, checkpointing=checkpointing)
    assert of(replace(here, micro_batch=8)).peak > of(here).peak
    assert of(replace(here, completion_tokens=8192)).peak > of(here).peak
    assert of(replace(here, attention="eager")).peak > of(here).peak
    assert of(replace(here, attention="flash_attention_2")).peak <= of(here).peak


def test_checkpointing_takes_less() -> None:
    assert of(ONE_GPU).peak < of(replace(ONE_GPU, checkpointing=False)).peak


def test_keys_and_values_of_the_engines() -> None:
    local = of(ONE_GPU, Sampling("local", 512))
    rows = 256  # decoded at once on a GPU
    assert term(local, "keys and values") == rows * 4096 * 2 * 28 * 4 * 128 * 4
    assert term(of(ONE_GPU, Sampling("local", 16)), "keys and values") == 16 * 4096 * 2 * 28 * 4 * 128 * 4
    sharded = of(replace(ONE_GPU, strategy="zero3", processes=8), Sampling("local", 16))
    assert term(sharded, "gathered weights") == 2 * SEVEN.parameters
    assert term(sharded, "keys and values") == 16 * 4096 * 2 * 28 * 4 * 128 * 2
    assert term(of(ONE_GPU, Sampling("vllm_colocate", 512, 0.4)), "vLLM") == round(0.4 * 80 * GIB)
    assert of(ONE_GPU).total("sampling") == sum(entry.bytes for entry in of(ONE_GPU).states)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("padded", [True, False])
def test_what_autograd_keeps_of_the_blocks(family: str, padded: bool) -> None:
    """Every allocation of a real forward pass, on the CPU in float32: with padding as estimated, without it less."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {**SMALL, "model_type": family, "head_dim": 16}
    torch.manual_seed(0)
    backbone = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values)).train().model
    ids, mask = torch.ones(ROWS, LENGTH, dtype=torch.int64), torch.ones(ROWS, LENGTH, dtype=torch.int64)
    mask[0, 0] = 0 if padded else 1
    backbone(input_ids=ids, attention_mask=mask, use_cache=False)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = backbone(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    events = profiler.profiler.kineto_results.events()
    held = sum(event.nbytes() for event in events if event.name() == "[memory]")
    assert kept.requires_grad
    architecture = from_config(values)
    assert architecture is not None
    training = Training(ROWS, 0, LENGTH, autocast=False, gpu=False, checkpointing=False)
    # The final norm, the rotary angles and the mask are outside of the blocks.
    final, angles = ROWS * LENGTH * 3 * 64 * 4, ROWS * LENGTH * 2 * 16 * 4
    expected = 3 * block_activations(architecture, training) + final + angles
    assert held == pytest.approx(expected, rel=0.03) if padded else held < expected


@pytest.mark.parametrize(("share", "expected"), [(0.5, "yes"), (0.9, "yes"), (0.95, "tight"), (1.01, "no")])
def test_verdict(share: float, expected: str) -> None:
    assert advice.verdict(int(share * GIB), GIB) == expected


def test_advice_for_one_gpu_too_small_names_settings_and_what_they_need() -> None:
    changes = advice.single_changes(SEVEN, ONE_GPU, SERVER, 80 * GIB)
    fitting = {change.settings for change in changes if change.fits != "no"}
    assert "model.adapter={kind: qlora, rank: 64}" in fitting
    assert [change.peak for change in changes] == sorted(change.peak for change in changes)
    more = advice.gpus_that_fit(SEVEN, ONE_GPU, SERVER, 80 * GIB)
    assert more is not None
    assert more.settings == "launch={processes: 2, deepspeed: zero3}" or more.settings.endswith("deepspeed: zero3}")
    assert more.peak <= 0.9 * 80 * GIB


def test_advice_combines_where_nothing_helps_alone() -> None:
    fourteen = preset("deepseek-r1-distill-qwen-14b")
    training = replace(ONE_GPU, completion_tokens=8192, strategy="ddp", processes=4, micro_batch=8)
    local = Sampling("local", 128)
    assert not any(change.fits == "yes" for change in advice.single_changes(fourteen, training, local, 80 * GIB))
    found = advice.together(fourteen, training, local, 80 * GIB)
    assert found is not None
    assert found.fits in ("yes", "tight")
    assert "update.micro_batch=4" in found.settings
    assert "deepspeed=zero3" in found.settings


def test_advised_settings_are_settings(tmp_path: Any) -> None:
    """Whatever the advice says can be pasted behind `rlvr train`."""
    training = replace(ONE_GPU, checkpointing=False, strategy="ddp", processes=2, attention="eager")
    changes = advice.single_changes(SEVEN, training, Sampling("local", 64), 80 * GIB)
    known = [change.settings for change in changes if "vllm" not in change.settings]
    assert len(known) >= 5
    for settings in known:
        load_config(overrides=["launch.processes=2", "model=qwen2.5-7b", "rollout.max_new_tokens=3072", settings])
