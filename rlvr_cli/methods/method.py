"""A method: the components that define its gradient, and its fingerprint."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    create_model,
    field_validator,
    model_serializer,
)

from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Contradiction, Section, Text
from rlvr_cli.core.user_code import TEXT
from rlvr_cli.methods.aggregation import Aggregation, TokenMean, prompt_factors
from rlvr_cli.methods.base import (
    Advantage,
    Part,
    PolicyLoss,
    Rollout,
    RolloutShaping,
    Shaping,
    Tokens,
    TokenShaping,
    TrainingMethod,
)
from rlvr_cli.methods.entropy_bonus import EntropyBonus
from rlvr_cli.methods.grpo import GroupAdvantage, PPOClip
from rlvr_cli.methods.kl import KLPenalty
from rlvr_cli.methods.lopti import OnePass, Passes
from rlvr_cli.methods.names import BUILT_IN, METHODS, MethodTables, canonical_name, resolve_method_name, shaping_kinds
from rlvr_cli.methods.ppo import Critic
from rlvr_cli.methods.reward import Reward
from rlvr_cli.methods.sft import SFT


class _Shapings(Section):
    @model_serializer(mode="wrap")
    def _without_others(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Drop inactive shapings of user files, which a method without the file lacks."""
        plain: dict[str, Any] = handler(self)
        off = {key for key, shaping in self if shaping.is_user_defined and not shaping.is_on}
        return {key: value for key, value in plain.items() if key not in off}


def make_shapings_type(kinds: Iterable[type[Shaping]]) -> type[Section]:
    fields: dict[str, Any] = {kind.key: (kind, Field(default=kind(), description=kind.__doc__)) for kind in kinds}
    return create_model("Shapings", __base__=_Shapings, **fields)


if TYPE_CHECKING:
    Shapings = Section
else:
    Shapings = make_shapings_type(shaping_kinds())


class Method(TrainingMethod):
    """A policy-gradient method."""

    training: ClassVar[Literal["rl"]] = "rl"
    samples: ClassVar[bool] = True
    splits_steps: ClassVar[bool] = True
    trained_by: ClassVar[str] = "reinforcement learning with verifiable rewards"

    # The names of methods; None = accept any name.
    tables: ClassVar[MethodTables | None] = BUILT_IN

    name: Annotated[Text, Field(title="the name of a method, modifiers joined with +")] = Field(
        "grpo", description="Name of a method, with modifiers joined by +, as `dgpo+lopti` (`rlvr methods` lists them)."
    )
    advantage: Advantage = Field(default=GroupAdvantage(), description="The advantage estimator.")
    policy_loss: PolicyLoss = Field(
        default=PPOClip(), description="The token loss as a function of the importance ratio."
    )
    shaping: Shapings = Field(default_factory=lambda: Shapings(), description="Factors on the advantage.")
    aggregation: Aggregation = Field(default=TokenMean(), description="The divisor of the sum over tokens.")
    passes: Passes = Field(default=OnePass(), description="The passes over a rollout.")
    kl: KLPenalty = Field(default=KLPenalty(), description="The KL penalty against the initial model.")
    entropy_bonus: EntropyBonus = Field(default=EntropyBonus(), description="The entropy bonus in the loss.")
    critic: Critic = Field(default=Critic(), description=str(Critic.__doc__))
    reward: Reward = Field(default=Reward(), description="The training reward.")

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if cls.tables is None:
            return name
        resolved = resolve_method_name(name, cls.tables)
        if cls.tables.methods[resolved.base].imitates:
            raise ValueError(f"{resolved.base} is not a policy-gradient method; its keys are those of SFT")
        return str(resolved)

    @classmethod
    def canonical(cls, choice: str) -> str:
        if cls.tables is None:
            return choice
        try:
            return canonical_name(choice, cls.tables)
        except ValueError:
            return choice

    def with_max_length(self, max_length: int) -> Method:
        """Return a copy for completions of at most ``max_length`` tokens."""
        reward = self.reward.model_copy(update={"length": self.reward.length.with_length(max_length)})
        return self.model_copy(update={"aggregation": self.aggregation.with_length(max_length), "reward": reward})

    @property
    def policy(self) -> Method:
        """The policy gradient, that is the method; None for SFT."""
        return self

    @property
    def parts(self) -> tuple[Part, ...]:
        """All components, with inactive shapings."""
        every = (self.advantage, self.policy_loss, *dict(self.shaping).values())
        return (*every, self.aggregation, self.passes, self.kl, self.entropy_bonus, self.critic, self.reward)

    @property
    def shapings(self) -> tuple[Shaping, ...]:
        """Return the active shapings in order of application: GTPO's advantage is lambda d (A - gamma H)."""
        return tuple(shaping for shaping in reversed(dict(self.shaping).values()) if shaping.is_on)

    @property
    def rollout_shapings(self) -> tuple[RolloutShaping, ...]:
        return tuple(shaping for shaping in self.shapings if isinstance(shaping, RolloutShaping))

    @property
    def token_shapings(self) -> tuple[TokenShaping, ...]:
        return tuple(shaping for shaping in self.shapings if isinstance(shaping, TokenShaping))

    @property
    def needs_reference(self) -> bool:
        return self.kl.beta > 0 or self.advantage.needs_reference

    @property
    def needs_values(self) -> bool:
        return self.advantage.needs_values

    @property
    def needs_correct(self) -> bool:
        return self.advantage.needs_correct or self.reward.length.compares

    @property
    def teacher(self) -> str | None:
        return getattr(self.advantage, "teacher", None) if self.advantage.needs_teacher else None

    @property
    def needs_rollout_entropies(self) -> bool:
        return self.reward.source == "entropy_min" or any(shaping.needs_entropies for shaping in self.rollout_shapings)

    @property
    def needs_initial_entropy(self) -> bool:
        return any(shaping.needs_initial_entropy for shaping in self.rollout_shapings)

    @property
    def initial_entropy_samples(self) -> int | None:
        """Problems for measuring that entropy before training; None = the first rollout, or none."""
        return next(
            (shaping.initial_entropy_samples for shaping in self.rollout_shapings if shaping.needs_initial_entropy),
            None,
        )

    @property
    def needs_rollout_log_probs(self) -> bool:
        by_advantage = self.advantage.needs_reference or self.advantage.needs_teacher
        return by_advantage or self.passes.needs_rollout_log_probs

    @property
    def trains_every_token(self) -> bool:
        """True if a term besides the advantage trains every token of a pass."""
        return self.kl.beta > 0 or self.policy_loss.has_penalty or self.entropy_bonus.is_on

    def rollout_terms(self) -> list[str]:
        return [
            *(type(component).__name__ for component in (self.advantage, *self.rollout_shapings)),
            *self.reward.terms,
        ]

    def token_terms(self, pass_name: str = "all") -> list[str]:
        names = [type(component).__name__ for component in (self.policy_loss, *self.token_shapings)]
        more = ["KLPenalty"] * (self.kl.beta > 0) + ["EntropyBonus"] * self.entropy_bonus.is_on
        return [*names, self.aggregation.kind, f"pass:{pass_name}", *more]

    def rollout_advantages(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Return the advantages of a rollout, each (N, 1) or (N, T): as estimated, and after its rollout shapings.

        The aggregation counts by the first, training uses the second.
        """
        estimated = shaped = self.advantage.advantages(rollout)
        for shaping in self.rollout_shapings:
            shaped = shaping.shape(rollout, estimated, shaped)
        if self.aggregation.sequences == "trained_per_prompt":
            shaped = shaped * prompt_factors(rollout.mask, estimated, rollout.group_size)
        return estimated, shaped

    def shape_tokens(self, tokens: Tokens, pass_name: str = "all") -> Tokens:
        advantages = tokens.advantages.expand_as(tokens.log_probs)
        for shaping in self.token_shapings:
            advantages = advantages * shaping.factor(tokens)
        selected = self.passes.selected(tokens, pass_name)
        return dataclasses.replace(tokens, advantages=torch.where(selected, advantages, 0.0))

    def trained_mask(self, tokens: Tokens, pass_name: str = "all") -> Tensor:
        """Return (B, T) the tokens in the policy's gradient in pass ``pass_name``; ``log_probs`` is not read."""
        trained = self.shape_tokens(tokens, pass_name).advantages != 0
        return trained | self.passes.selected(tokens, pass_name) if self.trains_every_token else trained

    def grad_mask(self, tokens: Tokens, pass_name: str = "all", *, old_known: bool = True) -> Tensor:
        """Return (B, T) the tokens whose current log-prob affects the gradient of pass ``pass_name``.

        All others may be skipped in the step's forward passes without changing the gradient.

        Args:
            tokens: ``log_probs`` is not read. old_known: whether ``old_log_probs`` is available; otherwise it will be
                the current policy's, and all tokens that the pass may select are included.
        """
        valid = tokens.mask.bool()
        if self.advantage.needs_values:
            return self.passes.selected(tokens, pass_name) if old_known else valid
        if old_known:
            mask = self.trained_mask(tokens, pass_name)
        else:
            mask = valid if self.trains_every_token else valid & (tokens.advantages != 0)
        return valid & mask.any(dim=1, keepdim=True) if self.policy_loss.reads_whole_rows else mask

    def coefficients(
        self,
        tokens: Tokens,
        count: Tensor,
        pass_name: str = "all",
        statistics: Tensor | None = None,
        *,
        sampler_correction: Tensor | None = None,
    ) -> Tensor:
        """Return (B, T) the factor of each token's grad log pi in grad J: (F A + P + KL) / Z; without gradient.

        Args:
            tokens: any part of a step's tokens, with the shaped advantages of :meth:`rollout_advantages`.
            count: ``aggregation.count`` of the whole step.
            pass_name: the pass.
            statistics: ``policy_loss.statistics`` of the whole step's :meth:`shape_tokens` tokens.
            sampler_correction: (B, T) or (B, 1) ratio of the training engine's old probability to the sampler's,
                if they differ; multiplies F A only, by its mean over the row if a row's tokens share a ratio.
        """
        shaped = self.shape_tokens(tokens, pass_name)
        # A token without advantage counts 0, even if its ratio overflowed.
        values = torch.where(
            shaped.advantages == 0, 0.0, self.policy_loss.weight(shaped, statistics) * shaped.advantages
        )
        if sampler_correction is not None:
            if self.policy_loss.per_sequence:
                # Tokens that share a ratio share a weight.
                valid = tokens.mask.bool()
                total = torch.where(valid, sampler_correction, 0.0).sum(dim=1, keepdim=True)
                sampler_correction = total / valid.sum(dim=1, keepdim=True).clamp(min=1)
            values = values * sampler_correction
        selected = self.passes.selected(tokens, pass_name)
        if self.policy_loss.has_penalty:
            values = values + torch.where(selected, self.policy_loss.penalty(shaped, statistics), 0.0)
        if self.kl.beta > 0:
            assert tokens.ref_log_probs is not None
            penalty = self.kl.coefficient(tokens.log_probs.detach(), tokens.ref_log_probs, tokens.old_log_probs)
            values = values + torch.where(selected, penalty, 0.0)
        normaliser = self.aggregation.coefficients(tokens.mask, count).to(values.dtype)
        return torch.where(tokens.mask.bool(), values * normaliser, 0.0)

    def contradictions(self) -> Iterator[Contradiction]:
        for component in self.parts:
            yield from component.contradictions(self.advantage)

    def unused(self) -> Iterator[tuple[str, str, str]]:
        for component in self.parts:
            yield from component.unused(self.advantage)

    def fingerprint(self) -> dict[str, Any]:
        """Return name, choices with their parameters, and hashes over the choices and over their code."""
        components = [self.advantage, self.policy_loss, *self.shapings, self.aggregation, self.passes, self.kl]
        components += [self.reward, self.critic] if self.advantage.needs_values else [self.reward]
        components += [self.entropy_bonus] if self.entropy_bonus.is_on else []
        modules = sorted({__name__, *_imported_modules(type(component).__module__ for component in components)})
        # Without inactive shapings and terms, so that a new kind does not change existing fingerprints.
        inactive = set() if self.entropy_bonus.is_on else {"entropy_bonus"}
        plain = self.model_dump(mode="json", exclude={"files", *inactive})
        choices = plain | {"shaping": {shaping.key: shaping.model_dump() for shaping in self.shapings}}
        return {
            "choices": choices,
            "choices_sha256": text_digest(json.dumps(choices, sort_keys=True)),
            "code_sha256": text_digest("".join(_module_source(sys.modules[module]) for module in modules)),
        }


def _module_source(module: ModuleType) -> str:
    """Return the text of a module; of a user file the executed one."""
    return str(vars(module).get(TEXT) or inspect.getsource(module))


def _family(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    preset = METHODS.get(name.strip().lower()) if isinstance(name, str) else None
    return "sft" if preset is not None and preset.imitates else "rl"


# The section ``method`` of a configuration.
AnyMethod = Annotated[Annotated[Method, Tag("rl")] | Annotated[SFT, Tag("sft")], Discriminator(_family)]


def any_method(method: type[Method]) -> Any:
    """Return ``AnyMethod`` with another type in place of ``Method``."""
    return Annotated[Annotated[method, Tag("rl")] | Annotated[SFT, Tag("sft")], Discriminator(_family)]


def _imported_modules(names: Iterable[str]) -> set[str]:
    """Return ``names`` and every module of this package that they import, directly or not."""
    modules: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in modules:
            modules.add(name)
            used = {getattr(value, "__module__", None) or "" for value in vars(sys.modules[name]).values()}
            waiting += [module for module in used if module.startswith(f"{__package__}.")]
    return modules
