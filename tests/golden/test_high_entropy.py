"""High-entropy masking: the kept tokens, and the objective with the divisor of all valid tokens."""

from __future__ import annotations

import pytest

from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.grpo import PPOClip
from rlvr_cli.methods.high_entropy import HighEntropy
from tests.golden.cases import Case, golden
from tests.golden.objective import compare_objective, loss, method


@golden("high_entropy_mask")
def test_high_entropy(case: Case) -> None:
    params, mask, advantages = case.params, case.tensor("mask"), case.tensor("advantages")
    assert params["quantile"] == pytest.approx(1 - params["rho"])
    shaping = HighEntropy(share=params["rho"])
    rollout = Rollout(case.tensor("rewards"), 1, mask.long(), mask, entropies=case.tensor("entropies"))
    kept = shaping.select(rollout)
    case.compare("keep_mask", kept)

    of = method(
        params,
        PPOClip(eps_low=params["eps_low"], eps_high=params["eps_high"], dual_clip=params.get("dual_clip_c")),
    )
    tokens = case.tokens(advantages=shaping.shape(rollout, advantages, advantages))
    variant = case.take("variant_divisor_kept_tokens")["loss"]
    over_kept = loss(of, tokens).detach() * mask.sum() / kept.sum()
    assert over_kept.item() == pytest.approx(variant, rel=1e-6, abs=1e-6)
    compare_objective(case, of, tokens)
