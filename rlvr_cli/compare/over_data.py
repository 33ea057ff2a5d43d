"""A comparison over several tasks as data: JSON values, and CSV with one line an arm and task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlvr_cli.compare import data
from rlvr_cli.compare.data import csv_row
from rlvr_cli.compare.over_contrasts import TasksComparison, TasksContrast, TasksRow
from rlvr_cli.compare.over_sentences import lines_after, lines_before, metric_text, sentence

# What stands in the column of the task where a line is of the mean over all of them.
MEAN = "mean"


def as_json(comparison: TasksComparison) -> dict[str, Any]:
    """Everything that the tables and sentences say, with all digits; `tasks` has what one comparison has."""
    material = comparison.material
    return {
        "metric": metric_text(comparison),
        "over": list(material.question.over),
        "one_run_on_all_tasks": material.together,
        "paired": material.first.paired,
        "baseline": material.baseline,
        "comparisons": comparison.family,
        "thresholds": comparison.rows[0].profile.thresholds.tolist(),
        "compared": [line for line in lines_before(comparison) if line],
        "arms": [_arm(comparison, row) for row in comparison.rows],
        "tasks": {name: data.as_json(one) for name, one in comparison.tasks.items()},
        "notes": lines_after(comparison),
    }


def csv_rows(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A line for each arm on the mean over tasks, then a line for each on every task."""
    rows = []
    for arm in data["arms"]:
        kept = {key: value for key, value in arm.items() if key not in ("profile", "scores")}
        rows.append({"task": MEAN, **csv_row(kept)})
    for name, one in data["tasks"].items():
        shared = {key: one[key] for key in ("benchmark", "split", "problems", "samples")}
        rows += [{"task": name, **csv_row(arm), **shared} for arm in one["arms"]]
    return rows


def _arm(comparison: TasksComparison, row: TasksRow) -> dict[str, Any]:
    return {
        "arm": row.arm,
        "mean": row.mean.as_json(),
        "interquartile_mean": row.middle.as_json(),
        **_contrast(row.contrast),
        "scores": {name: column.tolist() for name, column in zip(comparison.tasks, row.scores.T, strict=True)},
        "profile": {name: _list(getattr(row.profile, name)) for name in ("values", "low", "high")},
        "sentence": None if row.contrast is None else sentence(comparison, row),
    }


def _contrast(contrast: TasksContrast | None) -> dict[str, Any]:
    if contrast is None:
        names = ("difference", "p_holm", "tasks", "probability_of_improvement")
        return {**dict.fromkeys(names), "verdict": "baseline"}
    found = contrast.outcomes
    return {
        "difference": contrast.difference.as_json(),
        "p_holm": contrast.p_value,
        "tasks": {"wins": found.wins, "ties": found.ties, "losses": found.losses},
        "probability_of_improvement": contrast.improvement.as_json(),
        "verdict": contrast.verdict,
    }


def _list(values: np.ndarray) -> list[float]:
    return [float(value) for value in values]
