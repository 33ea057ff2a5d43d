"""Advantage estimators: what each must give on rewards whose answer is known, and what must not matter."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.grpo import group_advantage
from rlvr_cli.methods.ppo import value_loss
from rlvr_cli.methods.reinforce_pp import ReinforcePPAdvantage
from rlvr_cli.methods.reward import Reward, entropy_min_reward, flip
from tests.methods.samples import ADVANTAGES, change, method, random_rollout
from tests.methods.surrogates import value_clipped

NAN = math.nan


def advantages(name: str, rollout: Rollout) -> Tensor:
    """(N, T), 0 on padding."""
    return ADVANTAGES[name].advantages(rollout).expand_as(rollout.mask) * rollout.mask


@pytest.mark.parametrize("name", ADVANTAGES)
def test_padding_and_the_order_of_prompts_do_not_matter(name: str) -> None:
    rollout = random_rollout()
    expected = advantages(name, rollout)
    order = torch.arange(len(expected)).view(-1, rollout.group_size).flip(0).flip(1).reshape(-1)

    def disturbed(field: str, values: Tensor) -> Tensor:
        if field == "part_weights":
            return values
        if values.dim() == 1 or field == "parts":
            return values[order]
        fill = NAN if values.is_floating_point() and field != "mask" else 0
        values = torch.where(rollout.mask.bool() | (field == "mask"), values, fill)
        return torch.nn.functional.pad(values[order], (0, 5), value=fill)

    again = ADVANTAGES[name].advantages(replace(rollout, **change(rollout, disturbed)))
    again = again.expand(-1, expected.shape[1] + 5)[:, : expected.shape[1]]
    torch.testing.assert_close(torch.where(rollout.mask[order].bool(), again, 0.0), expected[order])


@pytest.mark.parametrize("name", ADVANTAGES)
def test_a_row_without_a_reward_is_left_out(name: str) -> None:
    """Its advantage is 0, and the others' are those of a rollout in which it is only padding."""
    rollout = random_rollout()
    unknown = torch.arange(len(rollout.rewards)) % 4 == 2
    unknown[4:8] = True
    rollout = replace(rollout, rewards=rollout.rewards.masked_fill(unknown, NAN))
    ours = advantages(name, rollout)
    assert ours.isfinite().all() and not ours[unknown].any()
    masked = replace(rollout, mask=rollout.mask * ~unknown.unsqueeze(1))
    torch.testing.assert_close(advantages(name, masked), ours)


@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hostile_rollouts_stay_finite(name: str, dtype: torch.dtype) -> None:
    rollout = random_rollout()
    rollout = replace(
        rollout,
        **change(rollout, lambda _, values: values.to(dtype) if values.is_floating_point() else values),
    )
    hostile = {
        "equal rewards": replace(rollout, rewards=torch.full_like(rollout.rewards, 0.1)),
        "nothing but padding": replace(rollout, mask=torch.zeros_like(rollout.mask)),
        "no reward": replace(rollout, rewards=torch.full_like(rollout.rewards, NAN)),
        "huge": replace(rollout, rewards=rollout.rewards * 1e6),
        "groups of one": replace(rollout, group_size=1),
        "improbable": replace(rollout, old_log_probs=torch.full_like(rollout.mask, -27.6)),
    }
    for rows in hostile.values():
        ours = advantages(name, rows)
        assert ours.isfinite().all() and ours.dtype == dtype


def test_equal_rewards_teach_nothing_at_all() -> None:
    """0.1 three times has a mean that is not 0.1 in binary; divided by 1e-6 the remainder would move the policy."""
    for size in [1, 2, 3, 6, 7, 11]:
        for reward in [0.1, 0.3, -0.7]:
            rewards = torch.full((3 * size,), reward, dtype=torch.float64)
            rollout = replace(random_rollout(groups=3, group_size=size), rewards=rewards)
            if size > 1:
                for name in ("group", "group-unscaled", "rloo"):
                    assert not advantages(name, rollout).any(), (size, reward)
            assert not ReinforcePPAdvantage(kl_in_reward=0.0, gamma=1.0, baseline="none").advantages(rollout).any()


def test_group_advantages_are_centred_and_scaled() -> None:
    rewards = torch.tensor([3.0, -3.0, -0.5, -1.0, 3.0, 3.0, -3.0, -0.5])
    ours = group_advantage(rewards, 4, divide_by_std=True).view(2, 4)
    torch.testing.assert_close(ours.mean(1), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(ours.std(1), torch.ones(2), atol=1e-5, rtol=0)
    assert group_advantage(torch.tensor([1.0, NAN, 0.0, NAN, NAN, NAN]), 3, divide_by_std=False).tolist() == [
        0.5, 0.0, -0.5, 0.0, 0.0, 0.0,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="do not form groups"):
        group_advantage(rewards, 3, divide_by_std=True)


def test_likelihood_signs_are_the_verdicts_and_ask_for_no_baseline() -> None:
    # A well-formed wrong answer has a reward above 0, a right one without the format may have one below.
    rewards = torch.tensor([1.0, 1.0, -1.0, 0.1, NAN, 10.0, -0.5, 1.0])
    correct = torch.tensor([True, True, False, False, False, False, True, True])
    signs = [1.0, 1.0, -1.0, -1.0, 0.0, -1.0, 1.0, 1.0]
    rollout = replace(random_rollout(2), rewards=rewards, correct=correct)
    assert advantages_of_rows("likelihood", rollout) == signs
    assert advantages_of_rows("likelihood-positive", rollout) == [max(sign, 0.0) for sign in signs]
    assert advantages_of_rows("likelihood-negative", rollout) == [min(sign, 0.0) for sign in signs]


def advantages_of_rows(name: str, rollout: Rollout) -> list[float]:
    result: list[float] = (ADVANTAGES[name].advantages(rollout).squeeze(1) + 0.0).tolist()
    return result


def test_value_loss_adds_up_over_parts_and_stops_where_it_is_clipped() -> None:
    rollout, clip = random_rollout(), 0.3
    assert rollout.values is not None
    predictions = (rollout.values + torch.randn_like(rollout.values)).requires_grad_()
    returns, count = ADVANTAGES["gae"].returns(rollout), rollout.mask.sum()  # type: ignore[attr-defined]
    arguments = (predictions, rollout.values, returns, rollout.mask)
    whole = value_loss(*arguments, count, clip)
    parts = zip(*(values.chunk(4) for values in arguments), strict=True)
    torch.testing.assert_close(torch.stack([value_loss(*part, count, clip) for part in parts]).sum(), whole)
    (gradient,) = torch.autograd.grad(whole, predictions)
    clipped = value_clipped(*arguments, clip)
    assert clipped.any() and not gradient[clipped].any()
    expected = ((predictions - returns) * rollout.mask / count).detach()
    torch.testing.assert_close(gradient[~clipped], expected[~clipped])
    torch.testing.assert_close(
        value_loss(*arguments, count, None), ((predictions - returns) ** 2 * rollout.mask).sum() / count / 2
    )
    assert value_loss(*(values[:0] for values in arguments), torch.tensor(0), clip) == 0


def test_flipping_twice_is_nothing_and_mirrors_the_range() -> None:
    rewards, flips = torch.tensor([3.0, -3.0, -0.5, NAN, 1.0]), torch.tensor([1, 1, 1, 1, 0])
    flipped = flip(rewards, flips, -3.0, 3.0)
    torch.testing.assert_close(flipped, torch.tensor([-3.0, 3.0, 0.5, NAN, 1.0]), equal_nan=True)
    torch.testing.assert_close(flip(flipped, flips, -3.0, 3.0), rewards, equal_nan=True)
    assert flip(torch.tensor([0.0, 1.0]), torch.ones(2), 0.0, 1.0).tolist() == [1.0, 0.0]


def test_entropy_reward_is_minus_the_mean_over_valid_tokens() -> None:
    rollout = random_rollout()
    assert rollout.entropies is not None
    ours = entropy_min_reward(rollout)
    expected = -(rollout.entropies * rollout.mask).sum(1) / rollout.mask.sum(1).clamp(min=1)
    torch.testing.assert_close(ours, expected)
    assert ours[1] == 0
    of = method(reward=Reward(source="entropy_min"))
    assert of.needs_rollout_entropies
    # A row without tokens has no entropy; 0, the best of all, would be what the others are compared with.
    known = rollout.mask.any(dim=1)
    torch.testing.assert_close(of.reward.shape(rollout).rewards, torch.where(known, expected, NAN), equal_nan=True)
    with pytest.raises(ValueError, match="needs the entropies"):
        entropy_min_reward(replace(rollout, entropies=None))
