"""Changes of settings for a training that does not fit, with their peak memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from rlvr_cli.config.batch import largest_divisor
from rlvr_cli.config.model import LoRAConfig
from rlvr_cli.models.architecture import Architecture
from rlvr_cli.planning.memory import Adapter, MemoryEstimate, Sampling, Training, estimate_memory, vllm_shortage

Fit = Literal["yes", "tight", "no"]
# Above this share of the memory an estimate, and fragmentation, may decide otherwise.
COMFORTABLE = 0.9
# A change must reduce the peak to this share or less.
WORTHWHILE = 0.97
MOST_GPUS = 64
RANK = LoRAConfig.model_fields["rank"].default


@dataclass(frozen=True)
class SettingsChange:
    """A change of settings, as overrides, and the peak with it."""

    settings: str
    peak: int
    fits: Fit


@dataclass(frozen=True)
class _State:
    training: Training
    sampling: Sampling


def memory_verdict(peak: int, available: int) -> Fit:
    """Compare ``peak`` with ``available`` bytes; tight above nine tenths."""
    if peak > available:
        return "no"
    return "tight" if peak > COMFORTABLE * available else "yes"


def verdict(model: Architecture, training: Training, sampling: Sampling, available: int) -> Fit:
    """Return whether a training fits; "no" if vLLM's share of the memory cannot hold the weights."""
    if vllm_shortage(model, training, sampling, available) is not None:
        return "no"
    return memory_verdict(estimate_memory(model, training, sampling, available).peak, available)


def single_changes(
    model: Architecture, training: Training, sampling: Sampling, available: int
) -> tuple[SettingsChange, ...]:
    """Return changes of a single setting that reduce the peak, the largest reduction first."""
    before = estimate_memory(model, training, sampling, available).peak
    changes = []
    for settings, state in _changes(_State(training, sampling)):
        peak = _peak(model, state, available)
        if peak < WORTHWHILE * before:
            changes.append(SettingsChange(settings, peak, verdict(model, state.training, state.sampling, available)))
    return tuple(sorted(changes, key=lambda change: change.peak))


def combined_changes(
    model: Architecture, training: Training, sampling: Sampling, available: int
) -> SettingsChange | None:
    """Return changes that fit together, added one by one; None if all together do not fit.

    Changes that affect only speed come first, adapters (another training) last.
    """
    state = _State(training, sampling)
    # By key: a later change of a key replaces an earlier one.
    settings_of: dict[str, str] = {}
    for _ in range(8):
        before = _peak(model, state, available)
        if verdict(model, state.training, state.sampling, available) == "yes":
            break
        for settings, changed in _changes(state):
            if _peak(model, changed, available) < WORTHWHILE * before:
                state = changed
                settings_of[settings.partition("=")[0]] = settings
                break
        else:
            break
    fits = verdict(model, state.training, state.sampling, available)
    if not settings_of or fits == "no":
        return None
    return SettingsChange(" ".join(settings_of.values()), _peak(model, state, available), fits)


def gpus_that_fit(model: Architecture, training: Training, sampling: Sampling, available: int) -> SettingsChange | None:
    """Return the smallest number of GPUs, up to 64, on which the training fits comfortably with ZeRO-3.

    None if none does, a single GPU does, or the model cannot be sharded.
    """
    if not _divisible(training):
        return None
    divided = training.strategy == "zero3" and not training.offload_optimizer
    processes = max(2, training.processes)
    while processes <= MOST_GPUS:
        share = training.step_rows / processes if training.step_rows else training.micro_batch
        if processes > training.processes and share == int(share):
            rows = -(-sampling.rows * training.processes // processes)
            micro_batch = training.micro_batch
            if training.step_rows:
                micro_batch = max(size for size in range(1, micro_batch + 1) if share % size == 0)
            accumulates = share > micro_batch if training.step_rows else training.accumulates
            wider = replace(training, processes=processes, micro_batch=micro_batch, accumulates=accumulates)
            if not divided:
                wider = replace(wider, strategy="zero3", offload_optimizer=False, offload_weights=False)
            narrower = replace(sampling, rows=rows)
            peak = _peak(model, _State(wider, narrower), available)
            if verdict(model, wider, narrower, available) == "yes":
                settings = f"launch.processes={processes}"
                if not divided:
                    settings = f"launch.processes={processes} launch.deepspeed=zero3"
                if micro_batch != training.micro_batch:
                    settings += f" update.micro_batch={micro_batch}"
                return SettingsChange(settings, peak, "yes")
        processes *= 2
    return None


def _divisible(training: Training) -> bool:
    """Return whether DeepSpeed can shard the model: not in 4 bits or with a value head."""
    return not (training.value_head or (training.adapter is not None and training.adapter.quantized))


def _peak(model: Architecture, state: _State, available: int) -> int:
    estimate: MemoryEstimate = estimate_memory(model, state.training, state.sampling, available)
    return estimate.peak


def _changes(state: _State) -> Iterator[tuple[str, _State]]:
    """Yield each applicable change, the gentlest first."""
    training, sampling = state.training, state.sampling

    def with_training(**values: object) -> _State:
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
    if training.gpu and _divisible(training):
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
