"""Ranges of numbers in a sweep file: the values that a grid takes of them, and the interval that a search does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rlvr_cli.core.yaml import shown

RANGES = "{range: [1, 5], step: 2}, {range: [0, 1], count: 5} or {log_range: [1e-6, 1e-4], count: 3}"
MOST_VALUES = 1000


@dataclass(frozen=True)
class Interval:
    """The numbers from ``low`` to ``high``, both among them, of which a search suggests any.

    Attributes:
        log: equal factors are equally likely, not equal differences.
        whole: whole numbers alone. step: the distance of neighbours; None = every number.
    """

    low: float
    high: float
    log: bool
    whole: bool
    step: float | None

    def value(self, suggested: float) -> float:
        """A suggestion as it is used: a whole number, a whole number of steps, or 6 significant digits of it."""
        if self.whole:
            return round(suggested)
        if self.step is not None:
            return _step(self.low, round((suggested - self.low) / self.step), self.step)
        return min(max(rounded(suggested), self.low), self.high)

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not self.low <= value <= self.high:
            return False
        if self.whole and not isinstance(value, int):
            return False
        steps = 0.0 if self.step is None else (value - self.low) / self.step
        return abs(steps - round(steps)) < 1e-4


def read_interval(written: dict[Any, Any]) -> Interval:
    """A range as a search takes it: ends that are whole numbers, and a whole step, make whole numbers of it.

    A `count` is for grids. Raises ValueError with what is wrong.
    """
    kind, low, high, rest = _ends(written)
    whole = isinstance(low, int) and isinstance(high, int)
    step = rest.get("step")
    if kind == "log_range":
        if step is not None:
            raise ValueError(f"log_range: has no step; got {shown(written)}")
        return Interval(low, high, log=True, whole=whole, step=1 if whole else None)
    if step is None:
        return Interval(low, high, log=False, whole=whole, step=1 if whole else None)
    number = len(_steps(low, high, step)) - 1
    if number == 0:
        raise ValueError(f"range: its step is larger than all of it; got {shown(written)}")
    whole = isinstance(low, int) and isinstance(step, int)
    last = low + number * step if whole else _step(low, number, step)
    return Interval(low, last, log=False, whole=whole, step=step)


def range_values(written: dict[Any, Any]) -> list[Any]:
    """The values of a range, both ends among them. Raises ValueError with what is wrong."""
    kind, low, high, rest = _ends(written)
    whole = isinstance(low, int) and isinstance(high, int)
    if kind == "range" and "count" not in rest:
        return _steps(low, high, rest.get("step", 1 if whole else None))
    count = rest.get("count")
    if not isinstance(count, int) or isinstance(count, bool) or not 2 <= count <= MOST_VALUES:
        raise ValueError(f"count: must be a whole number, 2 to {MOST_VALUES}; got {shown(count)}")
    shares = [place / (count - 1) for place in range(count)]
    if kind == "log_range":
        between = [low * (high / low) ** share for share in shares]
        values = [round(value) for value in between] if whole else [rounded(value) for value in between]
    else:
        between = [low + (high - low) * share for share in shares]
        all_whole = whole and all(abs(value - round(value)) < 1e-9 for value in between)
        values = [round(value) for value in between] if all_whole else [rounded(value) for value in between]
    if len(set(values)) < count:
        raise ValueError(f"{shown(written)} has a value twice; give a smaller count")
    return [low, *values[1:-1], high]


def _ends(written: dict[Any, Any]) -> tuple[str, Any, Any, dict[Any, Any]]:
    """The kind of a range, its two ends, and what else is written of it. Raises ValueError with what is wrong."""
    kinds = [kind for kind in ("range", "log_range") if kind in written]
    rest = {key: value for key, value in written.items() if key not in kinds}
    if len(kinds) != 1 or len(rest) > 1 or rest.keys() - {"step", "count"}:
        raise ValueError(f"a range is written {RANGES}; got {shown(written)}")
    ends = written[kinds[0]]
    if not (isinstance(ends, list) and len(ends) == 2 and all(_is_number(end) for end in ends)):
        raise ValueError(f"{kinds[0]}: must be its two ends, [from, to]; got {shown(ends)}")
    low, high = ends
    if low >= high:
        raise ValueError(f"{kinds[0]}: must go upwards; got {shown(ends)}")
    if kinds[0] == "log_range" and low <= 0:
        raise ValueError(f"log_range: its ends must be above 0; got {shown(ends)}")
    return kinds[0], low, high, rest


def _steps(low: float, high: float, step: Any) -> list[Any]:
    if not _is_number(step) or step <= 0 or (high - low) / step > MOST_VALUES:
        raise ValueError(f"range: needs a step above 0 that gives at most {MOST_VALUES} values, or a count")
    number = math.floor((high - low) / step + 1e-9)
    whole = all(isinstance(value, int) for value in (low, step))
    return [low + place * step if whole else rounded(low + place * step) for place in range(number + 1)]


def _step(low: float, number: int, step: float) -> float:
    """Without the last digits of a sum of fractions: 0.3 is meant, not 0.30000000000000004."""
    return float(f"{low + number * step:.12g}")


def rounded(value: float) -> float:
    """To 6 significant digits: 1e-05 is meant, not 9.999999999999999e-06."""
    return float(f"{value:.6g}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
