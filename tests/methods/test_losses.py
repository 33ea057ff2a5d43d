"""Losses as their papers print them: gradients by autograd of the objective, limits, long rows, and what is drawn."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rlvr_cli.methods.base import PolicyLoss, Tokens
from rlvr_cli.methods.checks import _find_problems, has_unit_weight_on_policy
from rlvr_cli.methods.cispo import CISPO
from rlvr_cli.methods.covariance import ClipCov, KLCov, draw
from rlvr_cli.methods.dppo import DPPO
from rlvr_cli.methods.equivalence import find_same_gradients
from rlvr_cli.methods.gmpo import GMPO
from rlvr_cli.methods.gspo import GSPO
from rlvr_cli.methods.sapo import SAPO
from rlvr_cli.methods.unclipped import ImportanceSampling
from rlvr_cli.methods.vespo import VESPO
from tests.methods.samples import AGGREGATIONS, WEIGHTS, change, coefficients, method, random_tokens
from tests.training.harness import method_of

NEW = ("dppo", "sapo", "gmpo", "vespo", "luspo", "clip-cov", "kl-cov")


def trained(drift: float = 0.6, rows: int = 32) -> Tokens:
    """Tokens of rows that all have some, with log-probs that learn."""
    tokens = random_tokens(drift=drift, rows=rows)
    mask = tokens.mask.clone()
    mask[:, 0] = 1
    return replace(tokens, mask=mask, log_probs=tokens.log_probs.clone().requires_grad_())


def check_gradient(weight: PolicyLoss, tokens: Tokens, aggregation: str, loss: Tensor) -> None:
    ours = coefficients(method(weight, AGGREGATIONS[aggregation]), tokens).detach()
    (gradient,) = torch.autograd.grad(loss, tokens.log_probs)
    torch.testing.assert_close(ours, -gradient, rtol=1e-9, atol=1e-12)
    assert ours.any()


def log_ratio(tokens: Tokens) -> Tensor:
    return torch.where(tokens.mask.bool(), tokens.log_probs - tokens.old_log_probs, 0.0)


def row_mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)


def test_sapo_is_the_mean_of_its_gates() -> None:
    tokens, weight = trained(), SAPO(tau_pos=1.0, tau_neg=1.5)
    tau = torch.where(tokens.advantages > 0, 1.0, 1.5).double()
    gates = torch.sigmoid(tau * (log_ratio(tokens).exp() - 1)) * 4 / tau
    check_gradient(weight, tokens, "sequence_mean", -(row_mean(gates, tokens.mask) * tokens.advantages).mean())


def test_gmpo_is_the_geometric_mean_of_clipped_ratios() -> None:
    """Algorithm 1 of the paper, row by row."""
    tokens, weight = trained(), GMPO(eps_low=0.3, eps_high=0.4)
    signs = tokens.advantages.sign()
    clipped = signs * torch.minimum(signs * log_ratio(tokens), signs * log_ratio(tokens).clamp(-0.3, 0.4))
    loss = -(row_mean(clipped, tokens.mask).exp() * tokens.advantages).mean()
    check_gradient(weight, tokens, "sequence_mean", loss)


def test_luspo_is_gspo_times_the_length() -> None:
    tokens, weight = trained(drift=0.1), GSPO(eps_low=0.02, eps_high=0.03)
    ratio = row_mean(log_ratio(tokens), tokens.mask).exp()
    rows = torch.minimum(ratio * tokens.advantages, ratio.clamp(0.98, 1.03) * tokens.advantages)
    loss = -(rows * tokens.mask.sum(1, keepdim=True)).mean()
    check_gradient(weight, tokens, "sequence_sum", loss)
    of = method_of("luspo")
    assert (of.policy_loss.kind, of.aggregation.kind) == ("gspo", "sequence_sum")


def test_vespo_weighs_by_the_product_of_ratios() -> None:
    tokens, weight = trained(drift=0.1), VESPO(k_pos=2.0, lambda_pos=3.0, k_neg=3.0, lambda_neg=2.0)
    product = log_ratio(tokens).exp().prod(1, keepdim=True).detach()
    phi = torch.where(
        tokens.advantages >= 0,
        math.exp(3) * product**2 * torch.exp(-3 * product),
        math.exp(2) * product**3 * torch.exp(-2 * product),
    )
    loss = -(phi * tokens.advantages * tokens.log_probs * tokens.mask).sum() / tokens.mask.sum()
    check_gradient(weight, tokens, "token_mean", loss)


def test_the_largest_weight_of_vespo_is_at_k_over_lambda() -> None:
    weight = VESPO(k_pos=2.0, lambda_pos=3.0, k_neg=3.0, lambda_neg=2.0)
    for sign, peak in ((1.0, 2 / 3), (-1.0, 3 / 2)):
        at = torch.tensor([[peak * side] for side in (0.99, 1.0, 1.01)]).double().log()
        values = weight.weight(Tokens(at, torch.zeros_like(at), torch.full_like(at, sign), torch.ones_like(at)))
        assert values.argmax() == 1


@pytest.mark.parametrize("tau", [0.0, 0.3])
def test_dppo_masks_by_probability_and_its_penalty_acts_on_every_token(tau: float) -> None:
    """prime-rl's loss: masked tokens and tokens without advantage keep the penalty."""
    tokens, weight = trained(drift=1.0), DPPO(d_low=0.1, d_high=0.2, max_ratio=None, drift_penalty=tau)
    moved = (tokens.log_probs.exp() - tokens.old_probs).detach()
    kept = torch.where(tokens.advantages > 0, moved <= 0.2, moved >= -0.1)
    losses = -kept.double() * tokens.advantages * log_ratio(tokens).exp() + tau * log_ratio(tokens).square()
    check_gradient(weight, tokens, "token_mean", (losses * tokens.mask).sum() / tokens.mask.sum())
    assert (~kept & (tokens.advantages != 0)).any()
    penalised = coefficients(method(weight), tokens)[(tokens.mask.bool()) & (tokens.advantages == 0)]
    assert bool(penalised.any()) == (tau > 0)


def test_dppo_bounds_are_those_of_its_regions() -> None:
    tokens, weight = random_tokens(drift=1.0), WEIGHTS["dppo"]
    where, (low, high) = weight.regions(tokens), weight.bounds(tokens)
    valid, ratio = tokens.mask.bool(), tokens.ratio
    assert torch.equal(where.LN, valid & (tokens.advantages < 0) & (ratio < 1 - low))
    assert torch.equal(where.HP, valid & (tokens.advantages > 0) & (ratio > 1 + high))
    assert where.LN.any() and where.HP.any()


def test_a_rare_token_may_have_any_ratio_and_a_likely_one_may_not_lose_a_fifth() -> None:
    """The two tokens of the paper's section 4.2, where the clip of GRPO does the opposite."""
    old, new = torch.tensor([[1e-4, 0.99]]).double(), torch.tensor([[1e-2, 0.78]]).double()
    tokens = Tokens(new.log(), old.log(), torch.tensor([[1.0, -1.0]]).double(), torch.ones(1, 2))
    assert DPPO().weight(tokens).tolist() == [[20.0, 0.0]]
    assert (WEIGHTS["grpo"].weight(tokens) == 0).tolist() == [[True, True]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight", [VESPO(), GMPO(), GSPO(), SAPO()])
def test_ten_thousand_tokens_are_not_too_long(weight: PolicyLoss, dtype: torch.dtype) -> None:
    """Ratios whose product is e^0.1, e^-2000 and e^2000: no NaN, no overflow, and the first as for a short row."""
    steps = torch.tensor([[1e-5], [-0.2], [0.2]], dtype=torch.float64)
    for signs in (1.0, -1.0):
        sizes = torch.full((3, 1), signs, dtype=dtype)
        old = torch.full((3, 10_000), -3.0, dtype=torch.float64)
        tokens = Tokens((old + steps).to(dtype), old.to(dtype), sizes, torch.ones(3, 10_000, dtype=dtype))
        values = weight.weight(tokens)
        assert values.isfinite().all() and values.dtype == dtype and (values >= 0).all()
        if isinstance(weight, VESPO):
            short = weight.weight(Tokens(torch.full((1, 1), 0.1), torch.zeros(1, 1), sizes[:1], torch.ones(1, 1)))
            torch.testing.assert_close(values[0, 0].float(), short[0, 0].float(), rtol=5e-3, atol=0)
            assert not values[1:].any()


# --- Clip-Cov and KL-Cov ---


def covariances(tokens: Tokens) -> Tensor:
    valid = tokens.mask.bool()
    advantages = tokens.advantages.expand_as(tokens.log_probs)
    return (advantages - advantages[valid].mean()) * (tokens.log_probs - tokens.log_probs[valid].mean()).detach()


@pytest.mark.parametrize("share", [1e-4, 0.1])
def test_kl_cov_penalises_the_tokens_of_highest_covariance(share: float) -> None:
    tokens, weight = trained(), KLCov(share=share, beta=0.7)
    valid = tokens.mask.bool()
    number = max(1, int(share * valid.sum()))
    chosen = covariances(tokens) >= covariances(tokens)[valid].topk(number).values[-1]
    assert (chosen & valid).sum() == number
    losses = -tokens.advantages * log_ratio(tokens).exp() + 0.7 * torch.where(chosen, log_ratio(tokens).abs(), 0.0)
    check_gradient(weight, tokens, "token_mean", (losses * tokens.mask).sum() / tokens.mask.sum())


@pytest.mark.parametrize("share", [1e-4, 0.05, 0.9])
def test_clip_cov_drops_so_many_tokens_between_its_bounds(share: float) -> None:
    tokens = random_tokens(drift=0.3, rows=128)
    weight = ClipCov(eps_low=0.5, eps_high=0.6, share=share, cov_low=0.5, cov_high=5.0)
    plain = WEIGHTS["grpo"].replace(eps_low=0.5, eps_high=0.6).weight(tokens)
    ours = weight.weight(tokens, weight.statistics(tokens))
    cov = covariances(tokens)
    eligible = tokens.mask.bool() & (cov > 0.5) & (cov < 5.0) & (plain != 0)
    dropped = tokens.mask.bool() & (ours != plain)
    assert not (dropped & ~eligible).any() and not ours[dropped].any()
    assert dropped.sum() == min(max(1, int(share * tokens.mask.sum())), eligible.sum())


@pytest.mark.parametrize("weight", [WEIGHTS["clip-cov"], WEIGHTS["kl-cov"]])
def test_a_selection_belongs_to_the_step_and_not_to_its_order_or_padding(weight: PolicyLoss) -> None:
    tokens = random_tokens(rows=64)
    expected = coefficients(method(weight), tokens)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    pads = {"mask": 0, "token_ids": 3}

    def disturbed(name: str, values: Tensor) -> Tensor:
        columns = 0 if name == "advantages" else 4
        return torch.nn.functional.pad(values[order], (0, columns), value=pads.get(name, 0.0))

    again = coefficients(method(weight), Tokens(**change(tokens, disturbed)))
    torch.testing.assert_close(again[:, :12], expected[order], rtol=1e-12, atol=1e-15)
    # Another forward pass rounds otherwise: nothing changes sides.
    noisy = replace(tokens, log_probs=tokens.log_probs * (1 + 1e-7))
    statistics = weight.statistics(tokens)
    count = tokens.mask.sum()
    torch.testing.assert_close(
        method(weight).coefficients(noisy, count, "all", statistics), expected, rtol=1e-4, atol=0
    )


def test_equal_completions_are_selected_together() -> None:
    """Eight copies of one row: whichever token is chosen, it is in all of them, and n is exceeded."""
    tokens = random_tokens(rows=16)
    row = int(tokens.mask.sum(1).argmax())
    copies = Tokens(**change(tokens, lambda _, values: torch.cat([values, values[row : row + 1].expand(8, -1)])))
    copies.advantages[row], copies.advantages[16:] = 2.0, 2.0
    for weight in (ClipCov(share=0.2, cov_low=0.0, cov_high=9.0), KLCov(share=0.2)):
        ours = coefficients(method(weight), copies)
        assert torch.equal(ours[16:], ours[row].expand(8, -1)), weight.kind


def test_draws_are_uniform_and_belong_to_completion_and_position() -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 150_000, (200, 50), generator=generator)
    zeros, mask = torch.zeros(200, 50), torch.ones(200, 50)
    tokens = Tokens(zeros, zeros, torch.ones(200, 1), mask, token_ids=ids)
    draws = draw(tokens)
    assert draws.unique().numel() == draws.numel() and draws.min() >= 0 and draws.max() < 1
    counts = torch.histc(draws, bins=20, min=0, max=1)
    assert ((counts - 500).abs() < 5 * 500**0.5).all()
    # One other id anywhere is another row; a row in another order too.
    other = ids.clone()
    other[:, 3] += 1
    assert not (draw(replace(tokens, token_ids=other)) == draws).any()
    assert not (draw(replace(tokens, token_ids=ids.roll(1, 1))) == draws).any()


def test_without_token_ids_nothing_is_drawn() -> None:
    tokens = replace(random_tokens(drift=0.3), token_ids=None)
    weight = WEIGHTS["clip-cov"]
    plain = WEIGHTS["grpo"].replace(eps_low=0.5, eps_high=0.6).weight(tokens)
    assert torch.equal(weight.weight(tokens, weight.statistics(tokens)), plain)


def test_rounding_is_no_drift() -> None:
    tokens = random_tokens(drift=0.0)
    tokens = replace(tokens, log_probs=tokens.log_probs + 1e-6)
    weight = KLCov(share=0.5)
    assert not weight.penalty(tokens, weight.statistics(tokens)).any()


# --- in their family ---


@pytest.mark.parametrize("weight", [*NEW[:4], "dppo-drift-penalty", "clip-cov", "kl-cov"])
def test_they_pass_the_checks_of_user_files(weight: str) -> None:
    assert list(_find_problems(WEIGHTS[weight], method(WEIGHTS[weight]))) == []
    assert has_unit_weight_on_policy(WEIGHTS[weight]) == (weight != "clip-cov")


def test_simplest_forms() -> None:
    free = DPPO(d_low=1.0, d_high=1.0)
    assert free.simplify() == CISPO(eps_low=None, eps_high=19.0)
    assert free.replace(max_ratio=None).simplify() == ImportanceSampling() == KLCov(beta=0.0).simplify()
    assert free.replace(drift_penalty=0.1).simplify() == free.replace(drift_penalty=0.1)
    tokens = random_tokens(drift=1.0)
    tokens = replace(tokens, log_probs=tokens.log_probs.clamp(max=0))
    torch.testing.assert_close(free.weight(tokens), free.simplify().weight(tokens))


def test_which_are_the_same_at_one_update() -> None:
    """Those of GRPO's advantage and a token mean, but for Clip-Cov; and those of a mean over rows."""
    methods = {name: method_of(name) for name in ("grpo", "gspo", "dr-grpo", *NEW)}
    assert [group.names for group in find_same_gradients(methods, updates=1)] == [
        ("grpo", "vespo", "kl-cov"),
        ("gspo", "sapo", "gmpo"),
    ]
    assert all(group.when == "first_step" for group in find_same_gradients(methods, updates=4))
