"""A comparison as data: JSON values, and rows of CSV."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rlvr_cli.compare.contrasts import ArmMean, ArmResult, Comparison, Contrast, MeanContrast, TaskComparison
from rlvr_cli.compare.curves import SUMMARIES, CurveRow
from rlvr_cli.compare.sentences import (
    lines_after,
    lines_before,
    mean_sentence,
    metric_text,
    power_lines,
    sentence,
    what_is_compared,
)
from rlvr_cli.store.spending import PARTS, Spent

# What stands in the column of the task where a line is of the mean over all of them.
MEAN = "mean"


def comparison_as_json(comparison: Comparison) -> dict[str, Any]:
    """Everything that the tables and sentences say, with all digits, and where it is from.

    Of several tasks `tasks` has for each what the comparison of one task is.
    """
    if comparison.only is not None:
        return _task(comparison.only)
    inputs = comparison.inputs
    return {
        "metric": metric_text(comparison),
        "over": list(inputs.request.over),
        "one_run_on_all_tasks": inputs.together,
        "paired": inputs.first.paired,
        "baseline": inputs.baseline,
        "comparisons": comparison.family,
        "thresholds": comparison.rows[0].profile.thresholds.tolist(),
        "compared": [line for line in lines_before(comparison) if line],
        "arms": [_arm_over_tasks(comparison, row) for row in comparison.rows],
        "tasks": {name: _task(one) for name, one in comparison.tasks.items()},
        "notes": lines_after(comparison),
    }


def csv_rows(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """:func:`comparison_as_json` as lines of CSV, an arm each; of several tasks the mean's, then each task's."""
    if "tasks" not in data:
        return [_csv_row(arm) for arm in data["arms"]]
    rows = []
    for arm in data["arms"]:
        kept = {key: value for key, value in arm.items() if key not in ("profile", "scores")}
        rows.append({"task": MEAN, **_csv_row(kept)})
    for name, one in data["tasks"].items():
        shared = {key: one[key] for key in ("benchmark", "split", "problems", "samples")}
        rows += [{"task": name, **_csv_row(arm), **shared} for arm in one["arms"]]
    return rows


def csv_shared(data: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that all lines share."""
    if "tasks" in data:
        return {key: data[key] for key in ("metric", "baseline", "comparisons")}
    return {key: value for key, value in data.items() if isinstance(value, str | int | float)}


def _csv_row(arm: Mapping[str, Any]) -> dict[str, Any]:
    """A line of CSV: what an arm has, with all digits, and of its runs the paths.

    What no arm has, as a test with one seed, is no column.
    """
    row = {key: value for key, value in arm.items() if value is not None}
    return {**row, "runs": [one["run"] for one in row["runs"]]} if "runs" in row else row


def _task(comparison: TaskComparison) -> dict[str, Any]:
    inputs = comparison.inputs
    read, request = inputs.by_run, inputs.request
    return {
        "metric": read.metric,
        "benchmark": read.result["benchmark"],
        "split": read.result["split"],
        "sampling": read.result["sampling"],
        "samples": read.samples,
        "problems": len(read.problems),
        "match": None if request.match is None else {"budget": request.match, "start": read.start, "end": read.end},
        "paired": inputs.paired,
        "baseline": inputs.baseline,
        "compared": what_is_compared(comparison),
        "arms": [_arm(comparison, row) for row in comparison.rows],
        "power": power_lines(comparison),
        "notes": list(inputs.notes),
    }


def _arm(comparison: TaskComparison, row: ArmResult) -> dict[str, Any]:
    inputs = comparison.inputs
    arm = next(one for one in inputs.arms if one.name == row.arm)
    spent = inputs.spent()[row.arm]
    curves = {one.arm: one for one in comparison.curves}
    return {
        "arm": row.arm,
        "method": arm.method,
        "runs": [
            {"run": arm.runs[one].path, "seed": one.seed, "rest": one.rest, "spent": _spent(used)}
            for one, used in zip(inputs.runs[row.arm], spent, strict=True)
        ],
        "mean": row.mean.as_json(),
        **_contrast(row.contrast),
        "spent": _spent(row.spent),
        "cost": dict(row.cost),
        "seconds": {
            part: {"value": row.cost[part], "low": spread[0] if spread else None, "high": spread[1] if spread else None}
            for part, spread in row.seconds.items()
        },
        "curve": _curve(curves[row.arm]) if row.arm in curves else None,
        "sentence": None if row.contrast is None else sentence(comparison, row),
    }


def _contrast(contrast: Contrast | None) -> dict[str, Any]:
    if contrast is None:
        names = ("difference", "p_holm", "permutation", "outcomes", "needed")
        return {**dict.fromkeys(names), "verdict": "baseline"}
    test = contrast.permutation
    return {
        "difference": contrast.difference.as_json(),
        "p_holm": contrast.p_value,
        "permutation": None
        if test is None
        else {"p": test.p_value, "smallest": test.smallest, "permutations": test.permutations, "exact": test.exact},
        "outcomes": asdict(contrast.outcomes),
        "needed": None if contrast.needed is None else asdict(contrast.needed),
        "verdict": contrast.verdict,
    }


def _curve(row: CurveRow) -> dict[str, Any]:
    return {
        **{name: row.values[name].as_json() for name in SUMMARIES},
        "differences": None
        if row.differences is None
        else {name: row.differences[name].as_json() for name in SUMMARIES},
        "level": row.level,
        "reached": list(row.reached),
    }


def _spent(spent: Spent) -> dict[str, float]:
    return {part: spent.of(part) for part in PARTS}


def _arm_over_tasks(comparison: Comparison, row: ArmMean) -> dict[str, Any]:
    return {
        "arm": row.arm,
        "mean": row.mean.as_json(),
        "interquartile_mean": row.middle.as_json(),
        **_mean_contrast(row.contrast),
        "scores": {name: column.tolist() for name, column in zip(comparison.tasks, row.scores.T, strict=True)},
        "profile": {name: getattr(row.profile, name).tolist() for name in ("values", "low", "high")},
        "sentence": None if row.contrast is None else mean_sentence(comparison, row),
    }


def _mean_contrast(contrast: MeanContrast | None) -> dict[str, Any]:
    if contrast is None:
        names = ("difference", "p_holm", "tasks", "probability_of_improvement")
        return {**dict.fromkeys(names), "verdict": "baseline"}
    return {
        "difference": contrast.difference.as_json(),
        "p_holm": contrast.p_value,
        "tasks": asdict(contrast.outcomes),
        "probability_of_improvement": None if contrast.improvement is None else contrast.improvement.as_json(),
        "verdict": contrast.verdict,
    }
