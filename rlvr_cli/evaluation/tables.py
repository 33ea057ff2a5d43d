"""Rows of text for evaluations. No terminal library here."""

from __future__ import annotations

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
    """Return the label of a metric."""
    return metric(name).label


def evaluation_headline(result: Mapping[str, Any]) -> str:
    """Return the line that names the model, the problems and the sampling."""
    sampling = result["sampling"]
    line = f"{result['label']}: {result['benchmark']}, {result['split']}, {result['problems']} problems"
    line += f" ({result['trained_on']:,} of them trained on)" if result.get("trained_on") else ""
    if result["samples"] == 0:
        return f"{line}, greedy"
    return f"{line} x {result['samples']} samples, temperature {sampling['temperature']:g}, top_p {sampling['top_p']:g}"


def accuracy_table(result: Mapping[str, Any]) -> tuple[list[str], list[Row]]:
    """Return header and rows: each metric with its interval, then its value in each of several subgroups."""
    groups = _several(result["by_subgroup"])
    header = ["", "all [95% interval]", *groups]
    counts = [str(next(iter(group.values()))["problems"]) for group in groups.values()]
    rows: list[Row] = [["problems", str(result["problems"]), *counts]]
    for name, estimate in result["metrics"].items():
        cells = [metric_value_text(name, group[name]["value"]) for group in groups.values()]
        rows.append([metric_name(name), with_interval(name, estimate), *cells])
    return header, rows


def _several(groups: Mapping[str, T]) -> Mapping[str, T]:
    """Return the subgroups if there are several; a single subgroup has all problems."""
    return groups if len(groups) > 1 else {}


def comparison_table(comparison: PairedComparison, after: str) -> tuple[list[str], list[Row]]:
    """Return header and rows: before, after and difference of each metric, and the accuracy of several subgroups."""
    before = comparison.before.result["label"]
    header = ["", f"before: {before}", f"after: {after}", "difference [95% interval]", ""]
    rows = [_comparison(metric_name(name), item) for name, item in comparison.overall.items()]
    for group, table in _several(comparison.by_subgroup).items():
        name = accuracy_of(table) or "greedy"
        rows.append(_comparison(f"{name}, {group}", table[name]))
    return header, rows


def _comparison(name: str, item: PairedDifference) -> Row:
    difference = with_interval(item.metric, item.difference, signed=True)
    return [
        name,
        with_interval(item.metric, item.before),
        with_interval(item.metric, item.after),
        clear_difference(item.metric, item.difference.value, difference) if item.clear else difference,
        "" if item.clear else item.doubt,
    ]


def clear_difference(name: str, value: float, text: str) -> Marked:
    """Return the ``text`` of a difference beyond the noise, marked as better or worse."""
    higher = metric(name).higher_is_better
    return Marked(text, "strong" if higher is None else "good" if (value > 0) == higher else "bad")


def with_interval(name: str, estimate: Mapping[str, Any] | Estimate | CrossedEstimate, *, signed: bool = False) -> str:
    """Return a value with its interval, of an estimate or its JSON: ``0.731 [0.694, 0.765]``."""
    fields = estimate if isinstance(estimate, Mapping) else vars(estimate)
    value = metric_value_text(name, fields["value"], signed=signed)
    lowest, highest = fields["low"], fields["high"]
    if lowest is None:
        return value
    low, high = (metric_value_text(name, end, signed=signed) for end in (lowest, highest))
    # An end next to zero keeps the digits that show its sign.
    if signed and lowest > 0 and float(low) == 0:
        low = f"{lowest:+.1g}"
    if signed and highest < 0 and float(high) == 0:
        high = f"{highest:+.1g}"
    return f"{value} [{low}, {high}]"


def metric_value_text(name: str, value: float, *, signed: bool = False) -> str:
    """Return a value with the decimals of its metric."""
    return f"{value:{'+' if signed else ''}z.{metric(name).decimals}f}"
