"""`rlvr analyze landscape`: the course of training of runs and arms, and completions from around a collapse.

Curves and single numbers are those of metrics.jsonl.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from rlvr_cli.analyses.base import AnalysisInput, Findings, analysis, names_of
from rlvr_cli.charts.figure import COLOURS, DASHES
from rlvr_cli.charts.lines import ArmLine, Panel, arm_line, extent, metric_axis
from rlvr_cli.collapse.alerts import NO_SIGNAL, Alert, AlertMonitor
from rlvr_cli.core.errors import UserError, collecting
from rlvr_cli.core.files import number
from rlvr_cli.core.section import Count, Section
from rlvr_cli.core.table import Table
from rlvr_cli.core.text import count, one_line, shortened, told_apart
from rlvr_cli.runs.records import read_record
from rlvr_cli.stats.intervals import mean_interval
from rlvr_cli.store.arm import Arm, group_arms
from rlvr_cli.store.completions import sampled_completions
from rlvr_cli.store.find import Run, find_runs
from rlvr_cli.store.metrics import HELD_OUT, METRICS, Metric
from rlvr_cli.store.training import Points, by_rollout, curve_as_json, learning_curves, recorded_values, whole_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_TEXT = 400
# Columns of the tables: what is shown of the summary, and its name for people.
_COLUMNS = {
    "courses: accuracy and collapse": {
        "accuracy_start": "start",
        "accuracy_best": "best",
        "accuracy_end": "end",
        "accuracy_held_out": "held-out",
        "collapsed": "collapsed",
        "collapse_at": "at rollout",
        "truncated_end": "truncated",
    },
    "courses: length and entropy": {
        "length_start": "length",
        "length_end": "end",
        "length_largest_ratio": "largest/start",
        "entropy_start": "entropy",
        "entropy_end": "end",
        "entropy_largest_ratio": "largest/start",
    },
    "courses: updates": {
        "steps_per_rollout": "a rollout",
        "grad_norm_mean": "grad norm",
        "prob_distance_mean": "|pi - pi_old|",
        "ratio_distance_mean": "rms of r - 1",
        "clip_share_mean": "clipped",
        "value_correct_end": "value if right",
        "value_incorrect_end": "if wrong",
    },
}
_READING = (
    "Each panel is one number over the rollouts: a line is the mean over the runs of an arm, its band Student's 95% "
    "interval over them at each rollout by itself (of two runs: their curves); a cross is the rollout at which a run's "
    "collapse was told. The landscape paper sees, with one update a rollout: PL loses entropy and length and then "
    "accuracy, and stays there (figures 2, 9, 10); NL gains entropy and length with bursts of the gradient norm, and "
    "is not stable there (11); CL collapses later, GRPO hardly ever (4). Clipping with several updates, and token "
    "normalisation, delay or prevent it (3, 5); several updates without clipping hasten it (7), and |pi - pi_old| "
    "grows until the collapse (13). PPO's value head predicts less than 0 on wrong completions, which no value can be "
    "where rewards are 0 and 1 (8)."
)
# Rollouts that the start and the end of a run are the mean of.
START, END = 3, 5
# A length has collapsed or exploded when it is beyond this factor of its start for so many rollouts in a row.
SHORT, LONG, LASTING = 0.5, 2.0, 5
# A number warns when it is so many standard deviations from the mean of its first rollouts, so many in a row.
WARNING_FIRST, WARNING_SPREAD, WARNING_LASTING = 5, 4.0, 3
# How the names of rollouts end that a run may not reach, and of differences of those.
_CENSORED = ("_at", "_lead")
Summary = dict[str, float | int | None]
COLUMNS = 3
MOST_NAME = 60
# Panels, by the metrics in each, the second of them dashed; the latter where some run has values that are not all 0.
_ALWAYS = (("accuracy",), ("length",), ("entropy",), ("grad_norm",))
_WHERE_KNOWN = (
    ("prob_distance",),
    ("ratio_distance",),
    ("kl_reference",),
    ("clip_share",),
    ("truncated",),
    ("eval",),
    ("value/correct", "value/incorrect"),
)
# Of several numbers of a line.
_DERIVED = {
    "ratio_distance": Metric("√ mean (r - 1)²", lowest=0.0, log_scale=True),
    "clip_share": Metric("clipped tokens", share=True, lowest=0.0, axis="share of tokens"),
}
_DASHED = (0, (4, 2))


class LandscapeOptions(Section):
    """Keys of `rlvr analyze landscape`."""

    samples: Count = Field(1, description="Problems whose completions before and after the collapse are shown.")


@analysis(
    "length, entropy, gradient norm and accuracy over training",
    paper="landscape",
    options=LandscapeOptions,
    runs=None,
    policy=False,
)
def landscape(subject: AnalysisInput, options: LandscapeOptions) -> Findings:
    """The courses of the runs, up to ``subject.rollout`` where that is given.

    Raises:
        UserError: a run without any optimizer step, or without that rollout; two runs of one arm with the same seed.
    """
    selected = find_runs([str(run.path) for run in subject.runs], subject.root, unfinished=True)
    runs, problems = selected.runs, list(selected.problems)
    arms: tuple[Arm, ...] = ()
    with collecting(problems):
        arms = group_arms(runs, alone=True) if runs else ()
    names = dict(zip((run.path for run in runs), names_of([run.dir for run in runs]), strict=True))
    courses = {names[run.path]: found for run in runs if (found := _course(run, subject.rollout, problems)) is not None}
    if problems:
        raise UserError(problems)
    members = {arm.name: [names[run.path] for run in arm.runs.values()] for arm in arms}
    samples = _samples(arms, names, courses, options.samples)
    of_arms = {arm: [courses[name] for name in members[arm]] for arm in members}
    return Findings(
        headline=_headline(of_arms),
        numbers={
            "summary": next(iter(courses.values())).summary if len(courses) == 1 else {},
            "runs": {name: _as_json(found) for name, found in courses.items()},
            "arms": {arm: {"runs": members[arm], "summary": _means(of_arms[arm])} for arm in members},
            "samples": samples,
        },
        tables=(*_tables(of_arms), _collapses(courses), *_shown(samples)),
        reading=_READING,
        draw=lambda: landscape_figure(of_arms),
        notes=_notes(courses),
    )


def _course(run: Run, last: int | None, problems: list[str]) -> Course | None:
    rows = whole_rows(read_record(run.dir, run.dir.metrics_path))
    if not rows:
        problems.append(f"{run.path}: has no optimizer step yet, so there is nothing to analyze.")
        return None
    newest = max(row["rollout"] for row in rows)
    if last is not None and last > newest:
        problems.append(f"{run.path}: there is no rollout {last} yet; the newest is {newest}.")
        return None
    kept = [row for row in rows if last is None or row["rollout"] <= last]
    return course(kept, run.config.rollout.prompts)


def _as_json(found: Course) -> dict[str, Any]:
    return {
        "summary": found.summary,
        "collapses": [asdict(collapse) for collapse in found.collapses],
        "kl": found.kl,
        "curves": {name: curve_as_json(points) for name, points in found.curves.items() if points},
    }


def _means(courses: Sequence[Course]) -> dict[str, dict[str, Any]]:
    """Return the mean and Student's 95% interval of each number over the ``runs`` that have it.

    A rollout that some runs did not reach is censored in those: it has no mean over the others.
    """
    means: dict[str, dict[str, Any]] = {}
    for name in courses[0].summary:
        values = [float(value) for run in courses if (value := run.summary[name]) is not None]
        if name.endswith(_CENSORED) and len(values) < len(courses):
            means[name] = {"mean": None, "low": None, "high": None, "runs": len(values)}
        elif values:
            estimate = mean_interval(values)
            means[name] = {"mean": estimate.value, "low": estimate.low, "high": estimate.high, "runs": estimate.n}
    return means


def _headline(arms: Mapping[str, Sequence[Course]]) -> str:
    courses = [found for group in arms.values() for found in group]
    if len(courses) > 1:
        told = [f"{sum(bool(found.collapses) for found in group)} of {len(group)} {arm}" for arm, group in arms.items()]
        return f"{len(courses)} runs in {len(arms)} arms. Collapsed: {', '.join(told)}."
    (found,) = courses
    numbers = {name: _figure(found.summary[f"accuracy_{name}"]) for name in ("start", "best", "end")}
    end = f"Accuracy {numbers['start']} at the start, {numbers['best']} at best, {numbers['end']} at the end"
    if not found.collapses:
        return f"{end} of {found.rollouts} rollouts; no collapse."
    first = found.collapses[0]
    return f"{end} of {found.rollouts} rollouts; {first.title} at rollout {first.first + 1}."


def _tables(arms: Mapping[str, Sequence[Course]]) -> list[Table]:
    tables = []
    for title, columns in _COLUMNS.items():
        rows = []
        for arm, group in arms.items():
            means = _means(group)
            cells = [_cell(means[name], len(group)) if name in means else "-" for name in columns]
            rows.append((arm, str(len(group)), *cells))
        tables.append(Table(f"{title}, means over runs", ("arm", "runs", *columns.values()), rows))
    return tables


def _cell(mean: Mapping[str, Any], runs: int) -> str:
    return f"{mean['runs']} of {count(runs, 'run')}" if mean["mean"] is None else _figure(mean["mean"])


def _collapses(courses: Mapping[str, Course]) -> Table:
    rows = []
    for name, run in courses.items():
        rows += [(name, str(alert.first + 1), alert.title, alert.evidence) for alert in run.collapses]
        if not run.collapses:
            rows.append((name, f"not within {run.rollouts}", "", ""))
    return Table("collapses", ("run", "at rollout", "pattern", "what moved"), rows)


def _samples(
    arms: Sequence[Arm], names: Mapping[str, str], courses: Mapping[str, Course], most: int
) -> list[dict[str, Any]]:
    """Completions of the first run of each arm that collapsed, from before and after; of its ends where none did."""
    found = []
    for arm in arms:
        runs = list(arm.runs.values())
        run = next((one for one in runs if courses[names[one.path]].collapses), runs[0])
        one = courses[names[run.path]]
        # Not the last of the run: what was saved after the rollouts looked at is no part of this.
        around = (0, one.rollouts - 1)
        if one.collapses:
            around = (max(0, one.collapses[0].first - one.window), one.collapses[0].first)
        for pair in sampled_completions(run.dir, most, rollouts=around).pairs:
            for sampled in pair:
                found += [
                    {
                        "run": names[run.path],
                        "rollout": sampled.rollout,
                        "problem": sampled.problem,
                        "correct": completion.correct,
                        "reason": completion.reason,
                        "tokens": completion.tokens,
                        "text": completion.text or "".join(piece.text for piece in completion.pieces),
                    }
                    for completion in sampled.completions
                ]
    return found


def _shown(samples: Sequence[Mapping[str, Any]]) -> list[Table]:
    rows = [
        (
            str(one["run"]),
            str(one["rollout"]),
            str(one["reason"]),
            str(one["tokens"]),
            shortened(one_line(one["text"]), MOST_TEXT),
        )
        for one in samples
    ]
    return (
        [Table("completions before and after", ("run", "rollout", "verdict", "tokens", "text"), rows)] if rows else []
    )


def _notes(courses: Mapping[str, Course]) -> tuple[str, ...]:
    notes = []
    short = [name for name, found in courses.items() if found.rollouts < 8]
    if short:
        notes.append(f"{', '.join(short)}: fewer than 8 rollouts, too few for meaningful starts, ends and warnings.")
    if all(found.summary["steps_per_rollout"] == 1 for found in courses.values()):
        notes.append("With one update a rollout the updated policy is the one that sampled: both distances are 0.")
    return tuple(notes)


def _figure(value: float | int | None) -> str:
    return "-" if value is None else f"{value:.4g}"


@dataclass(frozen=True)
class Course:
    """How a run went.

    Attributes:
        curves: by name; a value is the mean over the rollout's updates. What the run did not record has no points.
        summary: single numbers, None where there is none; rollouts in it count from 1.
        collapses: the alerts but that of a missing signal. window: rollouts that their rules look at.
        rollouts: how many there were.
        kl: the curve that stands for the KL divergence: to the reference, else, with several updates a rollout, to the
            policy that sampled; None where there is neither.
    """

    curves: dict[str, Points]
    summary: Summary
    collapses: tuple[Alert, ...]
    window: int
    rollouts: int
    kl: str | None


def course(rows: Sequence[Mapping[str, Any]], problems: int) -> Course:
    """Compute the curves, the summary and the collapses of a run from the lines of metrics.jsonl.

    Args:
        rows: at least one, one per optimizer step, each with an integer `rollout`, in their order.
        problems: problems per rollout (`rollout.prompts`).
    """
    curves = _curves(rows)
    steps_per_rollout = max(Counter(row["rollout"] for row in rows).values())
    rollouts = max(row["rollout"] for row in rows) + 1
    monitor = AlertMonitor(problems, rows=rows)
    collapses = tuple(alert for alert in monitor.alerts() if alert.name != NO_SIGNAL)
    # With one update the policy is the one that sampled, and what the divergence has is rounding.
    known = ("kl_reference", *(("kl_old",) if steps_per_rollout > 1 else ()))
    kl = next((name for name in known if any(value for _, value in curves[name])), None)
    summary = {
        **_levels(curves),
        **_moments(curves, kl),
        "collapsed": int(bool(collapses)),
        "collapse_at": collapses[0].first + 1 if collapses else None,
        "steps_per_rollout": steps_per_rollout,
        "updates": len(rows),
        "rollouts": rollouts,
    }
    return Course(curves, summary, collapses, monitor.window, rollouts, kl)


def stays_beyond(points: Points, beyond: Callable[[float], bool], lasting: int) -> int | None:
    """The rollout, from 1, of the first of ``lasting`` values in a row that are ``beyond``; None without any."""
    run = 0
    for place, (_, value) in enumerate(points):
        run = run + 1 if beyond(value) else 0
        if run == lasting:
            return points[place - lasting + 1][0] + 1
    return None


def warning(points: Points) -> int | None:
    """The rollout, from 1, from which a number leaves mean +- 4 standard deviations of its first 5 rollouts.

    It must stay outside for 3 rollouts in a row, on either side; the standard deviation is the sample's. None where it
    never does, or has no more than 5 values.
    """
    if len(points) <= WARNING_FIRST:
        return None
    start = [value for _, value in points[:WARNING_FIRST]]
    mean, bound = fmean(start), WARNING_SPREAD * stdev(start)
    return stays_beyond(points[WARNING_FIRST:], lambda value: abs(value - mean) > bound, WARNING_LASTING)


def _curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    # Whichever accuracy it is: the arms of a landscape are evaluated alike.
    held_out = (points for name, points in learning_curves(rows).items() if name.startswith(HELD_OUT))
    return {
        **{name: by_rollout(recorded_values(rows, name)) for name in ("kl_old", *chain(*_ALWAYS, *_WHERE_KNOWN))},
        "eval": next(held_out, ()),
        "ratio_distance": by_rollout((row["rollout"], _ratio_distance(row)) for row in rows),
        "clip_share": by_rollout((row["rollout"], _clip_share(row)) for row in rows),
    }


def _ratio_distance(row: Mapping[str, Any]) -> float | None:
    """sqrt(E (r - 1)^2) over the tokens of an update, from the mean and the spread of the ratio r."""
    mean, spread = number(row.get("ratio_mean")), number(row.get("ratio_std"))
    return None if mean is None or spread is None else math.hypot(mean - 1, spread)


def _clip_share(row: Mapping[str, Any]) -> float | None:
    """Share of tokens beyond the trust region in the direction of their advantage, which clipping cuts off."""
    low, high = number(row.get("clip_frac/low")), number(row.get("clip_frac/high"))
    return None if low is None or high is None else low + high


def _levels(curves: Mapping[str, Points]) -> Summary:
    """Start, end and extremes of the curves, and their ratios."""

    def values(name: str) -> list[float]:
        return [value for _, value in curves[name]]

    def start(name: str) -> float | None:
        return _mean(values(name)[:START])

    def end(name: str) -> float | None:
        return _mean(values(name)[-END:])

    accuracy, best = values("accuracy"), max(values("accuracy"), default=None)
    last, ratio, prob = end("accuracy"), values("ratio_distance"), values("prob_distance")
    summary: Summary = {
        "accuracy_start": start("accuracy"),
        "accuracy_best": best,
        "accuracy_end": last,
        "accuracy_held_out": values("eval")[-1] if values("eval") else None,
        "accuracy_loss": None if best is None or last is None else best - last,
        "accuracy_gain": None if not accuracy or last is None else last - fmean(accuracy[:START]),
    }
    for name in ("length", "entropy"):
        at = start(name)
        summary |= {
            f"{name}_start": at,
            f"{name}_end": end(name),
            f"{name}_ratio": _ratio(end(name), at),
            # Of what comes after: the start's own largest value is above its mean in any case.
            f"{name}_largest_ratio": _ratio(max(values(name)[START:], default=None), at),
            f"{name}_smallest_ratio": _ratio(min(values(name)[START:], default=None), at),
        }
    return {
        **summary,
        "grad_norm_mean": _mean(values("grad_norm")),
        "grad_norm_largest": max(values("grad_norm"), default=None),
        "clip_share_mean": _mean(values("clip_share")),
        "ratio_distance_mean": _mean(ratio),
        "ratio_distance_end": _mean(ratio[-END:]),
        "ratio_distance_largest": max(ratio, default=None),
        "prob_distance_mean": _mean(prob),
        "prob_distance_end": _mean(prob[-END:]),
        "prob_distance_largest": max(prob, default=None),
        "kl_old_mean": _mean(values("kl_old")),
        "truncated_end": end("truncated"),
        "value_correct_end": end("value/correct"),
        "value_incorrect_end": end("value/incorrect"),
        "value_incorrect_smallest": min(values("value/incorrect"), default=None),
    }


def _moments(curves: Mapping[str, Points], kl: str | None) -> Summary:
    """Return when lengths left their bounds, and entropy and KL warned; None where they did not."""
    length = curves["length"]
    start = _mean([value for _, value in length[:START]]) or 0.0
    entropy_at = warning(curves["entropy"])
    kl_at = None if kl is None else warning(curves[kl])
    lead = None if entropy_at is None or kl_at is None else kl_at - entropy_at
    # The same order with a warning that did not come counted as later than any that did.
    order = np.sign((kl_at or math.inf) - (entropy_at or math.inf)) if entropy_at or kl_at else 0
    return {
        "length_collapse_at": stays_beyond(length, lambda value: value < SHORT * start, LASTING),
        "length_explosion_at": stays_beyond(length, lambda value: value > LONG * start, LASTING),
        "entropy_warning_at": entropy_at,
        "kl_warning_at": kl_at,
        "entropy_warning_lead": lead,
        "entropy_warning_first": None if kl is None else int(order),
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _ratio(value: float | None, start: float | None) -> float | None:
    return value / start if value is not None and start else None


def landscape_figure(arms: Mapping[str, Sequence[Course]]) -> Figure:
    """A panel for each number that some run has. Must be called inside ``charts.figure.style()``."""
    from matplotlib.figure import Figure

    courses = [found for group in arms.values() for found in group]
    moved = [
        names
        for names in _WHERE_KNOWN
        if any(value for found in courses for name in names for _, value in found.curves[name])
    ]
    panels = [*_ALWAYS, *moved]
    rows = -(-len(panels) // COLUMNS)
    shown = told_apart(list(arms), MOST_NAME)
    figure = Figure(figsize=(11.0, 2.5 * rows + 0.5 + 0.18 * len(arms)), layout="constrained")
    grid = figure.subplots(rows, COLUMNS, squeeze=False)
    for axes, names in zip(grid.flat, panels, strict=False):
        _panel(axes, names, arms)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    _legend(figure, list(shown.values()))
    return figure


def _panel(axes: Any, names: Sequence[str], arms: Mapping[str, Sequence[Course]]) -> None:
    metrics = [_DERIVED.get(name) or METRICS[name] for name in names]
    scale = metric_axis(metrics[0])
    axes.set_title(metrics[0].heading + "".join(f" (dashed: {metric.label})" for metric in metrics[1:]))
    axes.set_ylabel(scale.label)
    axes.set_xlabel("rollout")
    lines = []
    for second, name in enumerate(names):
        for place, (arm, group) in enumerate(arms.items()):
            look = {**_look(place), **({"linestyle": _DASHED} if second else {})}
            curves = [_points(found, name) for found in group if found.curves[name]]
            found = arm_line(place, arm, curves, scale, alone=len(arms) == 1, intervals=[None] * len(curves))
            if found is not None:
                lines.append(found.line)
                _draw(axes, found, look)
            if name in ("accuracy", "length"):
                _mark(axes, group, name, look)
    height = extent([Panel("", tuple(lines))], scale)
    if height.linear is not None:
        axes.set_yscale("symlog", linthresh=height.linear)
    if height.high > height.low:
        axes.set_ylim(height.low, height.high)


def _points(found: Course, name: str) -> tuple[np.ndarray, np.ndarray]:
    points = np.array(found.curves[name], dtype=np.float64)
    return points[:, 0] + 1, points[:, 1]


def _look(place: int) -> dict[str, Any]:
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place // len(COLOURS) % len(DASHES)]}


def _draw(axes: Any, found: ArmLine, look: dict[str, Any]) -> None:
    line = found.line
    for x, y in [*([line.raw] if line.raw is not None else []), *line.singles]:
        axes.plot(x, y, linewidth=0.6, alpha=0.5, **look)
    if line.low is not None and line.high is not None and not line.few:
        axes.fill_between(line.x, line.low, line.high, color=look["color"], alpha=0.16, linewidth=0)
    axes.plot(line.x, line.mean, linewidth=1.5, **look)


def _mark(axes: Any, group: Sequence[Course], name: str, look: dict[str, Any]) -> None:
    """A cross on the run's own curve where its collapse was told."""
    for found in group:
        values = dict(found.curves[name])
        for collapse in found.collapses[:1]:
            if collapse.first in values:
                axes.plot(collapse.first + 1, values[collapse.first], "x", color=look["color"], markersize=6, zorder=5)


def _legend(figure: Any, names: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], linewidth=1.5, **_look(place)) for place in range(len(names))]
    handles.append(Line2D([], [], color="#555555", marker="x", linestyle="none"))
    columns = max(1, min(4, 150 // (max(map(len, names)) + 8)))
    figure.legend(handles, [*names, "alert raised"], loc="outside lower center", ncols=columns)
