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
RANK = LoRAConfig.model_fields["rank"].default


@dataclass(frozen=True)
class SettingsChange:
    """A change of settings, as overrides, with the resulting peak in bytes."""

    settings: str
    peak: int
    fits: Fit


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
    for settings, changed in _single_changes(training, sampling):
        peak = estimate_memory(model, *changed, available).peak
        if peak < WORTHWHILE * before:
            changes.append(SettingsChange(settings, peak, check_fit(model, *changed, available)))
    return tuple(sorted(changes, key=lambda change: change.peak))


def _single_changes(training: Training, sampling: Sampling) -> Iterator[tuple[str, tuple[Training, Sampling]]]:
    """Yield each applicable change with the changed settings, those that affect only speed first."""

    def with_training(**values: object) -> tuple[Training, Sampling]:
        return replace(training, **values), sampling  # type: ignore[arg-type]

    def with_sampling(**values: object) -> tuple[Training, Sampling]:
        return training, replace(sampling, **values)  # type: ignore[arg-type]

    quantized = training.adapter is not None and training.adapter.quantized
    if not training.checkpointing:
        yield "model.gradient_checkpointing=on", with_training(checkpointing=True)
    if training.micro_batch > 1:
        smaller = largest_divisor(training.micro_batch, training.micro_batch // 2)
        yield f"update.micro_batch={smaller}", with_training(micro_batch=smaller, accumulates=True)
    if sampling.batch is not None and sampling.engine in ("local", "transformers"):
        yield "rollout.batch=null", with_sampling(batch=None)
    if training.attention == "eager":
        yield "model.attention=sdpa", with_training(attention="sdpa")
    if training.adapter is not None and sampling.engine == "local":
        yield "rollout.engine=transformers", with_sampling(engine="transformers")
    if sampling.engine == "vllm_colocate" and not sampling.sleeps:
        yield "rollout.vllm.sleep=true", with_sampling(sleeps=True)
    if training.gpu and sampling.engine in ("local", "transformers"):
        yield "rollout.engine=vllm_colocate", with_sampling(engine="vllm_colocate")
    # DeepSpeed shards neither weights in 4 bits nor a value head.
    if training.gpu and not (quantized or training.value_head):
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
