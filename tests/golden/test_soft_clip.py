"""Weights that keep or reshape the gradient outside the trust region: CISPO, GPPO, CE-GPPO, ASPO, DGPO."""

from __future__ import annotations

from dataclasses import replace

from rlvr_cli.methods.aspo import ASPO
from rlvr_cli.methods.cispo import CISPO
from rlvr_cli.methods.dgpo import DGPO
from rlvr_cli.methods.gppo import GPPO
from rlvr_cli.methods.grpo import dual_clip_mask
from tests.golden.cases import Case, golden
from tests.golden.objective import compare_objective, compare_regions, method, share
from tests.methods.surrogates import soft_clipped


@golden("cispo")
def test_cispo(case: Case) -> None:
    params, tokens = case.params, case.tokens()
    if "max_ratio" in params:
        weight = CISPO(eps_low=None, eps_high=params["max_ratio"] - 1)
    else:
        weight = CISPO(eps_low=params["eps_low"], eps_high=params["eps_high"])
        # CISPO's clipped share counts tokens of either sign, on both sides.
        low, high = weight.bounds(tokens)
        case.compare("clip_fraction", share((tokens.ratio < 1 - low) | (tokens.ratio > 1 + high), tokens))
    compare_objective(case, method(params, weight), tokens)


@golden("gppo", "ce_gppo")
def test_gppo(case: Case) -> None:
    params = case.params
    weight = GPPO(
        eps_low=params["eps_low"],
        eps_high=params["eps_high"],
        beta1=params["beta1"],
        beta2=params["beta2"],
        dual_clip=params["dual_clip_c"],
    )
    compare_objective(case, method(params, weight), case.tokens())


@golden("dgpo")
def test_dgpo(case: Case) -> None:
    params, tokens = case.params, case.tokens()
    case.compare("ratio_gt_3_and_negative_fraction", share(dual_clip_mask(tokens, 3.0), tokens))
    weight = DGPO(eps_low=params["eps_low"], eps_high=params["eps_high"], n=params["n"], m=params["m"])
    compare_objective(case, method(params, weight), tokens)


@golden("aspo")
def test_aspo(case: Case) -> None:
    params, tokens = case.params, case.tokens()
    by_entropy = params["eps_high_entropy_tokens"] != params["eps_low_entropy_tokens"]
    assert params["quantile_scope"] == "per row"
    weight = ASPO(
        eps=params["eps_low_entropy_tokens"],
        eps_high_entropy=params["eps_high_entropy_tokens"] if by_entropy else None,
        entropy_quantile=params["entropy_quantile"],
        soft_clip_positive=params["dual_clip_pos"],
        soft_clip_negative=params["dual_clip_neg"],
    )
    if "entropies" in case.inputs:
        case.compare("low_entropy_mask", weight.low_entropy_mask(tokens))
    # The file counts regions by the narrower bound everywhere, and its clipped shares by the token's own bound.
    compare_regions(case, weight.replace(eps_high_entropy=None).regions(tokens), tokens)
    negative, ratio = tokens.advantages < 0, tokens.ratio
    low, high = weight.bounds(tokens)
    case.compare("clip_fraction_upper", share(~negative & (ratio > 1 + high), tokens))
    case.compare("clip_fraction_lower", share(negative & (ratio < 1 - low), tokens))
    for name, sign in (("negative", negative), ("positive", tokens.advantages > 0)):
        # A share of the tokens of that sign.
        of_sign = replace(tokens, mask=tokens.mask * sign)
        case.compare(f"dual_fraction_{name}", share(soft_clipped(weight, tokens), of_sign))
    compare_objective(case, method(params, weight), tokens)
