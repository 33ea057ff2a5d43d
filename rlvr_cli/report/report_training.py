"""What the records of training say by arm: its course in numbers, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlvr_cli.compare.sentences import ratio_text
from rlvr_cli.core.errors import RunError
from rlvr_cli.core.text import count
from rlvr_cli.report.charts.reasons import last_window
from rlvr_cli.report.report_subject import Rows, Subject
from rlvr_cli.report.report_table import NONE, Table, clock, table
from rlvr_cli.results.arms import Arm
from rlvr_cli.results.find import Run
from rlvr_cli.results.spending import spending
from rlvr_cli.runs.numbers import number

_MEASURES = {
    "reward": ("reward", "{:.3f}"),
    "accuracy": ("accuracy", "{:.3f}"),
    "loss": ("loss", "{:.3f}"),
    "token accuracy": ("token_accuracy", "{:.3f}"),
    "length (tokens)": ("length", "{:.1f}"),
    "cut off": ("truncated", "{:.3f}"),
    "entropy (nats a token)": ("entropy", "{:.3f}"),
    "diversity": ("diversity", "{:.3f}"),
    "gradient norm": ("grad_norm", "{:.3g}"),
}
UPDATES, ALL = "update time", "time in all"
_PARTS = {"rollout": "sampling time", "verify": "verification time"}


def course_table(subject: Subject) -> Table | None:
    """Each measure of the sampled completions at the beginning and the end of training; None before a first step."""
    arms = _begun(subject)
    rows = []
    for name, (key, form) in _MEASURES.items():
        cells = [_from_to(subject, arm, key, form) for arm in arms]
        if any(cell != NONE for cell in cells):
            rows.append([name, *cells])
    if not rows:
        return None
    return table(
        "Training's own completions, at its beginning and at its end",
        ("measure", *(arm.name for arm in arms)),
        rows,
        note=_window_note(subject),
    )


def cost_table(subject: Subject, problems: list[str]) -> Table | None:
    """What a run of each arm has spent until its last recorded step; None before a first one.

    Args:
        problems: gets a line for each run whose records are damaged.
    """
    arms = _begun(subject)
    spent: dict[str, list[dict[str, float]]] = {}
    for run, name in ((run, arm.name) for arm in arms for run in arm.runs.values()):
        if not (subject.metrics[run.path] and subject.timings[run.path]):
            continue
        try:
            spent.setdefault(name, []).append(_spent(subject, run))
        except RunError as error:
            problems.append(str(error))
    if not spent:
        return None
    base = _means(spent[subject.baseline.name]) if subject.baseline.name in spent else {}
    parts = list(dict.fromkeys(part for own in spent.values() for one in own for part in one))
    means = {name: _means(own) for name, own in spent.items()}
    rows = [[part, *(_with_ratio(part, own.get(part), base.get(part)) for own in means.values())] for part in parts]
    counts = "; ".join(f"{name}: {count(len(own), 'run')}" for name, own in spent.items())
    return table(
        "A run's cost" + (f", and as a multiple of {subject.baseline.name}'s" if len(arms) > 1 else ""),
        ("spent", *spent),
        rows,
        note=f"In the mean over the runs ({counts}), until the last recorded step. Time is that of training: without "
        "held-out evaluations, checkpoints and starting up.",
    )


def _begun(subject: Subject) -> list[Arm]:
    return [arm for arm in subject.arms if any(subject.of_arm(arm, subject.metrics))]


def _window_note(subject: Subject) -> str:
    sizes = sorted({last_window(_rollouts(rows)) for rows in subject.metrics.values() if rows})
    shown = str(sizes[0]) if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
    last = "the last rollout" if sizes[-1] == 1 else f"the mean over the last {shown} rollouts"
    return f"The first rollout, and {last}, of each run; in the mean over the runs of an arm."


def _rollouts(rows: Rows) -> int:
    last: int = max(row["rollout"] for row in rows)
    return last + 1


def _from_to(subject: Subject, arm: Arm, key: str, form: str) -> str:
    ends = [_ends(rows, key) for rows in subject.of_arm(arm, subject.metrics) if rows]
    first, last = (_mean([end[at] for end in ends]) for at in (0, 1))
    if first is None or last is None:
        return NONE
    return f"{form.format(first)} → {form.format(last)}"


def _ends(rows: Rows, key: str) -> tuple[float | None, float | None]:
    rollouts = _rollouts(rows)
    start = rollouts - last_window(rollouts)
    first = [number(row.get(key)) for row in rows if row["rollout"] == 0]
    return _mean(first), _mean([number(row.get(key)) for row in rows if row["rollout"] >= start])


def _spent(subject: Subject, run: Run) -> dict[str, float]:
    """What a run has spent, by the name of the row; the parts that its records have. Raises RunError."""
    steps = spending(run)
    last = steps[-1]
    spent = {"rollouts": last.rollouts, "updates": last.updates}
    if any("length" in row for row in subject.metrics[run.path]):
        spent["tokens sampled"] = last.tokens
    spent["tokens trained on"] = last.update_tokens
    timings = subject.timings[run.path][: len(steps)]
    for key, name in _PARTS.items():
        seconds = [value for row in timings if (value := number(row.get(f"seconds/{key}"))) is not None]
        if seconds:
            spent[name] = math.fsum(seconds)
    spent[UPDATES], spent[ALL] = last.update_seconds, last.seconds
    return spent


def _means(own: Sequence[dict[str, float]]) -> dict[str, float]:
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
