"""The KL penalty against a reference policy, estimated from sampled tokens (k3).

    l = l_policy + beta (exp(d) - d - 1)        d = log pi_ref - log pi

DeepSeekMath, arXiv:2402.03300, equation 4; Schulman, "Approximating KL divergence" (2020), k3. It adds
beta (pi_ref / pi - 1) to F A, as in arXiv:2505.12929, equation 2. It is never negative.

    l = l_policy + beta r (exp(d) - d - 1)      r = pi / pi_old, with ``bias_correction``

DeepSeek-V3.2, arXiv:2512.02556, equation 7: with the gradient of r it adds beta r log(pi_ref / pi), whose mean over the
tokens of pi_old is the gradient of KL(pi || pi_ref); that of k3 alone is not. r is the token's, also with GSPO, where
TRL takes the sequence's.

How we differ from the released code: no clamp unless you set one. AR-Lopti clamps d to +-5 and the estimate to at most
10, verl d to +-20 and the estimate to 10, with no gradient beyond; TRL has neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import NotNegative
from rlvr_cli.methods.base import Advantage, Part


def k3(log_probs: Tensor, other_log_probs: Tensor) -> Tensor:
    """Return the k3 estimate of KL(pi || other) per token sampled from pi: exp(d) - d - 1, d = log other - log pi.

    Nonnegative, unbiased, of low variance.
    """
    difference = other_log_probs - log_probs
    # exp(d) - d - 1 would be rounding noise of either sign for close policies.
    return torch.expm1(difference) - difference


class KLPenalty(Part):
    """``beta`` * k3 added to each token's loss."""

    beta: NotNegative = Field(0.0, description="Weight of the penalty; 0 = no penalty and no reference model.")
    log_ratio_clamp: Annotated[float, Field(gt=0.0)] | None = Field(
        None,
        description="Clamp of the log ratio to the reference model, at +- this (5 in AR-Lopti's code); null = none.",
    )
    value_clamp: Annotated[float, Field(gt=0.0)] | None = Field(
        None, description="Upper clamp of the estimate (10 in verl); null = none."
    )
    bias_correction: bool = Field(
        False,
        description="Multiply the estimate by the importance ratio, with its gradient (DeepSeek-V3.2; TRL's "
        "default): the gradient is then that of the KL divergence. The papers of the methods here do not.",
    )

    def unused(self, advantage: Advantage) -> Iterator[tuple[str, str, str]]:
        if self.beta == 0:
            for name in ("log_ratio_clamp", "value_clamp", "bias_correction"):
                yield f"method.kl.{name}", "method.kl.beta", "method.kl.beta=0 means no penalty. Set method.kl.beta"

    def simplify(self) -> KLPenalty:
        return self if self.beta > 0 else KLPenalty()

    def value(self, log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
        """Return (B, T) the clamped estimate, without ``beta``."""
        difference = ref_log_probs - log_probs
        if self.log_ratio_clamp is not None:
            difference = difference.clamp(-self.log_ratio_clamp, self.log_ratio_clamp)
        value = torch.expm1(difference) - difference
        return value if self.value_clamp is None else value.clamp(max=self.value_clamp)

    def coefficient(self, log_probs: Tensor, ref_log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
        """Return (B, T) -beta d(value)/d(log pi) = beta (exp(d) - 1), 0 where a clamp acts.

        With ``bias_correction``, the derivative of r value: beta r d without a clamp.
        """
        difference = ref_log_probs - log_probs
        value = self.value(log_probs, ref_log_probs)
        free = torch.ones_like(difference, dtype=torch.bool)
        if self.log_ratio_clamp is not None:
            free &= difference.abs() <= self.log_ratio_clamp
        if self.value_clamp is not None:
            free &= value < self.value_clamp
        if self.bias_correction:
            return self.beta * torch.exp(log_probs - old_log_probs) * torch.where(free, difference, -value)
        return self.beta * torch.where(free, torch.expm1(difference), 0.0)
