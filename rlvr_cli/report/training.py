"""Training in numbers: metrics at start and end, costs, and alerts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr_cli.collapse.alerts import Alert, AlertMonitor
from rlvr_cli.compare.words import format_ratio
from rlvr_cli.core.errors import collect_problems
from rlvr_cli.core.files import finite
from rlvr_cli.core.table import NONE, Table
from rlvr_cli.core.text import count, format_seconds, join_and
from rlvr_cli.report.charts.reasons import window_size
from rlvr_cli.report.data import ReportData
from rlvr_cli.store.arm import Arm
from rlvr_cli.store.find import Run
from rlvr_cli.store.metrics import METRICS
from rlvr_cli.store.training import spent_at

MetricRows = list[dict[str, Any]]
UPDATES, ALL = "update time", "total time"
_PHASES = {"rollout": "sampling time", "verify": "verification time"}


def rollout_metrics_table(data: ReportData) -> Table | None:
    """Return metrics of the sampled completions at the start and the end of training; None without a step."""
    arms = {arm.name: [rows for rows in _metric_rows(arm) if rows] for arm in data.arms}
    arms = {name: runs for name, runs in arms.items() if runs}
    rows = []
    for key, metric in METRICS.items():
        if metric.training or metric.curve:
            cells = [_format_change(runs, key, f"{{:.{metric.decimals}f}}") for runs in arms.values()]
            if any(cell != NONE for cell in cells):
                rows.append([metric.label, *cells])
    if not rows:
        return None
    sizes = sorted({len(_last_rollouts(rows)) for runs in arms.values() for rows in runs})
    span = str(sizes[0]) if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
    last = "the last rollout" if sizes[-1] == 1 else f"the mean of the last {span} rollouts"
    note = f"From the first rollout to {last} of each run; mean over an arm's runs."
    return Table("Training rollouts, start and end", ("metric", *arms), rows, note=note)


def _last_rollouts(rows: MetricRows) -> range:
    rollouts = 1 + max(row["rollout"] for row in rows)
    return range(rollouts - window_size(rollouts), rollouts)


def _format_change(runs: Sequence[MetricRows], key: str, form: str) -> str:
    """Return a metric in the first and in the last rollouts, the mean over ``runs``."""
    first, last = (
        _mean([_mean([finite(row.get(key)) for row in rows if row["rollout"] in span]) for rows, span in spans])
        for spans in ([(rows, range(1)) for rows in runs], [(rows, _last_rollouts(rows)) for rows in runs])
    )
    return NONE if first is None or last is None else f"{form.format(first)} → {form.format(last)}"


def cost_table(data: ReportData, spent: Mapping[str, Sequence[Mapping[str, float]]]) -> Table | None:
    """Return an arm's mean cost per run until the last step, from :func:`sum_costs`; None without any."""
    if not spent:
        return None
    means = {name: _average_costs(runs) for name, runs in spent.items()}
    base = means.get(data.baseline.name, {})
    costs = dict.fromkeys(cost for runs in spent.values() for run in runs for cost in run)
    rows = [
        [cost, *(_format_with_ratio(cost, mean.get(cost), base.get(cost)) for mean in means.values())] for cost in costs
    ]
    counts = "; ".join(f"{name}: {count(len(runs), 'run')}" for name, runs in spent.items())
    several = sum(any(_metric_rows(arm)) for arm in data.arms) > 1
    relative = f", and relative to {data.baseline.name}" if several else ""
    note = (
        f"Means over runs ({counts}) until the last recorded step. Times exclude startup, held-out evaluations and "
        "checkpoints."
    )
    return Table(f"Cost per run{relative}", ("cost", *spent), rows, note=note)


def sum_costs(data: ReportData, problems: list[str]) -> dict[str, list[dict[str, float]]]:
    """Return the runs' costs by arm, without arms that have no timed step; errors are added to ``problems``."""
    spent: dict[str, list[dict[str, float]]] = {}
    for run, name in ((run, arm.name) for arm in data.arms for run in arm.runs.values()):
        if run.steps.metrics and run.steps.timings:
            with collect_problems(problems):
                spent.setdefault(name, []).append(_read_costs(run))
    return spent


def mean_cost(spent: Sequence[Mapping[str, float]]) -> dict[str, float]:
    means = _average_costs(spent)
    return {"tokens": means.get("tokens sampled", 0.0), "seconds": means[ALL]}


def _metric_rows(arm: Arm) -> list[MetricRows]:
    return [run.steps.metrics for run in arm.runs.values()]


def _read_costs(run: Run) -> dict[str, float]:
    """Return a run's costs by their label in the table. Raises RunError."""
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


def _average_costs(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: math.fsum(run.get(name, 0.0) for run in runs) / len(runs) for name in names}


def _format_with_ratio(cost: str, value: float | None, base: float | None) -> str:
    if value is None:
        return NONE
    timed = cost in (*_PHASES.values(), UPDATES, ALL)
    text = format_seconds(value) if timed else f"{value:,.6g}" if value < 1e6 else f"{value:,.0f}"
    return text if not base or value == base else f"{text} ({format_ratio(value / base)})"


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return math.fsum(numbers) / len(numbers) if numbers else None


def find_alerts(data: ReportData, problems: list[str]) -> dict[str, Any]:
    """Return sentences on the alerts of all arms (`verdicts`), active and past ones, and their `table`, if any.

    Errors of damaged records are added to ``problems``.
    """
    rows, verdicts, collapsed, resolved = list[tuple[str, ...]](), list[str](), list[str](), list[str]()
    for arm in data.arms:
        active, past = dict[str, list[str]](), dict[str, list[str]]()
        for run in arm.runs.values():
            for alert in compute_alerts(run, problems):
                (active if alert.lasting else past).setdefault(run.dir.name, []).append(alert.title)
                end = "active" if alert.lasting else f"resolved after rollout {alert.last + 1}"
                rows.append((run.dir.name, arm.name, alert.title, str(alert.first + 1), alert.evidence, end))
        now = [_describe_alerts(arm, active)] if active else []
        before = [_describe_alerts(arm, past, ", resolved")] if past else []
        verdicts += now + before or [_describe_alerts(arm, {})]
        collapsed += now
        resolved += before
    header = ("run", "arm", "alert", "first rollout", "evidence", "status")
    table = Table("Alerts and their evidence", header, rows, texts=(1, 2, 4, 5)) if rows else None
    return {"verdicts": verdicts, "collapsed": collapsed, "resolved": resolved, "table": table}


def summarize_no_signal(run: Run) -> str | None:
    """Summarise the rollouts in which no completion had an advantage; None without an alert."""
    try:
        return _make_monitor(run).no_signal_summary()
    except (TypeError, KeyError, ValueError):
        return None  # `compute_alerts` reports it


def compute_alerts(run: Run, problems: list[str]) -> list[Alert]:
    """Compute the alerts of a run; errors of damaged records are appended to ``problems``."""
    try:
        return _make_monitor(run).alerts()
    except (TypeError, KeyError, ValueError, ArithmeticError, AttributeError) as error:
        problems.append(f"{run.dir.metrics_path}: a value is not a number ({error!r}). The file was altered.")
        return []


def _make_monitor(run: Run) -> AlertMonitor:
    return AlertMonitor(run.config.rollout.prompts, rows=run.steps.metrics)


def _describe_alerts(arm: Arm, alerts: Mapping[str, list[str]], ending: str = "") -> str:
    with_steps = sum(map(bool, _metric_rows(arm)))
    runs = count(with_steps, "run")
    if not with_steps:
        return f"{arm.name}: nothing recorded yet."
    if not alerts:
        return f"{arm.name}: no collapse detected in {runs}."
    names = dict.fromkeys(name for names in alerts.values() for name in names)
    return f"{arm.name}: {join_and(list(names))} in {len(alerts)} of {runs} ({', '.join(alerts)}){ending}."
