"""The course of a run in curves and in single numbers, from its lines of metrics.jsonl. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from rlvr_cli.collapse.watch import Collapse, CollapseWatch
from rlvr_cli.runs.curves import HELD_OUT, Curve, by_rollout, learning_curves
from rlvr_cli.runs.numbers import number

# Rollouts that the start and the end of a run are the mean of.
START, END = 3, 5
# A length has collapsed or exploded when it is beyond this factor of its start for so many rollouts in a row.
SHORT, LONG, LASTING = 0.5, 2.0, 5
# A number warns when it is so many standard deviations from the mean of its first rollouts, so many in a row.
WARNING_FIRST, WARNING_SPREAD, WARNING_LASTING = 5, 4.0, 3

Points = Sequence[tuple[int, float]]
Summary = dict[str, float | int | None]


@dataclass(frozen=True)
class Course:
    """How a run went.

    Attributes:
        curves: by name; a value is the mean over the rollout's updates. What the run did not record has no points.
        summary: single numbers, None where there is none; rollouts in it count from 1.
        collapses: as `collapse.watch.detect` tells them.
        sound: of each collapse, the last rollout, from 0, from before it began.
        rollouts: how many there were.
        kl: the curve that stands for the KL divergence: to the reference, else, with several updates a rollout, to the
            policy that sampled; None where there is neither.
    """

    curves: dict[str, Curve]
    summary: Summary
    collapses: tuple[Collapse, ...]
    sound: tuple[int, ...]
    rollouts: int
    kl: str | None


def course(rows: Sequence[Mapping[str, Any]], problems: int, steps_per_rollout: int) -> Course:
    """The course that the lines of metrics.jsonl tell.

    Args:
        rows: at least one, each with an integer `rollout`, in their order.
        problems: of each rollout (`rollout.prompts`). steps_per_rollout: optimizer steps made from one.
    """
    curves = _curves(rows)
    rollouts = max(row["rollout"] for row in rows) + 1
    watch = CollapseWatch(problems)
    told: list[tuple[Collapse, int]] = []
    firsts: dict[int, Mapping[str, Any]] = {}
    for row in rows:
        firsts.setdefault(row["rollout"], row)
    for rollout, row in firsts.items():
        watch.see(row)
        # Asked while the rollout is the newest: what comes later would move the place where the collapse began.
        told += [(found, watch.last_sound([found])) for found in watch.begins(rollout)]
    # With one update the policy is the one that sampled, and what the divergence has is rounding.
    known = ("KL to reference", *(("KL to sampler",) if steps_per_rollout > 1 else ()))
    kl = next((name for name in known if any(value for _, value in curves[name].points)), None)
    collapses = tuple(found for found, _ in told)
    first = collapses[0].first + 1 if collapses else None
    summary = {
        **_levels(curves),
        **_moments(curves, rollouts, kl),
        "collapsed": int(bool(collapses)),
        "collapse_at": first or rollouts + 1,
        "steps_per_rollout": steps_per_rollout,
        "updates": len(rows),
        "rollouts": rollouts,
    }
    return Course(curves, summary, collapses, tuple(sound for _, sound in told), rollouts, kl)


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


def _curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    recorded = {curve.name: curve for curve in learning_curves(rows)}

    def of(name: str, read: Callable[[Mapping[str, Any]], float | None]) -> Curve:
        return Curve(name, by_rollout((row["rollout"], read(row)) for row in rows))

    def key(key: str) -> Callable[[Mapping[str, Any]], float | None]:
        return lambda row: number(row.get(key))

    own = {
        "probability distance": key("prob_distance"),
        "ratio distance": _ratio_distance,
        "KL to sampler": key("kl"),
        "KL to reference": key("kl_reference"),
        "clip share": _clip_share,
        "truncated": key("truncated"),
        "value of correct": key("value/correct"),
        "value of incorrect": key("value/incorrect"),
    }
    names = ("accuracy", HELD_OUT, "length", "entropy", "gradient norm")
    # Whichever accuracy it is: the arms of a landscape are evaluated alike.
    if held_out := next((curve for name, curve in recorded.items() if name.startswith(HELD_OUT)), None):
        recorded[HELD_OUT] = held_out
    return {
        **{name: recorded.get(name, Curve(name, ())) for name in names},
        **{name: of(name, read) for name, read in own.items()},
    }


def _ratio_distance(row: Mapping[str, Any]) -> float | None:
    """sqrt(E (r - 1)^2) over the tokens of an update, from the mean and the spread of the ratio r."""
    mean, spread = number(row.get("ratio_mean")), number(row.get("ratio_std"))
    return None if mean is None or spread is None else math.hypot(mean - 1, spread)


def _clip_share(row: Mapping[str, Any]) -> float | None:
    """Share of tokens beyond the trust region in the direction of their advantage, which clipping cuts off."""
    low, high = number(row.get("clip_frac/low")), number(row.get("clip_frac/high"))
    return None if low is None or high is None else low + high


def _levels(curves: Mapping[str, Curve]) -> Summary:
    """Start, end and extremes of the curves, and their ratios."""

    def values(name: str) -> list[float]:
        return [value for _, value in curves[name].points]

    def start(name: str) -> float | None:
        return _mean(values(name)[:START])

    def end(name: str) -> float | None:
        return _mean(values(name)[-END:])

    accuracy, best = values("accuracy"), max(values("accuracy"), default=None)
    last, ratio, prob = end("accuracy"), values("ratio distance"), values("probability distance")
    summary: Summary = {
        "accuracy_start": start("accuracy"),
        "accuracy_best": best,
        "accuracy_end": last,
        "accuracy_held_out": values(HELD_OUT)[-1] if values(HELD_OUT) else None,
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
        "grad_norm_mean": _mean(values("gradient norm")),
        "grad_norm_largest": max(values("gradient norm"), default=None),
        "clip_share_mean": _mean(values("clip share")),
        "ratio_distance_mean": _mean(ratio),
        "ratio_distance_end": _mean(ratio[-END:]),
        "ratio_distance_largest": max(ratio, default=None),
        "prob_distance_mean": _mean(prob),
        "prob_distance_end": _mean(prob[-END:]),
        "prob_distance_largest": max(prob, default=None),
        "kl_mean": _mean(values("KL to sampler")),
        "truncated_end": end("truncated"),
        "value_correct_end": end("value of correct"),
        "value_incorrect_end": end("value of incorrect"),
        "value_incorrect_smallest": min(values("value of incorrect"), default=None),
    }


def _moments(curves: Mapping[str, Curve], rollouts: int, kl: str | None) -> Summary:
    """When lengths left their bounds, and entropy and KL warned; the rollout after the last where they did not."""
    length = curves["length"].points
    start = _mean([value for _, value in length[:START]]) or 0.0
    never = rollouts + 1
    entropy_at = warning(curves["entropy"].points)
    kl_at = None if kl is None else warning(curves[kl].points)
    no_lead = kl is None or (entropy_at is None and kl_at is None)
    return {
        "length_collapse_at": stays_beyond(length, lambda value: value < SHORT * start, LASTING) or never,
        "length_explosion_at": stays_beyond(length, lambda value: value > LONG * start, LASTING) or never,
        "entropy_warning_at": entropy_at or never,
        "kl_warning_at": None if kl is None else kl_at or never,
        "entropy_warning_lead": None if no_lead else (kl_at or never) - (entropy_at or never),
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _ratio(value: float | None, start: float | None) -> float | None:
    return value / start if value is not None and start else None
