"""From a configuration to what decides its memory: rows, tokens, number formats, strategy, engine."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rlvr_cli.config.batch import batch_arithmetic
from rlvr_cli.config.schema import Config
from rlvr_cli.config.vllm_keys import COLOCATE_MEMORY
from rlvr_cli.core.errors import UserError
from rlvr_cli.launch.deepspeed_config import deepspeed_settings, stage_of, sums_in_float32
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.sft import SFT
from rlvr_cli.models.architecture import Architecture
from rlvr_cli.models.source import PRESETS as LOCAL_PRESETS
from rlvr_cli.planning.memory import GIB, Adapter, Attention, Engine, Sampling, Strategy, Training

DEFAULT_GPU_BYTES = 80 * GIB
GPU_HERE = Path("/dev/nvidia0")
# Models beyond this many parameters are planned for GPUs where the machine has none.
LARGE = 1_000_000_000
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": GIB, "ti": 2**40}


@dataclass(frozen=True)
class Device:
    """What the training is planned for: bytes of one GPU, or of the computer's memory; ``why`` it was taken."""

    gpu: bool
    bytes: int
    why: str


def parse_bytes(text: str) -> int:
    """`80GiB`, `80 GB` or `24g` in bytes. Raises UserError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", text.lower())
    if match is None or float(match[1]) == 0:
        raise UserError(f"--gpu-memory {text}: expected a size such as 80GiB or 24GB")
    return round(float(match[1]) * _UNITS[match[2]])


def choose_device(gpu_memory: str | None, gpus: int | None, parameters: int | None) -> Device:
    """What to plan for: what was said; GPUs of 80 GiB for a large model; else the machine at hand."""
    if gpu_memory is not None:
        return Device(True, parse_bytes(gpu_memory), "as given (--gpu-memory)")
    if gpus is not None:
        return Device(True, DEFAULT_GPU_BYTES, "80 GiB a GPU, as nothing else was said (--gpu-memory)")
    if GPU_HERE.exists():
        found = memory_of_the_gpus()
        if found is not None:
            return Device(True, found, "the GPU of this machine, as nothing else was said (--gpus, --gpu-memory)")
        return Device(True, DEFAULT_GPU_BYTES, "a GPU is here; 80 GiB, as nothing else was said (--gpu-memory)")
    if parameters is not None and parameters >= LARGE:
        return Device(True, DEFAULT_GPU_BYTES, "a large model, so GPUs of 80 GiB, as nothing else was said")
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device(False, size, "this machine's CPU and memory; for GPUs give --gpus N --gpu-memory 80GiB")


def memory_of_the_gpus() -> int | None:
    """Bytes of the smallest GPU here, by its driver's own command; None where that says nothing."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        return min(int(line) for line in said.split()) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def strategy_of(config: Config) -> Strategy:
    """How the training is divided among GPUs."""
    launch = config.launch
    if launch.deepspeed is not None:
        stages: dict[Any, Strategy] = {1: "zero1", 2: "zero2", 3: "zero3"}
        return stages.get(stage_of(deepspeed_settings(launch) or {}), "ddp")
    if launch.fsdp:
        return "fsdp"
    return "ddp" if launch.processes > 1 else "single"


def offloads_of(config: Config) -> tuple[bool, bool]:
    """Whether DeepSpeed keeps the optimizer's states, and the weights, in the computer's memory."""
    zero = (deepspeed_settings(config.launch) or {}).get("zero_optimization")
    parts = [(zero if isinstance(zero, dict) else {}).get(f"offload_{part}") for part in ("optimizer", "param")]
    optimizer, weights = (isinstance(part, dict) and part.get("device", "none") != "none" for part in parts)
    return optimizer, weights


def training_of(config: Config, device: Device, prompt_tokens: int | None = None) -> Training:
    """What decides the memory of an update of ``config``."""
    batch, method, model = batch_arithmetic(config), config.method, config.model
    wanted = model.gradient_checkpointing
    weights = 2 if model.dtype == "bfloat16" else 4
    offload_optimizer, offload_weights = offloads_of(config)
    prompt = prompt_tokens or _usual_prompt(config)
    rows = batch.micro_batch
    if config.update.micro_tokens is not None:
        rows = max(1, min(batch.share, config.update.micro_tokens // (prompt + config.rollout.max_new_tokens)))
    return Training(
        micro_batch=rows,
        prompt_tokens=prompt,
        completion_tokens=config.rollout.max_new_tokens,
        weights=weights,  # type: ignore[arg-type]
        autocast=device.gpu,
        checkpointing=device.gpu if wanted == "auto" else wanted == "on",
        accumulates=batch.share > rows,
        strategy=strategy_of(config),
        processes=config.launch.processes,
        adapter=adapter_of(config),
        reference=method.needs_reference,
        value_head=isinstance(method, Method) and method.advantage.needs_values,
        attention=_attention(model.attention),
        supervised=isinstance(method, SFT),
        gpu=device.gpu,
        offload_optimizer=offload_optimizer,
        offload_weights=offload_weights,
        step_rows=batch.step_batch,
        summed=4 if sums_in_float32(deepspeed_settings(config.launch) or {}) else 2,
    )


def _usual_prompt(config: Config) -> int:
    """Before any prompt was read; a configuration that no run can have is refused where the run begins."""
    style = "compact" if _is_lab(config) else "logic_rl"
    try:
        return config.task.for_model(style).prompt_tokens
    except UserError:
        return config.task.prompt_tokens


def _is_lab(config: Config) -> bool:
    """Whether the model is the one that ships with the package."""
    return config.model.name in LOCAL_PRESETS


def adapter_of(config: Config) -> Adapter | None:
    """The low-rank adapters that are trained in place of the model."""
    adapter: Any = config.model.adapter
    if adapter.kind == "none":
        return None
    return Adapter(adapter.rank, adapter.targets, adapter.kind == "qlora")


def sampling_of(config: Config, model: Architecture | None = None) -> Sampling:
    """What decides the memory of a rollout of ``config`` with ``model``, whose family decides the engine `auto`."""
    batch, rollout = batch_arithmetic(config), config.rollout
    rows = -(-batch.completions // config.launch.processes)
    if isinstance(config.method, SFT):
        return Sampling("none", 0)
    engine: str = rollout.engine
    if engine == "auto":
        engine = "local" if model is None or model.counted is None else "transformers"
    return Sampling(
        cast(Engine, engine),
        rows,
        rollout.vllm.gpu_memory or COLOCATE_MEMORY,
        group=rollout.group_size,
        batch=rollout.batch,
        sorts=rollout.top_p < 1 or rollout.top_k > 0,
        sleeps=rollout.vllm.sleep,
    )


def _attention(name: str | None) -> Attention:
    if name == "eager":
        return "eager"
    return "flash_attention_2" if name is not None and "flash" in name else "sdpa"
