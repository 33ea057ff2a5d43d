"""A method: the choices that together decide the gradient, and its fingerprint."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from dataclasses import dataclass
from typing import Any

from rlvr_cli.methods import advantage, aggregation, grpo, kl, tokens
from rlvr_cli.methods.aggregation import Aggregation
from rlvr_cli.methods.grpo import ClippedRatio


@dataclass(frozen=True)
class Method:
    """The choices of one method; ``grad J = 1/Z sum F A grad log pi`` (DESIGN: one gradient, five choices).

    Attributes:
        name: as on the command line.
        weight: the token weight F.
        divide_by_std: whether group advantages are divided by the group's standard deviation.
        aggregation: the normaliser Z.
    """

    name: str
    weight: ClippedRatio
    divide_by_std: bool
    aggregation: Aggregation

    def fingerprint(self) -> dict[str, Any]:
        """Name, choices with their parameters, and a hash over both and over the code that computes them."""
        choices = dataclasses.asdict(self)
        sources = "".join(inspect.getsource(module) for module in (advantage, aggregation, grpo, kl, tokens))
        text = json.dumps(choices, sort_keys=True) + sources
        return {"choices": choices, "sha256": hashlib.sha256(text.encode()).hexdigest()}
