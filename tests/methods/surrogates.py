"""The loss of each weight in the form of its paper or released code; its derivative by log pi is -F A."""

from __future__ import annotations

import math
from functools import singledispatch

import torch
from torch import Tensor

from rlvr_cli.methods.acpo import ACPO
from rlvr_cli.methods.aggregation import Aggregation
from rlvr_cli.methods.aspo import ASPO
from rlvr_cli.methods.base import PolicyLoss, Tokens
from rlvr_cli.methods.cispo import CISPO
from rlvr_cli.methods.covariance import ClipCov, KLCov
from rlvr_cli.methods.dgpo import DGPO
from rlvr_cli.methods.dppo import DPPO
from rlvr_cli.methods.gmpo import GMPO
from rlvr_cli.methods.gppo import GPPO
from rlvr_cli.methods.grpo import PPOClip, dual_clip_mask
from rlvr_cli.methods.gspo import GSPO
from rlvr_cli.methods.sapo import SAPO
from rlvr_cli.methods.unclipped import ImportanceSampling, NoImportanceSampling
from rlvr_cli.methods.vespo import VESPO


@singledispatch
def surrogate(weight: PolicyLoss, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
    """(B, T) the loss value, differentiable in ``tokens.log_probs``."""
    raise NotImplementedError(type(weight).__name__)


def with_unit_slope(values: Tensor, log_probs: Tensor) -> Tensor:
    """``values`` as constants times pi / sg(pi): the same numbers, whose derivative by log pi is themselves."""
    return values.detach() * torch.exp(log_probs - log_probs.detach())


def clipped(tokens: Tokens, ratio: Tensor, eps_low: float | Tensor, eps_high: float | Tensor) -> Tensor:
    """(B, T) max(-A r, -A clip(r)), differentiable in ``ratio``."""
    lowest, highest = (torch.as_tensor(bound, dtype=ratio.dtype) for bound in (1 - eps_low, 1 + eps_high))
    bounded = torch.minimum(torch.maximum(ratio, lowest), highest)
    return torch.maximum(-tokens.advantages * ratio, -tokens.advantages * bounded)


@surrogate.register
def _(weight: PPOClip, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
    loss = clipped(tokens, tokens.ratio, weight.eps_low, weight.eps_high)
    if weight.dual_clip is None:
        return loss
    bounded = torch.minimum(loss, -tokens.advantages * weight.dual_clip)
    return torch.where(tokens.advantages < 0, bounded, loss)


@surrogate.register
def _(weight: CISPO, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
    return -weight.weight(tokens) * tokens.advantages * tokens.log_probs


@surrogate.register
def _(weight: GPPO, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
    loss = with_unit_slope(-weight.weight(tokens) * tokens.advantages, tokens.log_probs)
    if weight.dual_clip is None:
        return loss
    return torch.where(dual_clip_mask(tokens, weight.dual_clip), -tokens.advantages * weight.dual_clip, loss)


def soft_clipped(weight: ASPO, tokens: Tokens) -> Tensor:
    """(B, T) where the soft limit acts."""
    ratio = tokens.ratio.detach()
    positive, negative = ratio < 1 / weight.soft_clip_positive, ratio > weight.soft_clip_negative
    return torch.where(tokens.advantages >= 0, positive, negative)


@surrogate.register
def _(weight: ASPO, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
    eps, _ = weight.bounds(tokens)
    values, advantages = weight.weight(tokens), tokens.advantages
    at_bound = torch.where(advantages >= 0, torch.as_tensor(1 / (1 + eps)), torch.as_tensor(1 - eps)).to(values)
    inside = with_unit_slope(-values * advantages, tokens.log_probs)
    loss = torch.where(values == 0, -at_bound * advantages, inside)
    return torch.where(soft_clipped(weight, tokens), -values * advantages * tokens.log_probs, loss)


@surrogate.register
def _(weight: DGPO, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
    return with_unit_slope(-weight.weight(tokens) * tokens.advantages, tokens.log_probs)


@surrogate.register
def _(weight: ACPO, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
    return clipped(tokens, tokens.ratio, *weight.bounds(tokens, statistics))


@surrogate.register
def _(weight: GSPO, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
    log_ratio = weight.log_sequence_ratio(tokens)
    ratio = with_unit_slope(torch.exp(log_ratio.clamp(max=weight.max_log_ratio)), tokens.log_probs)
    ratio = torch.where(log_ratio > weight.max_log_ratio, math.exp(weight.max_log_ratio), ratio)
    return clipped(tokens, ratio, weight.eps_low, weight.eps_high)


@surrogate.register
def _(weight: DPPO, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
    moved = torch.exp(tokens.log_probs.detach()) - tokens.old_probs
    beyond = torch.where(tokens.advantages > 0, moved > weight.d_high, moved < -weight.d_low)
    ratio = tokens.ratio.detach().clamp(max=weight.max_ratio or math.inf)
    loss = -tokens.advantages * torch.where(beyond, 0.0, ratio) * tokens.log_probs
    return loss + weight.drift_penalty * (tokens.log_probs - tokens.old_log_probs).square()


@surrogate.register
def _(weight: SAPO, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
    tau = torch.where(tokens.advantages > 0, weight.tau_pos, tokens.log_probs.new_tensor(weight.tau_neg))
    return -tokens.advantages * torch.sigmoid(tau * (tokens.ratio - 1)) * 4 / tau


@surrogate.register
def _(weight: GMPO, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
    """The loss of the row at each of its tokens, in the token form of GSPO's."""
    log_ratio = torch.where(tokens.mask.bool(), tokens.log_probs - tokens.old_log_probs, 0.0).detach()
    bounded = log_ratio.clamp(-weight.eps_low, weight.eps_high)
    sign = tokens.advantages.sign()
    clipped = sign * torch.minimum(sign * log_ratio, sign * bounded)
    mean = (clipped.sum(dim=1, keepdim=True) / tokens.mask.sum(dim=1, keepdim=True).clamp(min=1)).exp()
    free = torch.where(clipped == log_ratio, tokens.log_probs, tokens.log_probs.detach())
    return -tokens.advantages * with_unit_slope(mean, free)


@surrogate.register
def _(weight: VESPO, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
    return -weight.weight(tokens) * tokens.advantages * tokens.log_probs


@surrogate.register
def _(weight: ClipCov, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
    loss = clipped(tokens, tokens.ratio, weight.eps_low, weight.eps_high)
    return torch.where(weight.weight(tokens, statistics) == 0, loss.detach(), loss)


@surrogate.register
def _(weight: KLCov, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
    chosen = weight.penalty(tokens, statistics) != 0
    drift = (tokens.log_probs - tokens.old_log_probs).abs()
    return -tokens.advantages * tokens.ratio + torch.where(chosen, weight.beta * drift, 0.0)


@surrogate.register
def _(weight: ImportanceSampling, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
    return -tokens.advantages * tokens.ratio


@surrogate.register
def _(weight: NoImportanceSampling, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
    return -tokens.advantages * tokens.log_probs


def aggregated(aggregation: Aggregation, values: Tensor, mask: Tensor, advantages: Tensor) -> Tensor:
    """() the (B, T) ``values`` of a whole step as one number."""
    weights = aggregation.coefficients(mask, aggregation.count(mask, advantages)).to(values.dtype)
    return torch.where(mask.bool(), values * weights, 0.0).sum()


def value_clipped(
    predictions: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, value_clip: float | None
) -> Tensor:
    """(B, T) valid tokens at which the clipped value has the larger loss, so that no gradient flows."""
    if value_clip is None:
        return torch.zeros_like(mask, dtype=torch.bool)
    clipped = torch.minimum(torch.maximum(predictions, old_values - value_clip), old_values + value_clip)
    return mask.bool() & ((clipped - returns).square() > (predictions - returns).square())
