"""The loss of an optimizer step, as a function of tensors.

    loss = -sum over tokens of (F A + P + KL) / Z * log pi        no gradient through the coefficients
         - entropy_bonus.coef * sum over tokens of H / Z      with gradient through the whole distribution
         + critic.coef * value loss                           for methods with a value head

Z, and any statistics of a method, are computed over the step's rows in all processes, so the losses of micro-batches
add up to the step's loss.

The weights of a correction for a sampler that differs from the trained policy (methods/correction.py) multiply F A.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr_cli.methods.base import Tokens, quantile
from rlvr_cli.methods.correction import Correction, log_ratios
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.ppo import value_loss
from rlvr_cli.training.forward import Outputs
from rlvr_cli.training.packing import TensorRows, policy_mask


@dataclass(frozen=True)
class Step:
    """Counts and statistics of a whole optimizer step, for the losses of its micro-batches.

    Attributes:
        pass_name: the pass of the method.
        count: () ``aggregation.count`` over the step's rows in all processes.
        tokens: () valid tokens in all processes.
        statistics: ``policy_loss.statistics`` of the step, or None.
        entropy_coef: weight of the entropy bonus.
    """

    pass_name: str
    count: Tensor
    tokens: Tensor
    statistics: Tensor | None = None
    entropy_coef: float = 0.0


@dataclass(frozen=True)
class Mismatch:
    """The difference of sampler and trainer at the tokens of a micro-batch.

    Attributes:
        log_ratios: (n, T) log(pi_old / pi_sampler).
        mask: (n, T) 1 on valid tokens.
        computed: (n, T) bool, the tokens in the forward pass.
        is_short, is_long: (n, 1) bool, by the lengths of the whole rollout (:func:`length_extremes`).
        weights, cut: (n, T) those of the correction, and where its limit has changed them; None without a correction.
    """

    log_ratios: Tensor
    mask: Tensor
    computed: Tensor
    is_short: Tensor
    is_long: Tensor
    weights: Tensor | None = None
    cut: Tensor | None = None


@dataclass(frozen=True)
class Loss:
    """The loss of a micro-batch, with its terms.

    Attributes:
        total: () with gradient.
        tokens: the inputs of the coefficients, detached.
        value_loss: () summed over its tokens; None without a value head.
        mismatch: None unless the sampler is compared with the trainer.
        entropy: (2,) sum of the entropies (nats) of the bonus' tokens, and their number; None without a bonus.
    """

    total: Tensor
    tokens: Tokens
    value_loss: Tensor | None
    mismatch: Mismatch | None
    entropy: Tensor | None


def loss(
    method: Method, step: Step, rows: TensorRows, grad_mask: Tensor, outputs: Outputs, correction: Correction | None
) -> Loss:
    """Return the share of ``rows`` in the loss of ``step``.

    Args:
        rows: ``advantages`` and ``completion_mask`` (n, T); ``old_log_probs`` after the rollout's first update, and
            the method's other inputs.
        grad_mask: (n, T) the tokens whose log-probs are in ``outputs``; the gradient does not depend on others.
        correction: the weights for the sampler; None = no weights. ``grad_mask`` has whole rows where it reads them.
    """
    entropies = None if outputs.entropies is None else outputs.entropies.detach()
    tokens = build_tokens(rows, outputs.log_probs.detach(), entropies, grad_mask)
    selected = method.passes.selected(tokens, step.pass_name)
    weights, mismatch = rows.get("importance_sampling_ratio"), None
    if "sampler_log_probs" in rows:
        sampler, cut = rows["sampler_log_probs"], None
        if correction is not None:
            weights, cut = correction.weights(tokens, sampler)
        differences = log_ratios(tokens.old_log_probs, sampler)
        mismatch = Mismatch(differences, tokens.mask, grad_mask, rows["is_short"], rows["is_long"], weights, cut)
    coefficients = method.coefficients(tokens, step.count, step.pass_name, step.statistics, sampler_correction=weights)
    total = -(coefficients * outputs.log_probs).sum()
    entropy = None
    if method.entropy_bonus.is_on:
        assert outputs.entropies is not None and entropies is not None
        entropy = torch.stack([torch.where(selected, entropies, 0.0).double().sum(), selected.sum()])
        if step.entropy_coef:
            shares = method.aggregation.coefficients(tokens.mask, step.count).to(total.dtype)
            total = total - step.entropy_coef * torch.where(selected, shares * outputs.entropies, 0.0).sum()
    critic_loss = None
    if outputs.values is not None:
        critic = method.critic
        critic_loss = value_loss(outputs.values, rows["values"], rows["returns"], selected, step.tokens, critic.clip)
        total = total + critic.coef * critic_loss
        critic_loss = critic_loss.detach() * step.tokens
    return Loss(total, tokens, critic_loss, mismatch, entropy)


def build_tokens(
    rows: TensorRows, log_probs: Tensor, entropies: Tensor | None = None, computed: Tensor | None = None
) -> Tokens:
    """Return the method's inputs for ``rows``; where ``computed`` is false, log-probs are the sampling policy's."""
    old = rows.get("old_log_probs", log_probs)
    return Tokens(
        log_probs=log_probs if computed is None else torch.where(computed, log_probs, old),
        old_log_probs=old,
        advantages=rows["advantages"].to(log_probs.dtype),
        mask=policy_mask(rows),
        entropies=entropies,
        ref_log_probs=rows.get("ref_log_probs"),
        low_threshold=rows.get("low_threshold"),
        token_ids=rows.get("completion_ids"),
    )


def length_extremes(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return (N, 1) which rows of ``mask`` (N, T) with tokens are at most or at least as long as the quartiles."""
    lengths = mask.sum(dim=1)
    valid = lengths > 0
    if not valid.any():
        return valid.unsqueeze(1), valid.unsqueeze(1)
    low, high = (quantile(lengths[valid], share) for share in (0.25, 0.75))
    return (valid & (lengths <= low)).unsqueeze(1), (valid & (lengths >= high)).unsqueeze(1)
