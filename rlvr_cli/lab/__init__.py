"""Tiny models that learn for real on a CPU: every lab by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.lab.countdown import CountdownLab
from rlvr_cli.lab.form import Lab
from rlvr_cli.lab.kk import KKLab
from rlvr_cli.lab.math import MathLab

LABS: Mapping[str, Lab[Any]] = {lab.name: lab for lab in (KKLab(), CountdownLab(), MathLab())}


def find_lab(name: str) -> Lab[Any]:
    """The lab ``name``. Raises UserError where there is none."""
    if name not in LABS:
        raise UserError(f"there is no lab {name}; there are {', '.join(LABS)}.{did_you_mean(name, LABS)}")
    return LABS[name]
