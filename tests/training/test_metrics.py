"""The numbers of a step stay numbers, whatever the ratios."""

from __future__ import annotations

import math

import pytest
import torch

from rlvr_cli.methods.base import Tokens
from rlvr_cli.training.metrics import StepMeter
from tests.training.harness import method_of


def summary(log_ratio: torch.Tensor) -> dict[str, float | None]:
    old = torch.full_like(log_ratio, -60.0)
    advantages = torch.ones(len(log_ratio), 1)
    meter = StepMeter(method_of("grpo"))
    ones = torch.ones_like(log_ratio)
    meter.begin_step(ones)
    meter.add(Tokens(old + log_ratio, old, advantages, ones), "all", None)
    return meter.summary(meter.take_sums().tolist())


def test_huge_ratios_do_not_overflow() -> None:
    """exp(50) squared is beyond float32; the token is clipped, so the step itself is healthy."""
    values = summary(torch.tensor([[0.0, 50.0]]))
    assert values["ratio_std"] == pytest.approx(torch.tensor(50.0).double().exp().item() / 2)
    assert values["clip_frac/high"] == 0.5


def test_what_is_not_finite_is_said_to_be_unknown() -> None:
    values = summary(torch.tensor([[0.0, float("nan")]]))
    assert values["ratio_mean"] is None and values["ratio_std"] is None and values["kl_old"] is None
    assert values["trained"] == 1.0 and values["update_tokens"] == 2


def test_the_spread_does_not_drown_near_ratio_one() -> None:
    values = summary(torch.tensor([[1e-5, -1e-5] * 50]))
    assert values["ratio_std"] == pytest.approx(1e-5, rel=0.5)


def test_micro_batches_add_up() -> None:
    log_ratio = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    whole, meter = summary(log_ratio), StepMeter(method_of("grpo"))
    meter.begin_step(torch.ones_like(log_ratio))
    for part in log_ratio.split(3):
        old, ones = torch.full_like(part, -60.0), torch.ones_like(part)
        meter.add(Tokens(old + part, old, torch.ones(len(part), 1), ones), "all", None)
    assert meter.summary(meter.take_sums().tolist()) == pytest.approx(whole)
    assert meter.take_sums().sum() == 0


def test_the_mismatch_is_that_of_its_definitions() -> None:
    """Against plain Python in float64, over two micro-batches of which some tokens were not read."""
    log_ratios = [0.0, 1e-4, -1e-4, 0.5, -0.9, 1.2]
    tensor, ignored = torch.tensor([log_ratios], dtype=torch.float32), torch.tensor([[9.0, -9.0]])
    meter = StepMeter(method_of("grpo"), mismatch=True, importance=True)
    for micro_batch in (tensor[:, :2], tensor[:, 2:]):
        read = torch.tensor([[True] * micro_batch.shape[1] + [False] * 2])
        meter.add_mismatch(torch.cat([micro_batch, ignored], dim=1), 2.0, read)
    values, exact, count = meter.summary(meter.take_sums().tolist()), tensor[0].tolist(), len(log_ratios)
    assert values["mismatch/log_prob"] == pytest.approx(sum(map(abs, exact)) / count, rel=1e-12)
    kl = sum(math.exp(ratio) - 1 - ratio for ratio in exact) / count
    assert values["mismatch/kl"] == pytest.approx(kl, rel=1e-12)
    assert values["mismatch/above_2"] == values["mismatch/below_half"] == values["importance/capped"] == 1 / count
    weight = sum(min(math.exp(ratio), 2.0) for ratio in exact) / count
    assert values["importance/weight"] == pytest.approx(weight, rel=1e-12)


def test_the_distance_of_probabilities_is_that_of_the_sampled_tokens() -> None:
    """Mean |pi - pi_old| over valid tokens: (0.1 + 0.3) / 2, padding left out."""
    new, old = torch.tensor([[0.6, 0.2, 0.9]]).log(), torch.tensor([[0.5, 0.5, 0.1]]).log()
    meter = StepMeter(method_of("grpo"))
    meter.add(Tokens(new, old, torch.ones(1, 1), torch.tensor([[1, 1, 0]])), "all", None)
    assert meter.summary(meter.take_sums().tolist())["prob_distance"] == pytest.approx(0.2)


def test_what_was_left_out_of_the_forward_passes_is_counted_and_changes_no_ratio() -> None:
    """Two of six tokens have a gradient: shares are of all six, ratios of the two."""
    new, old = torch.tensor([[0.6, 0.6]]).log(), torch.tensor([[0.3, 0.3]]).log()
    meter = StepMeter(method_of("grpo"))
    meter.begin_step(torch.ones(3, 2))
    meter.add(Tokens(new, old, torch.ones(1, 1), torch.ones(1, 2)), "all", None)
    alone = meter.summary(meter.take_sums().tolist())
    assert alone["trained"] == pytest.approx(1 / 3) and alone["clip_frac/high"] == pytest.approx(1 / 3)
    assert alone["ratio_mean"] == pytest.approx(2.0) and alone["update_tokens"] == 6
    # The same with every row computed.
    meter.begin_step(torch.ones(3, 2))
    rows = torch.ones(3, 1)
    meter.add(Tokens(new * rows, old * rows, torch.tensor([[1.0], [0], [0]]), torch.ones(3, 2)), "all", None)
    assert meter.summary(meter.take_sums().tolist()) == pytest.approx(alone)


def test_a_step_that_trains_nothing_has_no_ratios() -> None:
    """0 would be a policy that stayed where it was."""
    meter = StepMeter(method_of("grpo"))
    ones = torch.ones(2, 3)
    meter.begin_step(ones)
    meter.add(Tokens(-ones, -ones, torch.zeros(2, 1), ones), "all", None)
    found = meter.summary(meter.take_sums().tolist())
    assert {name for name, value in found.items() if value is None} == {
        "ratio_mean",
        "ratio_std",
        "prob_distance",
        "kl_old",
        "kl_reference",
    }
    assert found["trained"] == 0 and found["update_tokens"] == 6
