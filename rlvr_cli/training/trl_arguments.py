"""Resolve a trainer's method, and adapt TRL's arguments to it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

from trl import GRPOConfig

from rlvr_cli.config.keys import KEYS, OTHER_NAMES
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.methods.base import Advantage, PolicyLoss
from rlvr_cli.methods.cispo import CISPO
from rlvr_cli.methods.lopti import Passes
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.names import METHODS

MethodComponent = Advantage | PolicyLoss | Passes

# TRL's arguments that the method decides, so that setting them would silently have no effect. Their equivalents are
# those of the command line (config/keys.py).
METHOD_ARGUMENTS = (
    *("beta", "delta", "epsilon", "epsilon_high", "importance_sampling_level", "loss_type", "scale_rewards"),
    *("multi_objective_aggregation", "off_policy_mask_threshold", "top_entropy_quantile"),
    *("entropy_coef", "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta", "entropy_target"),
    *("use_adaptive_entropy", "sapo_temperature_neg", "sapo_temperature_pos"),
    *("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
)

# Of every training: data in our order; no saving, logging and reporting by transformers.
COMMON_ARGUMENTS: dict[str, Any] = {
    "shuffle_dataset": False,
    "remove_unused_columns": False,
    "logging_strategy": "no",
    "logging_steps": 1,
    "logging_nan_inf_filter": False,
    "report_to": "none",
    "disable_tqdm": True,
    "save_strategy": "no",
    "restore_callback_states_from_checkpoint": False,
    "num_train_epochs": 1,
}


def trl_config(**settings: Any) -> GRPOConfig:
    """Return TRL's arguments with this project's defaults."""
    return GRPOConfig(**COMMON_ARGUMENTS, log_completions=False, **settings)


def apply_method(arguments: GRPOConfig, method: Method) -> GRPOConfig:
    """Return ``arguments`` with the values of ``method``. Raises ValueError if they set what the method decides."""
    fields = {field.name: field for field in dataclasses.fields(GRPOConfig)}
    conflicts = [name for name in METHOD_ARGUMENTS if getattr(arguments, name) != fields[name].default]
    if conflicts:
        raise ValueError(
            f"GRPOConfig sets what the method {method.name} decides. Remove: "
            + "; ".join(f"{name} ({_describe_replacement(name, arguments, method)})" for name in conflicts)
        )
    if method.kl.beta > 0 and method.kl.bias_correction and not arguments.use_bias_correction_kl:
        raise ValueError(
            f"use_bias_correction_kl=False and kl.bias_correction=true of the method {method.name} cannot be combined. "
            "Remove one."
        )
    accumulation = arguments.gradient_accumulation_steps
    if arguments.steps_per_generation % accumulation:
        raise ValueError(
            f"steps_per_generation must be a multiple of gradient_accumulation_steps={accumulation}, since a rollout "
            f"must split into whole optimizer steps; got {arguments.steps_per_generation}."
        )
    arguments = copy.copy(arguments)
    # The trainer itself splits an optimizer step into forward passes.
    arguments.per_device_train_batch_size *= accumulation
    arguments.steps_per_generation //= accumulation
    arguments.gradient_accumulation_steps = 1
    arguments.num_iterations *= len(method.passes.names)
    # TRL loads the reference policy if this is not 0; the penalty itself is part of the method.
    arguments.beta = 1.0 if method.needs_reference else 0.0
    if method.advantage.needs_values:
        # The value head is not among the model's outputs, in which DDP searches for used parameters.
        arguments.ddp_find_unused_parameters = False
    return arguments


def _describe_replacement(option: str, arguments: GRPOConfig, method: Method) -> str:
    """Return the arguments of the trainer in place of ``option``, as Python."""
    value, more = getattr(arguments, option), ""
    if option == "importance_sampling_level" and arguments.loss_type == "luspo":
        return 'method="luspo"'
    if option == "delta":
        more = ", the same for a delta above 1 + eps_high"
    if option == "epsilon_high" and (isinstance(method.policy_loss, CISPO) or arguments.loss_type == "cispo"):
        value, more = value - 1, ", TRL's value minus 1, since TRL's is the largest weight itself"
    if option == "off_policy_mask_threshold":
        run = f"`rlvr train rollout.correction=opsm {OTHER_NAMES[option]}={value}`"
        return f"of runs alone, which know the sampler's log-probs: {run}"
    family = option.partition("_")[0]
    equivalent = (KEYS.equivalent(option, value) or f"{OTHER_NAMES[option]}={value}").split()
    if option == "epsilon" and arguments.epsilon_high is None:
        equivalent.append(f"method.policy_loss.eps_high={value}")
    if family in ("sapo", "vespo"):
        equivalent.insert(0, f"method={family}")
    target = f"method.entropy_bonus.target={arguments.entropy_target:g}"
    if option == "use_adaptive_entropy" or option.startswith("entropy_coef_"):
        equivalent = [target, *(text for text in equivalent if ".target=" not in text)]
    name = [f'method="{text.removeprefix("method=")}"' for text in equivalent if text.startswith("method=")]
    overrides = [f'"{text.removeprefix("method.")}"' for text in equivalent if text.startswith("method.")]
    return ", ".join(name + ([f"overrides=[{', '.join(overrides)}]"] if overrides else [])) + more


def resolve_method(
    method: str | Method | MethodComponent, overrides: Sequence[str] = (), *, bias_correction: bool = False
) -> Method:
    """Return the method of a name with ``overrides``, of an object, or of a component.

    ``bias_correction``: TRL's ``use_bias_correction_kl``, the default of a KL term that ``overrides`` add. Raises
    UserError for an unknown policy-gradient method, or an override of a key that it lacks.
    """
    if isinstance(method, str):
        keys_and_values = [f"method.{override}" for override in overrides]
        config = load_config(method=method, overrides=keys_and_values, import_files=True).method.policy
        if config is None:
            raise UserError(f"method {method!r} is not a policy gradient: use trl.SFTTrainer.")
        keys = {override.partition("=")[0].strip() for override in overrides}
        adds_kl = config.kl.beta > 0 and "kl.beta" in keys and resolve_method(method).kl.beta == 0
        if adds_kl and "kl.bias_correction" not in keys:
            return config.replace(kl=config.kl.replace(bias_correction=bias_correction))
        return config
    if overrides:
        raise UserError("overrides need a method's name, not an object: set the values on the object itself.")
    if isinstance(method, Method):
        return method
    families = {"advantage": Advantage, "policy_loss": PolicyLoss, "passes": Passes}
    section = next(name for name, family in families.items() if isinstance(method, family))
    kind = type(method).model_fields["kind"].default
    names = [name for name, preset in METHODS.items() if preset.sets.get(f"{section}.kind", (None,))[0] == kind]
    base = "grpo" if "grpo" in names or not names else names[0]
    return resolve_method(base).replace(**{section: method})
