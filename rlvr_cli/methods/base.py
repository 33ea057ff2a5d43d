"""Inputs of methods (tokens, rollouts) and interfaces of their components."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Choice, Contradiction, Section, is_user_class


@dataclass(frozen=True)
class Tokens:
    """The completion tokens of ``B`` rows, right-padded to ``T`` positions.

    Attributes:
        log_probs: (B, T) log pi(token) of the current policy, tempered, natural logarithm; 0 on padding.
        old_log_probs: (B, T) the same under the policy that sampled the rollout.
        advantages: (B, T) or (B, 1) advantage A of each token.
        mask: (B, T) 1 on valid tokens, 0 on padding.
        entropies: (B, T) entropy of the current policy at each position, nats; only if a method needs it.
        ref_log_probs: (B, T) log-probs under the reference policy, if the method uses it.
        low_threshold: (B, 1) old probability below which a token belongs to the low pass; only if it is not constant.
        token_ids: (B, T) the sampled tokens; None for charts.
    """

    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    mask: Tensor
    entropies: Tensor | None = None
    ref_log_probs: Tensor | None = None
    low_threshold: Tensor | None = None
    token_ids: Tensor | None = None

    @property
    def log_ratio(self) -> Tensor:
        """(B, T) log r = log pi - log pi_old, without gradient; 0 on padding."""
        return torch.where(self.mask.bool(), (self.log_probs - self.old_log_probs).detach(), 0.0)

    @property
    def ratio(self) -> Tensor:
        """(B, T) importance ratio r = pi / pi_old, with gradient where ``log_probs`` has one."""
        return torch.exp(self.log_probs - self.old_log_probs)

    @property
    def old_probs(self) -> Tensor:
        """(B, T) probability of each token under the policy that sampled it."""
        return torch.exp(self.old_log_probs)


@dataclass(frozen=True)
class Regions:
    """(B, T) boolean masks by ratio r and sign of the advantage A; strict inequalities, valid tokens only.

    ``LN``: r < 1 - eps_low, A < 0.  ``HP``: r > 1 + eps_high, A > 0.  ``LP``, ``HN``: the two other corners.
    ``M``: every other valid token. The names are those of the DGPO paper's table of regions.
    """

    LN: Tensor
    HP: Tensor
    LP: Tensor
    HN: Tensor
    M: Tensor


def regions(tokens: Tokens, eps_low: float | Tensor, eps_high: float | Tensor, ratio: Tensor | None = None) -> Regions:
    """Assign every valid token to one of the five regions.

    ``eps_low``, ``eps_high``: the bounds, numbers or broadcastable to (B, T). ``ratio``: compared with the bounds; None
    = the token's.
    """
    ratio = tokens.ratio.detach() if ratio is None else ratio.detach().expand_as(tokens.log_probs)
    advantages = tokens.advantages.expand_as(ratio)
    valid = tokens.mask.bool()
    low, high = (ratio < 1 - eps_low) & valid, (ratio > 1 + eps_high) & valid
    negative, positive = advantages < 0, advantages > 0
    corners = (low & negative, high & positive, low & positive, high & negative)
    return Regions(*corners, M=valid & ~(corners[0] | corners[1] | corners[2] | corners[3]))


@dataclass(frozen=True)
class Rollout:
    """All ``N`` completions of one rollout batch, of every process, in the order of sampling.

    Groups are contiguous: row i belongs to group i // group_size.

    Attributes:
        rewards: (N,); NaN excludes a row from training.
        group_size: completions of each prompt; N is a multiple of it.
        token_ids: (N, T) sampled tokens, right-padded.
        mask: (N, T) 1 on valid tokens, 0 on padding.
        old_log_probs: (N, T) log-probs under the sampling policy; only if a method needs them here.
        entropies: (N, T) entropy of that policy at each position, nats; only if a method needs them here.
        ref_log_probs: (N, T) log-probs under the reference policy, if the method uses it.
        values: (N, T) predictions of the value head, if the method has one.
        teacher_log_probs: (N, T) log-probs under the teacher, if the method has one.
        correct: (N,) bool, the verifier's verdicts; only if a method needs them.
        parts: (N, K) parts of the reward, unweighted; NaN where a part does not apply; only if a method needs them.
        part_weights: (K,) their weights in the reward; None = 1 each.
        greedy_rewards: (N,) reward of the greedy completion of the row's prompt; only if a method needs it.
        initial_entropy: mean token entropy of the model before training, nats; only if a method needs it.
        length_terms: (N,) the terms of ``rewards`` for the length, if the method has them; 0 where a reward is NaN.
    """

    rewards: Tensor
    group_size: int
    token_ids: Tensor
    mask: Tensor
    old_log_probs: Tensor | None = None
    entropies: Tensor | None = None
    ref_log_probs: Tensor | None = None
    values: Tensor | None = None
    teacher_log_probs: Tensor | None = None
    correct: Tensor | None = None
    parts: Tensor | None = None
    part_weights: Tensor | None = None
    greedy_rewards: Tensor | None = None
    initial_entropy: float | None = None
    length_terms: Tensor | None = None

    def row_mean(self, values: Tensor) -> Tensor:
        """Return (N,) the mean of (N, T) ``values`` over each row's valid tokens; 0 for rows without any."""
        mask = self.mask.bool()
        return torch.where(mask, values, 0).sum(dim=1) / mask.sum(dim=1).clamp(min=1)


def quantile(values: Tensor, share: float) -> Tensor:
    """Return () the ``share``-quantile of (n,) values, n > 0, linearly interpolated, in float64.

    Unlike ``torch.quantile``, without a limit of 16 million values.
    """
    ordered = values.double().sort().values
    rank = share * (len(ordered) - 1)
    if math.isclose(rank, round(rank), rel_tol=1e-12):
        # Rounding of the product must not shift an exact element.
        rank = round(rank)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


class TrainingMethod(Section):
    """Properties of a method that a training depends on.

    Attributes:
        training: the kind of training; metrics are declared for it.
        samples: whether completions are sampled and judged, instead of demonstrations.
        splits_steps: whether the trainer itself splits an optimizer step into forward passes.
        trained_by: phrase for the model card.
        needs_reference: whether log-probs of a reference policy are needed, a second model.
        needs_values: whether the policy gets a value head.
        teacher: the name of a model whose log-probs of the completions are needed, a further model; None = none.
        demonstration_count: number of the task's worked solutions to train on; None = none, or those of a file.
        demonstration_file: the file of demonstrations in place of the task's.
        needs_problems: whether the task's problems are trained on.
    """

    chooser: ClassVar[str] = "name"
    training: ClassVar[Literal["rl", "sft"]]
    samples: ClassVar[bool]
    splits_steps: ClassVar[bool]
    trained_by: ClassVar[str]

    @property
    def needs_reference(self) -> bool:
        return False

    @property
    def needs_values(self) -> bool:
        return False

    @property
    def teacher(self) -> str | None:
        return None

    @property
    def demonstration_count(self) -> int | None:
        return None

    @property
    def demonstration_file(self) -> str | None:
        return None

    @property
    def needs_problems(self) -> bool:
        return self.demonstration_file is None

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield the conflicts between components."""
        yield from ()

    def unused(self) -> Iterator[tuple[str, str, str]]:
        """Yield the keys without effect: (key, the key that disables it, the reason)."""
        yield from ()


class Part(Section):
    """A component of a method: its parameters, and their conflicts with other components.

    Attributes:
        recorded: whether it is a placeholder for a component of a user file that is not imported.
    """

    recorded: ClassVar[bool] = False

    @property
    def is_user_defined(self) -> bool:
        return is_user_class(type(self))

    @property
    def needs_group(self) -> tuple[str, str] | None:
        """The key that makes it compare a prompt's completions, and the start of a message; None = none."""
        return None

    def contradictions(self, advantage: Advantage) -> Iterator[Contradiction]:
        """Yield the conflicts of this component with other choices; ``advantage`` is the method's."""
        yield from ()

    def unused(self, advantage: Advantage) -> Iterator[tuple[str, str, str]]:
        """Yield the keys without effect: (key, the key that disables it, reason and remedy)."""
        yield from ()

    def simplify(self) -> Part:
        """Return an equivalent component with the fewest parameters."""
        return self


class Advantage(Part, Choice, ABC):
    """An advantage estimator: A from the rewards of a rollout.

    Attributes:
        needs_values: whether it reads ``rollout.values``, so that the policy gets a value head.
        needs_correct: whether it reads ``rollout.correct``, the verifier's verdicts.
        needs_parts: whether it reads ``rollout.parts`` and their weights.
        needs_greedy: whether it reads ``rollout.greedy_rewards``, for which every prompt gets a greedy completion.
        compares_group: whether it compares the completions of a prompt.
        needs_teacher: whether it reads ``rollout.teacher_log_probs`` and ``old_log_probs``; ``teacher`` is the model.
        per_token: whether the tokens of a row have different advantages.
    """

    needs_values: ClassVar[bool] = False
    needs_teacher: ClassVar[bool] = False
    needs_correct: ClassVar[bool] = False
    needs_parts: ClassVar[bool] = False
    needs_greedy: ClassVar[bool] = False
    compares_group: ClassVar[bool] = False
    per_token: ClassVar[bool] = False

    @property
    def needs_reference(self) -> bool:
        """True if it reads ``rollout.ref_log_probs`` (and with them ``old_log_probs``)."""
        return False

    @property
    def needs_group(self) -> tuple[str, str] | None:
        key = "method.advantage.kind"
        return (key, f"{key}={self.kind_name} compares the completions of a prompt") if self.compares_group else None

    @property
    def least_group(self) -> tuple[int, str]:
        """The smallest group with a gradient, and the key that requires it."""
        return 1, "method.advantage.kind"

    @property
    def needs_rewards(self) -> bool:
        """False if it reads no reward but whether there is one (NaN excludes a row)."""
        return True

    @property
    def kind_name(self) -> str:
        return str(type(self).model_fields["kind"].default)

    @property
    def signs(self) -> tuple[int, ...]:
        return (-1, 1)

    @abstractmethod
    def advantages(self, rollout: Rollout) -> Tensor:
        """Return (N, 1) or (N, T) A, finite, and 0 for rows whose reward is NaN; arbitrary on padding."""

    def metrics(self, rollout: Rollout) -> dict[str, float]:
        """Return further metrics of the rollout by name."""
        return {}

    def returns(self, rollout: Rollout) -> Tensor:
        """Return (N, T) targets of the value head, by default the completion's reward; arbitrary on padding."""
        return rollout.rewards.nan_to_num(nan=0.0).unsqueeze(1).expand_as(rollout.mask)


EpsLow = Annotated[float, Field(ge=0.0, le=1.0)]
EpsHigh = Annotated[float, Field(ge=0.0, le=100.0)]
AboveOne = Annotated[float, Field(gt=1.0)]
OpenShare = Annotated[float, Field(gt=0.0, lt=1.0)]


class PolicyLoss(Part, Choice, ABC):
    """A token loss, defined by its gradient ``-(F A + P) grad log pi``.

    F is a function of ratio, sign of the advantage and old probability, under stop-gradient. The penalty P, mostly 0,
    acts on tokens without advantage too.

    Attributes:
        needs_statistics: whether it reads statistics of the whole optimizer step, which :meth:`statistics` computes.
        per_sequence: whether a row's tokens share one ratio, that of the whole row, and a weight for another sampler.
        unit_on_policy: whether F is 1 wherever the ratio is 1, whatever the statistics; evaluated for user files.
    """

    needs_statistics: ClassVar[bool] = False
    per_sequence: ClassVar[bool] = False
    unit_on_policy: ClassVar[bool] = True

    @property
    def has_penalty(self) -> bool:
        """Return whether P may differ from 0."""
        return False

    @property
    def needs_entropies(self) -> bool:
        """Return whether it reads ``tokens.entropies``."""
        return False

    @property
    def reads_whole_rows(self) -> bool:
        """Return whether the weight of one token depends on the other tokens of its row."""
        return self.per_sequence

    def statistics(self, tokens: Tokens) -> Tensor | None:
        """Return the statistics of the whole optimizer step for :meth:`weight`.

        ``tokens`` holds every row of the step, of all micro-batches and processes, in any order.
        """
        return None

    @abstractmethod
    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        """Return (B, T) F, without gradient; arbitrary on padding. Finite wherever ratio and 1/ratio are."""

    def penalty(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        """Return (B, T) P, without gradient; finite, 0 where the ratio is 1, and arbitrary on padding."""
        return torch.zeros_like(tokens.log_probs).detach()

    @abstractmethod
    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[float | Tensor, float | Tensor]:
        """Return eps_low and eps_high of the trust region: numbers, or broadcastable to (B, T)."""

    def regions(self, tokens: Tokens, statistics: Tensor | None = None) -> Regions:
        return regions(tokens, *self.bounds(tokens, statistics))


class Shaping(Part):
    """A factor on the advantage, or a mask: the section ``method.shaping.<key>``, whose class registers itself.

    It is inactive while the parameter ``main_key`` has its default.

    Attributes:
        key: the name of its section.
        order: shapings apply from the highest order to the lowest, and those of tokens after those of rollouts.
        registered: all shapings by key.
    """

    key: ClassVar[str] = ""
    order: ClassVar[int] = 0
    registered: ClassVar[dict[str, type[Shaping]]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        if cls.key and not is_user_class(cls):
            other = cls.registered.setdefault(cls.key, cls)
            if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                raise TypeError(
                    f'{cls.__module__}.{cls.__qualname__}: key "{cls.key}" is taken by {other.__qualname__}'
                )

    @property
    def is_on(self) -> bool:
        return bool(getattr(self, self.main_key) != type(self).model_fields[self.main_key].default)

    def disabled(self) -> Self:
        return type(self)()

    def simplify(self) -> Shaping:
        return self if self.is_on else self.disabled()


class RolloutShaping(Shaping, ABC):
    """A shaping of advantages when a rollout is scored; may compare rows of a group.

    Attributes:
        needs_entropies: whether it reads ``rollout.entropies``.
    """

    needs_entropies: ClassVar[bool] = False

    @property
    def needs_initial_entropy(self) -> bool:
        """Return whether it reads ``rollout.initial_entropy``."""
        return False

    @property
    def initial_entropy_samples(self) -> int | None:
        """Number of problems for measuring it before training; None = the first rollout, or not needed."""
        return None

    @abstractmethod
    def shape(self, rollout: Rollout, advantages: Tensor, shaped: Tensor) -> Tensor:
        """Return (N, 1) or (N, T) advantages after this shaping; 0 stays 0 on rows whose reward is NaN.

        Args:
            advantages: before any shaping. shaped: after the preceding shapings.
        """


class TokenShaping(Shaping, ABC):
    """A factor on each token's advantage, computed from its old probability."""

    @abstractmethod
    def factor(self, tokens: Tokens) -> Tensor:
        """Return (B, T) nonnegative factors."""
