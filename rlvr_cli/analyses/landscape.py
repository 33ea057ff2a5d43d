"""`rlvr analyze landscape`: training curves of runs and arms, from metrics.jsonl, and collapses.

A run without a collapse is censored at its last rollout.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from rlvr_cli.analyses.base import Analysis, AnalysisInput, Frames, divide, make_frames, records, run_labels, subtract
from rlvr_cli.collapse.alerts import NO_SIGNAL, Alert, AlertMonitor
from rlvr_cli.core.errors import UserError, collect_problems
from rlvr_cli.core.files import finite
from rlvr_cli.core.lazy import alt
from rlvr_cli.core.section import Section
from rlvr_cli.runs.records import read_record
from rlvr_cli.stats.intervals import mean_interval
from rlvr_cli.store.arm import Arm, group_arms
from rlvr_cli.store.find import Run, load_runs
from rlvr_cli.store.metrics import HELD_OUT
from rlvr_cli.store.training import Points, average_by_rollout, filter_step_rows, learning_curves

# Rollouts averaged at the start and at the end of a run.
START, END = 3, 5
# A length collapses or explodes when it exceeds this factor of its start for LASTING consecutive rollouts.
SHORT, LONG, LASTING = 0.5, 2.0, 5
# A warning: WARNING_SPREAD standard deviations from the mean of the first rollouts, WARNING_LASTING times in a row.
WARNING_FIRST, WARNING_SPREAD, WARNING_LASTING = 5, 4.0, 3
# Suffixes of the summary keys that may be censored.
_CENSORED = ("_at", "_lead")
# The curves, and their statistics in the summary; those of `_COMPUTED` are from several metrics.
CURVES: dict[str, tuple[str, ...]] = {
    "accuracy": ("start", "best", "end"),
    "length": ("start", "end"),
    "entropy": ("start", "end"),
    "grad_norm": ("mean", "largest"),
    "prob_distance": ("mean", "end", "largest"),
    "kl_old": ("mean",),
    "kl_reference": (),
    "truncated": ("end",),
    "value/correct": ("end",),
    "value/incorrect": ("end", "smallest"),
    "ratio_distance": ("mean", "end", "largest"),
    "clip_share": ("mean",),
}
Summary = dict[str, float | int | None]


class LandscapeOptions(Section):
    """`rlvr analyze landscape` has no keys."""


def measure(inputs: AnalysisInput, options: LandscapeOptions) -> Frames:
    """Compute the runs' trajectories, up to ``inputs.rollout`` if set."""
    selected = load_runs([str(run.path) for run in inputs.runs], inputs.root, unfinished=True)
    runs, problems = selected.runs, list(selected.problems)
    arms: tuple[Arm, ...] = ()
    with collect_problems(problems):
        arms = group_arms(runs, alone=True) if runs else ()
    names = dict(zip((run.path for run in runs), run_labels([run.dir for run in runs]), strict=True))
    trajectories = {}
    for run in runs:
        with collect_problems(problems):
            trajectories[names[run.path]] = _read_trajectory(run, inputs.rollout)
    if problems:
        raise UserError(problems)
    members = {arm.name: [names[run.path] for run in arm.runs.values()] for arm in arms}
    arm_of = {run: arm for arm, group in members.items() for run in group}
    return make_frames(
        next(iter(trajectories.values())).summary if len(trajectories) == 1 else {},
        _make_notes(trajectories),
        arms=[
            {"arm": arm, **mean}
            for arm, group in members.items()
            for mean in _average_runs([trajectories[run] for run in group])
        ],
        collapses=[
            {"arm": arm_of[run], "run": run, **row}
            for run, trajectory in trajectories.items()
            for row in _collapse_rows(trajectory)
        ],
        runs=[{"arm": arm_of[run], "run": run, **trajectory.summary} for run, trajectory in trajectories.items()],
        curves=[
            {"arm": arm_of[run], "run": run, "metric": name, "rollout": at + 1, "value": value}
            for run, trajectory in trajectories.items()
            for name, points in trajectory.curves.items()
            for at, value in points
        ],
    )


def _read_trajectory(run: Run, last: int | None) -> Trajectory:
    rows = filter_step_rows(read_record(run.dir, run.dir.metrics_path))
    if not rows:
        raise UserError(f"{run.path}: no optimizer step recorded yet.")
    newest = max(row["rollout"] for row in rows)
    if last is not None and last > newest:
        raise UserError(f"{run.path}: no rollout {last} yet; the newest is {newest}.")
    rows = [row for row in rows if last is None or row["rollout"] <= last]
    return make_trajectory(rows, run.config.rollout.prompts)


def _collapse_rows(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    for alert in trajectory.collapses:
        yield {"rollout": alert.first + 1, "censored": False, "pattern": alert.title, "evidence": alert.evidence}
    if not trajectory.collapses:
        last = trajectory.summary["rollouts"]
        yield {"rollout": last, "censored": True, "pattern": f"none; censored at rollout {last}", "evidence": None}


def _average_runs(trajectories: Sequence[Trajectory]) -> Iterator[dict[str, Any]]:
    """Yield mean and Student's 95% interval of each number over the runs with a value; None if any is censored."""
    for name in trajectories[0].summary:
        values = [float(value) for run in trajectories if (value := run.summary[name]) is not None]
        row = {"number": name, "mean": None, "low": None, "high": None}
        if name.endswith(_CENSORED) and len(values) < len(trajectories):
            yield {**row, "runs": len(values), "of": len(trajectories)}
        elif values:
            interval = mean_interval(values)
            ends = {"mean": interval.value, "low": interval.low, "high": interval.high}
            yield {**row, **ends, "runs": len(values), "of": len(trajectories)}


def _make_notes(trajectories: Mapping[str, Trajectory]) -> list[str]:
    notes = []
    short = [name for name, trajectory in trajectories.items() if (trajectory.summary["rollouts"] or 0) < 8]
    if short:
        notes.append(f"{', '.join(short)}: fewer than 8 rollouts, too few for meaningful starts, ends and warnings.")
    if all(trajectory.summary["steps_per_rollout"] == 1 for trajectory in trajectories.values()):
        notes.append("One update per rollout is on-policy: both distances are 0.")
    return notes


def headline(frames: Frames) -> str:
    runs = records(frames["runs"])
    if len(runs) > 1:
        arms = frames["runs"].groupby("arm", sort=False)["collapsed"].agg(["sum", "count"])
        counts = ", ".join(f"{row['sum']:.0f} of {row['count']:.0f} {arm}" for arm, row in arms.iterrows())
        return f"{len(runs)} runs in {len(arms)} arms. Collapsed: {counts}."
    (run,), first = runs, records(frames["collapses"])[0]
    start, best, end = (
        "-" if run[f"accuracy_{name}"] is None else f"{run[f'accuracy_{name}']:.4g}"
        for name in ("start", "best", "end")
    )
    collapse = f"no collapse (censored at rollout {run['rollouts']})"
    if not first["censored"]:
        collapse = f"{first['pattern']} at rollout {first['rollout']}"
    return (
        f"Accuracy over {run['rollouts']} rollouts: {start} at the start, {best} at best, {end} at the end; {collapse}."
    )


def plot(frames: Frames) -> alt.TopLevelMixin:
    curves = frames["curves"]
    nonzero = curves.groupby("metric")["value"].transform(lambda values: values.abs().max()) > 0
    panels: alt.FacetChart = (
        alt.Chart(curves[nonzero])
        .mark_line()
        .encode(
            x=alt.X("rollout:Q"), y=alt.Y("value:Q", title=None), color=alt.Color("arm:N", sort=None), detail="run:N"
        )
        .properties(width=220, height=140)
        .facet(alt.Facet("metric:N", sort=None, title=None), columns=3)
        .resolve_scale(y="independent")
    )
    return panels


@dataclass(frozen=True)
class Trajectory:
    """Training curves of a run.

    Attributes:
        curves: by metric; a value is the mean over the rollout's updates. Unrecorded metrics have no points.
        summary: scalars, None if undefined; rollouts count from 1.
        collapses: the alerts except that of a missing signal.
    """

    curves: dict[str, Points]
    summary: Summary
    collapses: tuple[Alert, ...]


def make_trajectory(rows: Sequence[Mapping[str, Any]], problems: int) -> Trajectory:
    """Compute a trajectory from the lines of metrics.jsonl, in order of steps; ``problems``: per rollout."""
    curves = _read_curves(rows)
    steps_per_rollout = max(Counter(row["rollout"] for row in rows).values())
    collapses = tuple(alert for alert in AlertMonitor(problems, rows=rows).alerts() if alert.name != NO_SIGNAL)
    summary = {
        **_summarize_levels(curves),
        **_find_events(curves, steps_per_rollout),
        "collapsed": int(bool(collapses)),
        "collapse_at": collapses[0].first + 1 if collapses else None,
        "steps_per_rollout": steps_per_rollout,
        "updates": len(rows),
        "rollouts": max(row["rollout"] for row in rows) + 1,
    }
    return Trajectory(curves, summary, collapses)


def find_sustained(points: Points, beyond: Callable[[float], bool], lasting: int) -> int | None:
    """Return the rollout, from 1, of the first of ``lasting`` consecutive values ``beyond``; None if never."""
    run = 0
    for index, (_, value) in enumerate(points):
        run = run + 1 if beyond(value) else 0
        if run == lasting:
            return points[index - lasting + 1][0] + 1
    return None


def find_warning(points: Points) -> int | None:
    """Return the rollout, from 1, at which a metric leaves mean +- 4 standard deviations of its first 5 rollouts.

    It must stay outside, on either side, for 3 rollouts in a row. None if never, or with at most 5 values.
    """
    if len(points) <= WARNING_FIRST:
        return None
    start = [value for _, value in points[:WARNING_FIRST]]
    mean, bound = fmean(start), WARNING_SPREAD * stdev(start)
    return find_sustained(points[WARNING_FIRST:], lambda value: abs(value - mean) > bound, WARNING_LASTING)


def _read_curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    # Of several held-out evaluations, the first.
    held_out = (points for name, points in learning_curves(rows).items() if name.startswith(HELD_OUT))
    curves = {
        name: average_by_rollout(
            (row["rollout"], _COMPUTED[name](row) if name in _COMPUTED else row.get(name)) for row in rows
        )
        for name in CURVES
    }
    return {**curves, "eval": next(held_out, ())}


def _ratio_distance(row: Mapping[str, Any]) -> float | None:
    """Return sqrt(E (r - 1)^2) over an update's tokens, from mean and standard deviation of the ratio r."""
    mean, spread = finite(row.get("ratio_mean")), finite(row.get("ratio_std"))
    return None if mean is None or spread is None else math.hypot(mean - 1, spread)


def _clip_share(row: Mapping[str, Any]) -> float | None:
    """Return the share of clipped tokens: outside the trust region in the direction of their advantage."""
    low, high = finite(row.get("clip_frac/low")), finite(row.get("clip_frac/high"))
    return None if low is None or high is None else low + high


_COMPUTED = {"ratio_distance": _ratio_distance, "clip_share": _clip_share}


def _summarize_levels(curves: Mapping[str, Points]) -> Summary:
    summary: Summary = {}
    for name, statistics in CURVES.items():
        values = [value for _, value in curves[name]]
        every = {
            "start": _mean(values[:START]),
            "mean": _mean(values),
            "end": _mean(values[-END:]),
            "best": max(values, default=None),
            "largest": max(values, default=None),
            "smallest": min(values, default=None),
        }
        summary |= {f"{name.replace('/', '_')}_{statistic}": every[statistic] for statistic in statistics}
        if name in ("length", "entropy"):
            # After the start, whose maximum always exceeds its mean.
            later, start = values[START:], every["start"]
            summary[f"{name}_ratio"] = divide(every["end"], start)
            summary[f"{name}_largest_ratio"] = divide(max(later, default=None), start)
            summary[f"{name}_smallest_ratio"] = divide(min(later, default=None), start)
    return summary | {
        "accuracy_held_out": next((value for _, value in reversed(curves["eval"])), None),
        "accuracy_loss": subtract(summary["accuracy_best"], summary["accuracy_end"]),
        "accuracy_gain": subtract(summary["accuracy_end"], summary["accuracy_start"]),
    }


def _find_events(curves: Mapping[str, Points], steps_per_rollout: int) -> Summary:
    """Return the rollouts of length collapse, length explosion and of warnings by entropy and KL; None if never.

    KL: to the reference, else, with several updates per rollout, to the sampling policy. With one update the policy is
    the one that sampled, and the divergence is rounding.
    """
    length = curves["length"]
    start = _mean([value for _, value in length[:START]]) or 0.0
    candidates = ("kl_reference", *(("kl_old",) if steps_per_rollout > 1 else ()))
    kl = next((curves[name] for name in candidates if any(value for _, value in curves[name])), None)
    entropy_at, kl_at = find_warning(curves["entropy"]), find_warning(kl or ())
    first, second = entropy_at or math.inf, kl_at or math.inf
    return {
        "length_collapse_at": find_sustained(length, lambda value: value < SHORT * start, LASTING),
        "length_explosion_at": find_sustained(length, lambda value: value > LONG * start, LASTING),
        "entropy_warning_at": entropy_at,
        "kl_warning_at": kl_at,
        "entropy_warning_lead": subtract(kl_at, entropy_at),
        "entropy_warning_first": None if kl is None else (first < second) - (first > second),
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


ANALYSIS = Analysis(
    "length, entropy, gradient norm and accuracy over training",
    "landscape",
    LandscapeOptions,
    measure,
    plot,
    headline,
    max_runs=None,
    takes_step=False,
)
