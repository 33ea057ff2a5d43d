"""The picture of `rlvr analyze words`: reward over frequency of one run, or frequencies of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlvr_cli.analysis.words import Counted, KindFound, binned
from rlvr_cli.core.text import told_apart
from rlvr_cli.results.figure import COLOURS
from rlvr_cli.stats.intervals import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 3
MOST_NAME = 24
START = "before training"
Found = tuple[Counted, Mapping[str, KindFound], Mapping[str, KindFound]]


def words_figure(runs: Mapping[str, Found], per: str, bins: int) -> Figure:
    """A panel for each kind. Must be called inside ``results.figure.style()``.

    Args:
        runs: by name: completions, what was found of each kind, and what before training.
        per: what a frequency is of. bins: of frequency, for one run.
    """
    from matplotlib.figure import Figure

    kinds = list(next(iter(runs.values()))[1])
    rows = -(-len(kinds) // COLUMNS)
    figure = Figure(figsize=(10.0, 2.6 * rows + 0.2), layout="constrained")
    grid = figure.subplots(rows, COLUMNS, squeeze=False)
    for place, (axes, kind) in enumerate(zip(grid.flat, kinds, strict=False)):
        axes.set_title(kind.replace("_", " "))
        if not any(found[kind].occurrences for _, found, _ in runs.values()):
            axes.text(0.5, 0.5, "no such word", transform=axes.transAxes, ha="center", color="#777777")
            axes.set_xticks([])
            axes.set_yticks([])
        elif len(runs) == 1:
            ((counted, found, _),) = runs.values()
            _rewards(axes, counted, found[kind], place, per, bins)
        else:
            _bars(axes, {name: (found[kind], before.get(kind)) for name, (_, found, before) in runs.items()}, per)
    for axes in grid.flat[len(kinds) :]:
        axes.set_visible(False)
    return figure


def _rewards(axes: Any, counted: Counted, found: KindFound, place: int, per: str, bins: int) -> None:
    points = binned(counted.frequencies(per)[:, place], counted.rewards, bins)
    x, y = [at for at, _ in points], [reward.value for _, reward in points]
    axes.errorbar(x, y, yerr=_errors([reward for _, reward in points]), fmt="o-", markersize=4, color=COLOURS[0])
    axes.set_xlabel(f"times in a {per}" if per == "completion" else f"times in {per}")
    axes.set_ylabel("mean reward")
    said = [
        f"{letter} = {value.value:+.2f}"
        for letter, value in (("r", found.pearson), (r"$\rho$", found.spearman))
        if value is not None
    ]
    axes.text(0.98, 0.97, "  ".join(said), transform=axes.transAxes, ha="right", va="top", fontsize=8)


def _bars(axes: Any, runs: Mapping[str, tuple[KindFound, KindFound | None]], per: str) -> None:
    shown = told_apart(list(runs), MOST_NAME)
    start = next((before for _, before in runs.values() if before is not None), None)
    bars = {
        **({START: start.frequency} if start is not None else {}),
        **{shown[name]: f.frequency for name, (f, _) in runs.items()},
    }
    colours = [*(["#7F7F7F"] if start is not None else []), *(COLOURS[place % 6] for place in range(len(runs)))]
    places = list(range(len(bars)))
    estimates = list(bars.values())
    axes.barh(
        places, [one.value for one in estimates], xerr=_errors(estimates), color=colours, error_kw={"linewidth": 1}
    )
    axes.set_yticks(places, list(bars), fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel(f"per {per}")


def _errors(estimates: list[Estimate]) -> list[list[float]]:
    """Below and above; 0 where there is no interval."""
    return [
        [0.0 if one.low is None else one.value - one.low for one in estimates],
        [0.0 if one.high is None else one.high - one.value for one in estimates],
    ]
