"""The keys of the configuration, and their names in TRL, Hugging Face and verl."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, get_args, get_origin

from rlvr_cli.config.schema import Config
from rlvr_cli.core.keys import Schema, allows_text, fields
from rlvr_cli.core.layers import OptionOverride

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")

_SAPO = ("sapo_temperature_pos", "sapo_temperature_neg")
_STEP_COUNTS = ("max_steps", "steps", "total_steps", "total_training_steps")
_EPOCH_COUNTS = ("num_train_epochs", "epochs", "total_episodes", "total_epochs")
_VESPO = ("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg")
_KEYS: dict[str, tuple[str, ...]] = {
    "optimizer.lr": ("learning_rate", "lr"),
    "optimizer.betas": ("adam_beta1", "adam_beta2"),
    "optimizer.eps": ("adam_epsilon",),
    "optimizer.lr_schedule": ("lr_scheduler_type", "lr_scheduler"),
    "optimizer.final_lr_ratio": ("lr_scheduler_kwargs",),
    "optimizer.warmup_rollouts": ("warmup_steps", "warmup_ratio", "lr_warmup_steps"),
    "rollout.group_size": ("num_generations", "n_samples_per_prompt", "num_return_sequences", "rollout.n"),
    "rollout.prompts": ("train_batch_size", "generation_batch_size", "rollout_batch_size", "batch_size"),
    "rollout.max_new_tokens": ("max_completion_length", "max_response_length", "response_length", "generate_max_len"),
    "rollout.min_p": ("min_p",),
    "rollout.repetition_penalty": ("repetition_penalty",),
    "rollout.stop": ("stop_strings", "stop"),
    "rollout.generation_kwargs": ("generation_kwargs",),
    "rollout.drop_truncated": ("mask_truncated_completions",),
    "rollout.engine": ("use_vllm", "vllm_mode", "rollout.name"),
    "rollout.correction.kind": ("vllm_importance_sampling_mode", "vllm_importance_sampling_correction", "rollout_is"),
    "rollout.correction.cap": (
        *("vllm_importance_sampling_clip_max", "vllm_importance_sampling_cap", "rollout_is_threshold"),
    ),
    "rollout.correction.low": ("vllm_importance_sampling_clip_min",),
    "rollout.correction.delta": ("off_policy_mask_threshold",),
    "rollout.vllm.server": ("vllm_server_base_url", "vllm_server_host", "vllm_server_port"),
    "rollout.vllm.sleep": ("vllm_enable_sleep_mode",),
    "rollout.vllm.gpu_memory": ("vllm_gpu_memory_utilization", "gpu_memory_utilization"),
    "rollout.vllm.tensor_parallel": (
        *("vllm_tensor_parallel_size", "tensor_parallel_size", "tensor_model_parallel_size"),
    ),
    "update.dropout": ("disable_dropout",),
    "update.max_grad_norm": ("grad_clip", "clip_grad", "max_norm"),
    "update.micro_batch": (
        *("per_device_train_batch_size", "gradient_accumulation_steps"),
        *("ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu"),
    ),
    "update.mini_batches": ("steps_per_generation", "ppo_mini_batch_size", "mini_batch_size"),
    "update.epochs": ("num_iterations", "ppo_epochs", "num_ppo_epochs"),
    "train.rollouts": (*_STEP_COUNTS, *_EPOCH_COUNTS),
    "method.entropy_bonus.coef": ("entropy_coef", "entropy_coeff"),
    "method.entropy_bonus.target": ("entropy_target", "use_adaptive_entropy"),
    "method.entropy_bonus.min": ("entropy_coef_min",),
    "method.entropy_bonus.max": ("entropy_coef_max",),
    "method.entropy_bonus.step": ("entropy_coef_delta",),
    "method.policy_loss.kind": ("loss_mode",),
    **{f"method.policy_loss.{name.replace('sapo_temperature', 'tau')}": (name,) for name in _SAPO},
    **{f"method.policy_loss.{name.removeprefix('vespo_')}": (name,) for name in _VESPO},
    "method.advantage.kind": ("multi_objective_aggregation",),
    "method.kl.bias_correction": ("use_bias_correction_kl",),
    "method.kl.beta": ("beta", "kl_coef", "kl_loss_coef", "init_kl_coef"),
    "method.policy_loss.eps_low": ("epsilon", "cliprange", "clip_range", "clip_ratio", "clip_ratio_low", "epsilon_low"),
    "method.policy_loss.eps_high": ("epsilon_high", "clip_ratio_high"),
    "method.policy_loss.dual_clip": ("delta", "clip_ratio_c"),
    "method.aggregation.kind": ("loss_type", "loss_agg_mode"),
    "method.advantage.scale": ("scale_rewards",),
    "method.advantage.lam": ("gae_lambda", "lambda"),
    "method.shaping.high_entropy.share": ("top_entropy_quantile",),
    "method.name": ("adv_estimator", "importance_sampling_level"),
    "validation.every": ("eval_steps", "test_freq", "eval.every"),
    "validation.problems": ("val_max_samples",),
    "validation.samples": ("num_generations_eval", "val_kwargs.n"),
    "validation.temperature": ("val_kwargs.temperature",),
    "validation.top_p": ("val_kwargs.top_p",),
    "validation.batch": ("per_device_eval_batch_size", "eval_batch_size", "val_batch_size"),
    "checkpoint.every": ("save_steps", "save_freq"),
    "checkpoint.keep": ("save_total_limit",),
    "track.to": ("report_to", "logger"),
    "track.project": ("project", "project_name", "wandb_project"),
    "track.group": ("wandb_group", "group_name"),
    "track.completions_every": ("log_completions",),
    "track.completions": ("num_completions_to_print", "log_val_generations"),
    "run.dir": ("output_dir",),
    "run.name": ("run_name", "experiment_name"),
    "model.name": ("model_name_or_path", "model_path", "model.path", "pretrained"),
    "model.dtype": ("torch_dtype", "bf16", "fp16", "model_init_kwargs"),
    "model.attention": ("attn_implementation",),
    "model.adapter.kind": ("use_peft",),
    "model.adapter.rank": ("lora_r", "lora_rank"),
    "model.adapter.alpha": ("lora_alpha",),
    "model.adapter.dropout": ("lora_dropout",),
    "model.adapter.targets": ("lora_target_modules", "target_modules"),
    "launch.processes": ("num_processes", "nproc_per_node", "n_gpus_per_node"),
    "launch.deepspeed": ("deepspeed_config",),
    "task.data": ("train_dataset", "dataset_name", "dataset", "train_files"),
    "task.reward": ("reward_funcs", "reward_fn", "custom_reward_function.path"),
}
OTHER_NAMES = {name: key for key, names in _KEYS.items() for name in names}

_NONE = {"*": ""}
_TRAINER_ONLY = (
    *("tools", "environment_factory", "rollout_func", "max_tool_calling_iterations"),
    *("sync_ref_model", "ref_model_sync_steps", "ref_model_mixup_alpha"),
)
# Values of other programs' keys ("*" = any other) -> the equivalent here, one override or several; "" = none.
_OTHER_VALUES: dict[str, dict[str, str]] = {
    "loss_type": {
        "grpo": "method.aggregation=sequence_mean",
        "dapo": "method.aggregation=token_mean",
        "dr_grpo": "method.aggregation=constant_length",
        "bnpo": "method.aggregation=token_mean",
        "cispo": "method=cispo method.policy_loss.eps_low=null",
        **{name: f"method={name}" for name in ("luspo", "sapo", "vespo")},
    },
    "scale_rewards": {
        **dict.fromkeys(("group", "true"), "method.advantage.scale=std"),
        **dict.fromkeys(("none", "false"), "method.advantage.scale=none"),
        "batch": "method.advantage.scale=batch",
    },
    "multi_objective_aggregation": {
        "sum_then_normalize": "method.advantage=group",
        "normalize_then_sum": "method=gdpo",
    },
    "use_adaptive_entropy": {"true": "method.entropy_bonus.target=0.2", "false": "method.entropy_bonus.target=null"},
    "vllm_importance_sampling_correction": {"true": "rollout.correction=mis", "false": "rollout.correction=none"},
    "vllm_importance_sampling_mode": {
        "token_truncate": "rollout.correction=token",
        "token_mask": "rollout.correction=icepop",
        "sequence_truncate": "rollout.correction=sequence",
        "sequence_mask": "rollout.correction=mis",
    },
    "rollout_is": {"token": "rollout.correction=token", "sequence": "rollout.correction=sequence"},
    "loss_mode": {
        "vanilla": "method=grpo",
        "geo_mean": "method=gmpo",
        **{name: f"method={name.replace('_', '-')}" for name in ("gspo", "sapo", "cispo", "clip_cov", "kl_cov")},
        "dppo_tv": "method=dppo",
        **_NONE,
    },
    "use_kl_loss": {"true": "method.kl.beta=0.001", "false": "method.kl.beta=0"},
    "use_kl_in_reward": {"true": "method=reinforce-pp", "false": "method.kl.beta=0"},
    "resume_from_checkpoint": _NONE,
    **dict.fromkeys(_TRAINER_ONLY, _NONE),
    "loss_agg_mode": {
        "token-mean": "method.aggregation=token_mean",
        "seq-mean-token-mean": "method.aggregation=sequence_mean",
        "seq-mean-token-sum-norm": "method.aggregation=constant_length",
        "seq-mean-token-sum": "method.aggregation=sequence_sum",
    },
    "adv_estimator": {
        **{name: f"method={name}" for name in ("grpo", "rloo", "remax", "opo", "gdpo")},
        "gae": "method=ppo",
        "reinforce_plus_plus": "method=reinforce-pp",
        **_NONE,
    },
    "norm_adv_by_std_in_grpo": {"true": "method.advantage.scale=std", "false": "method.advantage.scale=none"},
    "importance_sampling_level": {"token": "method=grpo", "sequence": "method=gspo"},
    "use_vllm": {"true": "rollout.engine=vllm_colocate", "false": "rollout.engine=auto"},
    "vllm_mode": {"colocate": "rollout.engine=vllm_colocate", "server": "rollout.engine=vllm_server"},
    "use_peft": {"true": "model.adapter=lora", "false": "model.adapter=none"},
    "bf16": {"true": "model.dtype=auto"},
    "fp16": {"true": ""},
    "gradient_checkpointing": {"true": "model.gradient_checkpointing=on", "false": "model.gradient_checkpointing=off"},
}
_CLIP = " It is the lower bound; the upper one is `method.policy_loss.eps_high`"
_ROLLOUTS = " It counts rollouts, each of rollout.prompts problems"
_STEPS = " It counts rollouts, each of update.mini_batches x update.epochs steps"
_PROMPTS = " It counts prompts, each with rollout.group_size completions"
_OTHER_MEANINGS = {
    "delta": " It is the same above 1 + eps_high",
    "disable_dropout": " It is the opposite",
    "resume_from_checkpoint": " as a key. Use `rlvr train --resume RUN`",
    **{f"entropy_coef_{name}": " It belongs to method.entropy_bonus.target" for name in ("min", "max", "delta")},
    "off_policy_mask_threshold": " It belongs to rollout.correction=opsm",
    **{name: f" It belongs to method={name.partition('_')[0]}" for name in (*_SAPO, *_VESPO)},
    **dict.fromkeys(_TRAINER_ONLY, " in a run. `rlvr_cli.PolicyTrainer` takes it (docs/python.md)"),
    "epsilon_high": " For cispo, TRL's value minus 1: there it is the largest weight itself",
    **dict.fromkeys(_KEYS["optimizer.betas"], " It takes both: [0.9, 0.999]"),
    **dict.fromkeys(("epsilon", "cliprange", "clip_range", "clip_ratio"), _CLIP),
    **dict.fromkeys(_EPOCH_COUNTS, _ROLLOUTS),
    **dict.fromkeys(_STEP_COUNTS, _STEPS),
    **dict.fromkeys(_KEYS["optimizer.warmup_rollouts"], " It is a number of rollouts"),
    **dict.fromkeys(_KEYS["rollout.prompts"], _PROMPTS),
    **dict.fromkeys(("ppo_mini_batch_size", "mini_batch_size"), " It is the number of mini-batches, not their size"),
    "steps_per_generation": " It is the number of optimizer steps of one pass over a rollout",
    "gradient_accumulation_steps": " It is the rows of one forward pass; their number follows",
    **dict.fromkeys(_KEYS["method.advantage.lam"], " It is read where the advantage is GAE (method=ppo)"),
    **dict.fromkeys(("eval_steps", "test_freq"), " It counts rollouts"),
    "log_completions": " It is the number of rollouts from one table to the next",
}

KEYS = Schema(
    Config,
    other_names=OTHER_NAMES,
    other_values=_OTHER_VALUES,
    other_meanings=_OTHER_MEANINGS,
    command="rlvr config keys",
    include=True,
)


def make_override(option: str, key: str, values: Sequence[str], problem: str = "") -> OptionOverride:
    """Return the override of a key by an option, with the key's type, bounds and messages."""
    *section, name = key.split(".")
    kinds: list[Any] = [
        fields(variant)[name].annotation for variant in KEYS.variants(tuple(section)) if name in fields(variant)
    ]
    is_list = any(get_origin(kind) is tuple for kind in kinds)
    text = any(allows_text(get_args(kind)[0] if get_origin(kind) is tuple else kind) for kind in kinds)
    # Split lists on commas, except lists of text, since paths may contain commas.
    items = [item.strip() for value in values for item in value.split(",")] if is_list and not text else values
    written = [item if not text and _NUMBER.fullmatch(item) else json.dumps(item, ensure_ascii=False) for item in items]
    typed = " ".join(f"{option} {value}" for value in values)
    return OptionOverride(f"{key}=[{', '.join(written)}]" if is_list else f"{key}={written[-1]}", typed, problem)
