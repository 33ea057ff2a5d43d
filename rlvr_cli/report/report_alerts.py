"""Which runs collapsed, and what else raised an alert, with the numbers that say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlvr_cli.collapse.no_signal import SignalWatch
from rlvr_cli.collapse.watch import MEANINGS, PATTERNS, Collapse, CollapseWatch
from rlvr_cli.core.text import count, listed
from rlvr_cli.report.report_subject import Subject
from rlvr_cli.report.report_table import NONE, Table, table
from rlvr_cli.results.arms import Arm
from rlvr_cli.results.find import Run
from rlvr_cli.runs.alerts import Span, alert_spans, said


@dataclass(frozen=True)
class Alerts:
    """What was found in the runs.

    Attributes:
        verdicts: the sentences of each arm. collapsed: those on collapses that last to the newest rollout;
            passed: those on alarms that a run got over. healthy: one sentence for the arms without either; empty
            where there are none.
    """

    verdicts: tuple[str, ...]
    collapsed: tuple[str, ...]
    passed: tuple[str, ...]
    healthy: tuple[str, ...]
    table: Table | None


def find_alerts(subject: Subject, problems: list[str]) -> Alerts:
    """Collapse is looked for anew in the records, so that runs of all versions are judged by one rule; other alerts
    are as the runs were told of them.

    Args:
        problems: gets a line for each run whose records hold no numbers where there must be some.
    """
    rows: list[tuple[str, ...]] = []
    verdicts: list[str] = []
    bad: list[str] = []
    over: list[str] = []
    sound = 0
    for arm in subject.arms:
        lasting: dict[str, list[str]] = {}
        passed: dict[str, list[str]] = {}
        idle: list[str] = []
        for run in arm.runs.values():
            collapses, now, spans = _of_run(subject, run, problems)
            for one in collapses:
                (lasting if one.pattern in now else passed).setdefault(run.dir.name, []).append(one.name)
            rows += [_collapse_row(arm, run, one, one.pattern in now) for one in collapses]
            rows += [_span_row(arm, run, one) for one in spans]
            if said := without_signal(subject, run):
                idle.append(f"{run.dir.name}: {said}.")
        begun = sum(bool(lines) for lines in subject.of_arm(arm, subject.metrics))
        own = [_verdict(arm, lasting, begun)] if lasting else []
        gone = [_verdict(arm, passed, begun, ", which passed")] if passed else []
        sound += not own and not gone and not idle
        verdicts += own + gone + idle or [_verdict(arm, {}, begun)]
        bad += own + idle
        over += gone
    header = ("run", "arm", "alert", "began after rollout", "what moved", "beside it", "at the end")
    found_table = (
        table("Alerts, with their evidence", header, rows, texts=(1, 2, 4, 5, 6), note=_legend(rows)) if rows else None
    )
    whole = sum(map(bool, subject.metrics.values()))
    healthy = f"No sign of collapse in {'the other arms' if bad or over else count(whole, 'run')}."
    return Alerts(tuple(verdicts), tuple(bad), tuple(over), (healthy,) if whole and sound else (), found_table)


def without_signal(subject: Subject, run: Run) -> str | None:
    """What a run says of rollouts in which no completion had an advantage; None where nothing was told of any."""
    watch = SignalWatch()
    try:
        watch.see_all(subject.metrics[run.path])
        return watch.ending()
    except (TypeError, KeyError, ValueError):
        return None  # said where the alerts are looked for


def _of_run(subject: Subject, run: Run, problems: list[str]) -> tuple[list[Collapse], set[str], list[Span]]:
    """The collapses that began, the patterns that hold after the newest rollout, and the other alerts."""
    lines = subject.metrics[run.path]
    watch = CollapseWatch(run.config.rollout.prompts)
    try:
        watch.see_all(lines if any("length" in row for row in lines) else ())
        spans = [span for span in alert_spans(lines) if span.alert not in PATTERNS]
    except (TypeError, KeyError, ValueError, ArithmeticError, AttributeError) as error:
        problems.append(f"{run.dir.metrics_path}: holds something that is no number ({error!r}). The file was altered.")
        return [], set(), []
    return watch.told(), watch.lasting(), spans


def _verdict(arm: Arm, found: Mapping[str, list[str]], begun: int, how: str = "") -> str:
    runs = count(begun, "run")
    if not begun:
        return f"{arm.name}: nothing is recorded yet."
    if not found:
        return f"{arm.name}: no sign of collapse in {runs}."
    names = dict.fromkeys(name for names in found.values() for name in names)
    return f"{arm.name}: {listed(list(names))} in {len(found)} of {runs} ({', '.join(found)}){how}."


def _collapse_row(arm: Arm, run: Run, one: Collapse, lasts: bool) -> tuple[str, ...]:
    moves, beside = (", ".join(said(move.as_json()) for move in part) for part in (one.evidence, one.beside))
    return run.dir.name, arm.name, one.name, str(one.first + 1), moves, beside or NONE, "lasts" if lasts else "passed"


def _span_row(arm: Arm, run: Run, span: Span) -> tuple[str, ...]:
    return (
        run.dir.name,
        arm.name,
        span.alert.replace("_", " "),
        str(span.first + 1),
        span.evidence or NONE,
        NONE,
        "lasts" if span.now else f"passed after rollout {span.last + 1}",
    )


def _legend(rows: list[tuple[str, ...]]) -> str:
    told = {row[2] for row in rows}
    parts = [
        f"{name}: {meaning}"
        for name, meaning in ((key.replace("_", " "), text) for key, text in MEANINGS.items())
        if name in told
    ]
    return "; ".join(parts) + "." if parts else ""
