"""What to change when a training does not fit, and what it would take then."""

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
# Changes that take less off than this are not worth their line.
WORTHWHILE = 0.97
MOST_GPUS = 64
RANK = LoRAConfig.model_fields["rank"].default


@dataclass(frozen=True)
class SettingsChange:
    """A change of settings, as a person writes it, and the peak with it."""

    settings: str
    peak: int
    fits: Fit


@dataclass(frozen=True)
class _State:
    training: Training
    sampling: Sampling


def memory_verdict(peak: int, available: int) -> Fit:
    """Whether ``peak`` bytes fit into ``available``: tight when more than nine tenths are taken."""
    if peak > available:
        return "no"
    return "tight" if peak > COMFORTABLE * available else "yes"


def verdict(model: Architecture, training: Training, sampling: Sampling, available: int) -> Fit:
    """Return whether a training fits; not where vLLM's share of the memory cannot hold the weights."""
    if vllm_shortage(model, training, sampling, available) is not None:
        return "no"
    return memory_verdict(estimate_memory(model, training, sampling, available).peak, available)


def single_changes(
    model: Architecture, training: Training, sampling: Sampling, available: int
) -> tuple[SettingsChange, ...]:
    """Changes of one setting that take something off the peak, those that take the most first."""
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
    """The first changes that fit together, each laid on those before it; None where all of them do not.

    Changes that alter nothing but speed come first, adapters (another training) last.
    """
    state = _State(training, sampling)
    # By their keys: a later change of one key takes the place of an earlier one.
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
    """The fewest GPUs that fit comfortably, divided by ZeRO-3, up to 64.

    None where none do, one does, or the model cannot be divided.
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
    """Return whether DeepSpeed can divide the model: one in 4 bits and one with a value head it cannot."""
    return not (training.value_head or (training.adapter is not None and training.adapter.quantized))


def _peak(model: Architecture, state: _State, available: int) -> int:
    found: MemoryEstimate = estimate_memory(model, state.training, state.sampling, available)
    return found.peak


def _changes(state: _State) -> Iterator[tuple[str, _State]]:
    """Each single change that applies, the gentlest first."""
    training, sampling = state.training, state.sampling

    def trained(**values: object) -> _State:
        return replace(state, training=replace(training, **values))  # type: ignore[arg-type]

    quantized = training.adapter is not None and training.adapter.quantized
    if not training.checkpointing:
        yield "model.gradient_checkpointing=on", trained(checkpointing=True)
    if training.micro_batch > 1:
        smaller = largest_divisor(training.micro_batch, training.micro_batch // 2)
        yield f"update.micro_batch={smaller}", trained(micro_batch=smaller, accumulates=True)
    if sampling.batch is not None and sampling.engine in ("local", "transformers"):
        yield "rollout.batch=null", replace(state, sampling=replace(sampling, batch=None))
    if training.attention == "eager":
        yield "model.attention=sdpa", trained(attention="sdpa")
    if training.adapter is not None and sampling.engine == "local":
        yield "rollout.engine=transformers", replace(state, sampling=replace(sampling, engine="transformers"))
    if sampling.engine == "vllm_colocate" and not sampling.sleeps:
        yield "rollout.vllm.sleep=true", replace(state, sampling=replace(sampling, sleeps=True))
    if training.gpu and sampling.engine in ("local", "transformers"):
        yield "rollout.engine=vllm_colocate", replace(state, sampling=replace(sampling, engine="vllm_colocate"))
    if training.gpu and _divisible(training):
        if training.processes > 1 and training.strategy == "ddp":
            yield "launch.deepspeed=zero2", trained(strategy="zero2")
        if training.processes > 1 and training.strategy in ("ddp", "zero1", "zero2"):
            yield "launch.deepspeed=zero3", trained(strategy="zero3", offload_optimizer=False)
        if not (training.offload_optimizer and training.offload_weights):
            offloaded = trained(strategy="zero3", offload_optimizer=True, offload_weights=True)
            yield "launch.deepspeed=zero3-offload", offloaded
    if training.adapter is None:
        yield "model.adapter=lora", trained(adapter=Adapter(RANK), weights=training.frozen_weights)
    if training.gpu and not quantized and training.strategy in ("single", "ddp"):
        rank = training.adapter.rank if training.adapter else RANK
        targets = training.adapter.targets if training.adapter else None
        adapter = Adapter(rank, targets, quantized=True)
        yield "model.adapter=qlora", trained(adapter=adapter, weights=training.frozen_weights)
    if training.completion_tokens > 256:
        half = training.completion_tokens // 2
        yield f"rollout.max_new_tokens={half}", trained(completion_tokens=half)
