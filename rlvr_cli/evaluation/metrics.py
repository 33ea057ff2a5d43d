"""From samples to numbers: one value a problem for each metric, then means with 95% intervals over problems.

Two evaluations of the same problems are compared problem by problem, each difference with its paired interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.evaluation.store import SampleKey
from rlvr_cli.methods.preset import flat
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
    """Every metric of every problem, from exactly the samples that ``settings`` ask for.

    avg@n is the share of right samples; maj@k is given for each k above 1; length counts tokens with the closing
    end-of-sequence token, and is left out where a server did not count them for every sample; all but ``greedy`` are
    over the n samples. Without samples, reward, length and the like are those of the greedy completion.

    Args:
        same: of each problem, the wrong answers that vote for another spelling (:func:`equal_answers`).
    """
    first = [*(range(settings.samples) or [GREEDY])]
    components = dict.fromkeys(
        name for problem in problems for index in first for name in samples[problem.id, index]["parts"]
    )
    names = _names(settings, components, reasons)
    rows = []
    together = same or [{} for _ in problems]
    for problem, votes in zip(problems, together, strict=True):
        own = [samples[problem.id, index] for index in first]
        own = [{**one, "answer": votes.get(one["answer"], one["answer"])} for one in own] if votes else own
        greedy = [samples[problem.id, GREEDY]] if settings.greedy else []
        rows.append({name: problem_value(name, greedy if name == GREEDY else own) for name in names})
    unknown = {name for row in rows for name, value in row.items() if value is None}
    return [
        ProblemValues(
            problem.id,
            problem.subgroup,
            {name: value for name, value in row.items() if value is not None and name not in unknown},
            votes,
        )
        for problem, row, votes in zip(problems, rows, together, strict=True)
    ]


def equal_answers(
    task: Task, problems: Sequence[Problem], samples: Mapping[SampleKey, Mapping[str, Any]], settings: EvalSettings
) -> list[dict[str, str]]:
    """For each problem the wrong answers that equal an earlier one in another spelling, as the task judges equality.

    An answer that the verdict could not read, or not in time, votes as it is spelled.
    """
    of_problems = ([samples[problem.id, index] for index in range(settings.samples)] for problem in problems)
    wrong = [[one["answer"] for one in own if one["reason"] == WRONG and one["answer"]] for own in of_problems]
    return task.same_answers(wrong)


def _names(settings: EvalSettings, components: Iterable[str], reasons: Sequence[str]) -> list[str]:
    """The metrics of an evaluation, in the order of its files."""
    ks = sorted(set(settings.pass_at))
    names = [GREEDY] if settings.greedy else []
    names += [f"avg@{settings.samples}"] if settings.samples else []
    names += [*(f"pass@{k}" for k in ks), *(f"maj@{k}" for k in ks if k > 1)]
    for name in sample_metrics():
        names += [name, *(f"reward/{component}" for component in components)] if name == "reward" else [name]
    return [*names, *(f"reason/{reason}" for reason in reasons)]


def _estimate(name: str, values: Sequence[float], result: Mapping[str, Any]) -> Estimate:
    """The mean of a metric over problems with its 95% interval."""
    return share_interval(values) if metric(name).share else mean_interval(values, bounds(name, result))


def range_of_rewards(rows: Sequence[ProblemValues], declared: tuple[float, float]) -> list[float] | None:
    """The lowest and the highest reward that a task declares; None where a mean of a problem lies outside."""
    rewards = [row.values["reward"] for row in rows]
    return list(declared) if declared[0] <= min(rewards) and max(rewards) <= declared[1] else None


def summarise(rows: Sequence[ProblemValues], result: Mapping[str, Any]) -> dict[str, Any]:
    """``metrics`` over all problems and ``by_subgroup`` over each subgroup's, as JSON values.

    Args:
        result: the rest of metrics.json, which may know the range of rewards.
    """
    groups: dict[str, list[ProblemValues]] = {}
    for row in rows:
        groups.setdefault(row.subgroup, []).append(row)
    return {
        "metrics": _estimates(rows, result),
        "by_subgroup": {name: _estimates(groups[name], result) for name in sorted(groups, key=_natural)},
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


def _estimates(rows: Sequence[ProblemValues], result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _estimate(name, [row.values[name] for row in rows], result).as_json() for name in rows[0].values}


def _natural(name: str) -> tuple[int, str]:
    first = name.split(" ", 1)[0]
    return (int(first) if first.isdigit() else 10**9, name)


@dataclass(frozen=True)
class PairedDifference:
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

    @property
    def doubt(self) -> str:
        """Why a difference is not clear: of one problem, or the same in every problem, it has no interval."""
        if self.difference.low is not None:
            return "within noise"
        return "no interval" if self.difference.value else "no difference"

    def as_json(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        return {
            "before": self.before.as_json(),
            "after": self.after.as_json(),
            "difference": self.difference.as_json(),
            "clear": self.clear,
        }


def compare_evals(before: Evaluation, after: Evaluation) -> dict[str, PairedDifference]:
    """Pair every metric that both evaluations have by problem.

    Raises UserError when they are not of the same problems and settings: a difference between such evaluations would
    not be one between models. The style of the prompts may differ, as every model is asked in the style it knows.
    """
    first, second = (dict(flat(evaluation.settings)) for evaluation in (before, after))
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
    return paired_rows(list(before.rows), [b[row.id] for row in before.rows], before.result)


@dataclass(frozen=True)
class PairedComparison:
    """A model (before) against another (after), paired by problem; overall and by subgroup.

    ``note``: what two runs of methods do not show; None of others.
    """

    before: Evaluation
    overall: dict[str, PairedDifference]
    by_subgroup: dict[str, dict[str, PairedDifference]]
    note: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {
            "before": self.before.result["label"],
            "metrics": {name: item.as_json() for name, item in self.overall.items()},
            "by_subgroup": {
                group: {name: item.as_json() for name, item in table.items()}
                for group, table in self.by_subgroup.items()
            },
            "note": self.note,
        }


def compare_models(before: Evaluation, after: Evaluation, note: str | None) -> PairedComparison:
    """Return :func:`compare_evals`, and the same for each subgroup."""
    overall = compare_evals(before, after)
    new = {row.id: row for row in after.rows}
    groups: dict[str, list[ProblemValues]] = {name: [] for name in after.result["by_subgroup"]}
    for row in before.rows:
        groups[row.subgroup].append(row)
    by_subgroup = {
        name: paired_rows(rows, [new[row.id] for row in rows], after.result) for name, rows in groups.items()
    }
    return PairedComparison(before, overall, by_subgroup, note)


def paired_rows(
    before: list[ProblemValues], after: list[ProblemValues], result: Mapping[str, Any]
) -> dict[str, PairedDifference]:
    """The comparison of two tables of the same problems in the same order, of the task of ``result``."""
    metrics = [name for name in before[0].values if name in after[0].values]
    table: dict[str, PairedDifference] = {}
    for name in metrics:
        old, new = ([row.values[name] for row in rows] for rows in (before, after))
        first, second = (_estimate(name, values, result) for values in (old, new))
        table[name] = PairedDifference(name, first, second, paired_interval(old, new, bounds(name, result)))
    return table
