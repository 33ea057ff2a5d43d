"""What must not matter: padding, the order of rows, empty rows, and how a step is split; and hostile numbers."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rlvr_cli.methods.base import Tokens
from rlvr_cli.methods.lopti import ByProbability
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.reweight import Reweight
from tests.methods.samples import AGGREGATIONS, KL, WEIGHTS, change, coefficients, method, random_tokens
from tests.methods.surrogates import surrogate

EVERY = list(itertools.product(WEIGHTS, AGGREGATIONS))


def composed(weight: str, aggregation: str) -> Method:
    """The weight with KL, Reweighting and Lopti's low pass around it."""
    return method(
        WEIGHTS[weight],
        AGGREGATIONS[aggregation],
        kl=KL,
        shapings=(Reweight(alpha=0.3),),
        passes=ByProbability(order="low_first", eta=0.4, rule="probability"),
    )


@pytest.mark.parametrize(("weight", "aggregation"), EVERY[::3])
def test_padding_row_order_and_empty_rows_do_not_matter(weight: str, aggregation: str) -> None:
    tokens = random_tokens()
    of = composed(weight, aggregation)
    expected = coefficients(of, tokens, "low")
    order = torch.randperm(len(expected), generator=torch.Generator().manual_seed(1))

    def disturbed(name: str, values: Tensor) -> Tensor:
        fill = {"mask": 0, "token_ids": 7}.get(name, float("nan"))
        if name not in ("mask", "advantages"):
            values = torch.where(tokens.mask.bool(), values, fill)
        values = torch.nn.functional.pad(values[order], (0, 5 if name != "advantages" else 0, 0, 3), value=fill)
        return values.nan_to_num(nan=1.0) if name == "advantages" else values

    again = coefficients(of, Tokens(**change(tokens, disturbed)), "low")
    torch.testing.assert_close(again[: len(order), : expected.shape[1]], expected[order], rtol=1e-12, atol=1e-15)
    assert not again[len(order) :].any() and not again[:, expected.shape[1] :].any()


def test_a_step_in_parts_is_the_whole_step() -> None:
    for weight, aggregation in EVERY:
        tokens, of = random_tokens(), method(WEIGHTS[weight], AGGREGATIONS[aggregation], kl=KL)
        expected = coefficients(of, tokens)
        statistics = of.policy_loss.statistics(of.shape_tokens(tokens))
        for parts in (2, 16):
            split = [
                Tokens(**change(tokens, lambda _, values, part=part, parts=parts: values.chunk(parts)[part]))
                for part in range(parts)
            ]
            count = torch.stack([of.aggregation.count(part.mask, part.advantages) for part in split]).sum()
            ours = torch.cat([of.coefficients(part, count, "all", statistics) for part in split])
            assert torch.equal(ours, expected), (weight, aggregation)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_hostile_numbers_stay_finite(weight: str, dtype: torch.dtype) -> None:
    """Probability 1e-12, ratios e^+-30 and 1, advantages of either sign and 0, an empty row, nothing but padding."""
    log_ratio = torch.tensor([[-30.0, 30.0, 0.0, -20.0, 20.0, 1e-4]] * 6)
    old = torch.full_like(log_ratio, -27.6)
    advantages = torch.tensor([[-1.0], [0.0], [1.0], [-1e3], [1e3], [1.0]])
    mask = torch.ones_like(log_ratio)
    mask[-1] = 0
    tokens = Tokens(old + log_ratio, old, advantages, mask, entropies=torch.zeros_like(old), ref_log_probs=old)
    tokens = Tokens(**change(tokens, lambda _, values: values.to(dtype)))
    for aggregation in AGGREGATIONS.values():
        of = method(WEIGHTS[weight], aggregation, kl=KL)
        assert coefficients(of, tokens).isfinite().all()
        assert coefficients(of, tokens).dtype == dtype
        nothing = replace(tokens, mask=torch.zeros_like(tokens.mask))
        assert not coefficients(of, nothing).any()
        assert surrogate(WEIGHTS[weight], tokens, WEIGHTS[weight].statistics(tokens))[:-1].isfinite().all()


def test_an_overflowing_ratio_does_not_poison_a_token_without_advantage() -> None:
    for weight in WEIGHTS:
        log_probs = torch.tensor([[-1.0, -1.0]])
        tokens = Tokens(log_probs, log_probs - 200, torch.zeros(1, 1), torch.ones(1, 2), entropies=torch.ones(1, 2))
        ours, penalised = coefficients(method(WEIGHTS[weight]), tokens), WEIGHTS[weight].has_penalty
        assert ours.isfinite().all() if penalised else ours.tolist() == [[0.0, 0.0]], weight


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_aggregations_divide_by_what_they_say(aggregation: str) -> None:
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    advantages = torch.tensor([[1.0], [0.0], [1.0]])
    expected = {
        "token_mean": [1 / 3, 1 / 3],
        "sequence_mean": [1 / 4, 1 / 2],
        "sequence_mean-trained": [1 / 2, 1.0],
        "sequence_sum": [1 / 2, 1 / 2],
        "constant_length": [1 / 40, 1 / 40],
    }[aggregation]
    of = AGGREGATIONS[aggregation]
    ours = of.coefficients(mask, of.count(mask, advantages))
    assert ours[[0, 1], [0, 0]].tolist() == pytest.approx(expected)
    assert torch.equal(ours > 0, mask.bool())
    all_rows = of.replace(sequences="all")
    if aggregation != "token_mean":
        assert all_rows.count(mask, advantages) == 3


@pytest.mark.parametrize("clamps", [(None, None), (5.0, None), (None, 10.0), (5.0, 10.0)])
def test_kl_coefficient_is_the_derivative_of_its_value(clamps: tuple[float | None, float | None]) -> None:
    reference = torch.linspace(-8.0, 8.0, 33, dtype=torch.float64) + 0.01
    log_probs, step, penalty = torch.zeros_like(reference), 1e-6, KL.replace(beta=0.7)
    penalty = penalty.replace(log_ratio_clamp=clamps[0], value_clamp=clamps[1])
    slope = (penalty.value(log_probs + step, reference) - penalty.value(log_probs - step, reference)) / (2 * step)
    old = log_probs - 0.3
    torch.testing.assert_close(penalty.coefficient(log_probs, reference, old), -0.7 * slope, rtol=1e-6, atol=1e-6)
    assert (penalty.value(log_probs, reference) >= 0).all()

    def corrected(at: Tensor) -> Tensor:
        return torch.exp(at - old) * penalty.value(at, reference)

    slope = (corrected(log_probs + step) - corrected(log_probs - step)) / (2 * step)
    ours = penalty.replace(bias_correction=True).coefficient(log_probs, reference, old)
    torch.testing.assert_close(ours, -0.7 * slope, rtol=1e-6, atol=1e-6)


def test_the_corrected_kl_term_has_the_gradient_of_the_divergence_and_k3_alone_has_not() -> None:
    """The mean over every token of the vocabulary, by the policy that sampled, is -beta times grad KL(pi || pi_ref)."""
    generator = torch.Generator().manual_seed(0)
    logits, old, reference = (torch.randn(7, generator=generator, dtype=torch.float64) for _ in range(3))
    logits.requires_grad_()
    log_probs, old, reference = (scores.log_softmax(0) for scores in (logits, old, reference))
    (expected,) = torch.autograd.grad((log_probs.exp() * (log_probs - reference)).sum(), logits, retain_graph=True)

    def mean_gradient(bias_correction: bool) -> Tensor:
        penalty = KL.replace(beta=0.7, bias_correction=bias_correction)
        coefficients = penalty.coefficient(log_probs.detach(), reference, old)
        (found,) = torch.autograd.grad((old.exp() * coefficients * log_probs).sum(), logits, retain_graph=True)
        return found

    torch.testing.assert_close(mean_gradient(True), -0.7 * expected, rtol=1e-12, atol=1e-12)
    assert (mean_gradient(False) + 0.7 * expected).norm() > 0.1 * expected.norm()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_tokens_that_share_a_ratio_share_their_weight_for_another_sampler(aggregation: str) -> None:
    """As TRL has it: the loss of a row is that of its ratio s times each token's weight, and s has the gradient."""
    tokens, weights = random_tokens(), torch.linspace(0.2, 2.0, 192, dtype=torch.float64).view(16, 12)
    of = method(WEIGHTS["gspo"], AGGREGATIONS[aggregation])
    count = of.aggregation.count(tokens.mask, tokens.advantages)
    ours = of.coefficients(tokens, count, sampler_correction=weights)
    log_probs = tokens.log_probs.clone().requires_grad_()
    log_ratio = ((log_probs - tokens.old_log_probs) * tokens.mask).sum(1, keepdim=True)
    ratio = (log_ratio / tokens.mask.sum(1, keepdim=True).clamp(min=1)).exp()
    eps_low, eps_high = of.policy_loss.bounds(tokens)
    bounded = ratio.clamp(1 - eps_low, 1 + eps_high)
    loss = torch.maximum(-tokens.advantages * ratio, -tokens.advantages * bounded) * weights
    (loss * of.aggregation.coefficients(tokens.mask, count)).sum().backward()
    assert log_probs.grad is not None and 0 < (ours != 0).sum() < (tokens.mask * (tokens.advantages != 0)).sum()
    torch.testing.assert_close(ours, -log_probs.grad, rtol=1e-9, atol=1e-12)
