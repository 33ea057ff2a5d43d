"""Format evaluations as rows of a table. Imports no terminal library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from rlvr_cli.core.terminal import Cell, Marked
from rlvr_cli.evaluation.estimates import PairedComparison, PairedDifference
from rlvr_cli.store.metrics import accuracy_of, metric

if TYPE_CHECKING:
    from rlvr_cli.stats.clustered import CrossedEstimate
    from rlvr_cli.stats.intervals import Estimate

Row = list[Cell]
T = TypeVar("T")


def metric_name(name: str) -> str:
    return metric(name).label


def evaluation_headline(result: Mapping[str, Any]) -> str:
    sampling = result["sampling"]
    line = f"{result['label']}: {result['benchmark']}, {result['split']}, {result['problems']} problems"
    line += f" ({result['trained_on']:,} of them trained on)" if result.get("trained_on") else ""
    if result["samples"] == 0:
        return f"{line}, greedy"
    return f"{line} x {result['samples']} samples, {describe_sampling(sampling)}"


def describe_sampling(sampling: Mapping[str, Any]) -> str:
    """Return an evaluation's sampling as text: `temperature 1, top_p 0.9`, and the stop strings."""
    stop = f", stop {json.dumps(sampling['stop'], ensure_ascii=False)}" if "stop" in sampling else ""
    return f"temperature {sampling['temperature']:g}, top_p {sampling['top_p']:g}{stop}"


def accuracy_table(result: Mapping[str, Any]) -> tuple[list[str], list[Row]]:
    """Return header and rows: each metric with its interval, and its value in each subgroup if there are several."""
    groups = _if_several(result["by_subgroup"])
    header = ["", "all [95% interval]", *groups]
    counts = [str(next(iter(group.values()))["problems"]) for group in groups.values()]
    rows: list[Row] = [["problems", str(result["problems"]), *counts]]
    for name, estimate in result["metrics"].items():
        cells = [format_metric(name, group[name]["value"]) for group in groups.values()]
        rows.append([metric_name(name), with_interval(name, estimate), *cells])
    return header, rows


def _if_several(groups: Mapping[str, T]) -> Mapping[str, T]:
    return groups if len(groups) > 1 else {}


def comparison_table(comparison: PairedComparison, after: str) -> tuple[list[str], list[Row]]:
    """Return header and rows: before, after and difference of each metric, and of the accuracy in each subgroup."""
    before = comparison.before.result["label"]
    header = ["", f"before: {before}", f"after: {after}", "difference [95% interval]", ""]
    rows = [_comparison_row(metric_name(name), paired) for name, paired in comparison.overall.items()]
    for group, table in _if_several(comparison.by_subgroup).items():
        name = accuracy_of(table) or "greedy"
        rows.append(_comparison_row(f"{name}, {group}", table[name]))
    return header, rows


def _comparison_row(name: str, paired: PairedDifference) -> Row:
    difference = with_interval(paired.metric, paired.difference, signed=True)
    return [
        name,
        with_interval(paired.metric, paired.before),
        with_interval(paired.metric, paired.after),
        mark_difference(paired.metric, paired.difference.value, difference) if paired.clear else difference,
        "" if paired.clear else paired.unclear_reason,
    ]


def mark_difference(name: str, value: float, text: str) -> Marked:
    higher = metric(name).higher_is_better
    return Marked(text, "strong" if higher is None else "good" if (value > 0) == higher else "bad")


def with_interval(name: str, estimate: Mapping[str, Any] | Estimate | CrossedEstimate, *, signed: bool = False) -> str:
    """Format an estimate, or its JSON values, with its interval: ``0.731 [0.694, 0.765]``."""
    fields = estimate if isinstance(estimate, Mapping) else vars(estimate)
    value = format_metric(name, fields["value"], signed=signed)
    if fields["low"] is None:
        return value
    low, high = (format_metric(name, fields[end], signed=signed) for end in ("low", "high"))
    # Keep the sign of an end that rounds to zero.
    if signed and fields["low"] > 0 and float(low) == 0:
        low = f"{fields['low']:+.1g}"
    if signed and fields["high"] < 0 and float(high) == 0:
        high = f"{fields['high']:+.1g}"
    return f"{value} [{low}, {high}]"


def format_metric(name: str, value: float, *, signed: bool = False) -> str:
    return f"{value:{'+' if signed else ''}z.{metric(name).decimals}f}"
