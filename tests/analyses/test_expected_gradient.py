"""Proposition 1 of ACPO against a Monte Carlo of its own assumptions, and its limits."""

from __future__ import annotations

import math

import pytest
import torch

from rlvr_cli.analyses.expected_gradient import dominance, expected_gradient, lemma_spread, reversal_kappas

DRAWS = 2_000_000


@pytest.mark.parametrize(("kappa", "eps_low", "eps_high"), [(0.1, 0.2, 0.28), (0.5, 0.2, 0.2), (3.0, 0.2, 0.28)])
@pytest.mark.parametrize("rest", [0.95, 0.6])
def test_the_expectations_are_those_of_drawn_advantages_and_ratios(
    kappa: float, eps_low: float, eps_high: float, rest: float
) -> None:
    generator = torch.Generator().manual_seed(5)
    sigma = kappa * rest**2
    advantages = 0.7 * torch.randn(DRAWS, generator=generator, dtype=torch.float64)
    ratios = 1 + sigma * torch.randn(DRAWS, generator=generator, dtype=torch.float64)
    kept = torch.where(advantages > 0, ratios <= 1 + eps_high, ratios >= 1 - eps_low)
    drawn = rest * ratios * advantages * kept
    # A negative rho counts with its sign in both.
    sizes = rest * ratios * advantages.abs() * kept
    found = expected_gradient(
        torch.tensor(rest), lemma_spread(torch.tensor(rest, dtype=torch.float64), kappa), eps_low, eps_high, 0.7
    )
    for value, sample in ((found.signed, drawn), (found.magnitude, sizes)):
        assert float(value) == pytest.approx(float(sample.mean()), abs=5 * float(sample.std()) / math.sqrt(DRAWS))


def test_with_equal_bounds_the_signed_expectation_is_what_the_density_leaves() -> None:
    """Phi cancels in equation 6: -2 sigma phi(eps / sigma)."""
    rest, spread = torch.tensor(0.9), torch.tensor(0.3)
    found = expected_gradient(rest, spread, 0.2, 0.2, 1.0)
    density = math.exp(-((0.2 / 0.3) ** 2) / 2) / math.sqrt(2 * math.pi)
    assert float(found.signed) == pytest.approx(-0.9 / math.sqrt(2 * math.pi) * 2 * 0.3 * density)


def test_on_policy_the_magnitude_is_that_of_the_advantage() -> None:
    found = expected_gradient(torch.tensor([0.0, 0.5, 1.0]), torch.zeros(3), 0.2, 0.28, 2.0)
    half_normal = 2.0 * math.sqrt(2 / math.pi)
    assert found.magnitude.tolist() == pytest.approx([0.0, 0.5 * half_normal, half_normal])
    assert found.signed.tolist() == pytest.approx([0.0, 0.0, 0.0])


@pytest.mark.parametrize(("eps_low", "eps_high"), [(0.2, 0.2), (0.2, 0.28)])
def test_the_formulas_of_proposition_1_do_not_reverse(eps_low: float, eps_high: float) -> None:
    """Remark 1 says that they do; what the papers' own bounds give is recorded here."""
    assert reversal_kappas(eps_low, eps_high, p_low=0.2, p_high=0.8) == ([], [])
    for kappa in (0.01, 1.0, 50.0):
        assert all(value is None or value > 0 for value in dominance(kappa, eps_low, eps_high, p_low=0.2, p_high=0.8))
    # Near the policy only 1 - p counts: its means are 0.9 and 0.1.
    assert dominance(1e-3, eps_low, eps_high, p_low=0.2, p_high=0.8)[1] == pytest.approx(math.log(9))
