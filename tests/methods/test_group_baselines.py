"""MaxRL, OPO, ReMax, pass@k, GDPO and the batch's scale: each against its definition, not its formula."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.methods.base import Advantage, Rollout
from rlvr_cli.methods.equivalence import find_same_gradients
from rlvr_cli.methods.gdpo import GDPOAdvantage, part_columns
from rlvr_cli.methods.grpo import GroupAdvantage
from rlvr_cli.methods.maxrl import MaxRLAdvantage
from rlvr_cli.methods.opo import OPOAdvantage
from rlvr_cli.methods.pass_at_k import PassAtKAdvantage
from rlvr_cli.methods.remax import ReMaxAdvantage

NAN = math.nan


def rows(rewards: list[float], size: int, **fields: object) -> Rollout:
    mask = torch.ones(len(rewards), 3, dtype=torch.float64)
    values = torch.tensor(rewards, dtype=torch.float64)
    default = {"rewards": values, "group_size": size, "token_ids": mask.long(), "mask": mask, "correct": values > 0}
    return Rollout(**{**default, **fields})  # type: ignore[arg-type]


def of(advantage: Advantage, rollout: Rollout) -> Tensor:
    return advantage.advantages(rollout).squeeze(1)


@pytest.mark.parametrize("k", range(1, 7))
def test_pass_at_k_is_the_mean_over_every_set_of_k(k: int) -> None:
    """Each set of k of the six completions is rewarded by its best; advantages are z-scores among the sets."""
    for right in range(7):
        verdicts = [1.0] * right + [0.0] * (6 - right)
        sets = list(itertools.combinations(range(6), k))
        rewards = torch.tensor([max(verdicts[row] for row in chosen) for chosen in sets], dtype=torch.float64)
        scores = (rewards - rewards.mean()) / rewards.std(correction=0) if rewards.unique().numel() > 1 else rewards * 0
        expected = [scores[[row in chosen for chosen in sets]].mean().item() for row in range(6)]
        ours = of(PassAtKAdvantage(k=k), rows(verdicts, 6))
        torch.testing.assert_close(ours, torch.tensor(expected, dtype=torch.float64))
        assert abs(float(ours.sum())) < 1e-12


def test_pass_at_k_of_a_group_with_unjudged_rows_is_that_of_the_others() -> None:
    ours = of(PassAtKAdvantage(k=3), rows([1, NAN, 0, 0, NAN, 0, NAN, NAN, NAN, 1, NAN, 0], 6))
    torch.testing.assert_close(ours[[0, 2, 3, 5]], of(PassAtKAdvantage(k=3), rows([1, 0, 0, 0], 4)))
    # Two are left, fewer than k: both are the set.
    assert not ours[6:].any() and not ours[[1, 4]].any()


def test_pass_at_1_is_the_z_score_of_the_verdict_whatever_the_reward() -> None:
    correct = torch.tensor([True, False, False, True, False, False, False, False])
    ours = of(PassAtKAdvantage(k=1), rows([5.0, 9.0, -1.0, 0.0, 2.0, 2.0, 0.1, -3.0], 4, correct=correct))
    grouped = correct.double().view(2, 4)
    expected = (grouped[0] - grouped[0].mean()) / grouped[0].std(correction=0)
    torch.testing.assert_close(ours, torch.cat([expected, torch.zeros(4, dtype=torch.float64)]))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_maxrl_estimates_the_gradient_of_the_truncated_log_likelihood(size: int) -> None:
    """E[mean of A grad log pi], over every outcome of a group of n, is the gradient of the sum of pass@k / k, k < n.

    The mean over the right rows alone has the term k = n too; the subtracted mean, absent where no row is right, takes
    that term away.
    """
    logit = torch.tensor(-0.7, dtype=torch.float64, requires_grad=True)
    chance = logit.sigmoid()
    objective = sum((1 - (1 - chance) ** k) / k for k in range(1, size))
    (expected,) = torch.autograd.grad(objective, logit)  # type: ignore[arg-type]
    p, total = float(chance.detach()), 0.0
    for outcome in itertools.product([1.0, 0.0], repeat=size):
        probability = math.prod(p if right else 1 - p for right in outcome)
        scores = torch.tensor([1 - p if right else -p for right in outcome], dtype=torch.float64)
        total += probability * float((of(MaxRLAdvantage(), rows(list(outcome), size)) * scores).mean())
    assert total == pytest.approx(float(expected), rel=1e-12)


def test_maxrl_goes_by_the_verdict_and_leaves_out_what_has_no_reward() -> None:
    correct = torch.tensor([True, False, False, False, True, True, False, False])
    ours = of(MaxRLAdvantage(), rows([-0.5, 3.0, NAN, 0.0, 1.0, 1.0, NAN, NAN], 4, correct=correct))
    assert ours.tolist() == pytest.approx([2.0, -1.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0])
    assert not of(MaxRLAdvantage(), rows([0.0] * 4, 4)).any()


def test_the_baseline_of_opo_minimises_the_spread_weighted_by_length() -> None:
    lengths = torch.tensor([3, 9, 1, 5, 2, 2, 7, 0])
    mask = (torch.arange(9) < lengths.unsqueeze(1)).double()
    rollout = rows([1.0, 0.0, -2.0, 0.5, 1.0, NAN, 0.0, 3.0], 4, mask=mask)
    ours = of(OPOAdvantage(), rollout)
    baseline = (rollout.rewards - ours).detach()
    for group in (slice(0, 4), slice(4, 8)):
        known = ~rollout.rewards[group].isnan()
        rewards, weights = rollout.rewards[group][known], lengths[group][known].double()
        assert baseline[group][known].unique().numel() == 1 or baseline[group][known].std() < 1e-12
        b = baseline[group][known][0].clone().requires_grad_()
        (slope,) = torch.autograd.grad((weights * (rewards - b) ** 2).sum(), b)
        assert abs(float(slope)) < 1e-12
    assert ours[5] == 0
    # With completions of one length it is Dr. GRPO's advantage.
    equal = rows([1.0, 0.0, -2.0, 0.5, 0.1, 0.1, 0.1, 0.1], 4)
    torch.testing.assert_close(of(OPOAdvantage(), equal), of(GroupAdvantage(scale="none"), equal))
    assert not of(OPOAdvantage(), equal)[4:].any()


def test_remax_subtracts_what_the_greedy_completion_got() -> None:
    greedy = torch.tensor([1.0, 1.0, NAN, NAN, -0.5, -0.5], dtype=torch.float64)
    ours = of(ReMaxAdvantage(), rows([1.0, 0.0, 1.0, 0.0, NAN, 3.0], 2, greedy_rewards=greedy))
    assert ours.tolist() == [0.0, -1.0, 0.0, 0.0, 0.0, 3.5]


def test_the_batch_scale_divides_every_group_by_one_deviation() -> None:
    rollout = rows([1.0, 0.0, 0.0, 0.0, 3.0, NAN, -3.0, 3.0, 0.1, 0.1, 0.1, 0.1], 4)
    ours = of(GroupAdvantage(scale="batch"), rollout)
    known = rollout.rewards[~rollout.rewards.isnan()]
    torch.testing.assert_close(ours, of(GroupAdvantage(scale="none"), rollout) / (known.std() + 1e-6))
    assert not ours[8:].any()


def gdpo(
    parts: list[list[float]], size: int, weights: list[float] | None = None, rewards: list[float] | None = None
) -> Tensor:
    values = torch.tensor(parts, dtype=torch.float64)
    factors = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    sums = [1.0] * len(parts) if rewards is None else rewards
    return of(GDPOAdvantage(), rows(sums, size, parts=values, part_weights=factors))


def test_gdpo_tells_apart_what_has_one_sum() -> None:
    """The paper's example: (0, 1) and (0, 2) in two completions; GRPO gives both groups -0.7 and 0.7."""
    ours = gdpo([[0, 0], [0, 1], [0, 0], [1, 1]], 2)
    sums = of(GroupAdvantage(scale="std"), rows([0, 1, 0, 2], 2))
    torch.testing.assert_close(sums[:2], sums[2:], rtol=1e-5, atol=0)
    torch.testing.assert_close(ours[2:], 2 * ours[:2], rtol=1e-5, atol=0)


def test_gdpo_is_scaled_to_one_over_the_rollout_and_blind_to_units_and_order_of_parts() -> None:
    draw = torch.Generator().manual_seed(0)
    parts = torch.randint(0, 4, (24, 3), generator=draw).double()
    weights = [1.0, 0.5, -2.0]
    ours = gdpo(parts.tolist(), 4, weights)
    assert float(ours.std()) == pytest.approx(1.0, abs=1e-5) and abs(float(ours.mean())) < 1e-12
    units = parts * torch.tensor([10.0, 0.1, 3.0], dtype=torch.float64) + 7
    torch.testing.assert_close(gdpo(units.tolist(), 4, weights), ours, rtol=1e-4, atol=1e-5)
    turned = gdpo(parts[:, [2, 0, 1]].tolist(), 4, [-2.0, 1.0, 0.5])
    torch.testing.assert_close(turned, ours)
    # A weight of 0 is a part that is not there, and so is a constant one.
    torch.testing.assert_close(gdpo(parts[:, :2].tolist(), 4), gdpo(parts.tolist(), 4, [1.0, 1.0, 0.0]))
    constant = torch.cat([parts[:, :2], torch.full((24, 1), 0.1, dtype=torch.float64)], dim=1)
    torch.testing.assert_close(gdpo(parts[:, :2].tolist(), 4), gdpo(constant.tolist(), 4))


def test_gdpo_of_one_part_is_grpo_over_its_deviation() -> None:
    rewards = [1.0, 0.0, 0.0, 1.0, 3.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.1, 0.1]
    grpo = of(GroupAdvantage(scale="std"), rows(rewards, 4))
    ours = gdpo([[reward] for reward in rewards], 4, rewards=rewards)
    torch.testing.assert_close(ours, grpo / (grpo.std() + 1e-6))
    assert not ours[8:].any(), "a group without a signal has exactly none"


def test_a_part_that_does_not_apply_counts_in_no_mean() -> None:
    """As TRL's None: the others of the group are normalised among themselves."""
    ours = gdpo([[1, NAN], [0, 2], [NAN, 4], [0, 0], [1, 1], [1, 1], [1, 1], [1, 1]], 4)
    first, second = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([2.0, 4.0, 0.0])
    scores = [(values - values.mean()) / values.std() for values in (first.double(), second.double())]
    total = torch.stack([scores[0][0], scores[0][1] + scores[1][0], scores[1][1], scores[0][2] + scores[1][2]])
    total = torch.cat([total, torch.zeros(4, dtype=torch.float64)])
    torch.testing.assert_close(ours, total / total.std(), rtol=1e-5, atol=1e-6)
    # A row that is excluded takes its parts with it.
    alone = gdpo([[1, 1], [0, 0], [9, 9]], 3, rewards=[1.0, 1.0, NAN])
    torch.testing.assert_close(alone[:2], gdpo([[1, 1], [0, 0]], 2), rtol=1e-5, atol=0)
    assert alone[2] == 0


def test_recorded_parts_have_their_weights_taken_out() -> None:
    recorded = [{"b": 3.0, "a": 2.0}, {"a": -2.0}, {"a": 0.0, "b": 1.5, "c": 0.0}]
    columns, weights = part_columns(recorded, ["a", "b", "c"], {"a": 2.0, "b": -3.0, "c": 0.0})
    assert weights == [2.0, -3.0, 0.0]
    assert columns[0][:2] == [1.0, -1.0] and columns[2] == [0.0, -0.5, 0.0]
    assert columns[1][0] == -1.0 and math.isnan(columns[1][1]) and math.isnan(columns[0][2])


@pytest.mark.parametrize(
    ("method", "overrides", "said"),
    [
        (
            "pass-at-k",
            ["method.advantage.k=8"],
            r"k=8 needs rollout.group_size=9 or more.*got 8\. Largest valid: method.advantage.k=7",
        ),
        ("pass-at-k", ["rollout.group_size=1"], "nothing to compare"),
        ("maxrl", ["rollout.group_size=1"], "nothing to compare"),
        ("maxrl+entropy-min", [], "needs its verdicts"),
        ("gdpo+entropy-min", [], "reads the parts of the verifier's reward"),
        ("remax+entropy-min", [], "reads the verifier's reward of a greedy completion"),
        ("gdpo+noise", [], "noise=0.25 changes the rewards"),
    ],
)
def test_what_has_no_meaning_is_refused(method: str, overrides: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_config(method=method, overrides=overrides)


def test_remax_needs_no_group_and_no_two_of_these_are_one_method() -> None:
    load_config(method="remax", overrides=["rollout.group_size=1", "rollout.prompts=8"])
    names = ("grpo", "dr-grpo", "rloo", "maxrl", "opo", "remax", "pass-at-k", "gdpo")
    methods = {name: load_config(method=name).method for name in names}
    assert find_same_gradients(methods, updates=1) == []
    loss = {"cispo": load_config(method="maxrl", overrides=["method.policy_loss=cispo"]).method}
    (group,) = find_same_gradients({"maxrl": methods["maxrl"], **loss}, updates=1)
    assert group.names == ("maxrl", "cispo") and group.when == "one_step"


def test_a_row_is_moved_with_its_group() -> None:
    draw = torch.Generator().manual_seed(1)
    rewards = torch.randint(0, 3, (12,), generator=draw).double()
    parts = torch.randint(0, 3, (12, 2), generator=draw).double()
    greedy = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64).repeat_interleave(4)
    mask = (torch.arange(5) < torch.randint(1, 6, (12, 1), generator=draw)).double()
    rollout = rows(rewards.tolist(), 4, parts=parts, greedy_rewards=greedy, mask=mask)
    order = torch.tensor([6, 4, 5, 7, 11, 10, 8, 9, 0, 3, 1, 2])
    for advantage in (
        GroupAdvantage(scale="batch"), MaxRLAdvantage(), OPOAdvantage(), ReMaxAdvantage(), PassAtKAdvantage(k=3),
        GDPOAdvantage(),
    ):  # fmt: skip
        fields = ("rewards", "parts", "greedy_rewards", "mask", "correct", "token_ids")
        moved = replace(rollout, **{name: getattr(rollout, name)[order] for name in fields})
        torch.testing.assert_close(of(advantage, moved), of(advantage, rollout)[order])
