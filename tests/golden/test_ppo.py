"""PPO: advantages and returns of GAE, the policy's objective and the value loss with its gradient."""

from __future__ import annotations

import torch

from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.grpo import PPOClip
from rlvr_cli.methods.ppo import GAEAdvantage, value_loss
from rlvr_cli.methods.reinforce_pp import place_on_last_token
from tests.golden.cases import Case, golden
from tests.golden.objective import compare_objective, method, share
from tests.methods.surrogates import value_clipped


@golden("ppo_value")
def test_ppo(case: Case) -> None:
    params, mask, values = case.params, case.tensor("mask"), case.tensor("values")
    clip = params["value_clip"]
    estimator = GAEAdvantage(
        gamma=params["gamma"],
        lam=params["lam"],
        whiten=True,
    )
    rollout = Rollout(case.tensor("rewards"), 1, mask.long(), mask, values=values)
    torch.testing.assert_close(place_on_last_token(rollout.rewards, mask), case.tensor("token_level_rewards"))
    advantages, returns = estimator.advantages(rollout), estimator.returns(rollout)
    case.compare("advantages", advantages)
    case.compare("advantages_before_whitening", estimator.unwhitened(rollout))
    case.compare("returns", returns)

    predictions = case.tensor("value_predictions").requires_grad_()
    of_values = value_loss(predictions, values, returns, mask, mask.sum(), clip)
    case.compare("value_loss", of_values)
    case.compare("grad_value_predictions", torch.autograd.grad(of_values, predictions)[0])
    tokens = case.tokens(advantages=advantages)
    case.compare("value_clip_fraction", share(value_clipped(predictions, values, returns, mask, clip), tokens))

    weight = PPOClip(eps_low=params["eps_low"], eps_high=params["eps_high"], dual_clip=params["dual_clip_c"])
    compare_objective(case, method(params, weight), tokens)
