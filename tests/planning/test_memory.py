"""The memory estimate: what each setting does to it, and the exact parts against real tensors."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from rlvr_cli.config.load import load_config, preset_document
from rlvr_cli.models.architecture import Architecture, from_config
from rlvr_cli.models.sampling.engine import SamplingParams
from rlvr_cli.planning import advice
from rlvr_cli.planning.memory import (
    GIB,
    Adapter,
    MemoryEstimate,
    Sampling,
    Training,
    estimate_memory,
)
from rlvr_cli.planning.plan import Device, plan_memory, sampling_settings, training_settings
from tests.recipes import loaded, recipes

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
NOTHING = Sampling("none", 0)


def preset(name: str) -> Architecture:
    return from_config(preset_document("models", name).data["architecture"])


SEVEN = preset("qwen2.5-7b")
ONE_GPU = Training(micro_batch=4, prompt_tokens=1024, completion_tokens=3072)


def of(training: Training, sampling: Sampling = NOTHING, gpu_bytes: int = 80 * GIB) -> MemoryEstimate:
    return estimate_memory(SEVEN, training, sampling, gpu_bytes)


def term(found: MemoryEstimate, name: str) -> int:
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
    [
        # in the buckets
        ("ddp", 4, 0, 8),
        ("zero1", 2, 2, 12 / 8),
        # but for gradients, which the presets sum in float32
        ("zero2", 2, 4 / 8, 12 / 8),
        ("zero3", 2 / 8, 4 / 8, 12 / 8),
    ],
)
def test_states_by_strategy(strategy: Any, weights: float, gradients: float, optimizer: float) -> None:
    found = of(replace(ONE_GPU, strategy=strategy, processes=8))
    sizes = [term(found, name) for name in ("weights", "gradients", "optimizer states")]
    for size, each in zip(sizes, (weights, gradients, optimizer), strict=True):
        assert size == pytest.approx(each * SEVEN.parameters, rel=1e-6)


def test_the_step_of_deepspeeds_float32_copy() -> None:
    """A float32 gradient, and what AdamW makes of the second moments; ZeRO-3 goes through it in pieces of 1e9.

    ZeRO-2 needs no other gradient where it has summed one in float32.
    """
    for strategy, processes, count in (("zero2", 4, SEVEN.parameters // 4), ("zero3", 4, 10**9), ("zero3", 8, None)):
        training = replace(ONE_GPU, strategy=strategy, processes=processes)  # type: ignore[arg-type]
        expected = 4 * (count or SEVEN.parameters // 8)
        assert term(of(training), "gradients in float32") == (0 if strategy == "zero2" else expected)
        assert term(of(replace(training, summed=2)), "gradients in float32") == expected
        assert term(of(training), "AdamW workspace") == expected


def test_states_of_bfloat16_training_are_bfloat16() -> None:
    """As torch's AdamW makes them; DeepSpeed keeps float32 ones."""
    import torch

    weight = torch.nn.Parameter(torch.ones(10, dtype=torch.bfloat16))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW([weight])
    optimizer.step()
    moments = [value for value in optimizer.state[weight].values() if value.shape == weight.shape]
    assert [moment.dtype for moment in moments] == [torch.bfloat16] * 2
    half = replace(ONE_GPU, weights=2, strategy="ddp", processes=2)
    for name, size in (("optimizer states", 4), ("communication buckets", 2), ("gradients", 0)):
        assert term(of(half), name) == size * SEVEN.parameters
    assert term(of(replace(half, processes=1, strategy="single")), "gradients") == 2 * SEVEN.parameters
    divided = replace(half, strategy="zero2")
    assert term(of(divided), "optimizer states") == 12 * SEVEN.parameters // 2
    adapted = replace(half, adapter=Adapter(64))
    assert term(of(adapted), "optimizer states") == 8 * SEVEN.adapter_parameters(64)


def test_offloading_moves_states_to_the_computer() -> None:
    both = replace(ONE_GPU, strategy="zero3", processes=8, offload_optimizer=True, offload_weights=True)
    found = of(both)
    assert term(found, "optimizer states") == term(found, "gradients") == term(found, "weights") == 0
    alone = of(replace(both, processes=1)).host
    assert (alone.bytes, alone.why) == (22 * SEVEN.parameters, "offloaded states")
    # DeepSpeed's own estimate has the whole weights of each process too: they are loaded before they are divided.
    assert (found.host.bytes, found.host.why) == (4 * SEVEN.parameters, "while the model is loaded")
    optimizer = of(replace(both, offload_weights=False))
    assert term(optimizer, "weights") == 2 * SEVEN.parameters // 8
    assert term(optimizer, "optimizer states") == 0


def test_earlier_weights_are_copies_of_what_is_trained() -> None:
    """On a GPU in host memory, where loading takes one model; on a CPU among the states."""
    assert of(replace(ONE_GPU, past=5)).host.bytes == 5 * 4 * SEVEN.parameters
    assert of(replace(ONE_GPU, past=5)).peak == of(ONE_GPU).peak
    on_cpu = replace(ONE_GPU, gpu=False, autocast=False)
    assert of(replace(on_cpu, past=5)).peak - of(on_cpu).peak == 5 * 4 * SEVEN.parameters
    adapted = replace(on_cpu, adapter=Adapter(64), past=3)
    assert term(of(adapted), "earlier weights") == 3 * 4 * SEVEN.adapter_parameters(64)
    for behind, copies in ((0, 0), (2, 3)):
        config = load_config(overrides=[f"rollout.behind={behind}"])
        assert training_settings(config, Device(False, 8 * GIB, "")).past == copies


def test_a_reference_is_a_second_model_but_not_beside_adapters() -> None:
    with_kl = replace(ONE_GPU, reference=True)
    assert of(with_kl).peak - of(ONE_GPU).peak == 4 * SEVEN.parameters
    adapted = replace(ONE_GPU, adapter=Adapter(64))
    assert of(replace(adapted, reference=True)).peak == of(adapted).peak


def test_the_local_sampler_takes_as_many_rows_as_fit() -> None:
    """The plan says what will happen: fewer rows at once where memory is short, unless a person says otherwise."""
    training = replace(ONE_GPU, strategy="zero3", processes=8)
    sampling = Sampling("local", 256, group=8)
    found = of(training, sampling)
    (cache,) = (entry for entry in found.phases["sampling"] if entry.name == "keys and values")
    assert cache.why.startswith("128 of 256 rows at once") and cache.bytes == 128 * 4096 * 2 * 28 * 4 * 128 * 2
    assert advice.classify_peak(found.total("sampling"), 80 * GIB) == "yes"
    forced = replace(sampling, batch=256)
    assert of(training, forced).total("sampling") > found.total("sampling") + 27 * GIB
    assert advice.classify_peak(of(training, forced).peak, 80 * GIB) == "no"
    offered = {change.settings: change.peak for change in advice.find_single_changes(SEVEN, training, forced, 80 * GIB)}
    assert offered["rollout.batch=null"] == found.peak
    alone = of(ONE_GPU, sampling)
    assert advice.classify_peak(alone.total("sampling"), 80 * GIB) == "no"
    assert term(alone, "keys and values") == 4096 * 2 * 28 * 4 * 128 * 4


def test_vllm_keeps_its_share_of_the_gpu_while_the_trainer_updates_unless_it_sleeps() -> None:
    training = replace(ONE_GPU, strategy="zero3", processes=8)
    share, colocated = round(0.4 * 80 * GIB), Sampling("vllm_colocate", 64, 0.4)
    awake, asleep, plain = of(training, colocated), of(training, replace(colocated, sleeps=True)), of(training)
    for phase in plain.phases:
        assert awake.total(phase) - asleep.total(phase) == (0 if phase == "sampling" else share)
        assert phase == "sampling" or asleep.total(phase) == plain.total(phase)
    assert term(asleep, "vLLM") == term(awake, "vLLM") == share
    changes = advice.find_single_changes(SEVEN, ONE_GPU, colocated, 80 * GIB)
    assert "rollout.vllm.sleep=true" in {change.settings for change in changes}
    load_config(overrides=["rollout.engine=vllm_colocate", "rollout.vllm.sleep=true"])


ADAPTERS = {
    "all weights": None,
    "adapters": Adapter(8),
    "few adapters": Adapter(4, ("q_proj", "v_proj", "down_proj")),
}


@pytest.mark.parametrize(
    ("family", "kind", "attention", "trained"),
    [
        ("qwen3", "float32", "sdpa", "all weights"),
        ("qwen3", "autocast", "eager", "all weights"),
        ("llama", "autocast", "sdpa", "all weights"),
        ("llama", "bfloat16", "sdpa", "all weights"),
        ("qwen3", "bfloat16", "sdpa", "adapters"),
        ("llama", "autocast", "sdpa", "few adapters"),
    ],
)
def test_what_is_saved_for_the_backward_pass(family: str, kind: str, attention: Any, trained: str) -> None:
    """Every tensor that autograd keeps of a real forward pass: by autocast, as on GPUs, and with bfloat16 weights."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {**SMALL, "model_type": family, "head_dim": 16}
    config, adapter = AutoConfig.for_model(**values), ADAPTERS[trained]
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).train()
    model = model.bfloat16() if kind == "bfloat16" else model
    backbone = model.model
    if adapter is not None:
        targets = list(adapter.targets) if adapter.targets else "all-linear"
        peft = get_peft_model(model, LoraConfig(r=adapter.rank, target_modules=targets, task_type="CAUSAL_LM"))
        peft.enable_input_require_grads()  # as TRL does
        backbone = peft.get_base_model().model
    ids, mask = torch.ones(ROWS, LENGTH, dtype=torch.int64), torch.ones(ROWS, LENGTH, dtype=torch.int64)
    mask[0, 0] = 0
    weights = {parameter.untyped_storage().data_ptr() for parameter in backbone.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    # Adapters on bfloat16 weights are float32, which autocast alone brings together.
    autocast = kind == "autocast" or (kind == "bfloat16" and adapter is not None)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        backbone(input_ids=ids, attention_mask=mask, use_cache=False)
    architecture = from_config(values)
    training = Training(
        ROWS,
        0,
        LENGTH,
        weights=2 if kind == "bfloat16" else 4,
        autocast=autocast,
        checkpointing=False,
        attention=attention,
        adapter=adapter,
    )
    found = estimate_memory(architecture, training, Sampling("none", 0))
    expected = term(found, "activations") + term(found, "weights in bfloat16")
    held = sum(storage.nbytes() for storage in kept.values())
    if adapter is not None and autocast:
        held -= 2 * architecture.adapter_parameters(adapter.rank, adapter.targets)  # copies of small matrices
    assert held == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("prompt", "new", "group"), [(300, 60, 8), (120, 8, 1)])
def test_what_the_local_sampler_takes(prompt: int, new: int, group: int) -> None:
    """The most that lives at once of a real call, on the CPU in float32: cache, prompts and logits as estimated."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from rlvr_cli.models.sampling.local import sample

    rows, size = 32, {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "vocab_size": 2000}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 1024}
    values = {"model_type": "llama", "tie_word_embeddings": False, **size, **heads}
    architecture = from_config(values)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values)).eval()
    prompts = [[5 + row // group] * prompt for row in range(rows)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        sample(model, prompts, SamplingParams(max_new_tokens=new, max_rows=rows), keys=range(rows))
    live = most = 0
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    # Of small models the sampler copies the layers that follow a norm, whose weight is multiplied into them.
    folded = architecture.linear_parameters(["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"])
    most -= 4 * (folded + architecture.embedding)
    training = Training(1, prompt, new, autocast=False, gpu=False)
    found = estimate_memory(architecture, training, Sampling("local", rows, group=group))
    assert sum(term.bytes for term in found.phases["sampling"]) == pytest.approx(most, rel=0.05)


def test_advice_for_one_gpu_too_small_names_settings_and_what_they_need() -> None:
    changes = advice.find_single_changes(SEVEN, ONE_GPU, NOTHING, 80 * GIB)
    fitting = {change.settings for change in changes if change.fits != "no"}
    assert "model.adapter=qlora" in fitting
    assert [change.peak for change in changes] == sorted(change.peak for change in changes)
    assert "launch.deepspeed=zero3-offload" in fitting


def test_advised_settings_are_settings() -> None:
    """Whatever the advice on a paper's recipe says can be pasted behind `rlvr train`."""
    device = Device(True, 24 * GIB, "")
    gpus, told = 4, set()
    for name, row in list(recipes().items())[::12]:
        written = loaded(name)
        if written.batch.step_batch % gpus:
            continue
        overrides = [f"launch.processes={gpus}", "update.micro_batch=null"]
        config = load_config([row], overrides=overrides)
        model = preset(config.model.name)
        training, sampling = training_settings(config, device), sampling_settings(config, model)
        if (model, training, sampling) in told:
            continue
        told.add((model, training, sampling))
        found = plan_memory(model, training, sampling, device, assumed=False)
        said = [change["settings"] for change in found["changes"]]
        assert said or found["fits"] != "no", name
        for settings in said:
            load_config([row], overrides=[*overrides, *re.split(r" (?=[a-z_]+[.=])", settings)])
    assert told


@pytest.mark.parametrize("undivided", [{"adapter": Adapter(64, quantized=True)}, {"value_head": True}])
def test_what_deepspeed_does_not_divide_is_never_told_to_be(undivided: dict[str, Any]) -> None:
    training = replace(ONE_GPU, **undivided, strategy="ddp", processes=4)
    changes = advice.find_single_changes(SEVEN, training, Sampling("local", 64), 8 * GIB)
    assert not any("deepspeed" in change.settings for change in changes)
