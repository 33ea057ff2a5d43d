"""The numbers of a chart of curves as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlvr_cli.report.charts.numbers import figure
from rlvr_cli.results.lines import ArmLine, XAxis

_ROWS = 60
Table = tuple[tuple[str, ...], ...]


def curve_table(panels: Mapping[str, Sequence[ArmLine]], x: XAxis, *, share: bool) -> Table:
    """Up to a dozen points of every line, the first and the last among them: mean, interval, number of runs."""
    several = len(panels) > 1
    lines = sum(map(len, panels.values()))
    most = min(12, max(2, _ROWS // max(1, lines)))
    rows: list[tuple[str, ...]] = [(*(["panel"] if several else []), "arm", x.label, "mean", "low", "high", "runs")]
    for title, arms in panels.items():
        for one in arms:
            line = one.line
            for place in _spaced(len(line.x), most):
                ends = [part[place] if part is not None else None for part in (line.low, line.high)]
                numbers = [figure(value, share=share) for value in (line.mean[place], *ends)]
                at = f"{line.x[place] / x.divide:,.6g}"
                rows.append((*([title] if several else []), line.name, at, *numbers, str(one.runs)))
    return tuple(rows)


def _spaced(count: int, most: int) -> list[int]:
    if count == 0:
        return []
    return sorted({int(place) for place in np.linspace(0, count - 1, min(most, count)).round()})
