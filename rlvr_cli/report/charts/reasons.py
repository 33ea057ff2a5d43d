"""Rates of the verdicts' reasons at the start and the end of training."""

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
from rlvr_cli.report.charts.metrics import RunRecords, read_run_records
from rlvr_cli.stats.intervals import Estimate, mean_interval
from rlvr_cli.store.find import Run

# Rollouts averaged at the end: a single one is noisy.
LAST = 5
_PREFIX = "reason/"


@dataclass(frozen=True)
class _Rate:
    """An arm's rate of a reason; ``runs``: each run's over its last rollouts."""

    arm: int
    name: str
    first: Estimate
    last: Estimate
    runs: tuple[float, ...]

    @property
    def few(self) -> bool:
        return 1 < len(self.runs) < BAND_FROM


Rates = Mapping[str, Sequence[_Rate]]


def reasons_figure(arms: Mapping[str, Sequence[Run]]) -> Chart | None:
    """Return each arm's rate of each reason in the first and the last rollouts; None without reasons.

    Rates are means over runs with Student's 95% interval. The last rollouts are 5, in short runs a quarter of all.

    Args:
        arms: runs by the arm's name, in the order of colours.
    Raises RunError for damaged records.
    """
    read = {name: [read_run_records(run, "rollouts") for run in runs] for name, runs in arms.items()}
    first_rows = [run.rows[0] for runs in read.values() for run in runs if run.rows]
    keys = dict.fromkeys(key for row in first_rows for key in row if key.startswith(_PREFIX))
    every = {to_one_line(key.removeprefix(_PREFIX)): _compute_rates(read, key) for key in keys}
    rates = {reason: own for reason, own in every.items() if any(rate.first.value or rate.last.value for rate in own)}
    if not rates:
        return None
    never = [reason for reason, own in every.items() if own and reason not in rates]
    title = "Verdicts by reason, first and last rollouts"
    if len(arms) > MOST_ARMS:
        picture = _draw(title, {reason: [_average_arms(own)] for reason, own in rates.items()}, several=False)
    else:
        picture = _draw(title, rates, several=len(arms) > 1)
    return Chart("reasons", title, (picture,), (_write_caption(rates, read, never),), _make_table(rates))


def _compute_rates(arms: Mapping[str, Sequence[RunRecords]], key: str) -> list[_Rate]:
    rates = []
    for arm, (name, runs) in enumerate(arms.items()):
        curves = [curve[0][1] for run in runs if (curve := run.curve(key)) and len(curve[0][1])]
        if curves:
            first = mean_interval([float(values[0]) for values in curves])
            own = tuple(float(values[-window_size(len(values)) :].mean()) for values in curves)
            rates.append(_Rate(arm, to_one_line(name), first, mean_interval(own), own))
    return rates


def _average_arms(rates: Sequence[_Rate]) -> _Rate:
    first, last = (
        mean_interval([estimate.value for estimate in own])
        for own in ([rate.first for rate in rates], [rate.last for rate in rates])
    )
    return _Rate(0, "", first, last, tuple(rate.last.value for rate in rates))


def window_size(rollouts: int) -> int:
    return min(LAST, max(1, rollouts // 4))


def _write_caption(rates: Rates, arms: Mapping[str, Sequence[RunRecords]], never: list[str]) -> str:
    every = [rate for own in rates.values() for rate in own]
    least, most = min(rate.last.n for rate in every), max(rate.last.n for rate in every)
    windows = sorted({window_size(len(run.spent)) for runs in arms.values() for run in runs if run.rows})
    of = f"{' or '.join(map(str, windows))} rollout{'s' if windows[-1] > 1 else ''}"
    interval = "95% interval over runs (Student's t)"
    sentences = ["Ticks: single runs in their last rollouts."] if any(rate.few for rate in every) else []
    if len(arms) > MOST_ARMS:
        sentences = [f"Mean over {len(arms)} arms; ticks: single arms, with intervals in the table."]
    elif most >= BAND_FROM:
        sentences.append(f"Error bar: {interval}.")
    elif sentences:
        sentences.append(f"The {interval} is in the table.")
    if never:
        sentences.append(f"Never observed: {join_and(never)}.")
    runs = f"{least}" if least == most else f"{least} to {most}"
    each = f"mean over {runs} runs per arm" if most > 1 else "one run per arm"
    return f"Share of completions by verdict, {each}. Hollow: first rollout; filled: last {of}. {' '.join(sentences)}"


def _draw(title: str, rates: Rates, *, several: bool) -> DrawnPanel:
    names = unique_labels(list(dict.fromkeys(rate.name for own in rates.values() for rate in own)), MOST_IN_ROW)
    rows = []
    for reason, own in rates.items():
        rows += [Row(None, reason)] if several else []
        for rate in own:
            # A rate without a name is a mean over arms, which are drawn.
            drawn = rate.few or not rate.name
            low, high = (None, None) if drawn else _clip_interval(rate.last)
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
    return draw_rows(title, rows, (0.0, 1.0), "share of completions", share=True)


def _clip_interval(rate: Estimate) -> tuple[float | None, float | None]:
    if rate.low is None or rate.high is None:
        return None, None
    return min(1.0, max(0.0, rate.low)), min(1.0, max(0.0, rate.high))


def _make_table(rates: Rates) -> tuple[tuple[str, ...], ...]:
    def cells(rate: Estimate) -> tuple[str, ...]:
        return tuple(format_value(value, share=True) for value in (rate.value, *_clip_interval(rate)))

    header = ("reason", "arm", "first rollout", "low", "high", "last rollouts", "low", "high", "runs")
    rows = [
        (reason, rate.name, *cells(rate.first), *cells(rate.last), str(rate.last.n))
        for reason, own in rates.items()
        for rate in own
    ]
    return (header, *rows)
