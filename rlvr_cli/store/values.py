"""One value a problem of the metric that is compared, from an evaluation's records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.store.evaluation import Evaluation, read_samples
from rlvr_cli.store.metrics import ACCURACY, FORMS, GREEDY, at_k, problem_value

Values = dict[str, float]


def metric_of(name: str | None, evaluations: Mapping[str, Evaluation], problems: list[str]) -> tuple[str, int] | None:
    """The metric that ``name`` stands for, and the samples of each problem that it is taken over.

    `accuracy` (and None) is avg@n, of the greedy completion where there are no samples; greedy accuracy is over none,
    avg@k over k. Where the numbers of samples differ, the smallest of them is taken of every run: sample i of a problem
    has the same random stream in each. Where one run has none, it is the greedy completion of each.

    Args:
        evaluations: by the run's path.
        problems: gets a line for an unknown metric, and for a k that is above the number of samples, 0 or of one run.
    """
    samples = {path: int(evaluation.result["samples"]) for path, evaluation in evaluations.items()}
    n = min(samples.values())
    if name in (None, ACCURACY):
        return (f"avg@{n}" if n else "greedy", n)
    assert name is not None
    form = at_k(name)
    if form is None:
        known = _plain_metrics(evaluations)
        if name in known:
            return name, 0 if name == GREEDY else n
        shown = [ACCURACY, *FORMS, *known]
        problems.append(f"--metric {name}: no such metric.{did_you_mean(name, shown)} There are: {', '.join(shown)}.")
        return None
    kind, k = form[0], n if form[1] == "n" else int(form[1])
    smallest = 2 if kind == "maj" else 1
    if k < smallest:
        problems.append(f"--metric {name}: k must be at least {smallest}.")
    elif k > n:
        few = [path for path, count in samples.items() if count < k]
        problems.append(
            f"--metric {name}: k is above the number of samples: there are {n} a problem in {', '.join(few)}. "
            f"`rlvr eval RUN --samples {k}` adds what is missing."
        )
    else:
        return f"{kind}@{k}", k if kind == "avg" else n
    return None


def problem_values(evaluation: Evaluation, metric: str, n: int) -> Values:
    """Each problem's value of ``metric`` over its first ``n`` samples; over the greedy completion if that is 0.

    Raises RunError where the evaluation does not have it and its samples do not give it.
    """
    same = metric == GREEDY or evaluation.result["samples"] == n
    if same and all(metric in row.values for row in evaluation.rows):
        return {row.id: row.values[metric] for row in evaluation.rows}
    if metric == GREEDY:
        raise RunError(f"{evaluation.folder}: has no greedy completions. Evaluate with eval.greedy=true.")
    path = evaluation.folder / "samples.jsonl"
    if not path.exists():
        raise RunError(
            f"{evaluation.folder}: has no {metric} over {n} samples, and an average of checkpoints has no samples to "
            "compute it from. Evaluate all runs with the same --samples and with its k in --pass-at."
        )
    rows: dict[tuple[Any, Any], Mapping[str, Any]] = {}
    values = {}
    problem = evaluation.rows[0]
    try:
        for record in read_samples(evaluation.folder):
            rows[record["problem"], record["sample"]] = record
        for problem in evaluation.rows:
            own = [rows[problem.id, index] for index in (range(n) if n else (GREEDY,))]
            own = [{**one, "answer": problem.vote(one["answer"])} for one in own]
            value = problem_value(metric, own)
            if value is None:
                raise KeyError(metric)
            values[problem.id] = value
    except (KeyError, TypeError) as error:
        raise RunError(
            f"{path}: a sample of {problem.id}, or part of it, is missing ({error}). Evaluate again; existing samples "
            "are reused."
        ) from error
    return values


def _plain_metrics(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """Metrics without a k that every evaluation has."""
    rows = [evaluation.rows[0].values for evaluation in evaluations.values()]
    return [metric for metric in rows[0] if "@" not in metric and all(metric in values for values in rows)]
