"""What became of the completions: the rate of each verdict's reason at the beginning and at the end of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlvr_cli.core.text import listed, one_line, told_apart
from rlvr_cli.report.charts.chart import BAND_FROM, MOST_IN_ROW, Chart, DrawnPanel, Row, draw_rows, new_figure
from rlvr_cli.report.charts.metrics import Recorded, recorded
from rlvr_cli.stats.intervals import Estimate, mean_interval
from rlvr_cli.store.find import Run

# The policy hardly moves within its last rollouts, and one rollout alone is noisy.
LAST = 5
_PREFIX = "reason/"


@dataclass(frozen=True)
class _Rate:
    """``runs``: the rate of each in its last rollouts."""

    arm: int
    name: str
    first: Estimate
    last: Estimate
    runs: tuple[float, ...]

    @property
    def few(self) -> bool:
        """Whether its runs are drawn, in place of an interval."""
        return 1 < len(self.runs) < BAND_FROM


def reasons_figure(arms: Mapping[str, Sequence[Run]]) -> Chart | None:
    """Each reason's rate in the first rollout and over the last ones, of each arm; None where no run has reasons.

    A rate is the mean over an arm's runs; its 95% interval Student's t over them. The last rollouts are 5, of short
    runs a quarter of all, at least 1.

    Args:
        arms: runs by the arm's name, in the order of colours.
    Raises RunError for damaged records.
    """
    read = {name: [recorded(run, "rollouts") for run in runs] for name, runs in arms.items()}
    names = list(
        dict.fromkeys(
            key.removeprefix(_PREFIX)
            for runs in read.values()
            for run in runs
            for row in run.rows[:1]
            for key in row
            if key.startswith(_PREFIX)
        )
    )
    rates = {one_line(name): _rates(read, name) for name in names}
    shown = {name: found for name, found in rates.items() if any(one.first.value or one.last.value for one in found)}
    if not shown:
        return None
    never = [name for name, found in rates.items() if found and name not in shown]
    title = "Reasons of the verdicts, before and after"
    caption = _caption(shown, read, never)
    return Chart("reasons", title, (_draw(title, shown, several=len(arms) > 1),), (caption,), _table(shown))


def _rates(arms: Mapping[str, Sequence[Recorded]], reason: str) -> list[_Rate]:
    found = []
    for arm, (name, runs) in enumerate(arms.items()):
        curves = [curve[0][1] for run in runs if (curve := run.curve(_PREFIX + reason)) and len(curve[0][1])]
        if curves:
            first = mean_interval([float(values[0]) for values in curves])
            own = tuple(float(values[-last_window(len(values)) :].mean()) for values in curves)
            found.append(_Rate(arm, one_line(name), first, mean_interval(own), own))
    return found


def last_window(rollouts: int) -> int:
    """How many of a run's rollouts are its last ones, where it has so many in all."""
    return min(LAST, max(1, rollouts // 4))


def _caption(shown: Mapping[str, Sequence[_Rate]], arms: Mapping[str, Sequence[Recorded]], never: list[str]) -> str:
    counts = [one.last.n for found in shown.values() for one in found]
    windows = sorted({last_window(len(run.spent)) for runs in arms.values() for run in runs if run.rows})
    of = f"{' or '.join(map(str, windows))} rollout{'s' if windows[-1] > 1 else ''}"
    rates = [one for found in shown.values() for one in found]
    interval = "95% interval of the mean over runs (Student's t), of the last rollouts"
    drawn = ["Small lines: the runs, in their last rollouts."] if any(one.few for one in rates) else []
    if max(counts) >= BAND_FROM:
        drawn.append(f"Line with ends: {interval}.")
    elif drawn:
        drawn.append(f"The {interval}, is in the table.")
    runs = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    each = f"the mean over {runs} runs an arm" if max(counts) > 1 else "of one run an arm"
    return (
        f"Share of a rollout's completions with each verdict, {each}. Hollow: the first rollout; full: the last {of}. "
        + " ".join([*drawn, *([f"Never given: {listed(never)}."] if never else [])])
    )


def _draw(title: str, shown: Mapping[str, Sequence[_Rate]], *, several: bool) -> DrawnPanel:
    called = told_apart(list(dict.fromkeys(one.name for found in shown.values() for one in found)), MOST_IN_ROW)
    rows = []
    for reason, found in shown.items():
        rows += [Row(None, reason)] if several else []
        for one in found:
            spread = not one.few and one.last.low is not None and one.last.high is not None
            rows.append(
                Row(
                    arm=one.arm if several else 0,
                    name=called[one.name] if several else reason,
                    text=_text(one),
                    value=one.last.value,
                    low=max(0.0, one.last.low) if spread and one.last.low is not None else None,
                    high=min(1.0, one.last.high) if spread and one.last.high is not None else None,
                    start=one.first.value,
                    marks=one.runs if one.few else (),
                )
            )
    return draw_rows(title, rows, (0.0, 1.0), "share of completions, first to last", share=True)


def _text(one: _Rate) -> str:
    return f"{new_figure(one.first.value, share=True)} to {new_figure(one.last.value, share=True)}"


def _table(shown: Mapping[str, Sequence[_Rate]]) -> tuple[tuple[str, ...], ...]:
    def cells(rate: Estimate) -> tuple[str, ...]:
        ends = [None if end is None else min(1.0, max(0.0, end)) for end in (rate.low, rate.high)]
        return tuple(new_figure(value, share=True) for value in (rate.value, *ends))

    header = ("reason", "arm", "first rollout", "low", "high", "last rollouts", "low", "high", "runs")
    return (
        header,
        *(
            (reason, one.name, *cells(one.first), *cells(one.last), str(one.last.n))
            for reason, found in shown.items()
            for one in found
        ),
    )
