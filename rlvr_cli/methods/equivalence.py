"""Find methods with the same gradient, by their choices and the number of updates.

Two rules: Methods with the same values of all keys with an effect have the same gradient: CE-GPPO with both betas 1 is
GPPO. And on the first optimizer step of a rollout, or with one update per rollout, the step is on-policy: every ratio
is 1, inside every trust region, so every token weight is 1 and methods that differ only in it are the same; the weight
of a user file is evaluated. Methods of runs that are only read are equal if file and values are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlvr_cli.core.nested import flatten
from rlvr_cli.core.user_code import strip_folder
from rlvr_cli.methods.checks import has_unit_weight_on_policy
from rlvr_cli.methods.method import AnyMethod, Method

When = Literal["always", "one_step", "first_step"]


@dataclass(frozen=True)
class SameGradient:
    """Methods with one gradient.

    Attributes:
        names: at least two, in the order given.
        when: `always`: the choices are equivalent. `one_step`: the only step of each rollout is on-policy.
            `first_step`: of several steps of each rollout only the first is the same.
    """

    names: tuple[str, ...]
    when: When

    @property
    def cannot_differ(self) -> bool:
        """True if every update of a training is the same."""
        return self.when != "first_step"

    def sentence(self) -> str:
        """`With one update per rollout the ratio is 1: grpo, dapo and dgpo are the same gradient.`"""
        names = f"{', '.join(self.names[:-1])} and {self.names[-1]}"
        if self.when == "always":
            return f"Their choices come to the same thing: {names} are the same gradient."
        if self.when == "one_step":
            return f"With one update per rollout the ratio is 1: {names} are the same gradient."
        return (
            f"On the first step of each rollout the ratio is 1: there, and there alone, {names} are the same gradient."
        )


def find_same_gradients(methods: Mapping[str, AnyMethod], updates: int) -> list[SameGradient]:
    """Return the groups of methods with the same gradient.

    Args:
        methods: resolved, by their reported names.
        updates: optimizer steps in one pass over a rollout batch, times the epochs.

    Returns:
        Groups that are the same by their choices, then by a single step, then on the first of several steps; later
        ones only where they add to earlier ones.
    """
    policies = {name: method.policy for name, method in methods.items() if method.policy is not None}
    computed = {name: method for name, method in policies.items() if not _is_recorded(method)}
    one_step = {name: method for name, method in computed.items() if updates * len(method.passes.names) == 1}
    groups: list[SameGradient] = []
    stages: tuple[tuple[When, Mapping[str, Method]], ...]
    stages = (("always", policies), ("one_step", one_step), ("first_step", computed))
    for when, candidates in stages:
        for names in _group(candidates, on_policy=when != "always"):
            if not any(set(names) <= set(group.names) for group in groups):
                groups.append(SameGradient(names, when))
    return groups


def _group(methods: Mapping[str, Method], *, on_policy: bool) -> Sequence[tuple[str, ...]]:
    by_form: dict[str, list[str]] = {}
    for name, method in methods.items():
        by_form.setdefault(json.dumps(_normal_form(method, on_policy=on_policy), sort_keys=True), []).append(name)
    return [tuple(names) for names in by_form.values() if len(names) > 1]


def _is_recorded(method: Method) -> bool:
    return any(component.recorded for component in method.parts)


def _normal_form(method: Method, *, on_policy: bool) -> dict[str, Any]:
    """Return a normal form of the choices; equal forms have equal gradients (``on_policy``: at a ratio of 1 only)."""
    files = [strip_folder(reference) for reference in getattr(method, "files", ())]
    if _is_recorded(method):
        # Only equal files with equal values are known to be the same.
        return {"recorded": method.model_dump(exclude={"name", "files"}), "files": files}
    components = [method.advantage, *method.shapings, method.aggregation, method.passes]
    unused = {key.removeprefix("method.") for key, *_ in method.unused()}
    sections = [f"shaping.{key}." for key, shaping in method.shaping if not shaping.is_on]
    if on_policy:
        # The value head has not been updated yet.
        unused.add("critic.clip")
    if on_policy and has_unit_weight_on_policy(method.policy_loss):
        sections.append("policy_loss.")
    else:
        components.append(method.policy_loss)
    values = flatten(method.model_dump(exclude={"name", "files"}))
    return {
        **{key: value for key, value in values.items() if key not in unused and not key.startswith(tuple(sections))},
        # Two versions of a file may agree in all values.
        "files": files if any(component.is_user_defined for component in components) else [],
    }
