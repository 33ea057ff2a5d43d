"""Per-problem values of a metric, from an evaluation's records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.text import did_you_mean, ellipsize
from rlvr_cli.stats.curves import Curve
from rlvr_cli.stats.scores import Array
from rlvr_cli.store.evaluation import Evaluation, read_samples
from rlvr_cli.store.find import Run
from rlvr_cli.store.metrics import ACCURACY, FORMS, GREEDY, at_k, problem_value
from rlvr_cli.store.training import last_steps


def resolve_metric(name: str | None, evaluations: Mapping[str, Evaluation]) -> tuple[str, int]:
    """Resolve ``name`` to a recorded metric and its number of samples per problem.

    `accuracy` (and None) is avg@n, or the greedy accuracy if an evaluation has no samples; greedy accuracy uses 0
    samples, avg@k k. If the numbers of samples differ, n is the smallest: sample i of a problem has the same random
    stream in every run.

    Args:
        evaluations: by the run's path.
    Raises UserError for an unknown metric, and for a k that is 0 or above the number of samples.
    """
    samples = {path: int(evaluation.result["samples"]) for path, evaluation in evaluations.items()}
    n = min(samples.values())
    if name in (None, ACCURACY):
        return (f"avg@{n}" if n else "greedy", n)
    assert name is not None
    form = at_k(name)
    if form is None:
        rows = [evaluation.rows[0].values for evaluation in evaluations.values()]
        plain = [metric for metric in rows[0] if "@" not in metric and all(metric in values for values in rows)]
        if name in plain:
            return name, 0 if name == GREEDY else n
        names = [ACCURACY, *FORMS, *plain]
        raise UserError(f"--metric {name}: unknown metric.{did_you_mean(name, names)} Allowed: {', '.join(names)}.")
    kind, k = form[0], n if form[1] == "n" else int(form[1])
    smallest = 2 if kind == "maj" else 1
    if k < smallest:
        raise UserError(f"--metric {name}: k must be at least {smallest}.")
    if k > n:
        few = [path for path, count in samples.items() if count < k]
        in_training = any("rollouts" in evaluation.result for evaluation in evaluations.values())
        remedy = f"`rlvr eval RUN --samples {k}` adds the missing samples."
        remedy = f"Train with validation.samples={k} or more." if in_training else remedy
        raise UserError(
            f"--metric {name}: k is above the number of samples: {n} a problem in {ellipsize(few, 3)}. {remedy}"
        )
    return f"{kind}@{k}", k if kind == "avg" else n


def problem_values(evaluation: Evaluation, metric: str, n: int, ids: Sequence[str]) -> Array:
    """Return [problems] of ``metric`` over the first ``n`` samples, or over the greedy completion if ``n`` is 0.

    Args:
        ids: of the problems, in the order of the result.
    Raises RunError if the evaluation lacks the metric and it cannot be computed from the samples.
    """
    same = metric == GREEDY or evaluation.result["samples"] == n
    if same and all(metric in row.values for row in evaluation.rows):
        values = {row.id: row.values[metric] for row in evaluation.rows}
    elif metric == GREEDY:
        raise RunError(f"{evaluation.folder}: has no greedy completions. Evaluate with eval.greedy=true.")
    else:
        values = _from_samples(evaluation, metric, n)
    return np.array([values[name] for name in ids])


def _from_samples(evaluation: Evaluation, metric: str, n: int) -> dict[str, float]:
    path = evaluation.folder / "samples.jsonl"
    if not path.exists():
        raise RunError(
            f"{evaluation.folder}: has no {metric} over {n} samples, and an average of checkpoints has no samples to "
            "compute it from. Evaluate all runs with the same --samples and its k in --pass-at."
        )
    samples: dict[tuple[Any, Any], Mapping[str, Any]] = {}
    values: dict[str, float] = {}
    problem = evaluation.rows[0]
    try:
        for record in read_samples(evaluation.folder):
            samples[record["problem"], record["sample"]] = record
        for problem in evaluation.rows:
            first = [samples[problem.id, index] for index in (range(n) if n else (GREEDY,))]
            value = problem_value(metric, [{**sample, "answer": problem.vote(sample["answer"])} for sample in first])
            if value is None:
                raise KeyError(metric)
            values[problem.id] = value
    except (KeyError, TypeError) as error:
        raise RunError(
            f"{path}: a sample of {problem.id}, or a field of it, is missing ({error}). Evaluate again; existing "
            "samples are reused."
        ) from error
    return values


@dataclass(frozen=True)
class HeldOut:
    """The held-out evaluations of a training, at least one, and the cumulative costs at each, [evaluations] by cost."""

    evaluations: tuple[Evaluation, ...]
    spent: Mapping[str, Array]

    def curve(self, budget: str, metric: str, samples: int, ids: Sequence[str]) -> Curve:
        values = [problem_values(evaluation, metric, samples, ids) for evaluation in self.evaluations]
        return Curve(self.spent[budget], np.array(values))


def read_held_out(run: Run) -> HeldOut:
    """Return the held-out evaluations of a run. Raises RunError if it has none or its records are damaged."""
    evaluations = run.held_out
    if not evaluations:
        every = run.config.validation.every
        remedy = "They were not reached, or were removed." if every else "Train with, for example, validation.every=5."
        raise RunError(
            f"{run.path}: has no held-out evaluations from training (validation.every={every}), which --match "
            f"compares. {remedy}"
        )
    spent = run.spent
    steps, recorded, indices = last_steps(spent), list[Evaluation](), list[int]()
    for evaluation in evaluations:
        rollouts = evaluation.result["rollouts"]
        if rollouts > max(steps) and run.manifest.get("status") != "finished":
            continue  # written before its step: the run is between the two, or was killed in between
        if rollouts not in steps:
            name = run.dir.metrics_path.name
            raise RunError(f"{evaluation.folder}: {name} has no rollout {rollouts}. It was altered.")
        recorded.append(evaluation)
        indices.append(steps[rollouts] - 1)
    if not recorded:
        raise RunError(f"{run.path}: its first held-out evaluation is of a step that is not recorded yet.")
    return HeldOut(tuple(recorded), {cost: values[indices] for cost, values in spent.items()})
