"""Changes of settings that reduce the peak memory of a training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from rlvr_cli.config.batch import largest_divisor
from rlvr_cli.config.model import LoRAConfig
from rlvr_cli.models.architecture import Architecture
from rlvr_cli.planning.memory import Adapter, Sampling, Training, estimate_memory, vllm_shortage

Fit = Literal["yes", "tight", "no"]
# Above this share of the memory, fragmentation or an error of the estimate may be fatal.
COMFORTABLE = 0.9
# A change must reduce the peak below this share.
WORTHWHILE = 0.97
MAX_GPUS = 64
RANK = LoRAConfig.model_fields["rank"].default


@dataclass(frozen=True)
class SettingsChange:
    """A change of settings, as overrides, with the resulting peak in bytes."""

    settings: str
    peak: int
    fits: Fit


@dataclass(frozen=True)
class _Settings:
    training: Training
    sampling: Sampling


def classify_peak(peak: int, available: int) -> Fit:
    """Compare ``peak`` with ``available`` bytes; tight above :data:`COMFORTABLE`."""
    if peak > available:
        return "no"
    return "tight" if peak > COMFORTABLE * available else "yes"


def check_fit(model: Architecture, training: Training, sampling: Sampling, available: int) -> Fit:
    """Return whether a training fits; "no" if vLLM's share of the memory cannot hold the weights."""
    if vllm_shortage(model, training, sampling, available) is not None:
        return "no"
    return classify_peak(estimate_memory(model, training, sampling, available).peak, available)


def find_single_changes(
    model: Architecture, training: Training, sampling: Sampling, available: int
) -> tuple[SettingsChange, ...]:
    """Return single changes that reduce the peak, largest reduction first."""
    before = estimate_memory(model, training, sampling, available).peak
    changes = []
    for settings, state in _single_changes(_Settings(training, sampling)):
        peak = _peak(model, state, available)
        if peak < WORTHWHILE * before:
            changes.append(SettingsChange(settings, peak, check_fit(model, state.training, state.sampling, available)))
    return tuple(sorted(changes, key=lambda change: change.peak))


def combine_changes(
    model: Architecture, training: Training, sampling: Sampling, available: int
) -> SettingsChange | None:
    """Add changes until the training fits, those that affect only speed first; None if all together do not fit."""
    state = _Settings(training, sampling)
    # By key, so that a later change replaces an earlier one.
    settings_of: dict[str, str] = {}
    for _ in range(8):
        before = _peak(model, state, available)
        if check_fit(model, state.training, state.sampling, available) == "yes":
            break
        for settings, changed in _single_changes(state):
            if _peak(model, changed, available) < WORTHWHILE * before:
                state = changed
                settings_of[settings.partition("=")[0]] = settings
                break
        else:
            break
    fits = check_fit(model, state.training, state.sampling, available)
    if not settings_of or fits == "no":
        return None
    return SettingsChange(" ".join(settings_of.values()), _peak(model, state, available), fits)


def find_gpu_count(
    model: Architecture, training: Training, sampling: Sampling, available: int
) -> SettingsChange | None:
    """Return the smallest number of GPUs, from 2 to 64, on which the training fits with ZeRO-3, or None."""
    if not _can_shard(training):
        return None
    is_sharded = training.strategy == "zero3" and not training.offload_optimizer
    processes = max(2, training.processes)
    while processes <= MAX_GPUS:
        share = training.step_rows / processes if training.step_rows else training.micro_batch
        if processes > training.processes and share == int(share):
            rows = -(-sampling.rows * training.processes // processes)
            micro_batch = training.micro_batch
            if training.step_rows:
                micro_batch = max(size for size in range(1, micro_batch + 1) if share % size == 0)
            accumulates = share > micro_batch if training.step_rows else training.accumulates
            wider = replace(training, processes=processes, micro_batch=micro_batch, accumulates=accumulates)
            if not is_sharded:
                wider = replace(wider, strategy="zero3", offload_optimizer=False, offload_weights=False)
            narrower = replace(sampling, rows=rows)
            peak = _peak(model, _Settings(wider, narrower), available)
            if check_fit(model, wider, narrower, available) == "yes":
                settings = f"launch.processes={processes}"
                if not is_sharded:
                    settings = f"launch.processes={processes} launch.deepspeed=zero3"
                if micro_batch != training.micro_batch:
                    settings += f" update.micro_batch={micro_batch}"
                return SettingsChange(settings, peak, "yes")
        processes *= 2
    return None


def _can_shard(training: Training) -> bool:
    """Return whether DeepSpeed can shard the model: not in 4 bits, and not with a value head."""
    return not (training.value_head or (training.adapter is not None and training.adapter.quantized))


def _peak(model: Architecture, state: _Settings, available: int) -> int:
    return estimate_memory(model, state.training, state.sampling, available).peak


def _single_changes(state: _Settings) -> Iterator[tuple[str, _Settings]]:
    """Yield each applicable change, those that affect only speed first."""
    training, sampling = state.training, state.sampling

    def with_training(**values: object) -> _Settings:
        return replace(state, training=replace(training, **values))  # type: ignore[arg-type]

    quantized = training.adapter is not None and training.adapter.quantized
    if not training.checkpointing:
        yield "model.gradient_checkpointing=on", with_training(checkpointing=True)
    if training.micro_batch > 1:
        smaller = largest_divisor(training.micro_batch, training.micro_batch // 2)
        yield f"update.micro_batch={smaller}", with_training(micro_batch=smaller, accumulates=True)
    if sampling.batch is not None and sampling.engine in ("local", "transformers"):
        yield "rollout.batch=null", replace(state, sampling=replace(sampling, batch=None))
    if training.attention == "eager":
        yield "model.attention=sdpa", with_training(attention="sdpa")
    if training.adapter is not None and sampling.engine == "local":
        yield "rollout.engine=transformers", replace(state, sampling=replace(sampling, engine="transformers"))
    if sampling.engine == "vllm_colocate" and not sampling.sleeps:
        yield "rollout.vllm.sleep=true", replace(state, sampling=replace(sampling, sleeps=True))
    if training.gpu and sampling.engine in ("local", "transformers"):
        yield "rollout.engine=vllm_colocate", replace(state, sampling=replace(sampling, engine="vllm_colocate"))
    if training.gpu and _can_shard(training):
        if training.processes > 1 and training.strategy == "ddp":
            yield "launch.deepspeed=zero2", with_training(strategy="zero2")
        if training.processes > 1 and training.strategy in ("ddp", "zero1", "zero2"):
            yield "launch.deepspeed=zero3", with_training(strategy="zero3", offload_optimizer=False)
        if not (training.offload_optimizer and training.offload_weights):
            offloaded = with_training(strategy="zero3", offload_optimizer=True, offload_weights=True)
            yield "launch.deepspeed=zero3-offload", offloaded
    if training.adapter is None:
        yield "model.adapter=lora", with_training(adapter=Adapter(RANK), weights=training.frozen_weights)
    if training.gpu and not quantized and training.strategy in ("single", "ddp"):
        rank = training.adapter.rank if training.adapter else RANK
        targets = training.adapter.targets if training.adapter else None
        adapter = Adapter(rank, targets, quantized=True)
        yield "model.adapter=qlora", with_training(adapter=adapter, weights=training.frozen_weights)
    if training.completion_tokens > 256:
        half = training.completion_tokens // 2
        yield f"rollout.max_new_tokens={half}", with_training(completion_tokens=half)
