"""`rlvr analyze ratio`: spread, exponent, clipping and entropy bounds on made-up tokens."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlvr_cli.analyses.method_step import MethodStep
from rlvr_cli.analyses.ratio import entropy_bounds, entropy_rows, measure_updates
from rlvr_cli.config.load import load_config
from rlvr_cli.methods.base import Tokens

ROWS, LENGTH = 400, 10


def step(old_probs: Tensor, ratios: Tensor, advantages: Tensor, name: str = "grpo") -> MethodStep:
    method = load_config(method=name).method.with_max_length(LENGTH)  # type: ignore[arg-type]
    old = old_probs.log()
    tokens = Tokens(
        log_probs=old + ratios.log(),
        old_log_probs=old,
        advantages=advantages.double(),
        mask=torch.ones_like(old_probs, dtype=torch.int64),
    )
    return MethodStep(method, tokens, advantages.double())


def drawn(kappa: float = 0.02) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities, ratios of lemma 1 and independent advantages."""
    generator = torch.Generator().manual_seed(2)
    probabilities = 0.01 + 0.98 * torch.rand(ROWS, LENGTH, generator=generator, dtype=torch.float64)
    noise, advantages = torch.randn(2, ROWS, LENGTH, generator=generator, dtype=torch.float64)
    return probabilities, 1 + kappa * (1 - probabilities).square() * noise, advantages


def test_ratios_of_lemma_1_have_its_exponent_and_kappa() -> None:
    probabilities, ratios, advantages = drawn()
    # Of narrow groups, so that 1 - p is one number in each.
    found = measure_updates(3, step(probabilities, ratios, advantages), torch.zeros(ROWS, LENGTH), bins=5, groups=100)
    assert found.row["updates"] == 3
    assert found.row["exponent"] == pytest.approx(2, abs=0.08)
    assert found.row["fit"] == pytest.approx(1, abs=0.01)
    assert found.row["kappa"] == pytest.approx(0.02, rel=0.05)
    for of in found.bins:
        inside = (probabilities >= of["low"]) & (probabilities < of["high"])
        assert of["tokens"] == int(inside.sum())
        assert of["spread"] == pytest.approx(float(ratios[inside].std(correction=0)))
        assert of["mean"] == pytest.approx(float(ratios[inside].mean()))


def test_the_measured_gradient_is_equation_3_and_near_proposition_1() -> None:
    probabilities, ratios, advantages = drawn(kappa=0.4)
    found = measure_updates(1, step(probabilities, ratios, advantages), torch.zeros(ROWS, LENGTH), bins=5, groups=20)
    cut = ((advantages > 0) & (ratios > 1.2)) | ((advantages < 0) & (ratios < 0.8))
    gradients = torch.where(cut, 0.0, (1 - probabilities * ratios) * ratios * advantages)
    for of in found.bins:
        inside = (probabilities >= of["low"]) & (probabilities < of["high"])
        assert of["magnitude"] == pytest.approx(float(gradients[inside].abs().mean()))
        assert of["signed"] == pytest.approx(abs(float(gradients[inside].mean())))
        assert of["clipped"] == pytest.approx(float(cut[inside].double().mean()))
        assert of["expected_magnitude"] == pytest.approx(of["magnitude"], rel=0.15)


def test_clipped_tokens_are_compared_at_equal_probability() -> None:
    """Inside a bin the clipped are the less likely ones, where entropies are higher; next to others they are lower."""
    probabilities = (0.8 + 0.2 * (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000).unsqueeze(0)
    ratios = torch.ones_like(probabilities)
    ratios[0, 20:520:20] = 1.3
    entropies = 5 * (1 - probabilities) - torch.where(ratios > 1.2, 0.1, 0.0)
    now = step(probabilities, ratios, torch.ones_like(probabilities))
    clipped = measure_updates(1, now, entropies, bins=5, groups=3).row
    assert (clipped["clipped_tokens"], clipped["clipped_share"]) == (25, 0.025)
    assert clipped["clipped_entropy_difference"] == pytest.approx(-0.1, abs=0.001)
    assert clipped["clipped_entropy"] > clipped["clipped_entropy_of_others"] + 0.1
    # All that are clipped are drawn, and a part of the others.
    assert sum(row["clipped"] for row in entropy_rows(now, entropies)) == 25


def test_without_any_move_there_is_no_spread_and_nothing_is_clipped() -> None:
    probabilities, ratios, advantages = drawn()
    found = measure_updates(
        0, step(probabilities, torch.ones_like(ratios), advantages), torch.zeros(ROWS, LENGTH), bins=5, groups=20
    )
    assert (found.row["kappa"], found.row["exponent"], found.row["clipped_tokens"]) == (0.0, None, 0)
    assert found.row["clipped_low_share"] is None and found.row["clipped_entropy_difference"] is None
    for of in found.bins:
        inside = (probabilities >= of["low"]) & (probabilities < of["high"])
        expected = float(((1 - probabilities) * advantages)[inside].abs().mean())
        assert of["magnitude"] == pytest.approx(expected)
        assert of["expected_magnitude"] == pytest.approx(expected, rel=0.1)


def test_entropies_lie_between_the_bounds() -> None:
    generator = torch.Generator().manual_seed(1)
    distributions = torch.softmax(3 * torch.randn(500, 93, generator=generator, dtype=torch.float64), dim=-1)
    entropies = -(distributions * distributions.log()).sum(dim=-1)
    least, most = entropy_bounds(distributions[:, 0], 93)
    assert bool((least <= entropies + 1e-12).all()) and bool((entropies <= most + 1e-12).all())
    uniform = torch.tensor([1 / 93], dtype=torch.float64)
    assert entropy_bounds(uniform, 93)[1].item() == pytest.approx(math.log(93))
    assert entropy_bounds(torch.tensor([0.5]), 2)[0].item() == pytest.approx(math.log(2))
