"""What training went through: its course in numbers, its cost, collapses and other alerts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr_cli.collapse.alerts import Alert, AlertMonitor
from rlvr_cli.compare.words import ratio_text
from rlvr_cli.core.errors import collecting
from rlvr_cli.core.files import number
from rlvr_cli.core.table import NONE, Table
from rlvr_cli.core.text import clock, count, listed
from rlvr_cli.report.charts.reasons import last_window
from rlvr_cli.report.data import ReportData
from rlvr_cli.store.arm import Arm
from rlvr_cli.store.find import Run
from rlvr_cli.store.metrics import METRICS
from rlvr_cli.store.training import spent_at

MetricRows = list[dict[str, Any]]
UPDATES, ALL = "update time", "time in all"
_PARTS = {"rollout": "sampling time", "verify": "verification time"}


def course_table(subject: ReportData) -> Table | None:
    """Each measure of the sampled completions at the beginning and the end of training; None before a first step."""
    arms = _begun(subject)
    rows = []
    for key, metric in METRICS.items():
        cells = [_from_to(arm, key, f"{{:.{metric.decimals}f}}") for arm in arms]
        if (metric.training or metric.curve) and any(cell != NONE for cell in cells):
            rows.append([metric.label, *cells])
    if not rows:
        return None
    return Table(
        "Training's own completions, at its beginning and at its end",
        ("measure", *(arm.name for arm in arms)),
        rows,
        note=_window_note(subject),
    )


def cost_table(subject: ReportData, spent: Mapping[str, Sequence[Mapping[str, float]]]) -> Table | None:
    """What a run of each arm has spent until its last recorded step, from :func:`arms_spent`; None before a first."""
    if not spent:
        return None
    means = {name: _means(own) for name, own in spent.items()}
    base = means.get(subject.baseline.name, {})
    parts = list(dict.fromkeys(part for own in spent.values() for one in own for part in one))
    rows = [[part, *(_with_ratio(part, own.get(part), base.get(part)) for own in means.values())] for part in parts]
    counts = "; ".join(f"{name}: {count(len(own), 'run')}" for name, own in spent.items())
    return Table(
        "A run's cost" + (f", and as a multiple of {subject.baseline.name}'s" if len(_begun(subject)) > 1 else ""),
        ("spent", *spent),
        rows,
        note=f"In the mean over the runs ({counts}), until the last recorded step. Time is that of training: without "
        "held-out evaluations, checkpoints and starting up.",
    )


def arms_spent(subject: ReportData, problems: list[str]) -> dict[str, list[dict[str, float]]]:
    """What each run of an arm has spent, by the arm's name; arms without a step or its time are left out.

    Args:
        problems: gets a line for each run whose records are damaged.
    """
    spent: dict[str, list[dict[str, float]]] = {}
    for run, name in ((run, arm.name) for arm in subject.arms for run in arm.runs.values()):
        if run.steps.metrics and run.steps.timings:
            with collecting(problems):
                spent.setdefault(name, []).append(_spent(run))
    return spent


def mean_cost(spent: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Tokens and seconds of a run, in the mean over runs."""
    means = _means(spent)
    return {"tokens": means.get("tokens sampled", 0.0), "seconds": means[ALL]}


def _begun(subject: ReportData) -> list[Arm]:
    return [arm for arm in subject.arms if any(_lines(arm))]


def _lines(arm: Arm) -> list[MetricRows]:
    return [run.steps.metrics for run in arm.runs.values()]


def _window_note(subject: ReportData) -> str:
    sizes = sorted({last_window(_rollouts(rows)) for arm in subject.arms for rows in _lines(arm) if rows})
    shown = str(sizes[0]) if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
    last = "the last rollout" if sizes[-1] == 1 else f"the mean over the last {shown} rollouts"
    return f"The first rollout, and {last}, of each run; in the mean over the runs of an arm."


def _rollouts(rows: MetricRows) -> int:
    last: int = max(row["rollout"] for row in rows)
    return last + 1


def _from_to(arm: Arm, key: str, form: str) -> str:
    ends = [_ends(rows, key) for rows in _lines(arm) if rows]
    first, last = (_mean([end[at] for end in ends]) for at in (0, 1))
    if first is None or last is None:
        return NONE
    return f"{form.format(first)} → {form.format(last)}"


def _ends(rows: MetricRows, key: str) -> tuple[float | None, float | None]:
    rollouts = _rollouts(rows)
    start = rollouts - last_window(rollouts)
    first = [number(row.get(key)) for row in rows if row["rollout"] == 0]
    return _mean(first), _mean([number(row.get(key)) for row in rows if row["rollout"] >= start])


def _spent(run: Run) -> dict[str, float]:
    """What a run has spent, by the name of the row; the parts that its records have. Raises RunError."""
    steps = len(run.spent["updates"])
    last = spent_at(run.spent, steps)
    spent = {"rollouts": last["rollouts"], "updates": last["updates"]}
    if any("length" in row for row in run.steps.metrics):
        spent["tokens sampled"] = last["tokens"]
    spent["tokens trained on"] = last["update_tokens"]
    timings = run.steps.timings[:steps]
    for key, name in _PARTS.items():
        seconds = [value for row in timings if (value := number(row.get(f"seconds/{key}"))) is not None]
        if seconds:
            spent[name] = math.fsum(seconds)
    spent[UPDATES], spent[ALL] = last["update_seconds"], last["seconds"]
    return spent


def _means(own: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for one in own for name in one)
    return {name: math.fsum(one.get(name, 0.0) for one in own) / len(own) for name in names}


def _with_ratio(part: str, value: float | None, base: float | None) -> str:
    if value is None:
        return NONE
    text = (
        clock(value)
        if part in (*_PARTS.values(), UPDATES, ALL)
        else f"{value:,.6g}"
        if value < 1e6
        else f"{value:,.0f}"
    )
    return text if not base or value == base else f"{text} ({ratio_text(value / base)})"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


@dataclass(frozen=True)
class AlertReport:
    """The alerts of the runs of a report.

    Attributes:
        verdicts: one sentence or more for each arm. collapsed: those on alerts that last to the newest rollout;
            passed: those on alerts that a run recovered from. healthy: one sentence for the arms without either.
    """

    verdicts: tuple[str, ...]
    collapsed: tuple[str, ...]
    passed: tuple[str, ...]
    healthy: tuple[str, ...]
    table: Table | None


def find_alerts(subject: ReportData, problems: list[str]) -> AlertReport:
    """Compute the alerts of every run from its records.

    Args:
        problems: gets a line for each run whose records hold no numbers where there must be some.
    """
    rows: list[tuple[str, ...]] = []
    verdicts: list[str] = []
    bad: list[str] = []
    over: list[str] = []
    healthy = whole = 0
    for arm in subject.arms:
        lasting: dict[str, list[str]] = {}
        passed: dict[str, list[str]] = {}
        for run in arm.runs.values():
            for alert in run_alerts(run, problems):
                (lasting if alert.lasting else passed).setdefault(run.dir.name, []).append(alert.title)
                end = "lasts" if alert.lasting else f"passed after rollout {alert.last + 1}"
                rows.append((run.dir.name, arm.name, alert.title, str(alert.first + 1), alert.evidence, end))
        begun = sum(map(bool, _lines(arm)))
        whole += begun
        now = [_verdict(arm, lasting, begun)] if lasting else []
        before = [_verdict(arm, passed, begun, ", which passed")] if passed else []
        healthy += not now and not before
        verdicts += now + before or [_verdict(arm, {}, begun)]
        bad += now
        over += before
    header = ("run", "arm", "alert", "began after rollout", "evidence", "at the end")
    sentence = f"No sign of collapse in {'the other arms' if bad or over else count(whole, 'run')}."
    table = Table("Alerts, with their evidence", header, rows, texts=(1, 2, 4, 5)) if rows else None
    return AlertReport(tuple(verdicts), tuple(bad), tuple(over), (sentence,) if whole and healthy else (), table)


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
            if row.get(name) is not None and number(row[name]) is None:
                problems.append(f"{run.dir.metrics_path}: {name} is {row[name]!r}, not a number. The file was altered.")
                return []
    try:
        return _monitor(run).alerts()
    except (TypeError, KeyError, ValueError, ArithmeticError, AttributeError) as error:
        problems.append(f"{run.dir.metrics_path}: a value is not a number ({error!r}). The file was altered.")
        return []


def _monitor(run: Run) -> AlertMonitor:
    return AlertMonitor(run.config.rollout.prompts, rows=run.steps.metrics)


def _verdict(arm: Arm, alerts: Mapping[str, list[str]], begun: int, ending: str = "") -> str:
    runs = count(begun, "run")
    if not begun:
        return f"{arm.name}: nothing is recorded yet."
    if not alerts:
        return f"{arm.name}: no sign of collapse in {runs}."
    names = dict.fromkeys(name for names in alerts.values() for name in names)
    return f"{arm.name}: {listed(list(names))} in {len(alerts)} of {runs} ({', '.join(alerts)}){ending}."
