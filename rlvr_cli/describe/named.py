"""Resolve method names to configurations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError, collect_problems
from rlvr_cli.describe.sheet import validate_name
from rlvr_cli.methods.checks import check_user_parts
from rlvr_cli.methods.method import Method


def policy_config(text: str, overrides: Sequence[str] = ()) -> Method:
    """Return a policy-gradient method with overrides `KEY=VALUE` of `method`. Raises UserError, also for sft."""
    name = validate_name(text)
    texts = [f"method.{override}" for override in overrides]
    method = load_config(method=name, overrides=texts, import_files=True).method
    if method.policy is None:
        raise UserError(
            f"{method.name} imitates worked solutions: it has no ratio, no advantage and thus no token weight to show "
            "(each token weighs 1 on grad log pi)."
        )
    check_user_parts(method)
    return method.policy


def variant_config(text: str) -> Method:
    """Return a method named `lopti:passes.order=high_first:passes.eta=0.3`, with overrides. Raises UserError."""
    name, *overrides = text.split(":")
    policy = policy_config(name, overrides)
    return policy.model_copy(update={"name": text}) if overrides else policy


def replayed_configs(names: Iterable[str]) -> tuple[Method, ...]:
    """Return the methods to replay on a saved rollout. Raises UserError with every invalid name."""
    configs: list[Method] = []
    problems: list[str] = []
    for name in names:
        with collect_problems(problems):
            configs.append(config := variant_config(name))
            if config.reward.noise > 0:
                problems.append(
                    f"{config.name}: reward noise acts when a rollout is collected and has no effect on a saved one. "
                    "Choose another method."
                )
    if problems:
        raise UserError(problems)
    return tuple(configs)
