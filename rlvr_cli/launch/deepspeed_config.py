"""DeepSpeed configurations: the presets and files of `launch.deepspeed`, checked against the run and filled in.

No torch is loaded here, so that a contradiction is reported before anything starts.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rlvr_cli.config.batch import BatchArithmetic
from rlvr_cli.config.launch import LaunchConfig
from rlvr_cli.config.schema import Config
from rlvr_cli.config.update import ScaledRate
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.text import did_you_mean

AUTO = "auto"
GATHER = "stage3_gather_16bit_weights_on_model_save"

SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_FROM_THE_RUN = {
    **dict.fromkeys(SIZES, AUTO),
    "gradient_clipping": AUTO,
    "bf16": {"enabled": AUTO},
    # Else the passes of a step are summed in bfloat16, which loses more with each.
    "data_types": {"grad_accum_dtype": "fp32"},
}
_STAGE_3 = {
    "stage": 3,
    "overlap_comm": True,
    "contiguous_gradients": True,
    "reduce_bucket_size": AUTO,
    "stage3_prefetch_bucket_size": AUTO,
    "stage3_param_persistence_threshold": AUTO,
    GATHER: True,
}
_ON_THE_HOST = {"device": "cpu", "pin_memory": True}
# configs/deepspeed has the same as files, to copy and change.
PRESETS: dict[str, dict[str, Any]] = {
    "zero2": {**_FROM_THE_RUN, "zero_optimization": {"stage": 2, "overlap_comm": True, "contiguous_gradients": True}},
    "zero3": {**_FROM_THE_RUN, "zero_optimization": _STAGE_3},
    "zero3-offload": {
        **_FROM_THE_RUN,
        "zero_optimization": {**_STAGE_3, "offload_optimizer": _ON_THE_HOST, "offload_param": _ON_THE_HOST},
    },
}
# What would change the training behind the run's configuration.
_NOT_OURS = {
    **dict.fromkeys(
        ("tensor_parallel", "sequence_parallel_size", "pipeline", "compression_training", "data_efficiency"),
        "the run divides rollouts among processes and nothing else",
    ),
    **dict.fromkeys(("elasticity", "curriculum_learning"), "the sizes of the batch are the run's"),
    **dict.fromkeys(("amp", "bfloat16", "torch_autocast"), "the precision is the run's, bfloat16 or float32"),
    "progressive_layer_drop": "the run trains the whole model",
}
# What DeepSpeed calls AdamW, or makes it by default.
ADAMW = ("AdamW", "Adam")
# A file may give a scaled learning rate rounded, as papers do: 4.63e-7.
_ROUNDED = 0.005


def is_sharded(launch: LaunchConfig) -> bool:
    """Return whether the model is divided among the processes, in place of a whole one in each."""
    return launch.deepspeed is not None


def deepspeed_in_words(launch: LaunchConfig) -> str:
    """The launch's key that shards, as a person writes it."""
    return f"launch.deepspeed={launch.deepspeed}"


def deepspeed_settings(launch: LaunchConfig) -> dict[str, Any] | None:
    """DeepSpeed's configuration as the preset or the file has it; None where none is asked for.

    Raises UserError if the preset or file does not exist, or is not a JSON object.
    """
    name = launch.deepspeed
    if name is None:
        return None
    if name in PRESETS:
        return copy.deepcopy(PRESETS[name])
    path = local_path(name)
    try:
        read: Any = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_no_key_twice)
    except FileNotFoundError:
        raise UserError(
            f"launch.deepspeed={name}: no such file, and no preset of that name ({', '.join(PRESETS)})."
            f"{did_you_mean(name, PRESETS)}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"launch.deepspeed={name}: cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"launch.deepspeed={name}: not a DeepSpeed configuration, which is JSON: {error}") from None
    if not isinstance(read, dict):
        raise UserError(f"launch.deepspeed={name}: not a DeepSpeed configuration, which is a JSON object.")
    return read


def check_deepspeed(config: Config, *, bf16: bool | None = None, lr: float | None = None, here: bool = True) -> None:
    """Raise UserError with every contradiction between the run and what `launch.deepspeed` names.

    Args:
        bf16: whether the run computes in bfloat16; None = not known yet, so not compared.
        lr: the peak learning rate; None = as the configuration has it. Where it is a rule that needs the model's size,
            it is not compared.
        here: whether it trains on this machine, which needs DeepSpeed.
    """
    settings = deepspeed_settings(config.launch)
    if settings is not None:
        if here and importlib.util.find_spec("deepspeed") is None:
            raise UserError(
                f"launch.deepspeed={config.launch.deepspeed}: DeepSpeed is not installed (it is for Linux alone)."
            )
        problems = list(_contradictions(settings, config, config.batch, bf16, lr))
        if problems:
            raise UserError([f"launch.deepspeed={config.launch.deepspeed}: {problem}" for problem in problems])


def filled(config: Config, *, bf16: bool, lr: float | None = None) -> dict[str, Any]:
    """The configuration that DeepSpeed gets: nothing of the run's is left to its defaults.

    Args:
        lr: the peak learning rate; None = as the configuration has it.

    Raises UserError as :func:`check_deepspeed` does.
    """
    check_deepspeed(config, bf16=bf16, lr=lr)
    settings = deepspeed_settings(config.launch)
    assert settings is not None
    batch = config.batch
    for fact in _facts(config, batch):
        settings[fact.key] = fact.value
    if config.method.splits_steps:
        # The trainer says which of its forward passes is the last of a step.
        settings |= {"train_micro_batch_size_per_gpu": batch.share, "gradient_accumulation_steps": 1}
    settings["bf16"] = {**_section(settings, "bf16"), "enabled": bf16}
    # The run makes the same optimizer itself, with a separate rate for PPO's value head.
    for unused in ("fp16", "optimizer"):
        settings.pop(unused, None)
    if stage_of(settings) == 3:
        settings["zero_optimization"][GATHER] = True
    return settings


def sums_in_float32(settings: dict[str, Any]) -> bool:
    """Return whether DeepSpeed adds up a step's gradients in float32 rather than in the format of the weights."""
    return _section(settings, "data_types").get("grad_accum_dtype") in ("fp32", "float", "float32", "torch.float32")


def stage_of(settings: dict[str, Any]) -> Any:
    """ZeRO's stage in DeepSpeed's configuration; 0 where it says none."""
    return _section(settings, "zero_optimization").get("stage", 0)


@dataclass(frozen=True)
class _Fact:
    """A value that DeepSpeed's configuration may give too: the run's, and how a person would change it there."""

    key: str
    value: Any
    meaning: str
    change: Callable[[Any], str]


def _facts(config: Config, batch: BatchArithmetic) -> list[_Fact]:
    update, processes = config.update, batch.processes
    return [
        _Fact(
            "train_micro_batch_size_per_gpu",
            batch.micro_batch,
            "completions in one forward pass of a process",
            lambda value: f"set update.micro_batch={value}",
        ),
        _Fact(
            "gradient_accumulation_steps",
            batch.micro_batches,
            f"micro-batches of an optimizer step in each of launch.processes={processes}",
            lambda value: (
                "it follows from rollout.prompts, rollout.group_size, update.mini_batches and update.micro_batch"
            ),
        ),
        _Fact(
            "train_batch_size",
            batch.step_batch,
            "completions of an optimizer step, rollout.prompts x rollout.group_size / update.mini_batches",
            lambda value: "change one of these",
        ),
        _Fact(
            "gradient_clipping",
            update.max_grad_norm,
            "update.max_grad_norm",
            lambda value: f"set update.max_grad_norm={value}",
        ),
    ]


# transformers compares a few of these too (HfTrainerDeepSpeedConfig.fill_match): with torch loaded, in each process, in
# the names of TrainingArguments, without the keys that would change the training behind its back.
def _contradictions(
    settings: dict[str, Any], config: Config, batch: BatchArithmetic, bf16: bool | None, lr: float | None
) -> Iterator[str]:
    for fact in _facts(config, batch):
        written = settings.get(fact.key)
        if written not in (AUTO, None) and not _equal(written, fact.value):
            yield (
                f"{fact.key} is {written!r} there, and the run has {fact.value!r} ({fact.meaning}). Write "
                f'"auto" there, or {fact.change(written)}.'
            )
    yield from _precision(settings, bf16)
    yield from _optimizer(_section(settings, "optimizer"), config, lr)
    scheduler = settings.get("scheduler")
    if scheduler:
        kind = scheduler.get("type") if isinstance(scheduler, dict) else scheduler
        yield (
            f"scheduler is {kind!r} there, and the run has optimizer.lr_schedule={config.optimizer.lr_schedule}, "
            f"optimizer.warmup_rollouts={config.optimizer.warmup_rollouts}. Leave the section out there, and set these."
        )
    yield from _zero(settings)
    for key, reason in _NOT_OURS.items():
        value = settings.get(key)
        if value not in (None, {}, 1) and not (isinstance(value, dict) and value.get("enabled") is False):
            yield f"{key}: {reason}. Leave it out there."


def _precision(settings: dict[str, Any], bf16: bool | None) -> Iterator[str]:
    half = _section(settings, "fp16").get("enabled", False)
    if half not in (AUTO, False):
        yield (
            f"fp16.enabled is {half!r} there, and the run computes in bfloat16 (float32 without it). "
            "Leave the section out there."
        )
    written = _section(settings, "bf16").get("enabled", AUTO)
    if bf16 is not None and written != AUTO and written is not bf16:
        why = "these GPUs have it" if bf16 else "these processes' devices do not have it"
        yield (f'bf16.enabled is {written!r} there, and the run has {bf16!r} (bfloat16: {why}). Write "auto" there.')


def _optimizer(section: dict[str, Any], config: Config, lr: float | None) -> Iterator[str]:
    if not section:
        return
    ours = config.optimizer
    rule = ours.lr.scale_from if isinstance(ours.lr, ScaledRate) else None
    if lr is None and not isinstance(ours.lr, ScaledRate):
        lr = ours.lr
    if lr is None and rule is not None and rule.this_model is not None:
        lr = rule.rate(rule.this_model)
    kind, params = section.get("type"), _section(section, "params")
    plain = kind in ADAMW and params.get("adam_w_mode", True) is True and not params.get("torch_adam", False)
    if not plain:
        yield f"optimizer.type is {kind!r} there, and the run has AdamW (decoupled weight decay). Leave it out."
        return
    for name, value in (
        ("lr", lr),
        ("betas", list(ours.betas)),
        ("eps", ours.eps),
        ("weight_decay", ours.weight_decay),
    ):
        written = params.get(name, AUTO)
        if written == AUTO or value is None:
            continue
        close = name == "lr" and rule is not None and _close(written, lr)
        if not close and not _equal(written, value):
            mend = json.dumps(written)
            scaled = f" (scaled from {rule.lr:g})" if name == "lr" and rule is not None else ""
            yield (
                f"optimizer.params.{name} is {written!r} there, and the run has optimizer.{name}={value!r}{scaled}. "
                f'Write "auto" there, or set optimizer.{name}={mend}.'
            )


def _zero(settings: dict[str, Any]) -> Iterator[str]:
    zero, stage = _section(settings, "zero_optimization"), stage_of(settings)
    if stage not in (1, 2, 3):
        yield (
            f"zero_optimization.stage is {stage!r} there, which divides nothing among the processes. Set it to 2 or 3 "
            "there, or leave launch.deepspeed out."
        )
        return
    if stage == 3 and zero.get(GATHER, True) is not True:
        yield (
            f"zero_optimization.{GATHER} is {zero[GATHER]!r} there, and the run's checkpoints hold whole weights. "
            "Leave it out there, or set it to true."
        )
    if zero.get("compute_grad_norm", True) is not True:
        yield (
            "zero_optimization.compute_grad_norm is false there, and the run records and checks each step's norm. "
            "Leave it out there."
        )
    for name, is_set in (
        ("zenflow", zero.get("zenflow")),
        ("offload_optimizer.super_offload", _section(zero, "offload_optimizer").get("super_offload")),
    ):
        if is_set:
            yield f"zero_optimization.{name} makes steps that the run does not see. Leave it out there."
    if stage == 1 and sums_in_float32(settings):
        yield (
            "data_types.grad_accum_dtype is float32 there with stage 1, for which DeepSpeed takes another optimizer in "
            "bfloat16. Set zero_optimization.stage to 2 there, or leave it out."
        )
    for section in ("offload_optimizer", "offload_param"):
        device = _section(zero, section).get("device", "none")
        if device not in ("none", "cpu"):
            yield (
                f"zero_optimization.{section}.device is {device!r} there: checkpoints would lack what lies on it. Set "
                'it to "cpu" there.'
            )
        elif device == "cpu" and section == "offload_param" and stage != 3:
            yield f"zero_optimization.{section} needs stage 3, and the stage is {stage} there. Set one of the two."


def _section(settings: dict[str, Any], key: str) -> dict[str, Any]:
    value = settings.get(key)
    return value if isinstance(value, dict) else {}


def _equal(written: Any, ours: Any) -> bool:
    """Compare as numbers, also inside lists; true differs from 1."""
    if isinstance(written, bool) or isinstance(ours, bool):
        return written is ours
    if isinstance(written, list) and isinstance(ours, list):
        return len(written) == len(ours) and all(map(_equal, written, ours))
    return bool(written == ours)


def _close(written: Any, ours: float | None) -> bool:
    return isinstance(written, float) and ours is not None and math.isclose(written, ours, rel_tol=_ROUNDED)


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} stands there twice")
    return mapping
