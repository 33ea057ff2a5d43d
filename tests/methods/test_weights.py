"""Token weights: the limits that tie them together, and where they must differ; their numbers are in tests/golden."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from rlvr_cli.methods.acpo import ACPO
from rlvr_cli.methods.base import Tokens
from rlvr_cli.methods.dgpo import DGPO
from rlvr_cli.methods.grpo import PPOClip
from tests.methods.samples import WEIGHTS, coefficients, method, random_tokens


def test_at_ratio_one_every_method_is_the_same_gradient() -> None:
    """But for one that says so: Clip-Cov leaves tokens out from the first update."""
    for name in WEIGHTS:
        tokens = random_tokens(drift=0.0)
        ours = coefficients(method(WEIGHTS[name]), tokens)
        alike = torch.equal(ours, coefficients(method(WEIGHTS["no_is"]), tokens))
        assert alike == WEIGHTS[name].unit_on_policy == (name != "clip-cov"), name
        assert ours.any(), name


def test_off_policy_no_two_methods_are_the_same_gradient() -> None:
    for one, other in list(itertools.combinations(WEIGHTS, 2)):
        tokens = random_tokens(drift=1.0, rows=256)
        ours, theirs = (coefficients(method(WEIGHTS[name]), tokens) for name in (one, other))
        assert not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-6), (one, other)


def test_only_the_two_clip_regions_lose_their_gradient() -> None:
    tokens, weight = random_tokens(drift=1.0), WEIGHTS["dapo"]
    where, values = weight.regions(tokens), weight.weight(tokens)
    cut = where.LN | where.HP
    assert cut.any() and (values[cut] == 0).all()
    assert (values[tokens.mask.bool() & ~cut] > 0).all()
    everything = where.LN.int() + where.HP.int() + where.LP.int() + where.HN.int() + where.M.int()
    assert torch.equal(everything, tokens.mask.int())


def test_dgpo_between_its_neighbours() -> None:
    tokens = random_tokens(drift=1.0)
    where = WEIGHTS["gppo"].regions(tokens)
    gppo, ratio = WEIGHTS["gppo"].weight(tokens), tokens.ratio
    on_the_right = DGPO(eps_low=0.2, eps_high=0.3, n=3.0, m=1.0).weight(tokens)
    torch.testing.assert_close(on_the_right[~where.LN], gppo[~where.LN])
    assert (on_the_right[where.LN] < gppo[where.LN]).all()
    torch.testing.assert_close(DGPO(eps_low=0.2, eps_high=0.3, n=0.0, m=2.0).weight(tokens)[where.LN], ratio[where.LN])
    # Beyond what the configuration allows, near the limit.
    never = DGPO.model_construct(eps_low=0.2, eps_high=0.3, n=0.0, m=1e12).weight(tokens)
    torch.testing.assert_close(never, ratio)


@pytest.mark.parametrize("name", ["dgpo", "dgpo-2-3", "gppo", "cispo"])
def test_soft_clips_are_continuous_at_their_bounds(name: str) -> None:
    bounds = torch.tensor([[0.8, 1.3]], dtype=torch.float64).log()
    for advantage in (-1.0, 1.0):
        sides = [
            WEIGHTS[name].weight(
                Tokens(bounds + shift, torch.zeros_like(bounds), torch.tensor([[advantage]]), torch.ones(1, 2))
            )
            for shift in (-1e-9, 1e-9)
        ]
        torch.testing.assert_close(*sides, rtol=0, atol=1e-7)


def test_ce_gppo_with_both_betas_one_is_gppo() -> None:
    tokens = random_tokens(drift=1.0)
    where, ratio = WEIGHTS["gppo"].regions(tokens), tokens.ratio
    expected = torch.where(where.LN, 0.8, torch.where(where.HP, 1.3, ratio))
    torch.testing.assert_close(WEIGHTS["ce-gppo"].replace(beta1=1.0).weight(tokens), expected)
    torch.testing.assert_close(WEIGHTS["gppo"].weight(tokens), expected)


def test_gspo_of_single_tokens_is_the_clipped_ratio() -> None:
    tokens = random_tokens(rows=32, length=1)
    tokens = replace(tokens, mask=torch.ones_like(tokens.mask))
    expected = PPOClip(eps_low=0.05, eps_high=0.1, dual_clip=None).weight(tokens)
    torch.testing.assert_close(WEIGHTS["gspo"].weight(tokens), expected)


def test_gspo_stops_where_the_sequence_ratio_is_cut_off() -> None:
    old = torch.full((2, 3), -30.0)
    tokens = Tokens(old + torch.tensor([[9.9], [10.1]]), old, -torch.ones(2, 1), torch.ones(2, 3))
    ours = WEIGHTS["gspo"].weight(tokens)
    torch.testing.assert_close(ours[0], torch.full((3,), 9.9).exp())
    assert not ours[1].any()
    assert WEIGHTS["gspo"].regions(tokens).HN.all()


def test_acpo_without_spread_is_a_fixed_clip() -> None:
    tokens = random_tokens(drift=1.0)
    for edges, bound in itertools.product(("equal_width", "quantile"), ("per_bin", "mean")):
        weight = ACPO(alpha=0.0, eps_b=0.15, bins=5, edges=edges, bound=bound)
        ours = weight.weight(tokens, weight.statistics(tokens))
        torch.testing.assert_close(ours, PPOClip(eps_low=0.15, eps_high=0.15, dual_clip=None).weight(tokens))


def test_acpo_bounds_of_one_bin_and_of_its_ablations() -> None:
    tokens = random_tokens(drift=0.3, rows=64)
    log_ratio = (tokens.log_probs - tokens.old_log_probs)[tokens.mask.bool()]
    sigma = log_ratio.exp().std(correction=0)
    one_bin = ACPO(alpha=3.0, eps_b=0.1, bins=1, edges="equal_width", bound="per_bin")
    _, eps = one_bin.bounds(tokens, one_bin.statistics(tokens))
    torch.testing.assert_close(eps, (3 * sigma + 0.1).expand_as(tokens.mask))

    per_bin = ACPO(alpha=3.0, eps_b=0.1, bins=5, edges="equal_width", bound="per_bin")
    statistics = per_bin.statistics(tokens)
    _, each = per_bin.bounds(tokens, statistics)
    valid = each[tokens.mask.bool()]  # type: ignore[index]
    assert len(valid.unique()) == 5
    largest, mean = per_bin.replace(bound="max"), per_bin.replace(bound="mean")
    assert largest.bounds(tokens, statistics) == (0.2, valid.max())
    torch.testing.assert_close(mean.bounds(tokens, statistics), (valid.mean(), valid.mean()))


def test_acpo_bins_include_their_lower_edge() -> None:
    old = torch.tensor([[0.1, 0.2, 0.3, 0.5, 0.8, 1.0]], dtype=torch.float64).log()
    tokens = Tokens(old + 0.1, old, torch.ones(1, 1), torch.ones(1, 6))
    edges, count, sigma = ACPO(alpha=3.0, eps_b=0.1, bins=5, edges="quantile", bound="per_bin").bin_tokens(tokens)
    torch.testing.assert_close(edges, old.exp().squeeze(0))
    assert count.tolist() == [1, 1, 1, 1, 2] and sigma[:4].tolist() == [0.0] * 4
