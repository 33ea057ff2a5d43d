"""Plan a training: steps, tokens, memory and time."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from rlvr_cli.config.evaluation import HeldOutConfig
from rlvr_cli.config.optimizer import ScaledRate
from rlvr_cli.config.rollout import COLOCATE_MEMORY
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.launch.deepspeed_config import accumulates_in_float32, deepspeed_settings, zero_stage
from rlvr_cli.models.architecture import Architecture, ArchitectureInfo, find_architecture
from rlvr_cli.models.reading import check_readable
from rlvr_cli.models.sampling.memory import FAMILIES
from rlvr_cli.models.source import PRESETS as LOCAL_PRESETS
from rlvr_cli.planning import advice
from rlvr_cli.planning.memory import (
    GIB,
    Adapter,
    Attention,
    Engine,
    Sampling,
    Strategy,
    Training,
    estimate_memory,
    trained_parameters,
    vllm_shortage,
)
from rlvr_cli.runs.folder import RunDir, find_run
from rlvr_cli.tasks.problem import DataSplit
from rlvr_cli.tasks.prompts import DEFAULT_STYLE
from rlvr_cli.training.teacher import find_teacher


def plan_training(config: Config) -> dict[str, Any]:
    """Return the steps, completions and tokens of a training with `config`, for `--format json`.

    `policy_age` has an entry for each optimizer step of a rollout batch: the number of updates between the policy that
    sampled the data and the updated policy (0 = on-policy). In supervised fine-tuning a rollout batch consists of
    demonstrations, and `policy_age` and the numbers of problems are None. The numbers of demonstrations are None for
    other methods, and for a file `data`, which is not read; `problems` is None unless `task.data` is on this machine.
    """
    from rlvr_cli.evaluation.benchmarks import count_benchmark_completions
    from rlvr_cli.tasks.sets import problems_name

    batch = config.batch
    ages = list(range(batch.steps_per_rollout))
    samples = config.method.samples
    problems = _count_problems(config, "train", config.task.training_problems) if samples else None
    validated, evaluated = (_held_out_completions(config, section) for section in (config.validation, config.eval))
    demonstrations = config.method.demonstration_count
    completions_total = batch.completions * config.train.rollouts
    rollout_tokens = _sampled_per_rollout(config) * config.rollout.max_new_tokens
    return {
        "method": config.method.name,
        "task": problems_name(config.task.name, config.task.data),
        "model": config.model.name,
        "prompts": config.rollout.prompts,
        "group_size": config.rollout.group_size,
        "completions_per_rollout": batch.completions,
        "rollout_tokens_at_most": rollout_tokens,
        "mini_batches": config.update.mini_batches,
        "epochs": config.update.epochs,
        "passes": batch.passes,
        "steps_per_rollout": batch.steps_per_rollout,
        "completions_per_step": batch.step_batch,
        "micro_batch": batch.micro_batch,
        "micro_batches_per_step": batch.micro_batches,
        "micro_tokens": config.update.micro_tokens,
        "rollouts": config.train.rollouts,
        "steps_total": batch.steps_total,
        "policy_age": {"mean": sum(ages) / len(ages), "largest": ages[-1], "of_each_step": ages} if samples else None,
        "behind": config.rollout.behind,
        "completions_total": completions_total,
        "completion_tokens_at_most": config.train.rollouts * rollout_tokens,
        "problems": problems,
        "problems_from": config.task.data if samples and not config.task.is_generated else None,
        "problems_at_most": config.task.train_size if samples else None,
        "about_data": config.task.describe_data() if samples else None,
        "visits_per_problem": config.rollout.prompts * config.train.rollouts / problems if problems else None,
        "demonstrations": demonstrations,
        "data": config.method.demonstration_file,
        "visits_per_demonstration": completions_total / demonstrations if demonstrations else None,
        # Every `every` steps, and after the last step.
        "checkpoints_written": -(-batch.steps_total // config.checkpoint.every),
        "checkpoints_kept": config.checkpoint.keep,
        "evaluations": config.train.rollouts // config.validation.every if config.validation.every else 0,
        "validation_completions": validated,
        "eval_completions": evaluated,
        "eval_benchmarks": list(config.eval.benchmark),
        "benchmark_completions": count_benchmark_completions(config, evaluated) if config.eval.benchmark else None,
    }


def _sampled_per_rollout(config: Config) -> int:
    """Return the completions sampled for a rollout, with the greedy ones of an advantage that reads their rewards."""
    policy = config.method.policy
    greedy = policy is not None and policy.advantage.needs_greedy
    return config.batch.completions + greedy * config.rollout.prompts


def _count_problems(config: Config, split: DataSplit, most: int) -> int | None:
    try:
        return config.task.count_local(split, most)
    except UserError:
        return None


def _held_out_completions(config: Config, section: HeldOutConfig) -> int:
    problems = _count_problems(config, section.split, section.problems) or section.problems
    return problems * (section.samples_needed + section.greedy)


def build_plan(config: Config, **resource_options: Any) -> dict[str, Any]:
    """Return :func:`plan_training`, :func:`plan_resources` and `cautions`; data may be missing."""
    from rlvr_cli.config.checks import config_warnings
    from rlvr_cli.tasks.data import generated_hint
    from rlvr_cli.tasks.sets import needs_folder

    warnings = config_warnings(config)
    try:
        check_readable(config)
        find_teacher(config)
    except UserError as error:
        warnings += [f"WARNING: `rlvr train` refuses this: {problem}" for problem in error.problems]
    if needs_folder(config.task):
        warnings.append(
            f"WARNING: `rlvr train` needs the problems of {config.task.data} (task.data), which are not on the hub. "
            f"Use --data-dir FOLDER.{generated_hint(config.task.sets)}"
        )
    elif config.method.samples:
        try:
            config.task.count_local("train", 1)
        except UserError as error:
            warnings += [f"WARNING: `rlvr train` refuses this: {problem}" for problem in error.problems]
    return {**plan_training(config), **plan_resources(config, **resource_options), "cautions": warnings}


def plan_resources(
    config: Config, *, gpu_memory: str | None = None, prompt_tokens: int | None = None, speed: Speed | None = None
) -> dict[str, Any]:
    """Return `parameters`, `learning_rate`, `memory` and `time` of a training, for `--format json`.

    None for unknown values: parameters and memory without a local config.json of the model, time without a speed.
    """
    model_source = find_architecture(config.model.name, config.model.revision)
    model = model_source.architecture
    device = choose_device(gpu_memory, None if model is None else model.parameters)
    training, sampling = training_settings(config, device, prompt_tokens), sampling_settings(config, model)
    return {
        "parameters": _count_parameters(model_source, training),
        "learning_rate": _peak_learning_rate(config, model),
        "memory": None
        if model is None
        else plan_memory(model, training, sampling, device, assumed=prompt_tokens is None),
        "time": _estimate_time(config, speed),
    }


def plan_memory(
    model: Architecture, training: Training, sampling: Sampling, device: Device, *, assumed: bool
) -> dict[str, Any]:
    """Return the memory of a GPU (or of the CPU), whether it fits, and changes that reduce it."""
    if not device.gpu and training.processes > 1:
        device = replace(device, bytes=device.bytes // training.processes, why=f"its share of {device.why}")
    estimate = estimate_memory(model, training, sampling, device.bytes)
    fits = advice.check_fit(model, training, sampling, device.bytes)
    changes = () if fits == "yes" else advice.find_single_changes(model, training, sampling, device.bytes)
    return {
        "device": "gpu" if device.gpu else "cpu",
        "available": device.bytes,
        "available_why": device.why,
        "peak": estimate.peak,
        "peak_phase": estimate.peak_phase,
        "fits": fits,
        "phases": {name: estimate.total(name) for name in estimate.phases},
        "terms": [asdict(term) for term in estimate.terms],
        "host": estimate.host.bytes,
        "host_why": estimate.host.why,
        "vllm_shortage": vllm_shortage(model, training, sampling, device.bytes),
        "setting": {**asdict(training), "engine": sampling.engine, "rollout_rows": sampling.rows},
        "prompt_tokens_assumed": assumed,
        "changes": [asdict(change) for change in changes],
    }


def _count_parameters(model_source: ArchitectureInfo, training: Training) -> dict[str, Any]:
    model = model_source.architecture
    if model is None:
        return {"total": None, "trained": None, "note": model_source.source}
    return {"total": model.parameters, "trained": trained_parameters(model, training), "note": model_source.source}


def _peak_learning_rate(config: Config, model: Architecture | None) -> float | None:
    """Return the peak learning rate; None if it depends on an unknown number of parameters."""
    lr = config.optimizer.lr
    if model is None and isinstance(lr, ScaledRate) and lr.scale_from.this_model is None:
        return None
    return config.learning_rate.peak(lambda: 0 if model is None else model.parameters)


def _estimate_time(config: Config, speed: Speed | None) -> dict[str, Any] | None:
    if speed is None:
        return None
    completions = _sampled_per_rollout(config) * config.train.rollouts
    at_most, expected = estimate_duration(completions, config.rollout.max_new_tokens, speed)
    return {**asdict(speed), "seconds_at_most": at_most, "seconds_expected": expected}


DEFAULT_GPU_BYTES = 80 * GIB
GPU_DEVICE = Path("/dev/nvidia0")
# Without a GPU on this machine, larger models (in parameters) are planned for GPUs.
LARGE = 1_000_000_000
# GPUs sold with N GB have N GiB.
_UNITS = {"": GIB, "m": 2**20, "g": GIB, "t": 2**40}


@dataclass(frozen=True)
class Device:
    """The device of a plan: bytes of one GPU or of the host's memory, and ``why`` it was chosen."""

    gpu: bool
    bytes: int
    why: str


def parse_gpu_memory(text: str) -> int:
    """Parse `80GiB`, `80 GB`, `24g` or `24` to bytes. Raises UserError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([mgt])i?b?)?\s*", text.lower())
    if match is None or float(match[1]) == 0:
        raise UserError(f"--gpu-memory: must be a size such as 80GiB or 24GB; got {text}")
    return round(float(match[1]) * _UNITS[match[2] or ""])


def choose_device(gpu_memory: str | None, parameters: int | None) -> Device:
    """Choose `--gpu-memory`, else this machine's GPU, 80 GiB GPUs for a large model, or this machine's CPU."""
    if gpu_memory is not None:
        return Device(True, parse_gpu_memory(gpu_memory), "as given (--gpu-memory)")
    if GPU_DEVICE.exists():
        size = query_gpu_memory()
        if size is not None:
            return Device(True, size, "the GPU of this machine; --gpu-memory sets another size")
        return Device(True, DEFAULT_GPU_BYTES, "assumed 80 GiB for the GPU of this machine; --gpu-memory sets the size")
    if parameters is not None and parameters >= LARGE:
        return Device(True, DEFAULT_GPU_BYTES, "assumed GPUs of 80 GiB for a large model; --gpu-memory sets the size")
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device(False, size, "this machine's CPU and memory; for GPUs use --processes N --gpu-memory 80GiB")


def query_gpu_memory() -> int | None:
    """Return the bytes of this machine's smallest GPU by `nvidia-smi`; None if it fails."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        return min(int(line) for line in output.split()) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def launch_strategy(config: Config) -> Strategy:
    launch = config.launch
    if launch.deepspeed is not None:
        stages: dict[Any, Strategy] = {1: "zero1", 2: "zero2", 3: "zero3"}
        return stages.get(zero_stage(deepspeed_settings(launch) or {}), "ddp")
    return "ddp" if launch.processes > 1 else "single"


def offload_settings(config: Config) -> tuple[bool, bool]:
    """Return whether DeepSpeed offloads the optimizer states, and the weights, to host memory."""
    zero = (deepspeed_settings(config.launch) or {}).get("zero_optimization")
    sections = [(zero if isinstance(zero, dict) else {}).get(f"offload_{name}") for name in ("optimizer", "param")]
    optimizer, weights = (isinstance(section, dict) and section.get("device", "none") != "none" for section in sections)
    return optimizer, weights


def training_settings(config: Config, device: Device, prompt_tokens: int | None = None) -> Training:
    batch, method, model = config.batch, config.method, config.model
    checkpointing = model.gradient_checkpointing
    weights = 2 if model.dtype == "bfloat16" else 4
    frozen_weights = 2 if model.dtype == "bfloat16" or (model.dtype == "auto" and device.gpu) else 4
    offload_optimizer, offload_weights = offload_settings(config)
    prompt = prompt_tokens or _typical_prompt_tokens(config)
    rows = batch.micro_batch
    if config.update.micro_tokens is not None:
        rows = max(1, min(batch.share, config.update.micro_tokens // (prompt + config.rollout.max_new_tokens)))
    return Training(
        micro_batch=rows,
        prompt_tokens=prompt,
        completion_tokens=config.rollout.max_new_tokens,
        weights=weights if model.adapter.kind == "none" else frozen_weights,  # type: ignore[arg-type]
        frozen_weights=frozen_weights,  # type: ignore[arg-type]
        autocast=device.gpu,
        checkpointing=device.gpu if checkpointing == "auto" else checkpointing == "on",
        accumulates=batch.share > rows,
        strategy=launch_strategy(config),
        processes=config.launch.processes,
        adapter=adapter_settings(config),
        reference=method.needs_reference,
        teacher=_teacher_parameters(config),
        value_head=method.needs_values,
        attention=_attention_kind(model.attention),
        supervised=not method.samples,
        gpu=device.gpu,
        offload_optimizer=offload_optimizer,
        offload_weights=offload_weights,
        summed=4 if accumulates_in_float32(deepspeed_settings(config.launch) or {}) else 2,
        past=config.rollout.behind + 1 if config.rollout.behind and method.samples else 0,
    )


def _teacher_parameters(config: Config) -> int | None:
    """Return the number of the teacher's parameters; 0 if unknown, None without a teacher."""
    if config.method.teacher is None:
        return None
    try:
        teacher = find_teacher(config)
        architecture = None if teacher is None else find_architecture(teacher.name).architecture
    except UserError:
        return 0
    return 0 if architecture is None else architecture.parameters


def _typical_prompt_tokens(config: Config) -> int:
    """Return the task's typical prompt length; a start refuses an invalid configuration."""
    style = "compact" if config.model.name in LOCAL_PRESETS else DEFAULT_STYLE
    try:
        return config.task.for_model(style).prompt_tokens
    except UserError:
        return config.task.prompt_tokens


def adapter_settings(config: Config) -> Adapter | None:
    adapter: Any = config.model.adapter
    if adapter.kind == "none":
        return None
    return Adapter(adapter.rank, adapter.targets, adapter.kind == "qlora")


def sampling_settings(config: Config, model: Architecture | None = None) -> Sampling:
    batch, rollout = config.batch, config.rollout
    rows = -(-batch.completions // config.launch.processes)
    if not config.method.samples:
        return Sampling("none", 0)
    engine: str = rollout.engine
    if engine == "auto":
        engine = "local" if model is None or model.family in FAMILIES else "transformers"
    return Sampling(
        cast(Engine, engine),
        rows,
        rollout.vllm.gpu_memory or COLOCATE_MEMORY,
        group=rollout.group_size,
        batch=rollout.batch,
        sorts=bool(rollout.limits),
        sleeps=rollout.vllm.sleep,
    )


def _attention_kind(name: str | None) -> Attention:
    if name == "eager":
        return "eager"
    return "flash_attention_2" if name is not None and "flash" in name else "sdpa"


@dataclass(frozen=True)
class Speed:
    """Completion tokens per second of the whole loop, and the mean completion length if measured."""

    tokens_per_second: float
    source: str
    tokens_per_completion: float | None = None


def parse_speed(text: str | None) -> Speed | None:
    """Parse `--speed`: tokens per second, or a run to measure. Raises UserError for anything else."""
    if text is None:
        return None
    try:
        tokens = float(text)
    except ValueError:
        from rlvr_cli.config.load import load_config

        return measure_speed(find_run(text, Path(load_config([]).run.dir)))
    if not 0 < tokens < float("inf"):
        raise UserError(f"--speed: must be tokens per second, above 0, or a run; got {text}")
    return Speed(tokens, "as given (--speed)")


def measure_speed(run: RunDir) -> Speed:
    """Compute the speed of a run, without the first rollout (warm-up). Raises UserError without a finished one."""
    from rlvr_cli.config.load import load_config

    steps, timings = read_jsonl(run.metrics_path), read_jsonl(run.timings_path)
    rows = [{**step, **timing} for step, timing in zip(steps, timings, strict=False) if "length" in step]
    for number, row in enumerate(rows, start=1):
        if not all(isinstance(row.get(key), int | float) for key in ("rollout", "length", "seconds")):
            raise RunError(
                f"{run.path}: its step {number} has no rollout, length or seconds in {run.metrics_path.name} and "
                f"{run.timings_path.name}. The files were altered."
            )
    rollouts = sorted({int(row["rollout"]) for row in rows})
    used = rollouts[1:] or rollouts
    rows = [row for row in rows if row["rollout"] in used]
    if not rows:
        raise UserError(f"--speed {run.path}: has no finished rollout to measure")
    seconds = sum(float(row["seconds"]) for row in rows)
    # Every step of a rollout repeats the rollout's numbers.
    lengths = {int(row["rollout"]): float(row["length"]) for row in rows}
    rollout = load_config([run.config_path]).rollout
    extra = {int(row["rollout"]): float(row.get("extra_tokens") or 0) for row in rows}
    tokens = sum(lengths.values()) * rollout.prompts * rollout.group_size + sum(extra.values())
    source = f"{run.path}, {len(used)} rollout{'s' if len(used) > 1 else ''}"
    return Speed(tokens / seconds, source, sum(lengths.values()) / len(lengths))


def estimate_duration(completions: int, tokens_each: int, speed: Speed) -> tuple[float, float | None]:
    """Return the seconds of ``completions`` of ``tokens_each`` tokens, and of the measured length (None: unknown)."""
    mean = speed.tokens_per_completion
    expected = None if mean is None else completions * min(mean, tokens_each) / speed.tokens_per_second
    return completions * tokens_each / speed.tokens_per_second, expected
