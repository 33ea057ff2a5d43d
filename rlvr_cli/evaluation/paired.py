"""Two evaluations of the same problems side by side, each difference with its paired interval."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.evaluation.metrics import estimate
from rlvr_cli.results.evaluations import ProblemValues, read_evaluation
from rlvr_cli.stats.intervals import Estimate, paired_interval


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
