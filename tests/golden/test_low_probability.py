"""Advantage Reweighting and Lopti: factors, the two passes, and parameters after each update of a small policy."""

from __future__ import annotations

import torch

from rlvr_cli.methods.base import Tokens
from tests.golden.cases import Case, golden
from tests.golden.objective import group_advantages, loss
from tests.golden.passes import compare_reweighted, compare_two_passes, in_two_passes


def compare_sequence(case: Case) -> None:
    """Algorithm 1 by hand: all mini-batches of the low pass, then all of the high pass, plain gradient descent."""
    of = in_two_passes(case)
    features, parameters, mask = case.tensor("features"), case.tensor("weights"), case.tensor("mask")
    token_ids = torch.tensor(case.inputs["token_ids"]).unsqueeze(-1)
    advantages = group_advantages(case.tensor("rewards"), case.inputs["group_ids"], divide_by_std=True)

    def log_probs() -> torch.Tensor:
        return (features @ parameters).log_softmax(-1).gather(-1, token_ids).squeeze(-1) * mask

    old = log_probs()
    case.compare("old_log_probs", old)
    factor = dict(of.shaping)["reweight"].factor(Tokens(old, old, advantages, mask))
    case.compare("advantages_effective", advantages * factor * mask)

    steps, size = case.take("steps"), case.params["mini_batch_rows"]
    plan = [(which, start) for which in of.passes.names for start in range(0, len(mask), size)]
    assert len(plan) == len(steps)
    for (which, start), step in zip(plan, steps, strict=True):
        rows = slice(start, start + size)
        assert step.pop("rows") == list(range(len(mask)))[rows]
        assert step.pop("phase") == of.passes.names.index(which) + 1
        parameters.requires_grad_()
        tokens = Tokens(log_probs()[rows], old[rows], advantages[rows], mask[rows])
        coefficients = of.coefficients(tokens, of.aggregation.count(tokens.mask, tokens.advantages), which)
        now = Case(case.file, f"{case.name}, {which}, rows {start}", case.params, case.inputs, step)
        now.compare("loss_before_step", loss(of, tokens, which))
        (gradient,) = torch.autograd.grad(-(coefficients.detach() * tokens.log_probs).sum(), parameters)
        parameters = parameters.detach() - case.params["lr"] * gradient
        now.compare("weights_after", parameters)
        now.finish()
    case.finish()


@golden("ar")
def test_advantage_reweighting(case: Case) -> None:
    compare_reweighted(case)


@golden("lopti", "ar_lopti")
def test_lopti(case: Case) -> None:
    assert case.params.get("low_prob_rule", "p_old < eta") == "p_old < eta"
    if "features" in case.inputs:
        compare_sequence(case)
    else:
        compare_two_passes(case)
