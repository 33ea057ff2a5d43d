"""My method: the ratio to a power, for every token.

    l = -sg(F) A log pi        F = r^power        r = pi / pi_old

`rlvr methods show my_method.py` prints this text.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor
from rlvr_cli.methods.base import PolicyLoss, Tokens


class MyMethod(PolicyLoss):
    """The ratio to a power, for every token."""

    kind: Literal["my-method"] = Field("my-method", description="my-method = the ratio to a power.")
    # A key with its bounds: method.policy_loss.power=0.3 sets it.
    power: Annotated[float, Field(ge=0.0, le=4.0)] = Field(0.5, description="The power of the ratio.")

    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[float, float]:
        # Nothing is clipped: metrics count the tokens outside 1 - 0.2 and 1 + 0.2.
        return 0.2, 0.2

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        # F of each token, (B, T): the gradient is F A grad log pi. F is constant, hence .detach().
        return tokens.ratio.detach() ** self.power
