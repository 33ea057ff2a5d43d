"""The course of training in numbers, its cost, and its alerts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr_cli.collapse.alerts import Alert, AlertMonitor
from rlvr_cli.compare.words import format_ratio
from rlvr_cli.core.errors import collect_problems
from rlvr_cli.core.files import finite
from rlvr_cli.core.table import NONE, Table
from rlvr_cli.core.text import count, format_seconds, join_and
from rlvr_cli.report.charts.reasons import last_window
from rlvr_cli.report.data import ReportData
from rlvr_cli.store.arm import Arm
from rlvr_cli.store.find import Run
from rlvr_cli.store.metrics import METRICS
from rlvr_cli.store.training import spent_at

MetricRows = list[dict[str, Any]]
UPDATES, ALL = "update time", "time in all"
_PHASES = {"rollout": "sampling time", "verify": "verification time"}


def course_table(subject: ReportData) -> Table | None:
    """Return each metric of the sampled completions at the beginning and the end of training; None without a step."""
    arms = {arm.name: [_Window.of(rows) for rows in _lines(arm) if rows] for arm in subject.arms}
    arms = {name: windows for name, windows in arms.items() if windows}
    rows = []
    for key, metric in METRICS.items():
        if metric.training or metric.curve:
            cells = [_from_to(windows, key, f"{{:.{metric.decimals}f}}") for windows in arms.values()]
            if any(cell != NONE for cell in cells):
                rows.append([metric.label, *cells])
    if not rows:
        return None
    sizes = sorted({window.size for windows in arms.values() for window in windows})
    span = str(sizes[0]) if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
    last = "the last rollout" if sizes[-1] == 1 else f"the mean over the last {span} rollouts"
    return Table(
        "Training's own completions, at its beginning and at its end",
        ("measure", *arms),
        rows,
        note=f"The first rollout, and {last}, of each run; in the mean over the runs of an arm.",
    )


@dataclass(frozen=True)
class _Window:
    """A run's lines of the first rollout, and of its last ``size`` rollouts."""

    first: MetricRows
    last: MetricRows
    size: int

    @classmethod
    def of(cls, rows: MetricRows) -> _Window:
        rollouts = 1 + max(row["rollout"] for row in rows)
        size = last_window(rollouts)
        first = [row for row in rows if row["rollout"] == 0]
        return cls(first, [row for row in rows if row["rollout"] >= rollouts - size], size)


def _from_to(windows: Sequence[_Window], key: str, form: str) -> str:
    first, last = (
        _mean([_mean([finite(row.get(key)) for row in rows]) for rows in ends])
        for ends in ([window.first for window in windows], [window.last for window in windows])
    )
    return NONE if first is None or last is None else f"{form.format(first)} → {form.format(last)}"


def cost_table(subject: ReportData, spent: Mapping[str, Sequence[Mapping[str, float]]]) -> Table | None:
    """Return the mean cost of an arm's runs until their last step, from :func:`arms_spent`; None without any."""
    if not spent:
        return None
    means = {name: _means(own) for name, own in spent.items()}
    base = means.get(subject.baseline.name, {})
    costs = list(dict.fromkeys(cost for own in spent.values() for of_run in own for cost in of_run))
    rows = [[cost, *(_with_ratio(cost, own.get(cost), base.get(cost)) for own in means.values())] for cost in costs]
    counts = "; ".join(f"{name}: {count(len(own), 'run')}" for name, own in spent.items())
    return Table(
        "A run's cost"
        + (
            f", and as a multiple of {subject.baseline.name}'s"
            if sum(any(_lines(arm)) for arm in subject.arms) > 1
            else ""
        ),
        ("spent", *spent),
        rows,
        note=f"In the mean over the runs ({counts}), until the last recorded step. Time is that of training: without "
        "held-out evaluations, checkpoints and starting up.",
    )


def arms_spent(subject: ReportData, problems: list[str]) -> dict[str, list[dict[str, float]]]:
    """Return the cost of each run by the arm's name; arms without a step or its time are left out.

    Args:
        problems: gets a line for each run whose records are damaged.
    """
    spent: dict[str, list[dict[str, float]]] = {}
    for run, name in ((run, arm.name) for arm in subject.arms for run in arm.runs.values()):
        if run.steps.metrics and run.steps.timings:
            with collect_problems(problems):
                spent.setdefault(name, []).append(_spent(run))
    return spent


def mean_cost(spent: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean tokens and seconds of a run."""
    means = _means(spent)
    return {"tokens": means.get("tokens sampled", 0.0), "seconds": means[ALL]}


def _lines(arm: Arm) -> list[MetricRows]:
    return [run.steps.metrics for run in arm.runs.values()]


def _spent(run: Run) -> dict[str, float]:
    """Return the costs in a run's records, by their label in the table. Raises RunError."""
    steps = len(run.spent["updates"])
    last = spent_at(run.spent, steps)
    spent = {"rollouts": last["rollouts"], "updates": last["updates"]}
    if any("length" in row for row in run.steps.metrics):
        spent["tokens sampled"] = last["tokens"]
    spent["tokens trained on"] = last["update_tokens"]
    timings = run.steps.timings[:steps]
    for key, name in _PHASES.items():
        seconds = [value for row in timings if (value := finite(row.get(f"seconds/{key}"))) is not None]
        if seconds:
            spent[name] = math.fsum(seconds)
    spent[UPDATES], spent[ALL] = last["update_seconds"], last["seconds"]
    return spent


def _means(own: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for of_run in own for name in of_run)
    return {name: math.fsum(of_run.get(name, 0.0) for of_run in own) / len(own) for name in names}


def _with_ratio(cost: str, value: float | None, base: float | None) -> str:
    if value is None:
        return NONE
    timed = cost in (*_PHASES.values(), UPDATES, ALL)
    text = format_seconds(value) if timed else f"{value:,.6g}" if value < 1e6 else f"{value:,.0f}"
    return text if not base or value == base else f"{text} ({format_ratio(value / base)})"


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return math.fsum(numbers) / len(numbers) if numbers else None


@dataclass(frozen=True)
class AlertReport:
    """The alerts of the runs of a report.

    Attributes:
        verdicts: sentences on each arm. collapsed: those on alerts that last to the newest rollout;
            passed: those on alerts that a run recovered from.
    """

    verdicts: tuple[str, ...]
    collapsed: tuple[str, ...]
    passed: tuple[str, ...]
    table: Table | None


def find_alerts(subject: ReportData, problems: list[str]) -> AlertReport:
    """Compute the alerts of every run from its records.

    Args:
        problems: gets a line for each run whose records hold no numbers where there must be some.
    """
    rows: list[tuple[str, ...]] = []
    verdicts: list[str] = []
    collapsed: list[str] = []
    recovered: list[str] = []
    for arm in subject.arms:
        lasting: dict[str, list[str]] = {}
        passed: dict[str, list[str]] = {}
        for run in arm.runs.values():
            for alert in run_alerts(run, problems):
                (lasting if alert.lasting else passed).setdefault(run.dir.name, []).append(alert.title)
                end = "lasts" if alert.lasting else f"passed after rollout {alert.last + 1}"
                rows.append((run.dir.name, arm.name, alert.title, str(alert.first + 1), alert.evidence, end))
        now = [_verdict(arm, lasting)] if lasting else []
        before = [_verdict(arm, passed, ", which passed")] if passed else []
        verdicts += now + before or [_verdict(arm, {})]
        collapsed += now
        recovered += before
    header = ("run", "arm", "alert", "began after rollout", "evidence", "at the end")
    table = Table("Alerts, with their evidence", header, rows, texts=(1, 2, 4, 5)) if rows else None
    return AlertReport(tuple(verdicts), tuple(collapsed), tuple(recovered), table)


def without_signal(run: Run) -> str | None:
    """Summarise the rollouts in which no completion had an advantage; None where there was no alert on them."""
    try:
        return _monitor(run).no_signal_summary()
    except (TypeError, KeyError, ValueError):
        return None  # reported where the alerts are computed


def run_alerts(run: Run, problems: list[str]) -> list[Alert]:
    """Compute the alerts of a run from its lines; damaged lines become an entry of ``problems``."""
    for row in run.steps.metrics:
        for name in ("accuracy", "entropy", "length", "reward"):
            if row.get(name) is not None and finite(row[name]) is None:
                problems.append(f"{run.dir.metrics_path}: {name} is {row[name]!r}, not a number. The file was altered.")
                return []
    try:
        return _monitor(run).alerts()
    except (TypeError, KeyError, ValueError, ArithmeticError, AttributeError) as error:
        problems.append(f"{run.dir.metrics_path}: a value is not a number ({error!r}). The file was altered.")
        return []


def _monitor(run: Run) -> AlertMonitor:
    return AlertMonitor(run.config.rollout.prompts, rows=run.steps.metrics)


def _verdict(arm: Arm, alerts: Mapping[str, list[str]], ending: str = "") -> str:
    with_steps = sum(map(bool, _lines(arm)))
    runs = count(with_steps, "run")
    if not with_steps:
        return f"{arm.name}: nothing is recorded yet."
    if not alerts:
        return f"{arm.name}: no sign of collapse in {runs}."
    names = dict.fromkeys(name for names in alerts.values() for name in names)
    return f"{arm.name}: {join_and(list(names))} in {len(alerts)} of {runs} ({', '.join(alerts)}){ending}."
