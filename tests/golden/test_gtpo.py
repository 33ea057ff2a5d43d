"""GTPO as published: conflict masks, token weights, kept rows, coefficients, loss and gradient."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from rlvr_cli.methods.aggregation import SequenceMean
from rlvr_cli.methods.base import Rollout, RolloutShaping, Tokens
from rlvr_cli.methods.gtpo import ConflictMask, EntropyFilter, EntropyPenalty
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.unclipped import ImportanceSampling
from tests.golden.cases import Case, golden
from tests.golden.objective import compare_gradient, loss, method

CODE_KEYS = (
    *("conflict_mask", "conflict_tokens_per_row", "row_mean_entropy", "row_coefficient", "loss", "grad_log_probs"),
)


def shaped(rollout: Rollout, advantages: torch.Tensor, shapings: tuple[RolloutShaping, ...]) -> torch.Tensor:
    result = advantages
    for shaping in shapings:
        result = shaping.shape(rollout, advantages, result)
    return result


@golden("gtpo")
def test_gtpo(case: Case) -> None:
    params, mask, log_probs = case.params, case.tensor("mask"), case.tensor("log_probs")
    token_ids = torch.tensor(case.inputs["token_ids"])
    all_log_probs = case.tensor("logits").log_softmax(-1)
    entropies = -(all_log_probs.exp() * all_log_probs).sum(-1)
    advantages = case.tensor("advantages_per_row").unsqueeze(1)
    # One group, unless the file says which.
    groups = case.inputs.get("group_ids", [0] * len(mask))
    assert groups == sorted(groups)
    rollout = Rollout(
        advantages.squeeze(1), groups.count(groups[0]), token_ids, mask, entropies=entropies * mask, initial_entropy=0.0
    )
    torch.testing.assert_close(rollout.row_mean(entropies), case.tensor("row_mean_entropy"), rtol=1e-6, atol=1e-6)

    threshold = params["entropy_threshold_paper"]
    conflict = ConflictMask(ends="both", positive=params["weight_positive"])
    kept = EntropyFilter(threshold=math.log(2) if threshold == "ln 2" else threshold)
    penalty = EntropyPenalty(gamma=params["gamma"])

    paper = Case(case.file, case.name, params, case.inputs, case.take("paper"))
    forward, backward = conflict.conflict_masks(rollout, advantages)
    paper.compare("forward_mask", forward)
    paper.compare("backward_mask", backward)
    paper.compare("conflict_mask", forward | backward)
    paper.compare("token_weight", conflict.weights(rollout, advantages) * mask)
    paper.compare("row_keep", kept.select_rows(rollout, advantages).squeeze(1))
    paper.compare("row_coefficient", shaped(rollout, advantages, (penalty, kept)).squeeze(1))

    assert paper.take("aggregation") == "(1/rows) * sum over rows of token mean"
    # One update per rollout: the ratio is 1.
    tokens = Tokens(log_probs.clone().requires_grad_(), log_probs, shaped(rollout, advantages, ()), mask)
    of: Method = method(params, ImportanceSampling(), normaliser=SequenceMean(sequences="all"))
    whole = replace(tokens, advantages=shaped(rollout, advantages, (penalty, kept, conflict)))
    paper.compare("loss", loss(of, whole))
    compare_gradient(paper, of, whole)
    off = EntropyFilter(threshold=kept.threshold)
    at_start = replace(rollout, initial_entropy=kept.threshold)
    assert bool(off.select_rows(at_start, advantages).all())
    unfiltered = shaped(at_start, advantages, (penalty, off, conflict))
    paper.compare("loss_without_filter", loss(of, replace(tokens, advantages=unfiltered)))
    paper.finish()

    # The released code multiplies the weights of both runs, 4 where a token lies in both; otherwise it agrees.
    code = Case(case.file, f"{case.name}, code", params, case.inputs, case.take("code"))
    code.pending["token_weight"] = [
        [min(w, params["weight_positive"]) for w in row] for row in code.take("token_weight")
    ]
    code.compare("token_weight", conflict.weights(rollout, advantages) * mask)
    code.ignore("aggregation", "another objective")
    for name in CODE_KEYS:
        code.ignore(name, "the released code computes another objective than the paper; we take the paper's")
    code.finish()
    case.finish()
