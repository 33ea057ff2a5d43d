"""A method: the choices that together decide the gradient, and its fingerprint."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.aggregation import Aggregation, prompt_factors
from rlvr_cli.methods.base import Advantage, Rollout, RolloutShaping, Tokens, TokenShaping, TokenWeight
from rlvr_cli.methods.gtpo import EntropyFilter
from rlvr_cli.methods.kl import KLPenalty
from rlvr_cli.methods.lopti import Schedule
from rlvr_cli.methods.reward import entropy_min_reward


@dataclass(frozen=True)
class Method:
    """The choices of one method; ``grad J = 1/Z sum F A grad log pi`` (DESIGN: one gradient, five choices).

    Attributes:
        name: as on the command line.
        advantage: A from rewards.
        weight: the token weight F.
        rollout_shaping, token_shaping: factors on A, in the order of application.
        aggregation: the normaliser Z.
        schedule: the passes over a rollout.
        kl: the penalty against the reference policy.
        noise: share of completions whose reward is flipped, by whoever verifies them.
        reward: ``verifier``, or ``entropy_min``: minus the row's mean token entropy in place of any verifier.
    """

    name: str
    advantage: Advantage
    weight: TokenWeight
    rollout_shaping: tuple[RolloutShaping, ...]
    token_shaping: tuple[TokenShaping, ...]
    aggregation: Aggregation
    schedule: Schedule
    kl: KLPenalty
    reward: str = "verifier"
    noise: float = 0.0

    @property
    def needs_reference(self) -> bool:
        """Whether log-probs of a reference policy are needed."""
        return self.kl.beta > 0 or self.advantage.needs_reference

    @property
    def needs_rollout_entropies(self) -> bool:
        """Whether entropies of the sampling policy are needed when a rollout is scored."""
        return self.reward == "entropy_min" or any(shaping.needs_entropies for shaping in self.rollout_shaping)

    @property
    def needs_initial_entropy(self) -> bool:
        """Whether the entropy of the untrained model must be measured."""
        return any(shaping.needs_initial_entropy for shaping in self.rollout_shaping)

    @property
    def initial_entropy_samples(self) -> int | None:
        """Problems on which that entropy is measured before training; None = the first rollout, or not at all."""
        filters = [shaping for shaping in self.rollout_shaping if isinstance(shaping, EntropyFilter)]
        return next((one.samples for one in filters if one.needs_initial_entropy), None)

    @property
    def needs_rollout_log_probs(self) -> bool:
        """Whether old log-probs are needed when a rollout is scored, before the first update."""
        return self.advantage.needs_reference or self.schedule.needs_old_log_probs_of_the_rollout

    def rewards(self, rollout: Rollout) -> Tensor:
        """(N,) the rewards that are trained on; NaN for a row that must not be learned from, or has no tokens to."""
        if self.reward == "verifier":
            return rollout.rewards
        known = rollout.mask.any(dim=1) & ~rollout.rewards.isnan()
        return torch.where(known, entropy_min_reward(rollout).to(rollout.rewards), torch.nan)

    def rollout_terms(self) -> list[str]:
        """Names of the terms that every rollout goes through once; a run counts what was executed."""
        parts = [self.advantage, *self.rollout_shaping]
        rewards = ([self.reward] if self.reward != "verifier" else []) + (["noise"] if self.noise > 0 else [])
        return [type(part).__name__ for part in parts] + rewards

    def token_terms(self, which: str = "all") -> list[str]:
        """Names of the terms that the tokens of pass ``which`` go through at every update."""
        names = [type(part).__name__ for part in (self.weight, *self.token_shaping)]
        return [*names, self.aggregation.kind, f"pass:{which}", *(["KLPenalty"] if self.kl.beta > 0 else [])]

    def rollout_advantages(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Advantages of a rollout, each (N, 1) or (N, T): as estimated, and shaped by what looks at rows and groups.

        The aggregation counts by the first, the tokens are trained with the second.
        """
        estimated = shaped = self.advantage.advantages(rollout)
        for shaping in self.rollout_shaping:
            shaped = shaping.shape(rollout, estimated, shaped)
        if self.aggregation.rows == "trained_per_prompt":
            shaped = shaped * prompt_factors(rollout.mask, estimated, rollout.group_size)
        return estimated, shaped

    def shaped(self, tokens: Tokens, which: str = "all") -> Tokens:
        """``tokens`` with the advantages that pass ``which`` of the schedule trains on."""
        advantages = tokens.advantages.expand_as(tokens.log_probs)
        for shaping in self.token_shaping:
            advantages = advantages * shaping.factor(tokens)
        selected = self.schedule.selected(tokens, which)
        return dataclasses.replace(tokens, advantages=torch.where(selected, advantages, 0.0))

    def trained(self, tokens: Tokens, which: str = "all") -> Tensor:
        """(B, T) the tokens that have a part in the policy's gradient in pass ``which``; ``log_probs`` is not read."""
        trained = self.shaped(tokens, which).advantages != 0
        return trained | self.schedule.selected(tokens, which) if self.kl.beta > 0 else trained

    def read(self, tokens: Tokens, which: str = "all", *, old_known: bool = True) -> Tensor:
        """(B, T) the tokens whose current log-prob the gradient of pass ``which`` depends on.

        All others may be left out of the step's forward passes: nothing that is trained would be another.

        Args:
            tokens: ``log_probs`` is not read. old_known: whether ``old_log_probs`` is there already; if not, it is
                going to be the current policy's, and every token that the pass may turn out to train on is read.
        """
        valid = tokens.mask.bool()
        if self.advantage.needs_values:
            return self.schedule.selected(tokens, which) if old_known else valid
        if old_known:
            read = self.trained(tokens, which)
        else:
            read = valid if self.kl.beta > 0 else valid & (tokens.advantages != 0)
        return valid & read.any(dim=1, keepdim=True) if self.weight.reads_whole_rows else read

    def coefficients(
        self,
        tokens: Tokens,
        count: Tensor,
        which: str = "all",
        statistics: Tensor | None = None,
        *,
        sampler_correction: Tensor | None = None,
    ) -> Tensor:
        """(B, T) what multiplies grad log pi of each token in grad J: (F A + KL) / Z; without gradient.

        Args:
            tokens: any part of a step's tokens, with the shaped advantages of :meth:`rollout_advantages`.
            count: ``aggregation.count`` of the whole step.
            which: the pass of the schedule.
            statistics: ``weight.statistics`` of the whole step's :meth:`shaped` tokens.
            sampler_correction: (B, T) or (B, 1) ratio of the training engine's old probability to the sampler's,
                where they differ; multiplies F A alone.
        """
        shaped = self.shaped(tokens, which)
        # A token without advantage has no part, however far its ratio overflowed.
        values = torch.where(shaped.advantages == 0, 0.0, self.weight.weight(shaped, statistics) * shaped.advantages)
        if sampler_correction is not None:
            values = values * sampler_correction
        if self.kl.beta > 0:
            assert tokens.ref_log_probs is not None
            penalty = self.kl.coefficient(tokens.log_probs.detach(), tokens.ref_log_probs)
            values = values + torch.where(self.schedule.selected(tokens, which), penalty, 0.0)
        normaliser = self.aggregation.coefficients(tokens.mask, count).to(values.dtype)
        return torch.where(tokens.mask.bool(), values * normaliser, 0.0)

    def fingerprint(self) -> dict[str, Any]:
        """Name, choices with their parameters, and hashes over the choices and over the code that computes them."""
        parts = (self.advantage, self.weight, self.aggregation, self.schedule, self.kl)
        objects = [*parts, *self.rollout_shaping, *self.token_shaping]
        choices = {field.name: _described(getattr(self, field.name)) for field in dataclasses.fields(self)}
        modules = sorted(_modules(type(part).__module__ for part in [self, *objects]))
        sources = "".join(inspect.getsource(sys.modules[module]) for module in modules)
        return {
            "choices": choices,
            "choices_sha256": _sha256(json.dumps(choices, sort_keys=True)),
            "code_sha256": _sha256(sources),
        }


def _modules(names: Iterable[str]) -> set[str]:
    """``names`` and every module of this package whose definitions they use, directly or not."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            used = {getattr(value, "__module__", None) or "" for value in vars(sys.modules[name]).values()}
            waiting += [module for module in used if module.startswith(f"{__package__}.")]
    return found


def _described(choice: Any) -> Any:
    if isinstance(choice, str | float):
        return choice
    if isinstance(choice, tuple):
        return [_described(part) for part in choice]
    if isinstance(choice, BaseModel):
        return {"class": type(choice).__name__, **choice.model_dump()}
    return {"class": type(choice).__name__, **dataclasses.asdict(choice)}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
