"""`rlvr analyze landscape`: the course of training of runs and arms, from metrics.jsonl, and where it collapsed.

A run that did not collapse is censored: its collapse, if it has one, comes after its last rollout.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from rlvr_cli.analyses.base import Analysis, AnalysisInput, Frames, frames_of, minus, names_of, over, records
from rlvr_cli.collapse.alerts import NO_SIGNAL, Alert, AlertMonitor
from rlvr_cli.core.errors import UserError, collecting
from rlvr_cli.core.files import number
from rlvr_cli.core.lazy import alt
from rlvr_cli.core.section import Section
from rlvr_cli.runs.records import read_record
from rlvr_cli.stats.intervals import mean_interval
from rlvr_cli.store.arm import Arm, group_arms
from rlvr_cli.store.find import Run, find_runs
from rlvr_cli.store.metrics import HELD_OUT
from rlvr_cli.store.training import Points, by_rollout, learning_curves, recorded_values, whole_rows

# Rollouts that the start and the end of a run are the mean of.
START, END = 3, 5
# A length has collapsed or exploded when it is beyond this factor of its start for so many rollouts in a row.
SHORT, LONG, LASTING = 0.5, 2.0, 5
# A number warns when it is so many standard deviations from the mean of its first rollouts, so many in a row.
WARNING_FIRST, WARNING_SPREAD, WARNING_LASTING = 5, 4.0, 3
# How the names of rollouts end that a run may not reach, and of differences of those.
_CENSORED = ("_at", "_lead")
CURVES = (
    "accuracy",
    "length",
    "entropy",
    "grad_norm",
    "prob_distance",
    "kl_old",
    "kl_reference",
    "truncated",
    "value/correct",
    "value/incorrect",
)
Summary = dict[str, float | int | None]


class LandscapeOptions(Section):
    """`rlvr analyze landscape` has no keys."""


def measure(inputs: AnalysisInput, options: LandscapeOptions) -> Frames:
    """Compute the courses of the runs, up to ``inputs.rollout`` where there is one.

    Raises:
        UserError: a run without any optimizer step, or without that rollout; two runs of one arm with the same seed.
    """
    selected = find_runs([str(run.path) for run in inputs.runs], inputs.root, unfinished=True)
    runs, problems = selected.runs, list(selected.problems)
    arms: tuple[Arm, ...] = ()
    with collecting(problems):
        arms = group_arms(runs, alone=True) if runs else ()
    names = dict(zip((run.path for run in runs), names_of([run.dir for run in runs]), strict=True))
    courses = {}
    for run in runs:
        with collecting(problems):
            courses[names[run.path]] = _course(run, inputs.rollout)
    if problems:
        raise UserError(problems)
    members = {arm.name: [names[run.path] for run in arm.runs.values()] for arm in arms}
    arm_of = {run: arm for arm, group in members.items() for run in group}
    return frames_of(
        next(iter(courses.values())).summary if len(courses) == 1 else {},
        _notes(courses),
        arms=[
            {"arm": arm, **mean} for arm, group in members.items() for mean in _means([courses[run] for run in group])
        ],
        collapses=[
            {"arm": arm_of[run], "run": run, **row} for run, found in courses.items() for row in _collapses(found)
        ],
        runs=[{"arm": arm_of[run], "run": run, **found.summary} for run, found in courses.items()],
        curves=[
            {"arm": arm_of[run], "run": run, "metric": name, "rollout": at + 1, "value": value}
            for run, found in courses.items()
            for name, points in found.curves.items()
            for at, value in points
        ],
    )


def _course(run: Run, last: int | None) -> Course:
    rows = whole_rows(read_record(run.dir, run.dir.metrics_path))
    if not rows:
        raise UserError(f"{run.path}: has no optimizer step yet, so there is nothing to analyze.")
    newest = max(row["rollout"] for row in rows)
    if last is not None and last > newest:
        raise UserError(f"{run.path}: there is no rollout {last} yet; the newest is {newest}.")
    kept = [row for row in rows if last is None or row["rollout"] <= last]
    return course(kept, run.config.rollout.prompts)


def _collapses(found: Course) -> Iterator[dict[str, Any]]:
    for alert in found.collapses:
        yield {"rollout": alert.first + 1, "censored": False, "pattern": alert.title, "evidence": alert.evidence}
    if not found.collapses:
        last = found.summary["rollouts"]
        yield {"rollout": last, "censored": True, "pattern": f"none; censored at rollout {last}", "evidence": None}


def _means(courses: Sequence[Course]) -> Iterator[dict[str, Any]]:
    """Yield the mean and Student's 95% interval of each number over the runs that have it.

    A rollout that some runs did not reach is censored in those: it has no mean over the others.
    """
    for name in courses[0].summary:
        values = [float(value) for run in courses if (value := run.summary[name]) is not None]
        censored = name.endswith(_CENSORED) and len(values) < len(courses)
        if values or censored:
            of = None if censored else mean_interval(values)
            ends = {"mean": of.value, "low": of.low, "high": of.high} if of else dict.fromkeys(("mean", "low", "high"))
            yield {"number": name, **ends, "runs": len(values), "of": len(courses)}


def _notes(courses: Mapping[str, Course]) -> list[str]:
    notes = []
    short = [name for name, found in courses.items() if (found.summary["rollouts"] or 0) < 8]
    if short:
        notes.append(f"{', '.join(short)}: fewer than 8 rollouts, too few for meaningful starts, ends and warnings.")
    if all(found.summary["steps_per_rollout"] == 1 for found in courses.values()):
        notes.append("With one update a rollout the updated policy is the one that sampled: both distances are 0.")
    return notes


def headline(frames: Frames) -> str:
    """Give the course of one run, or how many runs of each arm collapsed."""
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
    return f"Accuracy {start} at the start, {best} at best, {end} at the end of {run['rollouts']} rollouts; {collapse}."


def plot(frames: Frames) -> alt.TopLevelMixin:
    """Draw a panel for each number that is not 0 throughout."""
    curves = frames["curves"]
    moved = curves.groupby("metric")["value"].transform(lambda values: values.abs().max()) > 0
    chart: alt.TopLevelMixin = (
        alt.Chart(curves[moved])
        .mark_line()
        .encode(
            x=alt.X("rollout:Q"), y=alt.Y("value:Q", title=None), color=alt.Color("arm:N", sort=None), detail="run:N"
        )
        .properties(width=220, height=140)
        .facet(alt.Facet("metric:N", sort=None, title=None), columns=3)
        .resolve_scale(y="independent")
    )
    return chart


@dataclass(frozen=True)
class Course:
    """The course of a run.

    Attributes:
        curves: by name; a value is the mean over the rollout's updates. What the run did not record has no points.
        summary: single numbers, None where there is none; rollouts in it count from 1.
        collapses: the alerts but that of a missing signal.
        kl: the curve that stands for the KL divergence: to the reference, else, with several updates a rollout, to the
            policy that sampled; None where there is neither.
    """

    curves: dict[str, Points]
    summary: Summary
    collapses: tuple[Alert, ...]
    kl: str | None


def course(rows: Sequence[Mapping[str, Any]], problems: int) -> Course:
    """Compute the curves, the summary and the collapses of a run from the lines of metrics.jsonl.

    Args:
        rows: at least one, one per optimizer step, each with an integer `rollout`, in their order.
        problems: problems per rollout (`rollout.prompts`).
    """
    curves = _curves(rows)
    steps_per_rollout = max(Counter(row["rollout"] for row in rows).values())
    collapses = tuple(of for of in AlertMonitor(problems, rows=rows).alerts() if of.name != NO_SIGNAL)
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
        "rollouts": max(row["rollout"] for row in rows) + 1,
    }
    return Course(curves, summary, collapses, kl)


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
        **{name: by_rollout(recorded_values(rows, name)) for name in CURVES},
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
    values = {name: [value for _, value in points] for name, points in curves.items()}
    start = {name: _mean(of[:START]) for name, of in values.items()}
    mean = {name: _mean(of) for name, of in values.items()}
    end = {name: _mean(of[-END:]) for name, of in values.items()}
    largest = {name: max(of, default=None) for name, of in values.items()}
    summary: Summary = {
        "accuracy_start": start["accuracy"],
        "accuracy_best": largest["accuracy"],
        "accuracy_end": end["accuracy"],
        "accuracy_held_out": next(reversed(values["eval"]), None),
        "accuracy_loss": minus(largest["accuracy"], end["accuracy"]),
        "accuracy_gain": minus(end["accuracy"], start["accuracy"]),
    }
    for name in ("length", "entropy"):
        later = values[name][START:]
        summary |= {
            f"{name}_start": start[name],
            f"{name}_end": end[name],
            f"{name}_ratio": over(end[name], start[name]),
            # Of what comes after: the start's own largest value is above its mean in any case.
            f"{name}_largest_ratio": over(max(later, default=None), start[name]),
            f"{name}_smallest_ratio": over(min(later, default=None), start[name]),
        }
    return {
        **summary,
        "grad_norm_mean": mean["grad_norm"],
        "grad_norm_largest": largest["grad_norm"],
        "clip_share_mean": mean["clip_share"],
        "ratio_distance_mean": mean["ratio_distance"],
        "ratio_distance_end": end["ratio_distance"],
        "ratio_distance_largest": largest["ratio_distance"],
        "prob_distance_mean": mean["prob_distance"],
        "prob_distance_end": end["prob_distance"],
        "prob_distance_largest": largest["prob_distance"],
        "kl_old_mean": mean["kl_old"],
        "truncated_end": end["truncated"],
        "value_correct_end": end["value/correct"],
        "value_incorrect_end": end["value/incorrect"],
        "value_incorrect_smallest": min(values["value/incorrect"], default=None),
    }


def _moments(curves: Mapping[str, Points], kl: str | None) -> Summary:
    """Return when lengths left their bounds, and entropy and KL warned; None where they did not."""
    length = curves["length"]
    start = _mean([value for _, value in length[:START]]) or 0.0
    entropy_at = warning(curves["entropy"])
    kl_at = None if kl is None else warning(curves[kl])
    # The same order with a warning that did not come counted as later than any that did.
    first, second = entropy_at or math.inf, kl_at or math.inf
    return {
        "length_collapse_at": stays_beyond(length, lambda value: value < SHORT * start, LASTING),
        "length_explosion_at": stays_beyond(length, lambda value: value > LONG * start, LASTING),
        "entropy_warning_at": entropy_at,
        "kl_warning_at": kl_at,
        "entropy_warning_lead": minus(kl_at, entropy_at),
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
    runs=None,
    policy=False,
)
