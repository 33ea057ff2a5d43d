"""Cases with Advantage Reweighting or Lopti's two passes, of whatever estimator the advantages are."""

from __future__ import annotations

from rlvr_cli.methods.aggregation import TokenMean
from rlvr_cli.methods.grpo import PPOClip
from rlvr_cli.methods.lopti import ByProbability
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.reweight import Reweight
from tests.golden.cases import Case
from tests.golden.objective import (
    compare_figures,
    compare_gradient,
    compare_objective,
    kl_mean,
    loss,
    method,
    policy_loss,
)


def weight(case: Case) -> PPOClip:
    return PPOClip(
        eps_low=case.params["eps_low"], eps_high=case.params["eps_high"], dual_clip=case.params["dual_clip_c"]
    )


def in_two_passes(case: Case) -> Method:
    """Lopti on the clipped ratio, with Advantage Reweighting before it."""
    params = case.params
    passes = ByProbability(order="low_first", eta=params["eta"], rule="probability")
    # Where the file does not say so, too: the code divides by all valid tokens of the mini-batch in both passes.
    normaliser = TokenMean() if "aggregation" not in params else None
    return method(params, weight(case), Reweight(alpha=params["alpha"]), passes=passes, normaliser=normaliser)


def compare_reweighted(case: Case) -> None:
    """A case of one pass with Advantage Reweighting."""
    tokens = case.tokens()
    of = method(case.params, weight(case), Reweight(alpha=case.params["alpha"]))
    case.compare("advantages_reweighted", of.shape_tokens(tokens).advantages)
    compare_objective(case, of, tokens)


def compare_two_passes(case: Case) -> None:
    """A case with the log-probs at either pass."""
    of = in_two_passes(case)
    assert of.passes.names == ("low", "high")
    for number, which in enumerate(of.passes.names, start=1):
        tokens = case.tokens(f"log_probs_phase{number}")
        shaped = of.shape_tokens(tokens, which)
        if which == "low":
            effective = tokens.advantages * dict(of.shaping)["reweight"].factor(tokens)
            case.compare("advantages_effective", effective * tokens.mask)
        phase = Case(case.file, f"{case.name}, pass {which}", case.params, case.inputs, case.take(f"phase{number}"))
        phase.compare("token_mask", of.passes.selected(tokens, which))
        phase.compare("loss", loss(of, tokens, which))
        phase.compare("policy_loss", policy_loss(of, tokens, which))
        phase.compare("kl_mean", kl_mean(of, tokens, which))
        compare_gradient(phase, of, tokens, which)
        compare_figures(phase, of.policy_loss, shaped)
        phase.finish()
    case.finish()
