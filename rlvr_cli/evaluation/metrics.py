"""From samples to numbers: one value a problem for each metric, then means with 95% intervals over problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.evaluation.store import Key
from rlvr_cli.results.evaluations import GREEDY, ProblemValues
from rlvr_cli.results.metrics import metric
from rlvr_cli.stats.intervals import Estimate, mean_interval, share_interval
from rlvr_cli.stats.majority import majority_at_k
from rlvr_cli.stats.passk import pass_at_k
from rlvr_cli.tasks.base import Problem


def is_share(name: str) -> bool:
    """Whether a metric's values lie in [0, 1]."""
    return metric(name).share


def problem_values(
    problems: Sequence[Problem],
    samples: Mapping[Key, Mapping[str, Any]],
    settings: EvalSettings,
    reasons: Sequence[str],
) -> list[ProblemValues]:
    """Every metric of every problem, from exactly the samples that ``settings`` ask for.

    avg@n is the share of right samples; maj@k is given for each k above 1; length counts tokens with the closing
    end-of-sequence token, and is left out where a server did not count them for every sample; all but ``greedy`` are
    over the n samples. Without samples, reward, length and the like are those of the greedy completion.
    """
    rows = [_values(problem, samples, settings, reasons) for problem in problems]
    if any("length" not in row.values for row in rows):
        for row in rows:
            row.values.pop("length", None)
    return rows


def _values(
    problem: Problem, samples: Mapping[Key, Mapping[str, Any]], settings: EvalSettings, reasons: Sequence[str]
) -> ProblemValues:
    rows = [samples[problem.id, index] for index in range(settings.samples)]
    correct = [bool(row["correct"]) for row in rows]
    answers = [row["answer"] for row in rows]
    values: dict[str, float] = {}
    if settings.greedy:
        values["greedy"] = float(samples[problem.id, GREEDY]["correct"])
    n = len(rows)
    if rows:
        values[f"avg@{n}"] = sum(correct) / n
    for k in sorted(set(settings.pass_at)):
        values[f"pass@{k}"] = pass_at_k(n, sum(correct), k)
    for k in sorted(set(settings.pass_at)):
        if k > 1:
            values[f"maj@{k}"] = majority_at_k(answers, correct, k)
    rows = rows or [samples[problem.id, GREEDY]]
    n = len(rows)
    values["reward"] = sum(row["reward"] for row in rows) / n
    for part in rows[0]["parts"]:
        values[f"reward/{part}"] = sum(row["parts"][part] for row in rows) / n
    lengths = [row["tokens"] for row in rows]
    if None not in lengths:
        values["length"] = sum(lengths) / n
    values["truncated"] = sum(row["truncated"] for row in rows) / n
    for reason in reasons:
        values[f"reason/{reason}"] = sum(row["reason"] == reason for row in rows) / n
    return ProblemValues(problem.id, problem.subgroup, values)


def estimate(metric: str, values: Sequence[float]) -> Estimate:
    """The mean of a metric over problems with its 95% interval."""
    return share_interval(values) if is_share(metric) else mean_interval(values)


def summarise(rows: Sequence[ProblemValues]) -> dict[str, Any]:
    """``metrics`` over all problems and ``by_subgroup`` over each subgroup's, as JSON values."""
    groups: dict[str, list[ProblemValues]] = {}
    for row in rows:
        groups.setdefault(row.subgroup, []).append(row)
    return {
        "metrics": _estimates(rows),
        "by_subgroup": {name: _estimates(groups[name]) for name in sorted(groups, key=_natural)},
    }


def average(evaluations: Sequence[Sequence[ProblemValues]]) -> list[ProblemValues]:
    """Each problem's values averaged over evaluations of the same problems (several checkpoints of a run).

    The problem stays the unit: averaging checkpoints adds no problems. Raises ValueError when the problems differ.
    """
    tables = [{row.id: row for row in evaluation} for evaluation in evaluations]
    if any(table.keys() != tables[0].keys() for table in tables):
        raise ValueError("evaluations of different problems cannot be averaged")
    return [
        ProblemValues(
            row.id,
            row.subgroup,
            {name: sum(table[row.id].values[name] for table in tables) / len(tables) for name in row.values},
        )
        for row in evaluations[0]
    ]


def _estimates(rows: Sequence[ProblemValues]) -> dict[str, Any]:
    return {name: estimate(name, [row.values[name] for row in rows]).as_json() for name in rows[0].values}


def _natural(name: str) -> tuple[int, str]:
    first = name.split(" ", 1)[0]
    return (int(first) if first.isdigit() else 10**9, name)
