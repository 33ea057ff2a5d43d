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
from rlvr_cli.models.reading import check_prompts, check_readable, too_long
from rlvr_cli.models.source import AdapterBase, holds_adapter, prompt_style, resolve_model
from rlvr_cli.runs.environment import usable_cores
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.trained_on import training_problems, wording_hash
from rlvr_cli.tasks.base import PROMPTS_MEASURED, Task, prompt_ids
from rlvr_cli.tasks.problem import Problem
from rlvr_cli.training.demonstrations import SFTMethod, load_demonstrations
from rlvr_cli.training.progress import Reporter

if TYPE_CHECKING:
    from rlvr_cli.models.sampling.engine import Engine
    from rlvr_cli.training.vllm_engine import VllmEngine
    from rlvr_cli.training.vllm_server import VllmServer


@dataclass(frozen=True)
class PreparedRun:
    """The loaded and checked parts of a training; nothing is on disk yet.

    Attributes:
        threads: CPU threads of this process.
        use_cache: the model's configured `use_cache`, which TRL switches off.
        base: the base model of the adapters; None where every weight is trained.
        without_adapter: experts' weights without adapters, while other layers have one.
        method: a policy gradient, or supervised fine-tuning, which samples nothing.
        problems: of the training. engine: the sampler, with ``engine_reason``, the reason for it.
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
    problems: list[Problem] = field(default_factory=list)
    engine: Engine | None = None
    engine_reason: str = "none: training samples nothing"
    cautions: tuple[str, ...] = ()

    def problems_sha256(self) -> str | None:
        """The hash of the problems in their order; None where the method's fingerprint has it."""
        if isinstance(self.method, SFTMethod):
            return None
        return digest([digest(problem.fields) for problem in self.problems])

    def trained_on(self) -> set[str]:
        """The hashes of the problems that the model is trained on, in this run and before."""
        if isinstance(self.method, SFTMethod):
            wordings = [row.wording for row in self.method.demonstrations]
        else:
            wordings = [self.task.problem_wording(problem) for problem in self.problems]
        base = local_path(self.config.model.name)
        return {*map(wording_hash, wordings), *(training_problems(base) or ())}

    def announcement(self, steps: str) -> str:
        """Return a summary of the batches and their source; ``steps`` describes the steps of each."""
        rollouts, completions = self.config.train.rollouts, self.config.batch.completions
        if isinstance(self.method, SFTMethod):
            number, source = len(self.method.demonstrations), self.method.source
            batches = "1 batch" if rollouts == 1 else f"{rollouts:,} batches"
            return f"{batches} of {completions} demonstrations, {steps}; there are {number} ({source})"
        work = f"{count(rollouts, 'rollout')} of {completions} completions, {steps}; sampler: {self.engine_reason}"
        if self.config.rollout.uses_vllm and self.config.validation.every:
            work += " (evaluations during training: this process, not vLLM)"
        return work


@dataclass(frozen=True)
class RunParts:
    """The inputs of a run's trainer.

    Attributes:
        stop: set by a signal; the training ends after the step.
        executed: the counter of executed terms of the method.
    """

    prepared: PreparedRun
    run: RunDir
    reporter: Reporter
    stop: StopRequest
    executed: Counter[str] = field(default_factory=Counter)

    @property
    def config(self) -> Config:
        return self.prepared.config


def join(config: Config, world: World) -> int:
    """Set up torch in this process and join the process group; return the number of CPU threads.

    Raises UserError where the machine lacks the requested devices, its GPU computes attention wrongly, or DeepSpeed's
    configuration is invalid.
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
            f"{devices} GPUs are visible, and launch.processes=1 trains on one: use --processes {devices} to use "
            "them all, or set CUDA_VISIBLE_DEVICES=0."
        )
    if 0 < devices <= world.local_rank:
        raise UserError(
            f"process {world.local_rank} of this node has no GPU to itself: {devices} visible, "
            f"{world.local_processes} processes. Start {devices} a node."
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


def device_of(world: World, launch: LaunchConfig) -> str:
    """Return the device on which this process loads the model; a sharded one is moved later."""
    import torch

    if not torch.cuda.is_available() or is_sharded(launch):
        return "cpu"
    return "cuda" if world.processes == 1 else f"cuda:{world.local_rank}"


def prepare_run(config: Config, world: World = ALONE) -> PreparedRun:
    """Load and check all parts of ``config``. Raises UserError."""
    check_model(config)
    threads = join(config, world)
    import_library("rlvr_cli.training.build")
    with world.local_main_first() if _may_download(config) else nullcontext():
        prepared = _load_all(config, device_of(world, config.launch), threads)
    if config.rollout.uses_vllm and not isinstance(prepared.method, SFTMethod):
        engine = _vllm(prepared, world)
        prepared = replace(prepared, engine=engine, engine_reason=engine.reason)
    return prepared


def check_model(config: Config) -> None:
    """Raise UserError where the model is not available, or cannot be trained as configured; loads nothing."""
    source = resolve_model(config.model.name, revision=config.model.revision)
    check_readable(config)
    adapter = config.model.adapter
    if adapter.kind == "qlora":
        check_bitsandbytes()
    on_adapter = source.kind != "hub" and holds_adapter(Path(source.location))
    if on_adapter and config.method.needs_reference and adapter.kind == "none":
        raise UserError(
            f"model {config.model.name} is an adapter, and the KL term of {config.method.name} needs it a second time "
            "as the reference: `rlvr export` makes a plain model of it. (With model.adapter=lora the reference is the "
            "model without the new adapter.)"
        )


def _may_download(config: Config) -> bool:
    """Return whether model or problems may come from the hub, so that one process downloads first."""
    source = resolve_model(config.model.name, revision=config.model.revision)
    return source.kind == "hub" or not config.task.is_generated


def _load_all(config: Config, device: str, threads: int) -> PreparedRun:
    dtype = _dtype_of_weights(config, device)
    model, tokenizer = load_model(
        config.model.name,
        revision=config.model.revision,
        dtype=dtype,
        device=device,
        attention=config.model.attention,
        in_4_bits=config.model.adapter.kind == "qlora",
    )
    if config.update.dropout:
        _check_dropout(config, model)
    base, without_adapter = _base(config, model, dtype), _without_adapter(config, model)
    task = config.task.for_model(prompt_style(model.config))
    policy = config.method.policy
    method: Method | SFTMethod
    problems: list[Problem] = []
    engine: Engine | None = None
    reason = PreparedRun.engine_reason
    cautions: tuple[str, ...] = ()
    if policy is None:
        method = load_demonstrations(config, task, model, tokenizer)
    else:
        problems = task.problems("train", config.task.training_problems, config.run.seed)
        cautions = check_prompts(config, task, problems[:PROMPTS_MEASURED], tokenizer, _positions(model))
        if not config.rollout.uses_vllm:
            engine, reason = _engine(config, model)
        method = policy.bound(config.rollout.max_new_tokens)
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
        problems=problems,
        engine=engine,
        engine_reason=reason,
        cautions=cautions,
    )


def _dtype_of_weights(config: Config, device: str) -> str:
    """Return `float32` or `bfloat16`.

    Trained weights are float32, since bfloat16 rounds small optimizer steps away. The frozen base of an adapter is
    bfloat16 on a GPU that supports it, like the forward pass.
    """
    if config.model.dtype != "auto":
        return config.model.dtype
    from rlvr_cli.models.gpu import has_bfloat16

    frozen = config.model.adapter.kind != "none"
    return "bfloat16" if frozen and device.startswith("cuda") and has_bfloat16() else "float32"


def _without_adapter(config: Config, model: Any) -> tuple[str, ...]:
    from rlvr_cli.models.adapter import experts_without_adapter

    adapter = config.model.adapter
    return () if adapter.kind == "none" else experts_without_adapter(adapter, model)


def _check_dropout(config: Config, model: Any) -> None:
    """Raise UserError for update.dropout without effect."""
    from rlvr_cli.training.dropout import dropouts

    if not dropouts(model):
        raise UserError(
            f"update.dropout=true has no effect: {config.model.name} has no dropout (0 in its config.json). Remove "
            "it; adapters have model.adapter.dropout."
        )


def _base(config: Config, model: Any, dtype: str) -> AdapterBase | None:
    """Return the base model for a checkpoint of adapters; None where every weight is trained."""
    from rlvr_cli.models.adapter import check_targets, fingerprint

    adapter = config.model.adapter
    if adapter.kind == "none":
        return None
    check_targets(adapter, model)
    source = resolve_model(config.model.name, revision=config.model.revision)
    revision = config.model.revision
    if source.kind == "hub":
        revision = getattr(model.config, "_commit_hash", None) or revision
    name = source.name if source.kind == "preset" else source.location
    return AdapterBase(
        name, revision, adapter.kind, "bfloat16" if dtype == "bfloat16" else "float32", fingerprint(model)
    )


def _engine(config: Config, model: Any) -> tuple[Engine, str]:
    """Return the sampler of ``model`` (with adapters, if any), and the reason for it."""
    from rlvr_cli.models.adapter import engine_for_adapters, merged
    from rlvr_cli.models.sampling.local import sample
    from rlvr_cli.models.sampling.transformers import choose_engine

    with merged(model) as plain:
        engine, reason = choose_engine(config.rollout.engine, plain, "rollout.engine")
    if config.model.adapter.kind == "none":
        return engine, reason
    merges = engine is sample
    reason += ", with the adapters merged into the weights" if merges else ", with the adapters in the layers"
    return engine_for_adapters(engine, merges=merges), reason


def _vllm(prepared: PreparedRun, world: World) -> VllmEngine | VllmServer:
    """Load vLLM as the sampler, or connect to its server."""
    from rlvr_cli.models.adapter import merged
    from rlvr_cli.training.vllm_engine import VllmEngine
    from rlvr_cli.training.vllm_server import VllmServer

    config = prepared.config
    prompts = [prompt_ids(prepared.task, problem, prepared.tokenizer) for problem in prepared.problems]
    longest = max(map(len, prompts)) + config.rollout.max_new_tokens
    if config.rollout.engine == "vllm_server":
        return VllmServer(config, longest, world)
    with merged(prepared.model) as model:
        return VllmEngine(config, model, prepared.tokenizer, longest, world)


def _check_held_out(config: Config, model: Any, task: Task, tokenizer: Any) -> None:
    """Raise UserError where evaluations during training cannot sample the model, or would exceed its positions."""
    from rlvr_cli.models.adapter import merged
    from rlvr_cli.models.sampling.transformers import choose_engine

    settings = EvalSettings.in_training(config)
    with merged(model) as plain:
        choose_engine(settings.engine, plain, "validation.engine")
    held_out = task.problems(settings.split, settings.problems, settings.problems_seed)
    key, longest = "rollout" if config.validation.max_new_tokens is None else "validation", settings.max_new_tokens
    positions = _positions(model)
    prompt = max(len(prompt_ids(task, problem, tokenizer)) for problem in held_out)
    if positions is not None and prompt + longest > positions:
        raise UserError(too_long(f"{key}.max_new_tokens", longest, prompt, positions))


def _positions(model: Any) -> int | None:
    return getattr(model.config, "max_position_embeddings", None)
