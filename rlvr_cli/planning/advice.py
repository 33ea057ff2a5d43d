"""What to change when a training does not fit, and what it would take then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from rlvr_cli.planning.architecture import Architecture
from rlvr_cli.planning.memory import Adapter, Estimate, Sampling, Training, estimate

Verdict = Literal["yes", "tight", "no"]
# Above this share of the memory an estimate, and fragmentation, may decide otherwise.
COMFORTABLE = 0.9
# Changes that take less off than this are not worth their line.
WORTHWHILE = 0.97
MOST_GPUS = 64


@dataclass(frozen=True)
class Change:
    """A change of settings, as a person writes it, and the peak with it."""

    settings: str
    peak: int
    fits: Verdict


@dataclass(frozen=True)
class _State:
    training: Training
    sampling: Sampling


def verdict(peak: int, available: int) -> Verdict:
    """Whether ``peak`` bytes fit into ``available``: tight when more than nine tenths are taken."""
    if peak > available:
        return "no"
    return "tight" if peak > COMFORTABLE * available else "yes"


def single_changes(model: Architecture, training: Training, sampling: Sampling, available: int) -> tuple[Change, ...]:
    """Changes of one setting that take something off the peak, those that take the most first."""
    before = estimate(model, training, sampling, available).peak
    changes = []
    for settings, state in _changes(_State(training, sampling)):
        peak = _peak(model, state, available)
        if peak < WORTHWHILE * before:
            changes.append(Change(settings, peak, verdict(peak, available)))
    return tuple(sorted(changes, key=lambda change: change.peak))


def together(model: Architecture, training: Training, sampling: Sampling, available: int) -> Change | None:
    """The first changes that fit together, each laid on those before it; None where all of them do not.

    Changes that alter nothing but speed come first, adapters (another training) last.
    """
    state = _State(training, sampling)
    said: list[str] = []
    for _ in range(8):
        before = _peak(model, state, available)
        if verdict(before, available) == "yes":
            break
        for settings, changed in _changes(state):
            if _peak(model, changed, available) < WORTHWHILE * before:
                state, said = changed, [*said, settings]
                break
        else:
            break
    peak = _peak(model, state, available)
    if not said or verdict(peak, available) == "no":
        return None
    return Change(" ".join(said), peak, verdict(peak, available))


def gpus_that_fit(model: Architecture, training: Training, sampling: Sampling, available: int) -> Change | None:
    """The fewest GPUs on which ZeRO-3 fits comfortably, up to 64; None where none do or one does."""
    processes = max(2, training.processes)
    while processes <= MOST_GPUS:
        rows = -(-sampling.rows * training.processes // processes)
        state = _State(replace(training, strategy="zero3", processes=processes), replace(sampling, rows=rows))
        peak = _peak(model, state, available)
        if verdict(peak, available) == "yes" and processes > training.processes:
            return Change(f"launch={{processes: {processes}, deepspeed: zero3}}", peak, "yes")
        processes *= 2
    return None


def _peak(model: Architecture, state: _State, available: int) -> int:
    found: Estimate = estimate(model, state.training, state.sampling, available)
    return found.peak


def _changes(state: _State) -> Iterator[tuple[str, _State]]:
    """Each single change that applies, the gentlest first."""
    training, sampling = state.training, state.sampling

    def trained(**values: object) -> _State:
        return replace(state, training=replace(training, **values))  # type: ignore[arg-type]

    if not training.checkpointing:
        yield "model.gradient_checkpointing=on", trained(checkpointing=True)
    if training.micro_batch > 1:
        smaller = training.micro_batch // 2
        yield f"update.micro_batch={smaller}", trained(micro_batch=smaller, accumulates=True)
    if training.attention == "eager":
        yield "model.attention=sdpa", trained(attention="sdpa")
    if training.gpu and sampling.engine in ("local", "transformers"):
        yield "rollout.engine=vllm_colocate", replace(state, sampling=replace(sampling, engine="vllm_colocate"))
    if training.gpu and sampling.engine in ("local", "transformers", "vllm_colocate"):
        yield "rollout.engine=vllm_server", replace(state, sampling=replace(sampling, engine="vllm_server"))
    if training.gpu and training.processes > 1 and training.strategy in ("ddp", "zero2"):
        if training.strategy == "ddp":
            yield "launch.deepspeed=zero2", trained(strategy="zero2")
        yield "launch.deepspeed=zero3", trained(strategy="zero3")
    if training.gpu and training.strategy in ("zero3", "fsdp"):
        yield "launch={deepspeed: zero3-offload, fsdp: false}", trained(strategy="zero3-offload")
    if training.adapter is None and not training.value_head:
        yield "model.adapter={kind: lora, rank: 64}", trained(adapter=Adapter(64))
    if training.gpu and (training.adapter is None or not training.adapter.quantized) and not training.value_head:
        rank = training.adapter.rank if training.adapter else 64
        targets = training.adapter.targets if training.adapter else None
        if training.strategy in ("single", "ddp"):
            adapter = Adapter(rank, targets, quantized=True)
            yield f"model.adapter={{kind: qlora, rank: {rank}}}", trained(adapter=adapter)
    if training.completion_tokens > 256:
        half = training.completion_tokens // 2
        yield f"rollout.max_new_tokens={half}", trained(completion_tokens=half)
