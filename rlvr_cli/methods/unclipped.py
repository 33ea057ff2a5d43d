"""Policy losses without any clip: the importance ratio itself, and no importance sampling at all.

    is:     l = -A r          F = r
    no_is:  l = -A log pi     F = 1

The likelihood losses of "Towards Understanding the Optimization Landscape of GRPO and its Variants" (equations 8, 9 and
12) use ``is``. ``no_is`` off policy takes stale samples as if they were fresh, the landscape paper's setting without
importance sampling; at one update per rollout the two are the same gradient, and the GTPO preset has
``no_is``.

How we differ from the papers: GTPO's r in equation 11 of arXiv:2508.03772 is pi / pi_old (section 3), 1 only because
section 6 makes one update per rollout. With several the literal equation 11 is ``is`` and not the preset's ``no_is``.
Nothing is cut here, so :meth:`bounds` is only the band (0.2 on both sides) against which shares of tokens are reported.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.base import PolicyLoss, Tokens

REPORTED_BAND = (0.2, 0.2)


class ImportanceSampling(PolicyLoss):
    """Importance sampling without clipping."""

    kind: Literal["is"] = Field("is", description="is = importance sampling without clipping.")

    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[float, float]:
        return REPORTED_BAND

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        return tokens.ratio.detach()


class NoImportanceSampling(PolicyLoss):
    """No importance sampling, no clipping."""

    kind: Literal["no_is"] = Field("no_is", description="no_is = no importance sampling, no clipping.")

    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[float, float]:
        return REPORTED_BAND

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        return torch.ones_like(tokens.log_probs).detach()
