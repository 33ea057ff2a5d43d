"""What a run needs before it may begin: model, tokenizer, task, problems, sampler. All bad input shows here."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rlvr_cli.config.errors import UserError
from rlvr_cli.config.method import SFTConfig
from rlvr_cli.config.schema import Config
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.launch.world import ALONE, World
from rlvr_cli.models.load import load_model, quiet_hub
from rlvr_cli.models.source import prompt_style, resolve_model
from rlvr_cli.models.threads import set_threads
from rlvr_cli.runs.environment import usable_cores
from rlvr_cli.tasks import make_task, task_style
from rlvr_cli.tasks.base import Problem, Task, prompt_ids
from rlvr_cli.training.demonstrations import SFTMethod, load_demonstrations

if TYPE_CHECKING:
    from rlvr_cli.methods.method import Method

PROMPTS_MEASURED = 256


@dataclass(frozen=True)
class Prepared:
    """Everything loaded and checked; nothing on disk yet.

    Attributes:
        problems: what completions are sampled for; none in supervised fine-tuning.
        engine: samples them, for the reason ``engine_reason``; None in supervised fine-tuning.
    """

    method: Method | SFTMethod
    task: Task
    problems: list[Problem]
    model: Any
    tokenizer: Any
    engine: Any
    engine_reason: str
    threads: int


def join(config: Config, world: World) -> int:
    """Make torch ready in this process and meet the other ranks; returns the number of CPU threads of this one.

    Raises UserError where the machine has not the devices that were asked for.
    """
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|trl")
    quiet_hub()
    threads = set_threads(config.run.threads or max(1, usable_cores() // world.local_processes))
    import torch

    devices = torch.cuda.device_count()
    if world.processes == 1 and devices > 1:
        raise UserError(
            f"{devices} GPUs are visible, and launch.processes=1 trains on one: give --processes {devices} to use "
            "them all, or set CUDA_VISIBLE_DEVICES=0."
        )
    if 0 < devices <= world.local_rank:
        raise UserError(
            f"process {world.local_rank} of this node has no GPU of its own: {devices} visible, "
            f"{world.local_processes} processes. Start {devices} a node."
        )
    if devices == 0:
        # Else DeepSpeed, which TRL imports, looks for an accelerator and warns that there is none.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    world.join(cpu=devices == 0)
    return threads


def device_of(world: World) -> str:
    """Where this process computes."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return "cuda" if world.processes == 1 else f"cuda:{world.local_rank}"


def prepare(config: Config, world: World = ALONE) -> Prepared:
    """Load and check everything ``config`` names. Raises UserError."""
    resolve_model(config.model.name, revision=config.model.revision)
    threads = join(config, world)
    with world.one_before_the_others():
        return _loaded(config, device_of(world), threads)


def _loaded(config: Config, device: str, threads: int) -> Prepared:
    from rlvr_cli.methods.make import make_method
    from rlvr_cli.models.engines import choose_engine

    # Optimizer steps are smaller than bfloat16 can add to a weight; on a GPU the forward pass is in bfloat16 anyway.
    dtype = "float32" if config.model.dtype == "auto" else config.model.dtype
    model, tokenizer = load_model(config.model.name, revision=config.model.revision, dtype=dtype, device=device)
    task = make_task(config.task, task_style(config.task, prompt_style(model.config)))
    if isinstance(config.method, SFTConfig):
        supervised = load_demonstrations(config, config.method, task, model, tokenizer)
        if config.eval.every:
            choose_engine(config.rollout.engine, model)
            _check_held_out(config, model, task, tokenizer)
        return Prepared(supervised, task, [], model, tokenizer, None, "none: training samples nothing", threads)
    problems = task.problems("train", config.task.problems, config.run.seed)
    _check_length("rollout.max_new_tokens", config.rollout.max_new_tokens, model, task, problems, tokenizer)
    if config.eval.every:
        _check_held_out(config, model, task, tokenizer)
    engine, reason = choose_engine(config.rollout.engine, model)
    method = make_method(config.method, max_length=config.rollout.max_new_tokens)
    return Prepared(method, task, problems, model, tokenizer, engine, reason, threads)


def _check_held_out(config: Config, model: Any, task: Task, tokenizer: Any) -> None:
    """Refuse an evaluation on the way that would run out of positions rollouts later."""
    split: Literal["dev", "test"] = "dev" if config.task.data is None else config.eval.split
    held_out = task.problems(split, config.eval.problems, EvalSettings.problems_seed)
    key = "rollout" if config.eval.max_new_tokens is None else "eval"
    longest = config.eval.max_new_tokens or config.rollout.max_new_tokens
    _check_length(f"{key}.max_new_tokens", longest, model, task, held_out, tokenizer)


def _check_length(
    key: str, new_tokens: int, model: Any, task: Task, problems: Sequence[Problem], tokenizer: Any
) -> None:
    limit = getattr(model.config, "max_position_embeddings", None)
    longest = max(len(prompt_ids(task, problem, tokenizer)) for problem in problems[:PROMPTS_MEASURED])
    if limit is not None and longest + new_tokens > limit:
        raise UserError(
            f"{key}={new_tokens}: with prompts of {longest} tokens this is more than the model's {limit} positions. "
            f"Allowed: up to {max(0, limit - longest)}."
        )
