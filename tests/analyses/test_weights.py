"""Weights and biases of DGPO's comparison against its formulas, token by token, and against a loop over gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.integrate
import torch

from rlvr_cli.analyses.gradients import gradient, norm
from rlvr_cli.analyses.method_step import ScoredTokens
from rlvr_cli.analyses.weights import (
    MethodWeights,
    NormCache,
    compute_weights,
    fit_ratio_decay,
    gradient_bias,
    iter_group_rows,
)
from rlvr_cli.config.load import load_config
from rlvr_cli.describe.weights import far_slope, left_bias
from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.method import Method
from tests.analyses.lab_rows import LENGTHS, lab_policy, lab_rows, log_prob

REGIONS = ("LN", "HP", "LP", "HN", "M")
# F by the paper's equations 2 to 5 and 9 (n = 1, m = 2, beta1 = 0.75), eps = 0.2 on both sides.
PAPER: dict[str, Callable[[float, str], float]] = {
    "grpo": lambda r, region: 0.0 if region in ("LN", "HP") else r,
    "cispo": lambda r, region: min(max(r, 0.8), 1.2),
    "gppo": lambda r, region: {"LN": 0.8, "HP": 1.2}.get(region, r),
    "ce-gppo": lambda r, region: {"LN": 0.6, "HP": 1.2}.get(region, r),
    "dgpo": lambda r, region: {"LN": r**2 / 0.8, "HP": math.sqrt(1.2 * r)}.get(region, r),
}


def method(name: str, *overrides: str) -> Method:
    return load_config(method=name, overrides=overrides).method.with_max_length(9)  # type: ignore[arg-type]


def weights(name: str, scored: ScoredTokens) -> MethodWeights:
    return compute_weights(method(name, "method.kl.beta=0"), scored, eps_low=0.2, eps_high=0.2)


@pytest.fixture(scope="module")
def scored() -> ScoredTokens:
    """Rows for the lab in two groups of three, with an old policy that makes ratios from 0.3 to 3 in every region."""
    policy = lab_policy()
    rows, width = lab_rows(policy), max(LENGTHS)
    log_probs, entropies = policy.score(rows)
    mask = (torch.arange(width) < torch.tensor(LENGTHS).unsqueeze(1)).long()
    shift = torch.rand(len(rows), width, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 2.4 - 1.2
    rollout = Rollout(
        rewards=torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64),
        group_size=3,
        token_ids=torch.zeros_like(mask),
        mask=mask,
        entropies=entropies,
    )
    return ScoredTokens(rollout, (log_probs + shift) * mask, log_probs, entropies)


def region_of(ratio: float, advantage: float) -> str:
    if ratio < 0.8:
        return "LN" if advantage < 0 else "LP"
    if ratio > 1.2:
        return "HP" if advantage > 0 else "HN"
    return "M"


@pytest.mark.parametrize("name", PAPER)
def test_every_token_has_the_weight_and_the_region_of_the_paper(name: str, scored: ScoredTokens) -> None:
    found = weights(name, scored)
    counts = dict.fromkeys(REGIONS, 0)
    for row, length in enumerate(LENGTHS):
        advantage = 1.0 if scored.rollout.rewards[row] else -1.0
        for position in range(length):
            at = (row, position)
            ratio = math.exp(float(scored.log_probs[at] - scored.old_log_probs[at]))
            region = region_of(ratio, advantage)
            counts[region] += 1
            assert bool(found.region(region)[at])
            assert float(found.on_log_prob[at]) == pytest.approx(PAPER[name](ratio, region))
            assert float(found.relative[at]) == pytest.approx(PAPER[name](ratio, region) / ratio)
    assert all(counts.values())
    rows = list(iter_group_rows(found))
    groups = {row["name"]: row for row in rows}
    assert {region: groups[region]["tokens"] for region in REGIONS} == counts
    assert groups["all"]["tokens"] == sum(LENGTHS) == sum(row["tokens"] for row in rows if row["by"] == "old_prob")


def test_coefficient_bias_and_means_by_hand(scored: ScoredTokens) -> None:
    found = weights("dgpo", scored)
    group = next(row for row in iter_group_rows(found) if row["name"] == "HP")
    chosen = found.region("HP")
    ratio = (scored.log_probs - scored.old_log_probs)[chosen].exp().numpy()
    advantage = np.array([{0: 2, 3: 1, 4: 1}[int(row)] for row in chosen.nonzero()[:, 0]])
    # Advantages of 1 and 2 rows of three: (2/3) / s against (1/3) / s, s the same.
    expected = (np.abs(np.sqrt(1.2 * ratio) - ratio) * advantage).sum() / (ratio * advantage).sum()
    assert group["bias"] == pytest.approx(expected)
    assert group["relative"] == pytest.approx(np.sqrt(1.2 / ratio).mean())
    assert group["largest"] == pytest.approx(np.sqrt(1.2 / ratio).max())
    assert group["slope"] == pytest.approx(-0.5)
    old = scored.old_log_probs[chosen].exp().numpy()
    assert group["on_prob"] == pytest.approx((np.sqrt(1.2 * ratio) / (ratio * old)).mean())


def test_gradient_bias_is_that_of_a_loop_over_tokens(scored: ScoredTokens) -> None:
    """||sum (F - r) A grad log pi|| / ||sum r A grad log pi|| over each region, one token's gradient at a time."""
    policy = lab_policy()
    rows = lab_rows(policy)
    found = {name: weights(name, scored) for name in ("cispo", "dgpo", "aspo")}
    parameters = [parameter for _, parameter in policy.model.named_parameters()]
    size = sum(parameter.numel() for parameter in parameters)
    sums = {name: {region: torch.zeros(2, size, dtype=torch.float64) for region in REGIONS} for name in found}
    for row, length in enumerate(LENGTHS):
        group = scored.rollout.rewards[row // 3 * 3 : row // 3 * 3 + 3]
        advantage = float((scored.rollout.rewards[row] - group.mean()) / group.std())
        for position in range(length):
            at = (row, position)
            parts = torch.autograd.grad(log_prob(policy, rows[row], position), parameters)
            flat = torch.cat([part.flatten() for part in parts])
            ratio = math.exp(float(scored.log_probs[at] - scored.old_log_probs[at]))
            for name, given in found.items():
                weight = float(given.on_log_prob[at])
                pair = torch.stack([(weight - ratio) * flat, ratio * flat])
                sums[name][region_of(ratio, advantage)] += advantage * pair
    for name, of_regions in sums.items():
        norms = NormCache(lambda coefficients: norm(gradient(policy, rows, coefficients)))
        measured = gradient_bias(found[name], norms)
        for region, pair in {**of_regions, "all": torch.stack(list(of_regions.values())).sum(dim=0)}.items():
            expected = float(pair[0].norm() / pair[1].norm())
            assert measured[region] == pytest.approx(expected, rel=2e-3, abs=1e-9), (name, region)


@pytest.mark.parametrize(
    ("name", "left", "right"),
    [
        ("grpo", None, None),
        ("aspo", None, None),
        ("cispo", -1, -1),
        ("gppo", -1, -1),
        ("ce-gppo", -1, -1),
        ("dgpo", 1, -0.5),
        ("acpo", None, None),
        ("gtpo", -1, -1),
        ("pl", None, 0),
        ("nl", 0, None),
    ],
)
def test_exponents_of_the_weight_on_grad_pi(name: str, left: float | None, right: float | None) -> None:
    """GRPO, ASPO and ACPO are cut to 0; F = 1 is 1/r; F = r is constant; PL has no A < 0, NL no A > 0."""
    assert far_slope(method(name), "LN") == (None if left is None else pytest.approx(left))
    assert far_slope(method(name), "HP") == (None if right is None else pytest.approx(right))


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 1.7, 6.0])
def test_analytic_bias_is_that_of_the_paper(gamma: float) -> None:
    """Equations 29, 30 and 32 over equation 29; CE-GPPO's integral, with the absolute value inside, by quadrature."""
    hard = 1 / (gamma + 2)
    assert left_bias(method("grpo"), gamma, 0.8, 0.5) == pytest.approx(1, rel=1e-5)
    assert left_bias(method("aspo"), gamma, 0.8, 0.5) == pytest.approx(1, rel=1e-5)
    for name in ("cispo", "gppo"):
        assert left_bias(method(name), gamma, 0.8, 0.5) == pytest.approx((1 / (gamma + 1) - hard) / hard, rel=1e-5)
    for n in (1, 2):
        dgpo = method("dgpo", f"method.policy_loss.n={n}")
        assert left_bias(dgpo, gamma, 0.8, 0.5) == pytest.approx((hard - 1 / (n + gamma + 2)) / hard, rel=1e-5)
    ce, _ = scipy.integrate.quad(lambda r: abs(0.6 - r) * r**gamma, 0, 0.8, points=[0.6])
    assert left_bias(method("ce-gppo"), gamma, 0.8, 0.5) == pytest.approx(ce / (hard * 0.8 ** (gamma + 2)), rel=1e-4)
    assert left_bias(method("pl"), gamma, 0.8, 0.5) is None


def test_the_density_of_the_ratio_is_found_again() -> None:
    uniform = torch.rand(200_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for gamma in (-0.4, 0.0, 3.0):
        drawn = 0.8 * uniform ** (1 / (gamma + 1))
        assert fit_ratio_decay(torch.cat([drawn, torch.tensor([0.9, 2.0])]), 0.8) == pytest.approx(gamma, abs=0.02)
    assert fit_ratio_decay(torch.tensor([0.9, 1.1]), 0.8) is None
