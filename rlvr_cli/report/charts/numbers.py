"""Numbers on axes and in tables."""

from __future__ import annotations

import math

_MINUS = "\N{MINUS SIGN}"


def tick(value: float) -> str:
    """A few digits: `0.2`, `40`, `12k`, `1.5M`, `2.5e-4`."""
    size = abs(value)
    if 0 < size < 1e-3:
        digits, power = f"{value:.2e}".split("e")
        return f"{float(digits):g}e{int(power)}"
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if limit <= size < 1e13:
            return f"{value / (1e3 if letter == 'k' else limit):.4g}{letter}"
    return f"{value:.4g}".replace("-", _MINUS)


def percent_tick(value: float) -> str:
    """A share as `40%`."""
    return f"{100 * value:.4g}%".replace("-", _MINUS)


def figure(value: float | None, *, share: bool) -> str:
    """A number of a table: a share in percent with one decimal, other numbers with four digits; `-` for none."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{100 * value:.1f}%" if share else f"{value:.4g}"
