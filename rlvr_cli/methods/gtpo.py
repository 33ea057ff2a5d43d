"""GTPO: conflict-aware token weights, an entropy filter on completions and an entropy penalty.

    J = 1/N sum_i d_i (A_i - gamma H_i) / |o_i| sum_t r lambda_it        H_i = mean token entropy of completion i, nats
    lambda = 0 on conflict tokens with A < 0, 2 on conflict tokens with A > 0, 1 elsewhere
    d_i = 0 where H_i > threshold, unless the untrained model's entropy is already above it; 1 elsewhere

Simoni et al., arXiv:2508.03772, equations 8 to 11: threshold ln 2, gamma 0.1, one update per rollout, no clip, no KL,
``sequence_mean``. Conflict tokens form one unbroken run from the start or from the end of a completion. Each of them
occurs at the same offset in some completion of positive and some of negative advantage of the group. Signs are those of
the advantage before any shaping. The three parts are separate shapings, also available as modifiers. The paper's
ablations: ``conflict`` alone (figure 3), ``entropy_filter`` and ``entropy_penalty`` on GRPO (4d), thresholds 0.7, 1.05
and 2.0 (4b), ``entropy_filter`` with ``sequences: negative`` and ``when: always`` (4c, OnlyNeg).

How we differ from the paper:

- Its r is pi / pi_old (section 3), which is 1 because it makes one update per rollout (section 6). The preset uses 1
  for any number of updates; for equation 11 with several, set ``method.policy_loss=is``, or ``ppo_clip`` to clip it.
- It measures the untrained model's entropy on 100 training samples (section 6):
  ``method.shaping.entropy_filter.samples=100``. The preset takes the token mean over the first rollout.

How we differ from the released code, which differs from the paper:

- It does not divide advantages by the standard deviation.
- It sums completions instead of averaging, and divides each by the length of its longer conflict run.
- A token in both runs weighs 4; here and in the paper it weighs 2.
- Its threshold is 0.7 for every model.
- As in the code, filtered completions still count for conflicts, H_i has no gradient, and completions with A = 0 are
  pushed down by gamma H_i.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Contradiction, Count, NotNegative, Scale
from rlvr_cli.methods.base import Advantage, Rollout, RolloutShaping, Shaping
from rlvr_cli.methods.likelihood import LikelihoodAdvantage
from rlvr_cli.methods.preset import MethodPreset, Modifier, Paper, Sets


def find_conflict_run(token_ids: Tensor, mask: Tensor, signs: Tensor, group_size: int) -> Tensor:
    """Return (N, T) the unbroken run of conflict tokens from the start of each row.

    Args:
        token_ids: (N, T) left-aligned, groups contiguous. mask: (N, T). signs: (N,) sign of each row's advantage.
    """
    groups, length = len(token_ids) // group_size, token_ids.shape[1]
    ids, order = token_ids.reshape(groups, group_size, length).sort(dim=1)
    # At one offset of one group, sorted equal tokens are adjacent: a run of equal ids is one "key".
    new = torch.cat([torch.ones_like(ids[:, :1]), (ids[:, 1:] != ids[:, :-1]).to(ids.dtype)], dim=1)
    key = torch.empty_like(ids).scatter_(1, order, new.cumsum(dim=1) - 1)
    valid = mask.bool().reshape_as(key)
    sign = signs.reshape(groups, group_size, 1)
    sides = []
    for side in (sign > 0, sign < 0):
        present = torch.zeros_like(key).scatter_add_(1, key, (side & valid).to(key.dtype)) > 0
        sides.append(present.gather(1, key))
    conflict = sides[0] & sides[1] & valid & (sign != 0)
    return conflict.reshape(len(token_ids), length).cumprod(dim=1).bool()


def reverse_rows(values: Tensor, mask: Tensor) -> Tensor:
    """Return (N, T) rows with their valid part reversed, left-aligned; an involution on the valid part."""
    lengths = mask.bool().sum(dim=1, keepdim=True)
    positions = torch.arange(values.shape[1], device=values.device).expand_as(values)
    return values.gather(1, torch.where(positions < lengths, lengths - 1 - positions, positions))


class ConflictMask(RolloutShaping):
    """Lambda: lower weight of conflict tokens at negative advantage, higher weight at positive."""

    key: ClassVar[str] = "conflict"
    main_key: ClassVar[str] = "ends"
    order: ClassVar[int] = 3

    ends: Literal["off", "both", "prefix", "suffix"] = Field(
        "off",
        description="GTPO's conflict tokens, which rows of positive and of negative advantage share at the same "
        "offset of a group: counted from the start (prefix), from the end (suffix), or both.",
    )
    positive: Scale = Field(2.0, description="Factor on conflict tokens of rows with positive advantage.")
    negative: Scale = Field(0.0, description="Factor on conflict tokens of rows with negative advantage.")

    @property
    def needs_group(self) -> tuple[str, str] | None:
        reason = f"method.shaping.conflict={self.ends} compares tokens of correct and incorrect rows"
        return ("method.shaping.conflict.ends", reason) if self.is_on else None

    def contradictions(self, advantage: Advantage) -> Iterator[Contradiction]:
        if not self.is_on:
            return
        key, setting = "method.shaping.conflict.ends", f"method.shaping.conflict={self.ends}"
        yield from _one_advantage_a_row(advantage, key, setting, "remove the shaping")
        if (side := _one_side(advantage)) is not None:
            yield Contradiction(
                (key, *SIDE_KEYS),
                f"{setting} compares tokens of rows of both signs, and method.advantage.side={side} trains on one "
                "sign. Set method.advantage.side=both",
            )

    def unused(self, advantage: Advantage) -> Iterator[tuple[str, str, str]]:
        if not self.is_on:
            for name in ("positive", "negative"):
                reason = "method.shaping.conflict=off. Set method.shaping.conflict=both"
                yield f"method.shaping.conflict.{name}", "method.shaping.conflict.ends", reason

    def simplify(self) -> Shaping:
        return self if self.is_on and not self.positive == self.negative == 1 else self.disabled()

    def conflict_masks(self, rollout: Rollout, advantages: Tensor) -> tuple[Tensor, Tensor]:
        """Return (N, T) conflict runs from the start and from the end of each row; empty for an unused end."""
        signs = advantages[:, 0].sign()
        ids, mask = rollout.token_ids, rollout.mask.bool()
        nothing = torch.zeros_like(mask)
        forward = find_conflict_run(ids, mask, signs, rollout.group_size) if self.ends != "suffix" else nothing
        if self.ends == "prefix":
            return forward, nothing
        backward = find_conflict_run(reverse_rows(ids, mask), mask, signs, rollout.group_size)
        return forward, reverse_rows(backward, mask)

    def weights(self, rollout: Rollout, advantages: Tensor) -> Tensor:
        """Return (N, T) lambda."""
        forward, backward = self.conflict_masks(rollout, advantages)
        of_row = torch.where(advantages > 0, self.positive, self.negative).to(advantages.dtype)
        return torch.where(forward | backward, of_row, torch.ones_like(of_row))

    def shape(self, rollout: Rollout, advantages: Tensor, shaped: Tensor) -> Tensor:
        return shaped * self.weights(rollout, advantages)


class EntropyFilter(RolloutShaping):
    """d: exclusion of rows with high mean token entropy."""

    key: ClassVar[str] = "entropy_filter"
    main_key: ClassVar[str] = "threshold"
    order: ClassVar[int] = 4

    threshold: Annotated[float, Field(gt=0.0)] | None = Field(
        None, description="Exclude rows whose mean token entropy, in nats, exceeds this; null = off."
    )
    sequences: Literal["all", "negative"] = Field(
        "all", description="Rows that the filter may exclude: all, or those with negative advantage."
    )
    when: Literal["initially_below", "always"] = Field(
        "initially_below",
        description="initially_below = no filter if the untrained model's entropy already exceeds the threshold.",
    )
    samples: Count | None = Field(
        None,
        description="Training problems on which the untrained model's entropy is measured before the first rollout, "
        "one completion each (GTPO paper: 100); null = measured on the first rollout. For initially_below.",
    )

    needs_entropies: ClassVar[bool] = True

    @property
    def needs_initial_entropy(self) -> bool:
        return self.when == "initially_below"

    @property
    def initial_entropy_samples(self) -> int | None:
        return self.samples if self.needs_initial_entropy else None

    def contradictions(self, advantage: Advantage) -> Iterator[Contradiction]:
        if not self.is_on or self.sequences == "all":
            return
        key, instead = "method.shaping.entropy_filter.sequences", "method.shaping.entropy_filter.sequences=all"
        yield from _one_advantage_a_row(advantage, key, f"{key}=negative", f"set {instead}")
        if _one_side(advantage) == "positive":
            yield Contradiction(
                (key, *SIDE_KEYS),
                f"{key}=negative filters rows of negative advantage, and method.advantage.side=positive has none. Set "
                f"{instead}",
            )

    def unused(self, advantage: Advantage) -> Iterator[tuple[str, str, str]]:
        here = "method.shaping.entropy_filter"
        if not self.is_on:
            for name in ("sequences", "when", "samples"):
                reason = "the filter is off. Set method.shaping.entropy_filter, in nats"
                yield f"{here}.{name}", f"{here}.threshold", reason
        elif self.when == "always":
            reason = f"the filter is on whatever the initial entropy. Set {here}.when=initially_below"
            yield f"{here}.samples", f"{here}.when", reason

    def select_rows(self, rollout: Rollout, advantages: Tensor) -> Tensor:
        """Return (N, 1) True for rows to train on."""
        assert rollout.entropies is not None and self.threshold is not None
        if self.needs_initial_entropy:
            assert rollout.initial_entropy is not None
            if rollout.initial_entropy >= self.threshold:
                return torch.ones_like(rollout.rewards, dtype=torch.bool).unsqueeze(1)
        keep = rollout.row_mean(rollout.entropies.detach()).unsqueeze(1) <= self.threshold
        return keep | (advantages[:, :1] >= 0) if self.sequences == "negative" else keep

    def shape(self, rollout: Rollout, advantages: Tensor, shaped: Tensor) -> Tensor:
        return torch.where(self.select_rows(rollout, advantages), shaped, 0.0)


class EntropyPenalty(RolloutShaping):
    """A - gamma H: lower advantages for rows with high entropy."""

    key: ClassVar[str] = "entropy_penalty"
    main_key: ClassVar[str] = "gamma"
    order: ClassVar[int] = 5

    gamma: NotNegative = Field(
        0.0, description="GTPO's gamma: weight of a row's mean token entropy, which is subtracted from its advantage."
    )

    needs_entropies: ClassVar[bool] = True

    def shape(self, rollout: Rollout, advantages: Tensor, shaped: Tensor) -> Tensor:
        assert rollout.entropies is not None
        penalty = self.gamma * rollout.row_mean(rollout.entropies.detach()).unsqueeze(1).to(shaped.dtype)
        return torch.where(rollout.rewards.isnan().unsqueeze(1), shaped, shaped - penalty)

    def contradictions(self, advantage: Advantage) -> Iterator[Contradiction]:
        if self.is_on and (side := _one_side(advantage)) is not None:
            yield Contradiction(
                ("method.shaping.entropy_penalty.gamma", *SIDE_KEYS),
                f"method.shaping.entropy_penalty={self.gamma:g} lowers the advantage of every row, and would "
                f"train on those that method.advantage.side={side} excludes. Set "
                "method.advantage.side=both, or remove the penalty",
            )


SIDE_KEYS = ("method.advantage.side", "method.advantage.kind")


def _one_side(advantage: Advantage) -> str | None:
    return advantage.side if isinstance(advantage, LikelihoodAdvantage) and advantage.side != "both" else None


def _one_advantage_a_row(advantage: Advantage, key: str, setting: str, instead: str) -> Iterator[Contradiction]:
    """Yield the conflict of shapings by a row's sign with advantages per token."""
    if advantage.per_token:
        yield Contradiction(
            (key, "method.advantage.kind"),
            f"{setting} distinguishes rows by the sign of their advantage, and "
            f"method.advantage.kind={advantage.kind_name} gives the tokens of a row different advantages. Use an "
            f"advantage that a row's tokens share (method.advantage=group, rloo or likelihood), or {instead}",
        )


PAPER = Paper(
    "GTPO: Stabilizing Group Relative Policy Optimization via Gradient and Entropy Control",
    "Simoni et al.",
    "2508.03772",
)
ENTROPY_COST = "token entropies: one forward per rollout, unless the sampler returns them"
CONFLICT: Sets = {
    "shaping.conflict.ends": ("both", "GTPO paper, section 5.1: conflict tokens from both ends"),
    "shaping.conflict.positive": (2.0, "GTPO paper, equation 9"),
    "shaping.conflict.negative": (0.0, "GTPO paper, equation 9"),
}
WHEN = "GTPO paper, equation 10: off for a model whose entropy is above ln 2 to begin with"
FILTER: Sets = {
    "shaping.entropy_filter.threshold": (
        0.6931471805599453,
        "GTPO paper, equation 10: ln 2, two equally likely tokens; released code: 0.7",
    ),
    "shaping.entropy_filter.sequences": ("all", "GTPO paper, equation 10: whatever the advantage"),
    "shaping.entropy_filter.when": ("initially_below", WHEN),
}
PENALTY: Sets = {"shaping.entropy_penalty.gamma": (0.1, "GTPO paper, equation 11 and section 6.2: 0.1 performs best")}
PRESETS = (
    MethodPreset(
        "gtpo",
        trainer="GTPOTrainer",
        title="Group-relative Trajectory-based Policy Optimization",
        summary="Spares or doubles tokens that correct and wrong answers share; leaves out high-entropy completions.",
        paper=PAPER,
        golden=("gtpo",),
        extra_cost=f"{ENTROPY_COST}, and once for the untrained model",
        inherits="grpo",
        sets={
            "advantage.kind": ("group", "GTPO paper, section 3, as GRPO"),
            "advantage.scale": (
                "std",
                "GTPO paper, equation 12: divided by the standard deviation; the released code does not divide",
            ),
            "policy_loss.kind": (
                "no_is",
                "GTPO paper, section 6: one update per rollout, where equation 11's ratio is 1; with several the "
                "ratio itself, method.policy_loss=is",
            ),
            **CONFLICT,
            **FILTER,
            "shaping.entropy_filter.when": (
                "initially_below",
                f"{WHEN}; measured on the first rollout, in the paper on 100 problems (entropy_filter.samples)",
            ),
            **PENALTY,
            "aggregation.kind": ("sequence_mean", "GTPO paper, equation 11: each row's length, then the group"),
            "aggregation.sequences": ("valid", "as verl: a completion without a valid token is not counted"),
            "kl.beta": (0.0, "GTPO paper, section 5.2: no KL term and no reference model"),
        },
    ),
    Modifier(
        "conflict",
        title="GTPO's conflict masks",
        summary="Tokens that correct and wrong answers share: spared in wrong ones, doubled in correct ones.",
        paper=PAPER,
        golden=("gtpo",),
        sets=CONFLICT,
    ),
    Modifier(
        "entropy-filter",
        title="GTPO's entropy filter",
        summary="Leaves out completions of mean entropy above ln 2, if the untrained model's was below.",
        paper=PAPER,
        golden=("gtpo",),
        extra_cost=f"{ENTROPY_COST}, and once for the untrained model",
        sets=FILTER,
    ),
    Modifier(
        "entropy-penalty",
        title="GTPO's entropy penalty",
        summary="Lowers a completion's advantage by a tenth of its mean entropy.",
        paper=PAPER,
        golden=("gtpo",),
        extra_cost=ENTROPY_COST,
        sets=PENALTY,
    ),
)
