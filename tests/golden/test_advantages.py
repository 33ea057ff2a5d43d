"""Advantage estimators, the rewards that replace the verifier's, and the advantages that other files start from."""

from __future__ import annotations

import torch

from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.grpo import GroupAdvantage
from rlvr_cli.methods.reinforce_pp import ReinforcePPAdvantage
from rlvr_cli.methods.reward import entropy_min_reward, flip
from rlvr_cli.methods.rloo import RLOOAdvantage
from tests.golden.cases import Case, golden
from tests.golden.objective import group_advantages


def grouped(case: Case) -> tuple[list[int], int]:
    """An order of rows in which those of a group stand together, and the size of the groups; 0 if sizes differ."""
    groups = case.inputs["group_ids"]
    order = sorted(range(len(groups)), key=lambda row: groups[row])
    sizes = {groups.count(group) for group in groups}
    return order, sizes.pop() if len(sizes) == 1 else 0


def estimate(estimator: object, case: Case, rewards: torch.Tensor) -> torch.Tensor:
    """(B, T) advantages of equally large groups in any order, in the case's own order."""
    order, size = grouped(case)
    mask = case.tensor("mask")[order] if "mask" in case.inputs else torch.ones(len(order), 1)
    of = estimator.advantages(Rollout(rewards[order], size, mask.long(), mask)).expand_as(mask)  # type: ignore[attr-defined]
    result = torch.empty_like(of)
    result[order] = of
    return result * (case.tensor("mask") if "mask" in case.inputs else 1.0)


@golden("advantages")
def test_estimators(case: Case) -> None:
    params, rewards, mask = case.params, case.tensor("rewards"), case.tensor("mask")
    groups = case.inputs["group_ids"]
    assert (params["std_ddof"], params["std_eps"]) == (1, 1e-6)
    centred = group_advantages(rewards, groups, divide_by_std=False)
    normalised = group_advantages(rewards, groups, divide_by_std=True) * mask
    equal = grouped(case)[1] > 0
    if equal:
        torch.testing.assert_close(estimate(GroupAdvantage(scale="std"), case, rewards), normalised)
        torch.testing.assert_close(estimate(GroupAdvantage(scale="none"), case, rewards), centred * mask)
        case.compare("rloo", estimate(RLOOAdvantage(), case, rewards))
        case.compare(
            "reinforce_pp_baseline",
            estimate(ReinforcePPAdvantage(kl_in_reward=0.0, gamma=1.0, baseline="group"), case, rewards),
        )
    else:
        # A rollout has groups of one size: estimators one group at a time, whitening over all of them together.
        rloo = torch.zeros_like(mask)
        for group in set(groups):
            rows = [row for row, value in enumerate(groups) if value == group]
            rollout = Rollout(rewards[rows], len(rows), mask[rows].long(), mask[rows])
            rloo[rows] = RLOOAdvantage().advantages(rollout) * mask[rows]
        case.compare("rloo", rloo)
        rollout = Rollout(centred.squeeze(1), 1, mask.long(), mask)
        case.compare(
            "reinforce_pp_baseline",
            ReinforcePPAdvantage(kl_in_reward=0.0, gamma=1.0, baseline="none").advantages(rollout) * mask,
        )
    case.compare("grpo", normalised)
    case.compare("_ar", normalised)
    case.compare("dr_grpo", centred * mask)
    rollout = Rollout(rewards, 1, mask.long(), mask)
    case.compare(
        "reinforce_pp", ReinforcePPAdvantage(kl_in_reward=0.0, gamma=1.0, baseline="none").advantages(rollout) * mask
    )
    case.compare(
        "reinforce_pp_gamma_0.9",
        ReinforcePPAdvantage(kl_in_reward=0.0, gamma=0.9, baseline="none").advantages(rollout) * mask,
    )
    case.ignore("grpo_std_eps_1e-4_per_row", "TRL's epsilon; ours is verl's")
    case.finish()


@golden("entropy_min_reward")
def test_entropy_as_the_reward(case: Case) -> None:
    mask = case.tensor("mask")
    rollout = Rollout(torch.zeros(len(mask)), 1, mask.long(), mask, entropies=case.tensor("entropies"))
    rewards = entropy_min_reward(rollout)
    case.compare("rewards", rewards)
    case.compare("advantages", group_advantages(rewards, case.inputs["group_ids"], divide_by_std=True) * mask)
    case.finish()


@golden("noisy_rewards")
def test_flipped_rewards(case: Case) -> None:
    rewards = flip(case.tensor("rewards"), case.tensor("flip"), 0.0, 1.0)
    case.compare("noisy_rewards", rewards)
    of_rows = group_advantages(rewards, case.inputs["group_ids"], divide_by_std=True)
    case.compare("advantages_per_row", of_rows.squeeze(1))
    case.finish()


@golden(
    "grpo", "dapo", "dr_grpo", "gspo", "cispo", "gppo", "ce_gppo", "aspo", "dgpo", "acpo", "ar", "lopti", "ar_lopti"
)
def test_advantages_that_the_objectives_start_from(case: Case) -> None:
    if "advantages" not in case.inputs:
        assert "features" in case.inputs
        return
    divide = case.params.get("adv_std_norm", True)
    ours = group_advantages(case.tensor("rewards"), case.inputs["group_ids"], divide_by_std=divide)
    theirs = case.tensor("advantages")
    torch.testing.assert_close(ours * case.tensor("mask"), theirs, rtol=1e-6, atol=1e-6)
