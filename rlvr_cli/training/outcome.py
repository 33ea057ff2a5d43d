"""Summarise a finished training: accuracy before and after, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.core.terminal import Cell
from rlvr_cli.evaluation.estimates import PairedDifference, compare_evaluations
from rlvr_cli.evaluation.tables import mark_difference, with_interval
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.stats.intervals import share_interval_of_error
from rlvr_cli.store.evaluation import Evaluation, held_out
from rlvr_cli.store.metrics import accuracy_of, metric
from rlvr_cli.store.training import filter_step_rows


def outcome_lines(run: RunDir, prompts: int) -> list[Cell]:
    """Return the held-out accuracy of the first and last evaluation during training, with their paired difference.

    Without two evaluations, return the accuracy of the first and last training rollout, of ``prompts`` problems each.
    """
    try:
        evaluations = held_out(run)
        if len(evaluations) < 2:
            return _training_lines(filter_step_rows(read_jsonl(run.metrics_path)), prompts)
        return _held_out_lines(evaluations[0], evaluations[-1])
    except (UserError, RunError) as error:  # the run is finished nevertheless
        return [f"the held-out evaluations cannot be compared: {error}"]


def _held_out_lines(first: Evaluation, last: Evaluation) -> list[Cell]:
    comparisons, result = compare_evaluations(first, last), last.result
    name = accuracy_of(comparisons)
    if name is None:
        return []
    comparison = comparisons[name]
    before, after = (with_interval(name, estimate) for estimate in (comparison.before, comparison.after))
    title = f"held-out {metric(name).label} ({result['split']}, {result['problems']:,} problems)"
    line = f"{title}: {before} after rollout {first.result['rollouts']}, {after} after rollout {result['rollouts']}"
    return [line, difference_line(comparison)]


def difference_line(comparison: PairedDifference) -> Cell:
    """Format a difference: `difference +0.062 [-0.010, 0.134]: within noise`, highlighted if significant."""
    line = f"difference {with_interval(comparison.metric, comparison.difference, signed=True)}"
    if not comparison.clear:
        return f"{line}: {comparison.unclear_reason}"
    better = (comparison.difference.value > 0) == (metric(comparison.metric).higher_is_better is not False)
    return mark_difference(comparison.metric, comparison.difference.value, f"{line}: {'better' if better else 'worse'}")


def _training_lines(rows: list[dict[str, Any]], prompts: int) -> list[Cell]:
    rows = [row for row in rows if isinstance(row.get("accuracy"), float)]
    if not rows:
        return []
    ends = [rows[0], rows[-1]] if len(rows) > 1 else rows
    values = ", ".join(f"{_format_accuracy(row, prompts)} in rollout {row['rollout'] + 1}" for row in ends)
    return [f"training accuracy: {values} (no two held-out evaluations to compare; validation.every=N makes them)"]


def _format_accuracy(row: Mapping[str, Any], prompts: int) -> str:
    accuracy, error = row["accuracy"], row.get("accuracy/se")
    if not isinstance(error, float):
        return f"{accuracy:.3f}"
    return with_interval("accuracy", share_interval_of_error(accuracy, error, max(2, prompts)))
