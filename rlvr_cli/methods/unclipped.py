"""Policy losses without a clip: the importance ratio itself, or no importance sampling at all.

    is:     l = -A r          F = r
    no_is:  l = -A log pi     F = 1

The likelihood losses of "Towards Understanding the Optimization Landscape of GRPO and its Variants" (equations 8, 9 and
12) use ``is``. ``no_is`` treats stale samples as fresh, the paper's setting without importance sampling. At one update
per rollout both have the same gradient. GTPO's preset has ``no_is``.

How we differ from the papers: GTPO's r (equation 11 of arXiv:2508.03772) is pi / pi_old, and 1 only because the paper
makes one update per rollout; with several, equation 11 is ``is``. Nothing is clipped here: :meth:`bounds` is only the
band (0.2 on both sides) against which shares of tokens are reported.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.base import PolicyLoss, Tokens

REPORTED_BAND = (0.2, 0.2)


class Unclipped(PolicyLoss):
    """A loss without bounds in its formula."""

    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[float, float]:
        return REPORTED_BAND


class ImportanceSampling(Unclipped):
    """Importance sampling without clipping."""

    kind: Literal["is"] = Field("is", description="is = importance sampling without clipping.")

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        return tokens.ratio.detach()


class NoImportanceSampling(Unclipped):
    """No importance sampling, no clipping."""

    kind: Literal["no_is"] = Field("no_is", description="no_is = no importance sampling, no clipping.")

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        return torch.ones_like(tokens.log_probs).detach()
