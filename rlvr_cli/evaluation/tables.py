"""Evaluations as rows of text, for people. No terminal library here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlvr_cli.evaluation.compare import Difference
from rlvr_cli.evaluation.metrics import is_share

Row = list[str]

_NAMES = {
    "greedy": "greedy accuracy",
    "reward": "mean reward",
    "reward/format": "  format part",
    "reward/answer": "  answer part",
    "length": "mean length (tokens)",
    "truncated": "truncated share",
}


def metric_name(metric: str) -> str:
    """A metric's name as people read it."""
    if metric.startswith("reason/"):
        return f"judged {metric.removeprefix('reason/')}"
    return _NAMES.get(metric, metric)


def headline(result: Mapping[str, Any]) -> str:
    """One line that says what was evaluated and how."""
    sampling = result["sampling"]
    what = f"{result['label']}: {result['benchmark']}, {result['split']}, {result['problems']} problems"
    if result["samples"] == 0:
        return f"{what}, greedy"
    return f"{what} x {result['samples']} samples, temperature {sampling['temperature']:g}, top_p {sampling['top_p']:g}"


def accuracy_table(result: Mapping[str, Any]) -> tuple[Row, list[Row]]:
    """Header and rows: each metric over all problems with its interval, then its value in each subgroup."""
    groups = result["by_subgroup"]
    header = ["", "all [95% interval]", *groups]
    counts = [str(next(iter(group.values()))["problems"]) for group in groups.values()]
    rows = [["problems", str(result["problems"]), *counts]]
    for name, whole in result["metrics"].items():
        cells = [figure(name, group[name]["value"]) for group in groups.values()]
        rows.append([metric_name(name), with_interval(name, whole), *cells])
    return header, rows


def comparison_table(
    before: str,
    after: str,
    overall: Mapping[str, Difference],
    by_subgroup: Mapping[str, Mapping[str, Difference]],
) -> tuple[Row, list[Row]]:
    """Header and rows: before, after and their paired difference; sampled accuracy for each subgroup too."""
    header = ["", f"before: {before}", f"after: {after}", "difference [95% interval]", ""]
    rows = [_comparison(metric_name(name), item) for name, item in overall.items()]
    for group, table in by_subgroup.items():
        name = next((metric for metric in table if metric.startswith("avg@")), "greedy")
        rows.append(_comparison(f"{name}, {group}", table[name]))
    return header, rows


def _comparison(name: str, item: Difference) -> Row:
    metric = item.metric
    difference = with_interval(metric, item.difference.as_json(), signed=True)
    return [
        name,
        with_interval(metric, item.before.as_json()),
        with_interval(metric, item.after.as_json()),
        difference,
        "" if item.clear else "within noise",
    ]


def with_interval(metric: str, estimate: Mapping[str, Any], *, signed: bool = False) -> str:
    """A value with its interval: ``0.731 [0.694, 0.765]``."""
    value = figure(metric, estimate["value"], signed=signed)
    if estimate["low"] is None:
        return value
    low, high = (figure(metric, estimate[end], signed=signed) for end in ("low", "high"))
    return f"{value} [{low}, {high}]"


def figure(metric: str, value: float, *, signed: bool = False) -> str:
    """Shares and rewards with three decimals, lengths with one."""
    decimals = 3 if is_share(metric) or metric.startswith("reward") else 1
    return f"{value:{'+' if signed else ''}z.{decimals}f}"
