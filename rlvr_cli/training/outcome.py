"""The summary of a finished training: accuracy before and after, with intervals."""

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
    """Return the held-out accuracy at the first and the last evaluation during training, with their paired difference;
    without two evaluations, the accuracy of the first and the last training rollout, of ``prompts`` each.
    """
    try:
        evaluations = held_out(run)
        if len(evaluations) < 2:
            return _training(filter_step_rows(read_jsonl(run.metrics_path)), prompts)
        return _held_out(evaluations[0], evaluations[-1])
    except (UserError, RunError) as error:  # the run is finished nevertheless
        return [f"the held-out evaluations can't be compared: {error}"]


def _held_out(first: Evaluation, last: Evaluation) -> list[Cell]:
    comparisons, result = compare_evaluations(first, last), last.result
    name = accuracy_of(comparisons)
    if name is None:
        return []
    comparison = comparisons[name]
    before, after = (with_interval(name, estimate) for estimate in (comparison.before, comparison.after))
    title = f"held-out {metric(name).label} ({result['split']}, {result['problems']:,} problems)"
    return [f"{title}: {before} {_when(first)}, {after} {_when(last)}", difference_line(comparison)]


def difference_line(comparison: PairedDifference) -> Cell:
    """Return `difference +0.062 [-0.010, 0.134]: within noise`; mark a significant difference."""
    line = f"difference {with_interval(comparison.metric, comparison.difference, signed=True)}"
    if not comparison.clear:
        return f"{line}: {comparison.unclear_reason}"
    better = (comparison.difference.value > 0) == (metric(comparison.metric).higher_is_better is not False)
    return mark_difference(comparison.metric, comparison.difference.value, f"{line}: {'better' if better else 'worse'}")


def _when(evaluation: Evaluation) -> str:
    return f"after rollout {evaluation.result['rollouts']}"


def _training(rows: list[dict[str, Any]], prompts: int) -> list[Cell]:
    measured = [row for row in rows if isinstance(row.get("accuracy"), float)]
    if not measured:
        return []
    ends = [measured[0], measured[-1]] if len(measured) > 1 else measured
    values = ", ".join(f"{_with_error(row, prompts)} in rollout {row['rollout'] + 1}" for row in ends)
    return [f"training accuracy: {values} (no two held-out evaluations to compare; validation.every=N makes them)"]


def _with_error(row: Mapping[str, Any], prompts: int) -> str:
    value, error = row["accuracy"], row.get("accuracy/se")
    if not isinstance(error, float):
        return f"{value:.3f}"
    return with_interval("accuracy", share_interval_of_error(value, error, max(2, prompts)))
