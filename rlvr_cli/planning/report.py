"""What `rlvr plan` says of a model, its memory and its time, as plain data."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from rlvr_cli.config.batch import batch_arithmetic
from rlvr_cli.config.schema import Config
from rlvr_cli.models.architecture import Architecture
from rlvr_cli.planning import advice
from rlvr_cli.planning.duration import Speed, duration
from rlvr_cli.planning.memory import Sampling, Training, estimate, trained_parameters
from rlvr_cli.planning.models import Found, find_architecture
from rlvr_cli.planning.setup import Device, choose_device, sampling_of, training_of


def resources(
    config: Config,
    *,
    gpus: int | None = None,
    gpu_memory: str | None = None,
    prompt_tokens: int | None = None,
    speed: Speed | None = None,
) -> dict[str, Any]:
    """`parameters`, `learning_rate`, `memory` and `time` of a training, for `--json`.

    What is not known is None, with a `note` that says why: parameters and memory of a model whose config.json is not
    at hand, the time without a speed.
    """
    found = find_architecture(config.model.name, config.model.revision)
    model = found.architecture
    device = choose_device(gpu_memory, gpus, None if model is None else model.parameters)
    training, sampling = training_of(config, device, prompt_tokens), sampling_of(config, model)
    return {
        "parameters": _parameters(found, training),
        "learning_rate": _rate(config, model),
        "memory": None if model is None else memory(model, training, sampling, device, assumed=prompt_tokens is None),
        "time": _time(config, speed),
    }


def memory(
    model: Architecture, training: Training, sampling: Sampling, device: Device, *, assumed: bool
) -> dict[str, Any]:
    """The memory of one GPU (or of the CPU), whether it suffices, and what would help."""
    if not device.gpu and training.processes > 1:
        device = replace(device, bytes=device.bytes // training.processes, why=f"its share of {device.why}")
    found = estimate(model, training, sampling, device.bytes)
    fits = advice.verdict(found.peak, device.bytes)
    changes: tuple[advice.Change, ...] = ()
    combined = more = None
    if fits != "yes":
        changes = advice.single_changes(model, training, sampling, device.bytes)
        # Adapters are another training, and offloading takes its time: other answers are wanted beside them.
        same = [change for change in changes if "adapter" not in change.settings and "offload" not in change.settings]
        if not any(change.fits == "yes" for change in same):
            combined = advice.together(model, training, sampling, device.bytes)
            if combined in changes:
                combined = None
            more = advice.gpus_that_fit(model, training, sampling, device.bytes) if device.gpu else None
    return {
        "device": "gpu" if device.gpu else "cpu",
        "available": device.bytes,
        "available_why": device.why,
        "peak": found.peak,
        "peak_phase": found.peak_phase,
        "fits": fits,
        "phases": {name: found.total(name) for name in found.phases},
        "terms": [asdict(term) for term in found.terms],
        "host": found.host.bytes,
        "host_why": found.host.why,
        "setting": {**asdict(training), "engine": sampling.engine, "rollout_rows": sampling.rows},
        "prompt_tokens_assumed": assumed,
        "changes": [asdict(change) for change in changes],
        "together": None if combined is None else asdict(combined),
        "more_gpus": None if more is None else asdict(more),
    }


def _parameters(found: Found, training: Training) -> dict[str, Any]:
    model = found.architecture
    if model is None:
        return {"total": None, "trained": None, "note": found.source}
    return {"total": model.parameters, "trained": trained_parameters(model, training), "note": found.source}


def _rate(config: Config, model: Architecture | None) -> float | None:
    """The peak learning rate; None where it follows from a number of parameters that is not known."""

    class Unknown(Exception):
        pass

    def parameters() -> int:
        if model is None:
            raise Unknown
        return model.parameters

    try:
        return config.optimizer.peak_lr(parameters)
    except Unknown:
        return None


def _time(config: Config, speed: Speed | None) -> dict[str, Any] | None:
    if speed is None:
        return None
    completions = batch_arithmetic(config).completions * config.train.rollouts
    found = duration(completions, config.rollout.max_new_tokens, speed)
    return {**asdict(speed), "seconds_at_most": found.at_most, "seconds_expected": found.expected}
