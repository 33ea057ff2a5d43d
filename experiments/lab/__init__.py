"""Tiny models that learn for real on a CPU: every lab by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.lab.countdown import CountdownLab
from experiments.lab.form import Lab
from experiments.lab.kk import KKLab
from experiments.lab.math import MathLab

LABS: Mapping[str, Lab[Any]] = {lab.name: lab for lab in (KKLab(), CountdownLab(), MathLab())}
