"""Length rewards: a term for the length of a completion, added to the reward before the advantage.

    overlong:  R' = R + scale min(0, max(-1, (Lmax - Lc - L) / Lc))        Lc = buffer Lmax
    linear:    R' = R - weight p L / Lgroup                                Lgroup = the prompt's longest completion
    brevity:   R' = R (1 + clamp(1 - L / Lright, 0, 1)) if right, else R   Lright = mean length of the right ones

L counts the completion's tokens with the end-of-sequence token, Lmax is ``rollout.max_new_tokens``, p the share of the
prompt's completions that are right. Overlong: DAPO, arXiv:2503.14476, equation 13. Linear: prime-rl's linear length
penalty (pull request 2901). Brevity: prime-rl's correctness-gated shaping (pull request 2265). The verdict stays the
verifier's; ``rollout.dynamic_sampling`` compares the rewards without this term, as DAPO's code filters by accuracy.

How we differ from the papers and the released code: DAPO's buffer is 4,096 of 20,480 tokens, here the same share of any
Lmax. prime-rl scales its linear penalty by the group's mean reward, which for rewards 0 and 1 is p.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PrivateAttr

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Choice
from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.grpo import PAPER_2 as DAPO
from rlvr_cli.methods.preset import Modifier, Paper

Factor = Annotated[float, Field(gt=0.0, le=1e6)]


class LengthReward(Choice):
    """A term of the reward for the length; ``compares``: whether it compares a prompt's completions by verdict."""

    compares: ClassVar[bool] = False

    kind: str

    def with_length(self, tokens: int) -> LengthReward:
        """Return a copy with Lmax = ``tokens``, which only ``overlong`` reads."""
        return self

    def terms(self, rollout: Rollout) -> Tensor:
        """Return (N,) the terms that are added to ``rollout.rewards``, in float64; 0 for rows whose reward is NaN."""
        return torch.zeros_like(rollout.rewards, dtype=torch.float64)


class NoLengthReward(LengthReward):
    """No term for the length."""

    kind: Literal["none"] = Field("none", description="none = rewards do not depend on the length.")


class Overlong(LengthReward):
    """DAPO's soft overlong punishment."""

    kind: Literal["overlong"] = Field("overlong", description="overlong = a punishment close to max_new_tokens.")
    buffer: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.2, description="Fraction of max_new_tokens over which the punishment grows from 0 to its full size."
    )
    scale: Factor = Field(1.0, description="Full size of the punishment, in units of reward.")

    # Lmax, in tokens.
    _max_length: int | None = PrivateAttr(None)

    def with_length(self, tokens: int) -> LengthReward:
        copy = self.model_copy()
        copy._max_length = tokens
        return copy

    def terms(self, rollout: Rollout) -> Tensor:
        """Raise ValueError if :meth:`with_length` has not set the maximum length."""
        if self._max_length is None:
            raise ValueError("overlong needs the longest completion: Overlong.with_length(tokens)")
        buffer = self.buffer * self._max_length
        excess = (self._max_length - buffer - _lengths(rollout)) / buffer
        return torch.where(rollout.rewards.isnan(), 0.0, self.scale * excess.clamp(-1.0, 0.0))


class LinearLength(LengthReward):
    """A punishment in proportion to the length, the larger the more completions of the prompt are right."""

    kind: Literal["linear"] = Field("linear", description="linear = a punishment in proportion to the length.")
    weight: Factor = Field(0.25, description="Punishment of the longest completion of a prompt that is always solved.")

    compares: ClassVar[bool] = True

    def terms(self, rollout: Rollout) -> Tensor:
        lengths, rewarded, right = _grouped(rollout)
        share = right.sum(dim=1, keepdim=True) / rewarded.sum(dim=1, keepdim=True).clamp(min=1)
        longest = lengths.amax(dim=1, keepdim=True).clamp(min=1)
        return (-self.weight * share * lengths / longest).reshape(-1)


class Brevity(LengthReward):
    """A bonus for right completions that are shorter than the mean of the prompt's right ones."""

    kind: Literal["brevity"] = Field("brevity", description="brevity = a bonus for short right completions.")

    compares: ClassVar[bool] = True

    def terms(self, rollout: Rollout) -> Tensor:
        lengths, _, right = _grouped(rollout)
        mean = (lengths * right).sum(dim=1, keepdim=True) / right.sum(dim=1, keepdim=True)
        bonus = torch.where(right & (mean > 0), 1 - lengths / mean, 0.0).clamp(0.0, 1.0)
        return bonus.reshape(-1) * rollout.rewards.double().nan_to_num(nan=0.0)


def _lengths(rollout: Rollout) -> Tensor:
    """Return (N,) the completions' tokens; 0 for rows whose reward is NaN."""
    return torch.where(rollout.rewards.isnan(), 0.0, rollout.mask.sum(dim=1).double())


def _grouped(rollout: Rollout) -> tuple[Tensor, Tensor, Tensor]:
    """Return (groups, group_size) the lengths, which completions have a reward, and which of them are right."""
    assert rollout.correct is not None
    rewarded = ~rollout.rewards.isnan()
    columns = (_lengths(rollout), rewarded, rewarded & rollout.correct)
    lengths, rewarded, right = (column.view(-1, rollout.group_size) for column in columns)
    return lengths, rewarded, right


PRIME_RL = Paper("prime-rl (software)", "Prime Intellect")
PRESETS = (
    Modifier(
        "overlong",
        title="Soft overlong punishment",
        summary="Punishes completions that come close to the maximum length, up to -1 at the maximum.",
        paper=DAPO,
        golden=("lengths",),
        sets={
            "reward.length.kind": ("overlong", "DAPO paper, equation 13"),
            "reward.length.buffer": (0.2, "DAPO paper, section 4.1: 4,096 of 20,480 tokens"),
            "reward.length.scale": (1.0, "DAPO paper, equation 13: down to -1; verl's overlong_buffer.penalty_factor"),
        },
    ),
    Modifier(
        "length-penalty",
        title="Linear length penalty",
        summary="Punishes length in proportion, the more the easier the prompt.",
        paper=PRIME_RL,
        golden=("lengths",),
        sets={
            "reward.length.kind": ("linear", "prime-rl, pull request 2901"),
            "reward.length.weight": (0.25, "prime-rl's default, num_output_tokens_weight"),
        },
    ),
    Modifier(
        "brevity",
        title="Brevity bonus",
        summary="Up to doubles the reward of right completions shorter than the mean of the prompt's right ones.",
        paper=PRIME_RL,
        golden=("lengths",),
        sets={"reward.length.kind": ("brevity", "prime-rl, pull request 2265")},
    ),
)
