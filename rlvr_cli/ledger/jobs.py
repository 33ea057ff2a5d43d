"""What the ledger computes in processes of its own: bases and measures. Plain data that goes through a pipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["measure", "base"]


@dataclass(frozen=True)
class Job:
    """One computation, whose result is a file or folder that appears complete or not at all.

    Attributes:
        name: for people.
        content: the arguments of what ``kind`` names in the worker, JSON values.
    """

    kind: Kind
    name: str
    content: dict[str, Any] = field(default_factory=dict)
