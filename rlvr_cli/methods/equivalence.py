"""Find methods with the same gradient, by their choices and the number of updates.

Two rules: Equivalent choices have the same gradient for any data: CE-GPPO with both betas 1 is GPPO. And on the first
optimizer step of a rollout, or with one update per rollout, the step is on-policy: every ratio is 1, inside every trust
region, so every token weight is 1 and methods that differ only in it are the same; the weight of a user file is
evaluated. Methods of runs that are only read are equal if file and values are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlvr_cli.core.user_code import strip_folder
from rlvr_cli.methods.checks import has_unit_weight_on_policy
from rlvr_cli.methods.correction import Correction
from rlvr_cli.methods.method import AnyMethod, Method

When = Literal["always", "one_step", "first_step"]


@dataclass(frozen=True)
class SameGradient:
    """Methods with one gradient.

    Attributes:
        names: at least two, in the order given.
        when: `always`: the choices are equivalent. `one_step`: the only step of each rollout is on-policy.
            `first_step`: of several steps of each rollout only the first is the same.
        empty_pass: whether some of them have a pass without tokens; its optimizer steps are momentum only.
    """

    names: tuple[str, ...]
    when: When
    empty_pass: bool = False

    @property
    def cannot_differ(self) -> bool:
        """True if every update of a training is the same."""
        return self.when != "first_step" and not self.empty_pass

    def sentence(self) -> str:
        """`With one update per rollout the ratio is 1: grpo, dapo and dgpo are the same gradient.`"""
        names = f"{', '.join(self.names[:-1])} and {self.names[-1]}"
        if self.when == "always":
            empty = " (but for the optimizer steps of a pass without tokens)" if self.empty_pass else ""
            return f"Their choices come to the same thing: {names} are the same gradient{empty}."
        if self.when == "one_step":
            return f"With one update per rollout the ratio is 1: {names} are the same gradient."
        return (
            f"On the first step of each rollout the ratio is 1: there, and there alone, {names} are the same gradient."
        )


def find_same_gradients(
    methods: Mapping[str, AnyMethod], updates: int, correction: Correction | None = None
) -> list[SameGradient]:
    """Return the groups of methods with the same gradient.

    Args:
        methods: resolved, by their reported names.
        updates: optimizer steps in one pass over a rollout batch, times the epochs.
        correction: of the sampler's mismatch; its weights of tokens are averaged by losses with one ratio a row.

    Returns:
        Groups that are the same by their choices, then by a single step, then on the first of several steps; later
        ones only where they add to earlier ones.
    """
    policies = {name: method.policy for name, method in methods.items() if method.policy is not None}
    computed = {name: method for name, method in policies.items() if not _is_recorded(method)}
    one_step = {name: method for name, method in computed.items() if updates * len(method.passes.names) == 1}
    groups: list[SameGradient] = []
    for names in _group(policies, lambda method: _normal_form(method, correction, on_policy=False)):
        empty = {policies[name].passes.empty_passes for name in names if name in computed}
        groups.append(SameGradient(names, "always", empty_pass=len(empty) > 1))
    stages: tuple[tuple[When, Mapping[str, Method]], ...] = (("one_step", one_step), ("first_step", computed))
    for when, candidates in stages:
        for names in _group(candidates, lambda method: _normal_form(method, correction, on_policy=True)):
            if not any(set(names) <= set(group.names) for group in groups):
                groups.append(SameGradient(names, when))
    return groups


def _group(methods: Mapping[str, Method], form: Callable[[Method], dict[str, Any]]) -> Sequence[tuple[str, ...]]:
    by_form: dict[str, list[str]] = {}
    for name, method in methods.items():
        by_form.setdefault(json.dumps(form(method), sort_keys=True), []).append(name)
    return [tuple(names) for names in by_form.values() if len(names) > 1]


def _is_recorded(method: Method) -> bool:
    return any(component.recorded for component in method.parts)


def _normal_form(method: Method, correction: Correction | None, *, on_policy: bool) -> dict[str, Any]:
    """Return a normal form of the choices; equal forms have equal gradients (``on_policy``: at a ratio of 1 only)."""
    files = [strip_folder(reference) for reference in getattr(method, "files", ())]
    if _is_recorded(method):
        # Only equal files with equal values are known to be the same.
        return {"recorded": method.model_dump(exclude={"name", "files"}), "files": files}
    critic = method.critic.model_dump() if method.advantage.needs_values else {}
    if on_policy:
        # The value head has not been updated yet.
        critic.pop("clip", None)
    plain = on_policy and has_unit_weight_on_policy(method.policy_loss)
    on = (
        method.advantage,
        *(() if plain else (method.policy_loss,)),
        *method.shapings,
        method.aggregation,
        method.passes,
    )
    passes = method.passes.simplify_first_step() if on_policy else method.passes.simplify()
    return {
        "advantage": method.advantage.model_dump(),
        "policy_loss": "no_is" if plain else method.policy_loss.simplify().model_dump(),
        # Active ones only: a method without a user file lacks the file's shapings.
        "shaping": {
            simplest.key: simplest.model_dump() for shaping in method.shapings if (simplest := shaping.simplify()).is_on
        },
        "row_weights": correction is not None and not correction.reads_rows and method.policy_loss.per_sequence,
        "aggregation": method.aggregation.simplify().model_dump(),
        "passes": passes.model_dump(),
        "kl": method.kl.simplify().model_dump(),
        "entropy_bonus": method.entropy_bonus.simplify().model_dump(),
        "critic": critic,
        "reward": method.reward.model_dump(),
        # Two versions of a file may agree in all values.
        "files": files if any(component.is_user_defined for component in on) else [],
    }
