"""Resolve the names of methods to configurations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError, collect_problems
from rlvr_cli.describe.sheet import known_name
from rlvr_cli.methods.checks import check_user_parts
from rlvr_cli.methods.method import Method


def policy_config(text: str, overrides: Sequence[str] = ()) -> Method:
    """Return the configuration of a policy-gradient method, without torch.

    Args:
        overrides: `KEY=VALUE`, keys relative to `method.`.

    Raises:
        UserError: an unknown name, an invalid override, or a method without a policy loss (sft).
    """
    name = known_name(text)
    texts = [f"method.{override}" for override in overrides]
    method = load_config(method=name, overrides=texts, import_files=True).method
    if method.policy is None:
        raise UserError(
            f"{method.name} imitates worked solutions: without an old policy, a ratio and an advantage it has no "
            "token weight to show (each token of a solution weighs 1 on grad log pi)."
        )
    check_user_parts(method)
    return method.policy


def variant_config(text: str) -> Method:
    """Return the configuration of a method with overrides, as `lopti:passes.order=high_first:passes.eta=0.3`.

    Its name is ``text``.

    Raises:
        UserError: as `policy_config`.
    """
    name, *overrides = text.split(":")
    policy = policy_config(name, overrides)
    return policy.model_copy(update={"name": text}) if overrides else policy


def replayed_configs(names: Iterable[str]) -> tuple[Method, ...]:
    """Return the configurations of methods to apply to an existing rollout, in order.

    Raises:
        UserError: every invalid name.
    """
    configs: list[Method] = []
    problems: list[str] = []
    for name in names:
        with collect_problems(problems):
            configs.append(config := variant_config(name))
            if config.reward.noise > 0:
                problems.append(
                    f"{config.name}: noise changes the rewards when a rollout is collected, and has no effect on an "
                    "existing rollout."
                )
    if problems:
        raise UserError(problems)
    return tuple(configs)
