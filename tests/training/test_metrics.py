"""The numbers of a step stay numbers, whatever the ratios."""

from __future__ import annotations

import math

import pytest
import torch

from rlvr_cli.methods.base import Tokens
from rlvr_cli.training.metrics import StepMeter
from rlvr_cli.training.objective import Mismatch, length_extremes
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
    """Against plain Python in float64, over two micro-batches of which some tokens were not computed."""
    log_ratios = [0.0, 1e-4, -1e-4, 0.5, -0.9, 1.2]
    tensor, ignored = torch.tensor([log_ratios], dtype=torch.float32), torch.tensor([[9.0, -9.0]])
    meter = StepMeter(method_of("grpo"), mismatch=True, importance=True)
    for micro_batch in (tensor[:, :2], tensor[:, 2:]):
        computed = torch.tensor([[True] * micro_batch.shape[1] + [False] * 2])
        ratios = torch.cat([micro_batch, ignored], dim=1)
        weights, cut, long = ratios.exp().clamp(max=2.0), ratios.exp() > 2.0, torch.tensor([[True]])
        meter.add_mismatch(Mismatch(ratios, computed.long(), computed, long, long, weights, cut))
    values, exact, count = meter.summary(meter.take_sums().tolist()), tensor[0].tolist(), len(log_ratios)
    assert values["mismatch/log_prob"] == pytest.approx(sum(map(abs, exact)) / count, rel=1e-12)
    kl = sum(math.exp(ratio) - 1 - ratio for ratio in exact) / count
    assert values["mismatch/kl"] == pytest.approx(kl, rel=1e-12)
    assert values["mismatch/above_2"] == values["mismatch/below_half"] == values["importance/capped"] == 1 / count
    weight = sum(min(math.exp(ratio), 2.0) for ratio in exact) / count
    assert values["importance/weight"] == pytest.approx(weight, rel=1e-6)
    assert values["importance/dropped"] == values["importance/rows_dropped"] == 0.0


def test_the_mismatch_by_position_and_length() -> None:
    """Rows of 8, 4 and 1 tokens, of which the first is among the longest and the last among the shortest."""
    mask = torch.tensor([[1] * 8, [1] * 4 + [0] * 4, [1] + [0] * 7])
    ratios = torch.tensor([[0.1, 0.2, 0, 0, 0, 0, 0.5, 0.7], [0.3, 0, 0, 1, 9, 9, 9, 9], [0.4] + [9] * 7])
    short, long = torch.tensor([[False], [False], [True], [False]]), torch.tensor([[True], [False], [False], [True]])
    # The first row is out, one token of the second and the whole third are capped; a fourth row is not computed.
    weights = torch.tensor([[0.0], [1.0], [2.0]]).expand(3, 8)
    cut = torch.tensor([[True] * 8, [False, True] + [False] * 6, [True] * 8])
    mask, ratios, weights, cut = (torch.cat([each, each[:1]]) for each in (mask, ratios, weights, cut))
    computed = mask.bool() & torch.tensor([[True], [True], [True], [False]])
    meter = StepMeter(method_of("grpo"), mismatch=True, importance=True)
    meter.add_mismatch(Mismatch(ratios, mask, computed, short, long, weights, cut))
    values = meter.summary(meter.take_sums().tolist())
    expected = {
        "mismatch/first_quarter": (0.1 + 0.2 + 0.3 + 0.4) / 4,
        "mismatch/last_quarter": (0.5 + 0.7 + 1.0) / 3,
        "mismatch/short": 0.4,
        "mismatch/long": 1.5 / 8,
        "importance/weight": (4 + 2) / 13,
        "importance/capped": 2 / 13,
        "importance/dropped": 8 / 13,
        "importance/rows_dropped": 1 / 3,
        "importance/cut_short": 1.0,
        "importance/cut_long": 1.0,
    }
    assert {name: values[name] for name in expected} == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("lengths", "short", "long"),
    [
        ([5, 1, 2, 9, 3, 9, 9, 9, 0], [1, 2], [9, 9, 9, 9]),
        ([4, 4, 4, 0], [4, 4, 4], [4, 4, 4]),
        ([0, 0], [], []),
    ],
)
def test_the_shortest_and_longest_quarter_of_rows(lengths: list[int], short: list[int], long: list[int]) -> None:
    """A row without tokens counts in neither."""
    mask = torch.arange(9) < torch.tensor(lengths).unsqueeze(1)
    found = [torch.tensor(lengths)[each.squeeze(1)].tolist() for each in length_extremes(mask)]
    assert found == [short, long]


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


def test_a_weight_that_underflows_counts_as_dropped() -> None:
    """A product over a long row may be 0 in float32 without a limit of the correction."""
    meter, ones = StepMeter(method_of("grpo"), mismatch=True, importance=True), torch.ones(2, 3)
    weights, rows = torch.tensor([[0.0], [0.5]]).expand(2, 3), torch.ones(2, 1, dtype=torch.bool)
    meter.add_mismatch(Mismatch(-60 * ones, ones, ones.bool(), rows, rows, weights, torch.zeros(2, 3).bool()))
    values = meter.summary(meter.take_sums().tolist())
    assert [values[f"importance/{name}"] for name in ("dropped", "rows_dropped", "cut_long")] == [0.5] * 3
