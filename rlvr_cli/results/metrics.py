"""Every metric once: its name for people, its unit, and which way is better. Imports nothing of the package."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower"]

_RANKED = re.compile(r"(avg|pass|maj)@(n|k|\d+)")


@dataclass(frozen=True)
class Metric:
    """What is known of a metric whatever its value.

    Attributes:
        label: its name for people. share: its values lie in [0, 1].
        unit: what a difference is in (of a share percentage points); "" = a number without one.
        decimals: of a value in a table; difference_decimals: of a difference in its unit.
        better: None where it is neither, as for a length.
    """

    label: str
    share: bool = False
    unit: str = ""
    decimals: int = 3
    difference_decimals: int = 3
    better: Better | None = None

    @property
    def factor(self) -> float:
        """What a difference is multiplied with to be in ``unit``."""
        return 100.0 if self.share else 1.0


def _share(label: str, better: Better | None = None) -> Metric:
    return Metric(label, share=True, unit="points", difference_decimals=1, better=better)


def _tokens(label: str) -> Metric:
    return Metric(label, unit="tokens", decimals=1, difference_decimals=1)


_REWARD = "of reward"
METRICS: dict[str, Metric] = {
    "accuracy": _share("accuracy", "higher"),
    "greedy": _share("greedy accuracy", "higher"),
    "token_accuracy": _share("token accuracy", "higher"),
    "truncated": _share("truncated share", "lower"),
    "diversity": _share("diversity"),
    "reward": Metric("mean reward", unit=_REWARD, better="higher"),
    "length": _tokens("mean length (tokens)"),
    "loss": Metric("loss", unit="nats", better="lower"),
    "entropy": Metric("entropy", unit="nats"),
}


def metric(name: str) -> Metric:
    """What is declared of ``name``; a number without unit or direction for one that is not declared."""
    if name in METRICS:
        return METRICS[name]
    if _RANKED.fullmatch(name):
        return _share(name, "higher")
    head, _, part = name.partition("/")
    if head == "reason" and part:
        return _share(f"judged {part}", "higher" if part == "correct" else None)
    if head == "reward" and part:
        return Metric(f"  {part} part", unit=_REWARD, better="higher")
    return Metric(name)


def accuracy_of(names: Iterable[str]) -> str | None:
    """The metric among ``names`` that is called accuracy: avg@n, and the greedy completion's where there is none."""
    found = list(names)
    return next((name for name in found if name.startswith("avg@")), "greedy" if "greedy" in found else None)


def held_out_accuracy(name: str) -> str:
    """How the accuracy of a held-out evaluation is called: `held-out accuracy (avg@4)`, or `(greedy)`."""
    return f"held-out accuracy ({name})"
