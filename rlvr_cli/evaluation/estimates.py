"""Estimate metrics from samples: per-problem values, means with 95% intervals over problems, paired differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.nested import flatten
from rlvr_cli.evaluation.sample_store import SampleKey
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.stats.intervals import Estimate, mean_interval, paired_interval, share_interval
from rlvr_cli.store.evaluation import Evaluation, ProblemValues
from rlvr_cli.store.metrics import GREEDY, bounds, metric, problem_value, sample_metrics
from rlvr_cli.tasks.base import Task
from rlvr_cli.tasks.problem import WRONG, Problem


def problem_metrics(
    problems: Sequence[Problem],
    samples: Mapping[SampleKey, Mapping[str, Any]],
    settings: EvalSettings,
    reasons: Sequence[str],
    same: Sequence[Mapping[str, str]] = (),
) -> list[ProblemValues]:
    """Return every metric of every problem over the samples of ``settings``.

    avg@n is the share of correct samples; maj@k is computed for k > 1; length includes the end-of-sequence token, and
    is omitted if unknown for a sample. Metrics other than ``greedy`` are over the n samples; with n = 0, reward, length
    and reasons are those of the greedy completion.

    Args:
        same: per problem, the spellings that wrong answers vote for (:func:`find_equal_answers`).
    """
    indices = [*(range(settings.samples) or [GREEDY])]
    sampled = [[samples[problem.id, index] for index in indices] for problem in problems]
    components = dict.fromkeys(name for group in sampled for sample in group for name in sample["parts"])
    names = _names(settings, components, reasons)
    spellings = same or [{} for _ in problems]
    rows = []
    for problem, group, votes in zip(problems, sampled, spellings, strict=True):
        voting = [{**sample, "answer": votes.get(sample["answer"], sample["answer"])} for sample in group]
        greedy = [samples[problem.id, GREEDY]] if settings.greedy else []
        rows.append({name: problem_value(name, greedy if name == GREEDY else voting) for name in names})
    # Metrics are averaged by name: a metric unknown for a problem is omitted for all.
    complete = [name for name in names if all(row[name] is not None for row in rows)]
    return [
        ProblemValues(problem.id, problem.subgroup, {name: row[name] for name in complete}, votes)  # type: ignore[misc]
        for problem, row, votes in zip(problems, rows, spellings, strict=True)
    ]


def find_equal_answers(
    task: Task, problems: Sequence[Problem], samples: Mapping[SampleKey, Mapping[str, Any]], settings: EvalSettings
) -> list[dict[str, str]]:
    """Return per problem a map of answers judged wrong to an equal earlier answer with another spelling."""
    sampled = ([samples[problem.id, index] for index in range(settings.samples)] for problem in problems)
    return task.group_answers(
        [[row["answer"] for row in group if row["reason"] == WRONG and row["answer"]] for group in sampled]
    )


def _names(settings: EvalSettings, components: Iterable[str], reasons: Sequence[str]) -> list[str]:
    ks = sorted(set(settings.pass_at))
    names = [GREEDY] if settings.greedy else []
    names += [f"avg@{settings.samples}"] if settings.samples else []
    names += [*(f"pass@{k}" for k in ks), *(f"maj@{k}" for k in ks if k > 1)]
    for name in sample_metrics():
        names += [name, *(f"reward/{component}" for component in components)] if name == "reward" else [name]
    return [*names, *(f"reason/{reason}" for reason in reasons)]


def _estimate(name: str, values: Sequence[float], *results: Mapping[str, Any]) -> Estimate:
    return share_interval(values) if metric(name).share else mean_interval(values, bounds(name, *results))


def range_of_rewards(rows: Sequence[ProblemValues], declared: tuple[float, float]) -> list[float] | None:
    """Return the ``declared`` range of rewards; None if a problem's mean lies outside."""
    rewards = [row.values["reward"] for row in rows]
    return list(declared) if declared[0] <= min(rewards) and max(rewards) <= declared[1] else None


def summarise(rows: Sequence[ProblemValues], result: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``metrics`` and ``by_subgroup`` of metrics.json; ``result``: the other fields."""
    return {
        "metrics": _estimates(rows, result),
        "by_subgroup": {name: _estimates(group, result) for name, group in _by_subgroup(rows).items()},
    }


def _by_subgroup(rows: Sequence[ProblemValues]) -> dict[str, list[ProblemValues]]:
    """Group the rows by subgroup; "2 people" sorts before "10 people"."""
    groups: dict[str, list[ProblemValues]] = {}
    for row in rows:
        groups.setdefault(row.subgroup, []).append(row)
    return {name: groups[name] for name in sorted(groups, key=_natural_key)}


def average(evaluations: Sequence[Sequence[ProblemValues]]) -> list[ProblemValues]:
    """Average each problem's values over evaluations. Raises ValueError unless they have the same problems."""
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


def _estimates(rows: Sequence[ProblemValues], result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _estimate(name, [row.values[name] for row in rows], result).as_json() for name in rows[0].values}


def _natural_key(name: str) -> tuple[int, str]:
    first = name.split(" ", 1)[0]
    return (int(first) if first.isdigit() else 10**9, name)


@dataclass(frozen=True)
class PairedDifference:
    metric: str
    before: Estimate
    after: Estimate
    difference: Estimate

    @property
    def clear(self) -> bool:
        """Return whether the interval of the difference excludes zero."""
        low, high = self.difference.low, self.difference.high
        return low is not None and high is not None and (low > 0 or high < 0)

    @property
    def unclear_reason(self) -> str:
        """Return why a difference is not clear; one problem, or equal differences, have no interval."""
        if self.difference.low is not None:
            return "within noise"
        return "no interval" if self.difference.value else "no difference"

    def as_json(self) -> dict[str, Any]:
        return {
            "before": self.before.as_json(),
            "after": self.after.as_json(),
            "difference": self.difference.as_json(),
            "clear": self.clear,
        }


def compare_evaluations(before: Evaluation, after: Evaluation) -> dict[str, PairedDifference]:
    """Compare every metric that both evaluations have, paired by problem.

    The prompt style may differ, as it belongs to the model. Raises UserError for other differences in settings or
    problems, which would confound the difference between models.
    """
    first, second = (flatten(evaluation.settings) for evaluation in (before, after))
    problems = [
        f"{before.folder} and {after.folder} differ in {key}: {first.get(key)} and {second.get(key)}."
        for key in dict.fromkeys([*first, *second])
        if first.get(key) != second.get(key) and key not in ("task.style", "averaged")
    ]
    a, b = ({row.id: row for row in evaluation.rows} for evaluation in (before, after))
    if a.keys() != b.keys():
        problems.append(
            f"{before.folder} and {after.folder} are of different problems ({len(a.keys() & b.keys())} in common of "
            f"{len(a)} and {len(b)}). Evaluate both with the same --problems, --split and --data."
        )
    if problems:
        raise UserError(problems)
    return _compare_rows(before.rows, b, before.result, after.result)


@dataclass(frozen=True)
class PairedComparison:
    """Paired differences after - before, over all problems and by subgroup, with a note on a comparison of runs."""

    before: Evaluation
    overall: dict[str, PairedDifference]
    by_subgroup: dict[str, dict[str, PairedDifference]]
    note: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "before": self.before.result["label"],
            "metrics": {name: difference.as_json() for name, difference in self.overall.items()},
            "by_subgroup": {
                group: {name: difference.as_json() for name, difference in table.items()}
                for group, table in self.by_subgroup.items()
            },
            "note": self.note,
        }


def compare_by_subgroup(before: Evaluation, after: Evaluation, note: str | None) -> PairedComparison:
    """Compare over all problems and within each subgroup. Raises UserError as :func:`compare_evaluations`."""
    overall = compare_evaluations(before, after)
    by_id = {row.id: row for row in after.rows}
    groups = _by_subgroup(before.rows)
    by_subgroup = {name: _compare_rows(rows, by_id, before.result, after.result) for name, rows in groups.items()}
    return PairedComparison(before, overall, by_subgroup, note)


def _compare_rows(
    before: Sequence[ProblemValues], after: Mapping[str, ProblemValues], *results: Mapping[str, Any]
) -> dict[str, PairedDifference]:
    table: dict[str, PairedDifference] = {}
    for name in before[0].values:
        if name in after[before[0].id].values:
            old, new = [row.values[name] for row in before], [after[row.id].values[name] for row in before]
            first, second = (_estimate(name, values, *results) for values in (old, new))
            table[name] = PairedDifference(name, first, second, paired_interval(old, new, bounds(name, *results)))
    return table
