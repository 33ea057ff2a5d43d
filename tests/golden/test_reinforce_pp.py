"""REINFORCE++: rewards of tokens, returns, whitened advantages, objective; with Reweighting and Lopti."""

from __future__ import annotations

from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.grpo import PPOClip
from rlvr_cli.methods.reinforce_pp import ReinforcePPAdvantage
from tests.golden.cases import Case, golden
from tests.golden.objective import compare_objective, method
from tests.golden.passes import compare_reweighted, compare_two_passes


@golden("reinforce_pp")
def test_reinforce_pp(case: Case) -> None:
    if "eta" in case.params:
        compare_two_passes(case)
    elif "alpha" in case.params:
        compare_reweighted(case)
    else:
        compare_from_rewards(case)


def compare_from_rewards(case: Case) -> None:
    params, mask = case.params, case.tensor("mask")
    estimator = ReinforcePPAdvantage(kl_in_reward=params["kl_in_reward_coef"], gamma=params["gamma"], baseline="none")
    assert estimator.needs_reference == (params["kl_in_reward_coef"] > 0)
    rollout = Rollout(
        rewards=case.tensor("rewards"),
        group_size=1,
        token_ids=mask.long(),
        mask=mask,
        old_log_probs=case.tensor("old_log_probs"),
        ref_log_probs=case.tensor("ref_log_probs"),
    )
    advantages = estimator.advantages(rollout)
    case.compare("token_level_rewards", estimator.token_rewards(rollout))
    case.compare("returns", estimator.returns(rollout) * mask)
    case.compare("advantages", advantages * mask)
    weight = PPOClip(eps_low=params["eps_low"], eps_high=params["eps_high"], dual_clip=params["dual_clip_c"])
    compare_objective(case, method(params, weight), case.tokens(advantages=advantages))
