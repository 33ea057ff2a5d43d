"""Two evaluations of the same problems side by side, each difference with its paired interval."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.evaluation.metrics import ProblemValues, estimate
from rlvr_cli.results.evaluations import AGAIN, PROBLEMS_HASH, read_result
from rlvr_cli.runs.records import read_jsonl
from rlvr_cli.stats.intervals import Estimate, paired_interval


@dataclass(frozen=True)
class Evaluation:
    """A finished evaluation as read from its folder."""

    folder: Path
    result: dict[str, Any]
    rows: tuple[ProblemValues, ...]


@dataclass(frozen=True)
class Difference:
    """One metric before and after, and after - before over the same problems."""

    metric: str
    before: Estimate
    after: Estimate
    difference: Estimate

    @property
    def clear(self) -> bool:
        """Whether the interval of the difference lies on one side of zero."""
        low, high = self.difference.low, self.difference.high
        return low is not None and high is not None and (low > 0 or high < 0)

    def as_json(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        return {
            "before": self.before.as_json(),
            "after": self.after.as_json(),
            "difference": self.difference.as_json(),
            "clear": self.clear,
        }


def read_evaluation(folder: Path) -> Evaluation:
    """The evaluation in ``folder``. Raises UserError when there is none, RunError when its files were altered."""
    path = folder / "metrics.json"
    if not path.exists():
        raise UserError(f"{folder}: no finished evaluation here (no metrics.json). `rlvr eval` makes one.")
    try:
        result = read_result(path)
        rows = tuple(ProblemValues.from_json(record) for record in read_jsonl(folder / "problems.jsonl"))
        count = result["problems"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder}: the evaluation cannot be read ({error}). Its files were altered.") from error
    found = hashlib.sha256((folder / "problems.jsonl").read_bytes()).hexdigest() if rows else None
    if found != result.get(PROBLEMS_HASH, found):
        raise RunError(f"{folder / 'problems.jsonl'}: was altered after it was written (its hash differs). {AGAIN}")
    if len(rows) != count:
        raise RunError(f"{folder}: metrics.json is of {count} problems, problems.jsonl of {len(rows)}. Evaluate again.")
    return Evaluation(folder, result, rows)


def compare_evals(before: Path, after: Path) -> dict[str, Difference]:
    """Every metric that both evaluations have, paired by problem.

    Raises UserError when they are not of the same problems, split and sampling settings: a difference between such
    evaluations would not be one between models.
    """
    first, second = read_evaluation(before), read_evaluation(after)
    problems = []
    for key in ("benchmark", "split", "sampling"):
        if first.result.get(key) != second.result.get(key):
            problems.append(
                f"{before} and {after} differ in {key}: {first.result.get(key)} and {second.result.get(key)}."
            )
    a, b = ({row.id: row for row in evaluation.rows} for evaluation in (first, second))
    if a.keys() != b.keys():
        problems.append(
            f"{before} and {after} are of different problems ({len(a.keys() & b.keys())} in common of {len(a)} and "
            f"{len(b)}). Evaluate both with the same --problems, --split and --data."
        )
    if problems:
        raise UserError(problems)
    return paired_rows(list(first.rows), [b[row.id] for row in first.rows])


def paired_rows(before: list[ProblemValues], after: list[ProblemValues]) -> dict[str, Difference]:
    """The comparison of two tables of the same problems in the same order."""
    metrics = [name for name in before[0].values if name in after[0].values]
    table: dict[str, Difference] = {}
    for name in metrics:
        old, new = ([row.values[name] for row in rows] for rows in (before, after))
        table[name] = Difference(name, estimate(name, old), estimate(name, new), paired_interval(old, new))
    return table
