"""PL, NL, CL and their token-normalised forms, from rewards to gradient."""

from __future__ import annotations

import torch

from rlvr_cli.methods.aggregation import ConstantLength, SequenceMean
from rlvr_cli.methods.base import PolicyLoss, Rollout
from rlvr_cli.methods.grpo import PPOClip
from rlvr_cli.methods.likelihood import LikelihoodAdvantage
from rlvr_cli.methods.unclipped import ImportanceSampling, NoImportanceSampling
from tests.golden.cases import Case, golden
from tests.golden.objective import compare_objective, method

SIDES = {"PL": "positive", "NL": "negative", "CL": "both"}


@golden("likelihood_family")
def test_likelihood(case: Case) -> None:
    params, mask = case.params, case.tensor("mask")
    rollout = Rollout(case.tensor("rewards"), 1, torch.zeros_like(mask), mask, correct=case.tensor("rewards") > 0)
    advantages = LikelihoodAdvantage(side=SIDES[params["loss"].removeprefix("TN")]).advantages(rollout)
    weight: PolicyLoss = ImportanceSampling() if params["importance_ratio"] else NoImportanceSampling()
    if params["clip"] is not None:
        weight = PPOClip(eps_low=params["clip"], eps_high=params["clip"], dual_clip=None)
    if params["loss"].startswith("TN"):
        normaliser = ConstantLength(sequences="trained").with_length(params["max_len_T"])
    else:
        normaliser = SequenceMean(sequences="trained")
    compare_objective(case, method(params, weight, normaliser=normaliser), case.tokens(advantages=advantages))
