"""Rates of the verdicts' reasons at the beginning and at the end of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlvr_cli.core.text import join_and, to_one_line, unique_labels
from rlvr_cli.report.charts.chart import (
    BAND_FROM,
    MOST_ARMS,
    MOST_IN_ROW,
    Chart,
    DrawnPanel,
    Row,
    draw_rows,
    format_value,
)
from rlvr_cli.report.charts.metrics import Recorded, recorded
from rlvr_cli.stats.intervals import Estimate, mean_interval
from rlvr_cli.store.find import Run

# The policy hardly moves within its last rollouts, and one rollout alone is noisy.
LAST = 5
_PREFIX = "reason/"


@dataclass(frozen=True)
class _Rate:
    """The rate of a reason in an arm's runs; ``runs``: of each in its last rollouts."""

    arm: int
    name: str
    first: Estimate
    last: Estimate
    runs: tuple[float, ...]

    @property
    def few(self) -> bool:
        """Return whether the runs are drawn instead of an interval."""
        return 1 < len(self.runs) < BAND_FROM


Rates = Mapping[str, Sequence[_Rate]]


def reasons_figure(arms: Mapping[str, Sequence[Run]]) -> Chart | None:
    """Return each reason's rate in the first rollout and over the last ones, of each arm; None without any reason.

    A rate is the mean over an arm's runs; its 95% interval Student's t over them. The last rollouts are 5, of short
    runs a quarter of all, at least 1.

    Args:
        arms: runs by the arm's name, in the order of colours.
    Raises RunError for damaged records.
    """
    read = {name: [recorded(run, "rollouts") for run in runs] for name, runs in arms.items()}
    first_rows = [run.rows[0] for runs in read.values() for run in runs if run.rows]
    keys = dict.fromkeys(key for row in first_rows for key in row if key.startswith(_PREFIX))
    every = {to_one_line(key.removeprefix(_PREFIX)): _rates(read, key) for key in keys}
    rates = {reason: own for reason, own in every.items() if any(rate.first.value or rate.last.value for rate in own)}
    if not rates:
        return None
    never = [reason for reason, own in every.items() if own and reason not in rates]
    title = "Reasons of the verdicts, before and after"
    if len(arms) > MOST_ARMS:
        picture = _draw(title, {reason: [_over_arms(own)] for reason, own in rates.items()}, several=False)
    else:
        picture = _draw(title, rates, several=len(arms) > 1)
    return Chart("reasons", title, (picture,), (_caption(rates, read, never),), _table(rates))


def _rates(arms: Mapping[str, Sequence[Recorded]], key: str) -> list[_Rate]:
    rates = []
    for arm, (name, runs) in enumerate(arms.items()):
        curves = [curve[0][1] for run in runs if (curve := run.curve(key)) and len(curve[0][1])]
        if curves:
            first = mean_interval([float(values[0]) for values in curves])
            own = tuple(float(values[-last_window(len(values)) :].mean()) for values in curves)
            rates.append(_Rate(arm, to_one_line(name), first, mean_interval(own), own))
    return rates


def _over_arms(rates: Sequence[_Rate]) -> _Rate:
    """Return the mean over arms, for a picture of more arms than it has room for."""
    first, last = (
        mean_interval([estimate.value for estimate in own])
        for own in ([rate.first for rate in rates], [rate.last for rate in rates])
    )
    return _Rate(0, "", first, last, tuple(rate.last.value for rate in rates))


def last_window(rollouts: int) -> int:
    """Return the number of a run's last rollouts, of ``rollouts`` in all."""
    return min(LAST, max(1, rollouts // 4))


def _caption(rates: Rates, arms: Mapping[str, Sequence[Recorded]], never: list[str]) -> str:
    every = [rate for own in rates.values() for rate in own]
    least, most = min(rate.last.n for rate in every), max(rate.last.n for rate in every)
    windows = sorted({last_window(len(run.spent)) for runs in arms.values() for run in runs if run.rows})
    of = f"{' or '.join(map(str, windows))} rollout{'s' if windows[-1] > 1 else ''}"
    interval = "95% interval of the mean over runs (Student's t), of the last rollouts"
    sentences = ["Small lines: the runs, in their last rollouts."] if any(rate.few for rate in every) else []
    if len(arms) > MOST_ARMS:
        sentences = [f"The mean over {len(arms)} arms; small lines: the arms, in the table with their intervals."]
    elif most >= BAND_FROM:
        sentences.append(f"Line with ends: {interval}.")
    elif sentences:
        sentences.append(f"The {interval}, is in the table.")
    if never:
        sentences.append(f"Never given: {join_and(never)}.")
    runs = f"{least}" if least == most else f"{least} to {most}"
    each = f"the mean over {runs} runs an arm" if most > 1 else "of one run an arm"
    return (
        f"Share of a rollout's completions with each verdict, {each}. Hollow: the first rollout; full: the last {of}. "
        + " ".join(sentences)
    )


def _draw(title: str, rates: Rates, *, several: bool) -> DrawnPanel:
    names = unique_labels(list(dict.fromkeys(rate.name for own in rates.values() for rate in own)), MOST_IN_ROW)
    rows = []
    for reason, own in rates.items():
        rows += [Row(None, reason)] if several else []
        for rate in own:
            # Without a name the rate is of several arms, which are drawn.
            drawn = rate.few or not rate.name
            low, high = (None, None) if drawn else _ends(rate.last)
            first, last = (format_value(estimate.value, share=True) for estimate in (rate.first, rate.last))
            rows.append(
                Row(
                    arm=rate.arm if several else 0,
                    name=names[rate.name] if several else reason,
                    text=f"{first} to {last}",
                    value=rate.last.value,
                    low=low,
                    high=high,
                    start=rate.first.value,
                    marks=rate.runs if drawn else (),
                )
            )
    return draw_rows(title, rows, (0.0, 1.0), "share of completions, first to last", share=True)


def _ends(rate: Estimate) -> tuple[float | None, float | None]:
    if rate.low is None or rate.high is None:
        return None, None
    return min(1.0, max(0.0, rate.low)), min(1.0, max(0.0, rate.high))


def _table(rates: Rates) -> tuple[tuple[str, ...], ...]:
    def cells(rate: Estimate) -> tuple[str, ...]:
        return tuple(format_value(value, share=True) for value in (rate.value, *_ends(rate)))

    header = ("reason", "arm", "first rollout", "low", "high", "last rollouts", "low", "high", "runs")
    rows = [
        (reason, rate.name, *cells(rate.first), *cells(rate.last), str(rate.last.n))
        for reason, own in rates.items()
        for rate in own
    ]
    return (header, *rows)
