"""The objective of a golden case: its method, loss, gradient, and the figures that every file has."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlvr_cli.methods.aggregation import Aggregation, ConstantLength, SequenceMean, TokenMean
from rlvr_cli.methods.base import PolicyLoss, Regions, Tokens, TokenShaping
from rlvr_cli.methods.grpo import GroupAdvantage, dual_clip_mask, group_advantage
from rlvr_cli.methods.kl import KLPenalty
from rlvr_cli.methods.lopti import OnePass, Passes
from rlvr_cli.methods.method import Method
from tests.golden.cases import Case
from tests.methods.surrogates import aggregated, surrogate

REGIONS = ("LN", "HP", "LP", "HN", "M")
ROWS = {"excluded": "valid", "counted as zero": "all"}


def aggregation(params: dict[str, Any]) -> Aggregation:
    """From the words that the files use."""
    kind = params["aggregation"]
    if kind.startswith("token-mean"):
        return TokenMean()
    if kind == "seq-mean-token-mean":
        return SequenceMean(sequences=ROWS[params.get("masked_rows_in_seq_mean", "excluded")])  # type: ignore[arg-type]
    assert kind == "sum over tokens / (rows * max_len)", kind
    return ConstantLength(sequences="all").with_length(params["max_len"])


def method(
    params: dict[str, Any],
    weight: PolicyLoss,
    *shapings: TokenShaping,
    passes: Passes | None = None,
    normaliser: Aggregation | None = None,
) -> Method:
    """A method around ``weight``, its other choices from ``params``."""
    return Method(
        advantage=GroupAdvantage(scale="std"),
        policy_loss=weight,
        shaping={shaping.key: shaping for shaping in shapings},
        aggregation=normaliser or aggregation(params),
        passes=passes or OnePass(),
        kl=KLPenalty(
            beta=params.get("kl_coef", 0.0),
            log_ratio_clamp=params.get("kl_log_ratio_clamp"),
            value_clamp=params.get("kl_value_clamp"),
        ),
    )


def compare_gradient(case: Case, of: Method, tokens: Tokens, which: str = "all") -> None:
    """The gradient that training uses, by log-probs; and that of the loss value, which must be the same."""
    count = of.aggregation.count(tokens.mask, tokens.advantages)
    statistics = of.policy_loss.statistics(of.shape_tokens(tokens, which))
    gradient = -of.coefficients(tokens, count, which, statistics)
    (of_loss,) = torch.autograd.grad(loss(of, tokens, which), tokens.log_probs)
    torch.testing.assert_close(of_loss, gradient.detach(), rtol=1e-6, atol=1e-6)
    case.compare("grad_log_probs", gradient)


def policy_loss(of: Method, tokens: Tokens, which: str = "all") -> Tensor:
    """() the loss without KL, differentiable."""
    shaped = of.shape_tokens(tokens, which)
    values = surrogate(of.policy_loss, shaped, of.policy_loss.statistics(shaped))
    return aggregated(of.aggregation, values, tokens.mask, tokens.advantages)


def kl_mean(of: Method, tokens: Tokens, which: str = "all") -> Tensor:
    """() the KL estimate, aggregated as the loss is."""
    if tokens.ref_log_probs is None:
        return torch.zeros((), dtype=torch.float64)
    values = of.kl.value(tokens.log_probs, tokens.ref_log_probs)
    values = torch.where(of.passes.selected(tokens, which), values, 0.0)
    return aggregated(of.aggregation, values, tokens.mask, tokens.advantages)


def loss(of: Method, tokens: Tokens, which: str = "all") -> Tensor:
    """() what the files call loss."""
    return policy_loss(of, tokens, which) + of.kl.beta * kl_mean(of, tokens, which)


def share(of: Tensor, tokens: Tokens) -> Tensor:
    """() the share of valid tokens for which ``of`` (B, T) holds; NaN without any valid token."""
    valid = tokens.mask.bool()
    return (of & valid).sum().double() / valid.sum()


def compare_regions(case: Case, where: Regions, tokens: Tokens) -> None:
    """Counts by region, and that every valid token lies in one of them."""
    counts = {name: int(getattr(where, name).sum()) for name in REGIONS}
    assert sum(counts.values()) == int(tokens.mask.sum())
    if "region_counts" in case.pending:
        assert {**counts, "valid": int(tokens.mask.sum())} == case.take("region_counts"), case.name


def compare_figures(case: Case, weight: PolicyLoss, tokens: Tokens, statistics: Tensor | None = None) -> None:
    """Region counts, clipped shares and the k1 estimate of the KL divergence."""
    where = weight.regions(tokens, statistics)
    compare_regions(case, where, tokens)
    case.compare("clip_fraction", share(where.LN | where.HP, tokens))
    limit = case.params.get("dual_clip_c")
    nothing = torch.zeros_like(tokens.mask, dtype=torch.bool)
    case.compare("dual_clip_fraction", share(nothing if limit is None else dual_clip_mask(tokens, limit), tokens))
    drift = (tokens.old_log_probs - tokens.log_probs).detach()
    case.compare("approx_kl_k1", drift[tokens.mask.bool()].mean())


def compare_objective(case: Case, of: Method, tokens: Tokens) -> None:
    """Loss, gradient and figures of a case of one pass, which is then complete."""
    shaped = of.shape_tokens(tokens)
    case.compare("loss", loss(of, tokens))
    compare_gradient(case, of, tokens)
    case.compare("kl_mean", kl_mean(of, tokens))
    compare_figures(case, of.policy_loss, shaped, of.policy_loss.statistics(shaped))
    case.finish()


def group_advantages(rewards: Tensor, groups: list[int], *, divide_by_std: bool) -> Tensor:
    """(B, 1) advantages of rows whose groups may differ in size and stand in any order."""
    result = torch.zeros_like(rewards)
    for group in set(groups):
        rows = [row for row, value in enumerate(groups) if value == group]
        result[rows] = group_advantage(rewards[rows], len(rows), divide_by_std=divide_by_std)
    return result.unsqueeze(1)
