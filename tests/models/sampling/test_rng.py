"""Inverse-CDF draws: uniform numbers by counter, exact at the edges, never a token of probability 0."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlvr_cli.models.sampling.rng import draw_tokens, nucleus, uniforms

ALMOST_ONE = 1 - 2.0**-53


def one(probabilities: torch.Tensor, u: float) -> int:
    return int(draw_tokens(probabilities[None], torch.tensor([u], dtype=torch.float64)))


def test_uniforms_are_addressed_by_seed_key_and_position() -> None:
    block = uniforms(3, [10, -4, 2**70], 0, 100)
    assert block.shape == (100, 3)
    assert (uniforms(3, [-4], 40, 7)[:, 0] == block[40:47, 1]).all()
    assert (uniforms(4, [-4], 40, 7)[:, 0] != block[40:47, 1]).all()


def test_uniforms_are_uniform_and_uncorrelated_across_keys_and_positions() -> None:
    u = uniforms(0, range(300), 0, 300)
    counts = np.histogram(u, bins=100, range=(0, 1))[0]
    assert ((counts - 900) ** 2 / 900).sum() < 135, "the 1% point of chi-square with 99 degrees of freedom"
    centred = u - 0.5
    for product in (centred[1:] * centred[:-1], centred[:, 1:] * centred[:, :-1]):
        assert abs(product.mean()) < 4 / 12 / np.sqrt(product.size)


@pytest.mark.parametrize("size", [7, 1024, 5000])
def test_each_token_owns_an_interval_as_long_as_its_probability(size: int) -> None:
    weights = torch.rand(size, generator=torch.Generator().manual_seed(1)).pow(6)
    weights[::3] = 0
    probabilities = weights / weights.sum()
    cumulative = probabilities.double().cumsum(0)
    tokens = torch.nonzero(probabilities > 1e-5).squeeze(1)
    middles = (cumulative[tokens] - probabilities[tokens].double() / 2) / cumulative[-1]
    assert (draw_tokens(probabilities.expand(len(tokens), -1), middles).squeeze(1) == tokens).all()


@pytest.mark.parametrize("size", [4, 3000])
def test_extreme_uniforms_give_the_first_and_last_possible_token(size: int) -> None:
    probabilities = torch.zeros(size)
    probabilities[[1, size - 2]] = torch.tensor([0.4, 0.6])
    assert one(probabilities, 0.0) == 1
    assert one(probabilities, ALMOST_ONE) == size - 2


@pytest.mark.parametrize("size", [64, 40_000])
def test_the_last_uniform_number_is_safe_for_any_rounding_of_the_total(size: int) -> None:
    generator = torch.Generator().manual_seed(2)
    rows = torch.softmax(4 * torch.randn(50, size, generator=generator), -1)
    rows[:, size // 2 :] = 0
    tokens = draw_tokens(rows, torch.full((50,), ALMOST_ONE, dtype=torch.float64))
    assert (rows.gather(1, tokens) > 0).all()


def test_nucleus_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    probabilities = torch.tensor([[0.1, 0.4, 0.05, 0.25, 0.2], [1.0, 0.0, 0.0, 0.0, 0.0]])
    assert nucleus(probabilities, 0.6).tolist()[0] == pytest.approx([0, 0.4, 0, 0.25, 0])
    assert nucleus(probabilities, 0.7).tolist()[0] == pytest.approx([0, 0.4, 0, 0.25, 0.2])
    assert nucleus(probabilities, 0.001).tolist()[0] == pytest.approx([0, 0.4, 0, 0, 0])
    assert nucleus(probabilities, 0.999).tolist()[1] == [1, 0, 0, 0, 0]
    assert nucleus(torch.full((1, 4), 0.25), 0.5).tolist() == [[0.25, 0.25, 0, 0]], "the lower id among equals"


def test_the_likeliest_few_and_a_share_of_them() -> None:
    """As transformers: top_k first, and top_p of what it leaves."""
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(200, 40, generator=torch.Generator().manual_seed(3)) * 2
    probabilities = logits.softmax(-1)
    for top_p, top_k in ((1.0, 5), (0.7, 5), (0.7, 40), (0.9, 100), (0.5, 1)):
        warped = TopKLogitsWarper(min(top_k, 40))(None, logits)
        warped = warped if top_p == 1 else TopPLogitsWarper(top_p)(None, warped)
        kept = nucleus(probabilities, top_p, top_k)
        assert torch.equal(kept > 0, warped.isfinite())
        assert torch.equal(kept[kept > 0], probabilities[kept > 0])
    assert torch.equal(nucleus(probabilities, 0.7, 0), nucleus(probabilities, 0.7))
