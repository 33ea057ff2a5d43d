"""Prepare a run: model, tokenizer, task, problems, sampler. All bad input is reported here."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr_cli.config.launch import LaunchConfig
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.hashes import digest
from rlvr_cli.core.text import count
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.launch.deepspeed_config import check_deepspeed, is_sharded
from rlvr_cli.launch.stopping import StopRequest
from rlvr_cli.launch.world import ALONE, World
from rlvr_cli.methods.method import Method
from rlvr_cli.models.libraries import import_library, quiet_hub, set_threads
from rlvr_cli.models.load import check_bitsandbytes, load_model
from rlvr_cli.models.reading import check_prompts, check_readable, length_error
from rlvr_cli.models.source import AdapterBase, holds_adapter, prompt_style, resolve_model
from rlvr_cli.runs.environment import usable_cores
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.trained_on import read_training_problems, wording_digest
from rlvr_cli.tasks.base import PROMPTS_MEASURED, Task, prompt_ids
from rlvr_cli.tasks.problem import Problem
from rlvr_cli.training.demonstrations import SFTMethod, load_demonstrations
from rlvr_cli.training.progress import Reporter
from rlvr_cli.training.teacher import Teacher, find_teacher, load_teacher

if TYPE_CHECKING:
    from rlvr_cli.models.sampling.engine import Engine
    from rlvr_cli.training.vllm_engine import VllmEngine
    from rlvr_cli.training.vllm_server import VllmServer


@dataclass(frozen=True)
class PreparedRun:
    """The loaded and checked inputs of a training; nothing is on disk yet.

    Attributes:
        threads: CPU threads of this process.
        use_cache: the model's configured `use_cache`, which TRL disables.
        base: the base model of the adapters; None if every weight is trained.
        without_adapter: weights of experts without adapters, while other layers have them.
        method: a policy gradient, or supervised fine-tuning, which does not sample.
        teacher: of a method with a teacher.
        problems: of the training. engine: the sampler. engine_reason: why it was chosen.
        cautions: warnings before the training starts.
    """

    config: Config
    task: Task
    model: Any
    tokenizer: Any
    threads: int
    use_cache: bool
    base: AdapterBase | None
    without_adapter: tuple[str, ...]
    method: Method | SFTMethod
    teacher: Teacher | None = None
    problems: list[Problem] = field(default_factory=list)
    engine: Engine | None = None
    engine_reason: str = "none: training samples nothing"
    cautions: tuple[str, ...] = ()

    def problems_sha256(self) -> str | None:
        """Return the digest of the problems in order; None if the method's fingerprint includes it."""
        if isinstance(self.method, SFTMethod):
            return None
        return digest([digest(problem.fields) for problem in self.problems])

    def trained_on(self) -> set[str]:
        if isinstance(self.method, SFTMethod):
            wordings = [row.wording for row in self.method.demonstrations]
        else:
            wordings = [self.task.problem_wording(problem) for problem in self.problems]
        base = local_path(self.config.model.name)
        return {*map(wording_digest, wordings), *(read_training_problems(base) or ())}

    def announcement(self) -> str:
        """Return a summary of the batches and their source."""
        rollouts, completions = self.config.train.rollouts, self.config.batch.completions
        steps = f"{count(self.config.batch.steps_per_rollout, 'optimizer step')} each"
        if isinstance(self.method, SFTMethod):
            available = f"{len(self.method.demonstrations)} ({self.method.source})"
            batches = "1 batch" if rollouts == 1 else f"{rollouts:,} batches"
            return f"{batches} of {completions} demonstrations, {steps}; available: {available}"
        work = f"{count(rollouts, 'rollout')} of {completions} completions, {steps}; sampler: {self.engine_reason}"
        if self.config.rollout.uses_vllm and self.config.validation.every:
            work += " (evaluations during training: this process, not vLLM)"
        return work


@dataclass(frozen=True)
class RunParts:
    """The inputs of a run's trainer.

    ``stop``: set by a signal; the training stops after the current step. ``executed``: the counter of executed terms of
    the method.
    """

    prepared: PreparedRun
    run: RunDir
    reporter: Reporter
    stop: StopRequest
    executed: Counter[str] = field(default_factory=Counter)

    @property
    def config(self) -> Config:
        return self.prepared.config


def set_up_process(config: Config, world: World) -> int:
    """Set up torch in this process and join the process group; return the number of CPU threads.

    Raises UserError for missing devices, a GPU that computes attention wrongly, or an invalid DeepSpeed configuration.
    """
    check_deepspeed(config)
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|trl")
    quiet_hub()
    threads = set_threads(config.run.threads or max(1, usable_cores() // world.local_processes))
    import torch

    devices = torch.cuda.device_count()
    if world.processes == 1 and devices > 1:
        raise UserError(
            f"{devices} GPUs are visible, and launch.processes=1 trains on one. Use --processes {devices} for all of "
            "them, or set CUDA_VISIBLE_DEVICES=0."
        )
    if 0 < devices <= world.local_rank:
        raise UserError(
            f"process {world.local_rank} of this node has no GPU: {devices} visible for {world.local_processes} "
            f"processes. Start {devices} per node."
        )
    if devices == 0:
        # Otherwise DeepSpeed, which TRL imports, probes for an accelerator and warns.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    sharded = is_sharded(config.launch)
    if sharded:
        # DeepSpeed uses deprecated names of collectives.
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
        # With it accelerate would silently train without sharding.
        os.environ.pop("ACCELERATE_USE_CPU", None)
    world.join(cpu=devices == 0 and not sharded)
    from rlvr_cli.models.gpu import prepare_attention

    device = torch.device("cuda", world.local_rank) if devices else torch.device("cpu")
    prepare_attention(device, gradients=config.model.attention in (None, "sdpa"))
    from rlvr_cli.training.zero import check_devices

    check_devices(config.launch)
    return threads


def model_device(world: World, launch: LaunchConfig) -> str:
    """Return the device on which this process loads the model; DeepSpeed moves a sharded model later."""
    import torch

    if not torch.cuda.is_available() or is_sharded(launch):
        return "cpu"
    return "cuda" if world.processes == 1 else f"cuda:{world.local_rank}"


def prepare_run(config: Config, world: World = ALONE) -> PreparedRun:
    """Load and check all inputs of a training. Raises UserError."""
    check_model(config)
    threads = set_up_process(config, world)
    import_library("rlvr_cli.training.build")
    with world.local_main_first() if _may_download(config) else nullcontext():
        prepared = _load_all(config, model_device(world, config.launch), threads)
    if config.rollout.uses_vllm and not isinstance(prepared.method, SFTMethod):
        engine = _load_vllm(prepared, world)
        prepared = replace(prepared, engine=engine, engine_reason=engine.reason)
    return prepared


def check_model(config: Config) -> None:
    """Raise UserError if the model is not available, or cannot be trained as configured. Loads no weights."""
    source = resolve_model(config.model.name, revision=config.model.revision)
    check_readable(config)
    find_teacher(config)
    adapter = config.model.adapter
    if adapter.kind == "qlora":
        check_bitsandbytes()
    on_adapter = source.kind != "hub" and holds_adapter(Path(source.location))
    if on_adapter and config.method.needs_reference and adapter.kind == "none":
        raise UserError(
            f"model {config.model.name} is an adapter, which cannot be the reference of the KL term of "
            f"{config.method.name}. Merge it with `rlvr export`, or set model.adapter=lora, whose reference is the "
            "model without the new adapter."
        )


def _may_download(config: Config) -> bool:
    """Return whether model or problems may have to be downloaded, which one process does first."""
    source = resolve_model(config.model.name, revision=config.model.revision)
    teacher = find_teacher(config)
    from_hub = any(model is not None and model.kind == "hub" for model in (source, teacher))
    return from_hub or not config.task.is_generated


def _load_all(config: Config, device: str, threads: int) -> PreparedRun:
    dtype = _choose_dtype(config, device)
    model, tokenizer = load_model(
        config.model.name,
        revision=config.model.revision,
        dtype=dtype,
        device=device,
        attention=config.model.attention,
        in_4_bits=config.model.adapter.kind == "qlora",
    )
    if config.update.dropout:
        from rlvr_cli.training.dropout import find_dropouts

        if not find_dropouts(model):
            raise UserError(
                f"update.dropout=true has no effect: {config.model.name} has no dropout (0 in its config.json). Remove "
                "it; adapters have model.adapter.dropout."
            )
    base, without_adapter = _describe_adapters(config, model, dtype)
    task = config.task.for_model(prompt_style(model.config))
    policy = config.method.policy
    method: Method | SFTMethod
    teacher: Teacher | None = None
    problems: list[Problem] = []
    engine: Engine | None = None
    reason = PreparedRun.engine_reason
    cautions: tuple[str, ...] = ()
    if policy is None:
        method = load_demonstrations(config, task, model, tokenizer)
    else:
        problems = task.problems("train", config.task.training_problems, config.run.seed)
        cautions = check_prompts(config, task, problems[:PROMPTS_MEASURED], tokenizer, _max_positions(model))
        if not config.rollout.uses_vllm:
            engine, reason = _choose_engine(config, model)
        method = policy.with_max_length(config.rollout.max_new_tokens)
        if (source := find_teacher(config)) is not None:
            teacher = load_teacher(source, model, tokenizer, dtype=dtype, attention=config.model.attention)
            check_prompts(config, task, problems[:PROMPTS_MEASURED], tokenizer, _max_positions(teacher.model))
    if config.validation.every:
        _check_held_out(config, model, task, tokenizer)
    return PreparedRun(
        config,
        task,
        model,
        tokenizer,
        threads,
        use_cache=getattr(model.config, "use_cache", True),
        base=base,
        without_adapter=without_adapter,
        method=method,
        teacher=teacher,
        problems=problems,
        engine=engine,
        engine_reason=reason,
        cautions=cautions,
    )


def _choose_dtype(config: Config, device: str) -> str:
    """Return bfloat16 for an adapter's base on a GPU, else float32, since bfloat16 rounds small steps away."""
    if config.model.dtype != "auto":
        return config.model.dtype
    from rlvr_cli.models.gpu import has_bfloat16

    frozen = config.model.adapter.kind != "none"
    return "bfloat16" if frozen and device.startswith("cuda") and has_bfloat16() else "float32"


def _describe_adapters(config: Config, model: Any, dtype: str) -> tuple[AdapterBase | None, tuple[str, ...]]:
    """Return the base model of the adapters, None if every weight is trained, and the experts without an adapter."""
    from rlvr_cli.models.adapter import check_targets, experts_without_adapter, fingerprint

    adapter = config.model.adapter
    if adapter.kind == "none":
        return None, ()
    check_targets(adapter, model)
    source = resolve_model(config.model.name, revision=config.model.revision)
    revision = config.model.revision
    if source.kind == "hub":
        revision = getattr(model.config, "_commit_hash", None) or revision
    name = source.name if source.kind == "preset" else source.location
    base = AdapterBase(
        name, revision, adapter.kind, "bfloat16" if dtype == "bfloat16" else "float32", fingerprint(model)
    )
    return base, experts_without_adapter(adapter, model)


def _choose_engine(config: Config, model: Any) -> tuple[Engine, str]:
    from rlvr_cli.models.adapter import merge_adapters, wrap_engine
    from rlvr_cli.models.sampling.local import sample
    from rlvr_cli.models.sampling.transformers import check_generation_config, choose_engine

    with merge_adapters(model) as merged:
        engine, reason = choose_engine(config.rollout.engine, merged, "rollout.engine")
    check_generation_config(config.rollout.generation_kwargs)
    if config.model.adapter.kind == "none":
        return engine, reason
    merges = engine is sample
    reason += ", with the adapters merged into the weights" if merges else ", with the adapters in the layers"
    return wrap_engine(engine, merges=merges), reason


def _load_vllm(prepared: PreparedRun, world: World) -> VllmEngine | VllmServer:
    from rlvr_cli.models.adapter import merge_adapters
    from rlvr_cli.training.vllm_engine import VllmEngine
    from rlvr_cli.training.vllm_server import VllmServer

    config = prepared.config
    prompts = [prompt_ids(prepared.task, problem, prepared.tokenizer) for problem in prepared.problems]
    longest = max(map(len, prompts)) + config.rollout.max_new_tokens
    if config.rollout.engine == "vllm_server":
        return VllmServer(config, longest, world)
    with merge_adapters(prepared.model) as model:
        return VllmEngine(config, model, prepared.tokenizer, longest, world)


def _check_held_out(config: Config, model: Any, task: Task, tokenizer: Any) -> None:
    from rlvr_cli.models.adapter import merge_adapters
    from rlvr_cli.models.sampling.transformers import choose_engine

    settings = EvalSettings.in_training(config)
    with merge_adapters(model) as merged:
        choose_engine(settings.engine, merged, "validation.engine")
    held_out = task.problems(settings.split, settings.problems, settings.problems_seed)
    section = "rollout" if config.validation.max_new_tokens is None else "validation"
    new_tokens, positions = settings.max_new_tokens, _max_positions(model)
    longest = max(len(prompt_ids(task, problem, tokenizer)) for problem in held_out)
    if positions is not None and longest + new_tokens > positions:
        raise UserError(length_error(f"{section}.max_new_tokens", new_tokens, longest, positions))


def _max_positions(model: Any) -> int | None:
    return getattr(model.config, "max_position_embeddings", None)
