"""GRPO's pieces: derivative, limits and invariances, without any reference file."""

from __future__ import annotations

import pytest
import torch

from rlvr_cli.methods.advantage import group_advantage
from rlvr_cli.methods.aggregation import aggregate
from rlvr_cli.methods.grpo import ClippedRatio
from rlvr_cli.methods.tokens import Tokens, regions

CLIP = ClippedRatio(eps_low=0.2, eps_high=0.28, dual_clip=None)
DUAL = ClippedRatio(eps_low=0.2, eps_high=0.2, dual_clip=3.0)


def random_tokens(drift: float = 0.5, rows: int = 16, length: int = 12, seed: int = 0) -> Tokens:
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(rows, length, generator=generator, dtype=torch.float64) * 3
    new = old + drift * torch.randn(rows, length, generator=generator, dtype=torch.float64)
    advantages = torch.randn(rows, 1, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, length + 1, (rows, 1), generator=generator)
    return Tokens(new, old, advantages, (torch.arange(length) < lengths).double())


@pytest.mark.parametrize("weight", [CLIP, DUAL])
def test_weight_is_the_derivative_of_the_surrogate(weight: ClippedRatio) -> None:
    tokens, step = random_tokens(), 1e-6
    up = Tokens(tokens.log_probs + step, tokens.old_log_probs, tokens.advantages, tokens.mask)
    down = Tokens(tokens.log_probs - step, tokens.old_log_probs, tokens.advantages, tokens.mask)
    slope = (weight.surrogate(up) - weight.surrogate(down)) / (2 * step)
    expected = -weight.weight(tokens) * tokens.advantages
    valid = tokens.mask.bool()
    torch.testing.assert_close(slope[valid], expected[valid], rtol=1e-6, atol=1e-7)


def test_weight_is_one_where_the_policy_has_not_moved() -> None:
    tokens = random_tokens(drift=0.0)
    assert torch.equal(CLIP.weight(tokens), torch.ones_like(tokens.log_probs))


def test_only_the_two_clip_regions_lose_their_gradient() -> None:
    tokens = random_tokens(drift=1.0)
    where, weight = regions(tokens, 0.2, 0.28), CLIP.weight(tokens)
    cut = where.LN | where.HP
    assert cut.any() and (weight[cut] == 0).all()
    assert (weight[tokens.mask.bool() & ~cut] > 0).all()
    everything = where.LN.int() + where.HP.int() + where.LP.int() + where.HN.int() + where.M.int()
    assert torch.equal(everything, tokens.mask.int())


@pytest.mark.parametrize("log_ratio", [-30.0, 30.0])
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
def test_extreme_ratios_stay_finite(log_ratio: float, advantage: float) -> None:
    old = torch.full((1, 1), -27.6, dtype=torch.float64)
    tokens = Tokens(old + log_ratio, old, torch.full((1, 1), advantage, dtype=torch.float64), torch.ones(1, 1))
    assert torch.isfinite(CLIP.weight(tokens)).all() and torch.isfinite(DUAL.weight(tokens)).all()


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant_length"])
def test_padding_and_row_order_do_not_matter(aggregation: str) -> None:
    tokens = random_tokens()
    values = CLIP.weight(tokens)
    expected = aggregate(values, tokens.mask, aggregation, max_length=20)  # type: ignore[arg-type]
    padded = torch.nn.functional.pad(values, (0, 5), value=float("nan"))
    mask = torch.nn.functional.pad(tokens.mask, (0, 5))
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(1))
    again = aggregate(padded[order], mask[order], aggregation, max_length=20)  # type: ignore[arg-type]
    assert again.item() == pytest.approx(expected.item(), rel=1e-12)


def test_a_step_without_any_token_is_zero() -> None:
    assert aggregate(torch.ones(2, 3), torch.zeros(2, 3), "token_mean") == 0
    assert aggregate(torch.ones(2, 3), torch.zeros(2, 3), "sequence_mean") == 0


def test_equal_rewards_teach_nothing_at_all() -> None:
    """0.1 three times has a mean that is not 0.1 in binary; divided by 1e-6 the remainder would move the policy."""
    for size in (2, 3, 6, 7):
        assert group_advantage(torch.full((size,), 0.1), size, divide_by_std=True).tolist() == [0.0] * size


def test_advantages_are_centred_and_scaled_within_each_group() -> None:
    rewards = torch.tensor([3.0, -3.0, -0.5, -1.0, 3.0, 3.0, -3.0, -0.5])
    advantages = group_advantage(rewards, 4, divide_by_std=True).view(2, 4)
    torch.testing.assert_close(advantages.mean(1), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(advantages.std(1), torch.ones(2), atol=1e-5, rtol=0)


def test_an_unscored_row_is_left_out_of_its_group() -> None:
    nan = float("nan")
    advantages = group_advantage(torch.tensor([1.0, nan, 0.0, nan, nan, nan]), 3, divide_by_std=False)
    assert advantages.tolist() == [0.5, 0.0, -0.5, 0.0, 0.0, 0.0]
