"""A comparison as data: JSON values, and rows of CSV, one an arm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlvr_cli.compare.contrasts import Comparison, Contrast, Row
from rlvr_cli.compare.curves import SUMMARIES, CurveRow
from rlvr_cli.compare.sentences import headline, power_lines, sentence
from rlvr_cli.results.spending import PARTS, Spent
from rlvr_cli.stats.clustered import CrossedEstimate


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Everything that the tables and sentences say, with all digits, and where it is from."""
    material = comparison.material
    read, question = material.read, material.question
    return {
        "metric": read.metric,
        "benchmark": read.result["benchmark"],
        "split": read.result["split"],
        "sampling": read.result["sampling"],
        "samples": read.samples,
        "problems": len(read.problems),
        "match": None if question.match is None else {"budget": question.match, "start": read.start, "end": read.end},
        "paired": material.paired,
        "baseline": material.baseline,
        "compared": headline(comparison),
        "arms": [_arm(comparison, row) for row in comparison.rows],
        "power": power_lines(comparison),
        "notes": list(material.notes),
    }


def csv_row(arm: Mapping[str, Any]) -> dict[str, Any]:
    """A line of CSV: what an arm has, with all digits, and of its runs the paths.

    What no arm has, as a test with one seed, is no column.
    """
    row = {key: value for key, value in arm.items() if value is not None}
    return {**row, "runs": [one["run"] for one in row["runs"]]} if "runs" in row else row


def _arm(comparison: Comparison, row: Row) -> dict[str, Any]:
    material = comparison.material
    arm = next(one for one in material.arms if one.name == row.arm)
    spent = material.spent()[row.arm]
    curves = {one.arm: one for one in comparison.curves}
    return {
        "arm": row.arm,
        "method": arm.method,
        "runs": [
            {"run": arm.runs[one].path, "seed": one.seed, "rest": one.rest, "spent": _spent(used)}
            for one, used in zip(material.runs[row.arm], spent, strict=True)
        ],
        "mean": _estimate(row.mean),
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
    test, needed, found = contrast.permutation, contrast.needed, contrast.outcomes
    return {
        "difference": _estimate(contrast.difference),
        "p_holm": contrast.p_value,
        "permutation": None
        if test is None
        else {"p": test.p_value, "smallest": test.smallest, "permutations": test.permutations, "exact": test.exact},
        "outcomes": {"wins": found.wins, "ties": found.ties, "losses": found.losses},
        "needed": None
        if needed is None
        else {
            "difference": needed.difference,
            "seeds": needed.seeds,
            "problems": needed.problems,
            "detectable": needed.detectable,
        },
        "verdict": contrast.verdict,
    }


def _estimate(estimate: CrossedEstimate) -> dict[str, Any]:
    return estimate.as_json()


def _curve(row: CurveRow) -> dict[str, Any]:
    return {
        **{name: _estimate(row.values[name]) for name in SUMMARIES},
        "differences": None
        if row.differences is None
        else {name: _estimate(row.differences[name]) for name in SUMMARIES},
        "level": row.level,
        "reached": list(row.reached),
    }


def _spent(spent: Spent) -> dict[str, float]:
    return {part: spent.of(part) for part in PARTS}
