"""Length rewards: the published equations written out row by row, what must not matter, and what no group may do."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.length import Brevity, LengthReward, LinearLength, NoLengthReward, Overlong
from rlvr_cli.methods.reward import Reward
from tests.methods.samples import method, random_rollout

NAN = math.nan
LONGEST = 20
TERMS: dict[str, LengthReward] = {
    "overlong": Overlong(buffer=0.4, scale=2.0).with_length(LONGEST),
    "linear": LinearLength(weight=0.3),
    "brevity": Brevity(),
}


def rollout_of(lengths: list[int], rewards: list[float], correct: list[bool], group_size: int) -> Rollout:
    mask = (torch.arange(LONGEST) < torch.tensor(lengths).unsqueeze(1)).double()
    return Rollout(
        rewards=torch.tensor(rewards, dtype=torch.float64),
        group_size=group_size,
        token_ids=mask.long(),
        mask=mask,
        correct=torch.tensor(correct),
    )


def trained(term: LengthReward, rollout: Rollout) -> Tensor:
    return Reward(length=term).shape(rollout).rewards


def test_overlong_is_the_three_branches_of_dapo_s_equation_13() -> None:
    longest, cache = 20480, 4096
    lengths = [1, 16384, 16385, 18432, 20479, 20480]

    def equation(length: int) -> float:
        if length <= longest - cache:
            return 0.0
        return ((longest - cache) - length) / cache if length <= longest else -1.0

    mask = (torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)).double()
    rollout = Rollout(rewards=torch.ones(6, dtype=torch.float64), group_size=6, token_ids=mask.long(), mask=mask)
    terms = Overlong().with_length(longest).terms(rollout)
    torch.testing.assert_close(terms, torch.tensor([equation(length) for length in lengths], dtype=torch.float64))
    assert terms.tolist() == pytest.approx([0.0, 0.0, -1 / 4096, -0.5, -4095 / 4096, -1.0])
    with pytest.raises(ValueError, match="with_length"):
        Overlong().terms(rollout)
    assert method(reward=Reward(length=Overlong())).with_max_length(longest).reward.shape(rollout).rewards[5] == 0.0


def test_linear_and_brevity_are_their_formulas_group_by_group() -> None:
    lengths, size = [4, 8, 16, 20, 10, 6, 2, 12], 4
    rewards, correct = [1.0, 0.0, 2.0, -1.0, 0.5, 0.0, 0.0, 0.0], [True, False, True, False, True] + [False] * 3
    rollout = rollout_of(lengths, rewards, correct, size)
    linear, brevity = [], []
    for first in (0, 4):
        rows = range(first, first + size)
        longest, right = max(lengths[row] for row in rows), [row for row in rows if correct[row]]
        mean = sum(lengths[row] for row in right) / len(right)
        for row in rows:
            linear.append(rewards[row] - 0.25 * len(right) / size * lengths[row] / longest)
            bonus = min(1.0, max(0.0, 1 - lengths[row] / mean)) if correct[row] else 0.0
            brevity.append(rewards[row] * (1 + bonus))
    assert trained(LinearLength(), rollout).tolist() == pytest.approx(linear)
    assert trained(Brevity(), rollout).tolist() == pytest.approx(brevity)
    assert trained(NoLengthReward(), rollout) is rollout.rewards


@pytest.mark.parametrize("name", TERMS)
def test_padding_and_the_order_of_rows_and_prompts_do_not_matter(name: str) -> None:
    rollout = random_rollout()
    rollout = replace(rollout, correct=rollout.rewards > 0)
    expected = trained(TERMS[name], rollout)
    order = torch.arange(len(expected)).view(-1, rollout.group_size).flip(0).flip(1).reshape(-1)
    assert rollout.correct is not None
    padded = torch.nn.functional.pad(rollout.mask[order], (0, 5))
    again = replace(
        rollout, rewards=rollout.rewards[order], mask=padded, correct=rollout.correct[order], token_ids=padded.long()
    )
    torch.testing.assert_close(trained(TERMS[name], again), expected[order])


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_without_a_reward_stays_without_and_counts_for_no_other(name: str, dtype: torch.dtype) -> None:
    rollout = rollout_of([4, 8, 16, 20], [1.0, NAN, 1.0, 0.0], [True, True, True, False], 4)
    rollout = replace(rollout, rewards=rollout.rewards.to(dtype))
    ours = trained(TERMS[name], rollout)
    assert ours.dtype == dtype and ours.isnan().tolist() == [False, True, False, False]
    kept = [0, 2, 3]
    assert rollout.correct is not None
    alone = replace(
        rollout,
        rewards=rollout.rewards[kept],
        mask=rollout.mask[kept],
        correct=rollout.correct[kept],
        token_ids=rollout.token_ids[kept],
        group_size=3,
    )
    torch.testing.assert_close(ours[kept], trained(TERMS[name], alone))


@pytest.mark.parametrize("name", TERMS)
def test_no_group_gives_a_term_that_is_not_finite(name: str) -> None:
    """No right completion, no reward at all, no token at all, every completion right and equally long."""
    cases = {
        "none right": rollout_of([4, 8], [0.0, 0.0], [False, False], 2),
        "no reward": rollout_of([4, 8], [NAN, NAN], [True, False], 2),
        "no token": rollout_of([0, 0], [1.0, 0.0], [True, False], 2),
        "equal": rollout_of([6, 6], [1.0, 1.0], [True, True], 2),
    }
    for rollout in cases.values():
        shaped = Reward(length=TERMS[name]).shape(rollout)
        assert shaped.length_terms is not None and shaped.length_terms.isfinite().all()
        torch.testing.assert_close(shaped.rewards, rollout.rewards + shaped.length_terms, equal_nan=True)
    assert trained(Brevity(), cases["none right"]).tolist() == [0.0, 0.0]
    assert trained(LinearLength(), cases["none right"]).tolist() == [0.0, 0.0]


def test_a_shorter_completion_is_never_worth_less() -> None:
    for length in range(1, LONGEST):
        shorter, longer = (
            rollout_of([each, 10, 10, 10], [1.0, 1.0, 0.0, 0.0], [True, True, False, False], 4)
            for each in (length, length + 1)
        )
        for term in TERMS.values():
            assert trained(term, shorter)[0] >= trained(term, longer)[0]


def test_the_verdicts_are_read_by_those_that_need_them() -> None:
    assert [method(reward=Reward(length=term)).needs_correct for term in TERMS.values()] == [False, True, True]
    assert not method().needs_correct
