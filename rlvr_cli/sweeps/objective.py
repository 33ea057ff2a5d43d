"""The objective of a sweep: read it, check it, and evaluate it for each run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvr_cli.compare.evaluations import choose_evaluations, shared_problems
from rlvr_cli.config.evaluation import HeldOutConfig
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError, collect_problems
from rlvr_cli.core.files import finite
from rlvr_cli.core.layers import format_override
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.records import read_record
from rlvr_cli.store.evaluation import iter_results
from rlvr_cli.store.find import Run, read_run
from rlvr_cli.store.metrics import (
    ACCURACY,
    FORMS,
    GREEDY,
    accuracy_of,
    at_k,
    metric,
    sample_metrics,
    training_metrics,
)
from rlvr_cli.store.values import problem_values, resolve_metric
from rlvr_cli.sweeps.spec import EvalSpec, ObjectiveSpec, SpecProblem, SweepFile
from rlvr_cli.tasks.sets import problems_name
from rlvr_cli.tasks.suites import SUITES, unknown_name_errors


def eval_arguments(spec: EvalSpec | None, configs: Sequence[Config]) -> tuple[str, ...] | None:
    """Return the arguments after `rlvr eval RUN`; None if trials are not evaluated.

    Benchmarks shared by all configurations are explicit, so that a change reevaluates the trials.
    """
    if spec is None:
        return None
    named = {trial_benchmarks(spec, config) for config in configs}
    options = {
        "--pass-at": ",".join(map(str, spec.pass_at)) or None,
        "--samples": spec.samples,
        "--problems": spec.problems,
        "--split": spec.split,
        "--benchmark": ",".join(named.pop()) or None if len(named) == 1 else None,
    }
    words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    return (*words, *(format_override(key, value) for key, value in spec.set.items()))


def trial_benchmarks(spec: EvalSpec, config: Config) -> tuple[str, ...]:
    """Return the benchmarks of a finished trial: the sweep's, else its `eval.benchmark`; empty = its task."""
    return spec.benchmark or config.eval.benchmark


def eval_problems(file: SweepFile, configs: Sequence[Config]) -> list[SpecProblem]:
    """Return the problems of the file's `eval` that need no model to detect."""
    spec = file.spec.eval
    if spec is None:
        return []
    from rlvr_cli.evaluation.settings import unused_key_reason

    problems: list[SpecProblem] = []
    for key in spec.set:
        location = file.location("eval", "set", key)
        if reason := unused_key_reason(key):
            problems.append((location, f"eval.set: {key}: has no effect; {reason}"))
        elif key == "eval.base_url":
            # On the command line of `rlvr eval` it would decide where API keys are sent.
            message = "eval.set: eval.base_url: cannot be set, since a server does not have a trial's model. Remove it"
            problems.append((location, message))
        elif (name := key.removeprefix("eval.")) in EvalSpec.model_fields:
            problems.append((location, f"eval.set: {key}: set it as `{name}` of `eval`, not in `set`"))
    unknown = unknown_name_errors(spec.benchmark, "--benchmark")
    problems += [(file.location("eval", "benchmark"), f"eval: {line}") for line in unknown]
    return problems


HELD_OUT, EVAL, TRAINING = "held_out", "eval", "training"
SOURCE_LABELS = {
    HELD_OUT: "held-out, in training",
    EVAL: "evaluation",
    TRAINING: "in training, last tenth of the rollouts",
}


@dataclass(frozen=True)
class Objective:
    """A metric, its source ``of``, its direction, and the settings ``where`` that select a run's evaluation."""

    metric: str
    of: str
    maximize: bool
    where: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.metric} ({SOURCE_LABELS[self.of]})"

    def values(self, runs: Sequence[RunDir]) -> tuple[dict[Path, float], tuple[str, ...]]:
        """Return the values of the runs that recorded the metric, by folder, and notes on them.

        Evaluations by `rlvr eval` are chosen as in `rlvr compare`: last checkpoint, common settings, common problems.
        Raises UserError if they cannot be compared, RunError for damaged records.
        """
        if self.of == EVAL:
            return self._eval_values(runs)
        read_value = _mean_of_last_tenth if self.of == TRAINING else _last_held_out
        values = {run.path: read_value(self, run) for run in runs}
        return {path: value for path, value in values.items() if value is not None}, ()

    def _eval_values(self, runs: Sequence[RunDir]) -> tuple[dict[Path, float], tuple[str, ...]]:
        evaluated = [run for run in runs if any(map(self._matches, iter_results(run.eval_dir)))]
        if not evaluated:
            return {}, ()
        problems, selected = list[str](), list[Run]()
        for run in evaluated:
            with collect_problems(problems):
                selected.append(read_run(run.path))
        if problems:
            raise UserError(problems)
        where = [f"split={self.where['split']}"] if "split" in self.where else []
        evaluations = choose_evaluations(selected, benchmark=self.where.get("benchmark"), where=where)
        ids, note = shared_problems(evaluations, only_common=True)
        metric = resolve_metric(self.metric, evaluations)
        values = {run.dir.path: float(problem_values(evaluations[run.path], *metric, ids).mean()) for run in selected}
        return values, (note,) if note else ()

    def held_out_values(self, run: RunDir, after: int = 0) -> list[tuple[int, float]]:
        """Return (rollouts done, value) of each held-out evaluation after rollout ``after``."""
        values = ((result["rollouts"], metric_value(result, self.metric)) for result in iter_results(run.held_out_dir))
        return [(rollouts, value) for rollouts, value in values if value is not None and rollouts > after]

    def _matches(self, result: dict[str, Any]) -> bool:
        return all(result.get(key) == self.where[key] for key in ("split", "benchmark") if key in self.where)


def metric_value(result: dict[str, Any], name: str) -> float | None:
    """Return a metric of an evaluation's metrics.json; `accuracy` is avg@n, or the greedy accuracy if n = 0."""
    metrics = result["metrics"]
    if name in (ACCURACY, "avg@n"):
        name = accuracy_of(metrics) or ""
    return finite(metrics[name]["value"]) if name in metrics else None


def read_objective(
    file: SweepFile, configs: Sequence[Config], evaluated: Sequence[Config]
) -> tuple[Objective | None, list[SpecProblem]]:
    """Return the objective, if any, and its problems; ``evaluated``: the configurations of the evaluations."""
    spec = file.spec.objective
    if spec is None:
        return None, []
    held_out = bool(configs) and all(config.validation.every for config in configs)
    of = spec.of or (HELD_OUT if held_out else EVAL if file.spec.eval is not None else TRAINING)
    problems = _metric_problems(spec, of, file.spec.eval, evaluated if of == EVAL else configs)
    higher = metric(spec.metric).higher_is_better if spec.direction is None else spec.direction == "maximize"
    if higher is None and not problems:
        problems.append(
            f"objective: neither a larger nor a smaller {spec.metric} is better by definition; set `direction: "
            "minimize` or maximize"
        )
    if problems:
        return None, [(file.location("objective"), problem) for problem in dict.fromkeys(problems)]
    where = _evaluation_settings(file.spec.eval, evaluated) if of == EVAL else {}
    return Objective(spec.metric, of, bool(higher), where), []


def held_out_problems(metric: str, configs: Sequence[Config], *, pruning: bool = False) -> list[str]:
    """Return why held-out evaluations in training cannot rank trials by the metric, or prune them."""
    late = [config for config in configs if not 0 < config.validation.every <= config.train.rollouts - pruning]
    if late:
        problem = "objective: no held-out evaluation in training"
        if pruning:
            problem = "search.pruning: needs a held-out evaluation before the end of the training"
        every, rollouts = late[0].validation.every, late[0].train.rollouts
        return [
            f"{problem} (validation.every={every}, train.rollouts={rollouts}); set validation.every to the rollouts "
            "between them"
        ]
    return [problem for config in configs for problem in _recording_problems(metric, config)]


def _metric_problems(spec: ObjectiveSpec, of: str, evaluation: EvalSpec | None, configs: Sequence[Config]) -> list[str]:
    """Return why trials do not record the metric, and which key to set."""
    if of == TRAINING:
        return [
            f"{_unknown_metric(f'training by {config.method.name} records no {spec.metric}', spec.metric, names)}. "
            "Evaluations record pass@K and more: set validation.every or `eval`"
            for config in configs
            if spec.metric not in (names := training_metrics(config.method.training))
        ]
    names = (ACCURACY, *FORMS, GREEDY, *sample_metrics())
    if at_k(spec.metric) is None and spec.metric not in names:
        return [_unknown_metric(f"unknown metric {spec.metric}", spec.metric, names)]
    if of == HELD_OUT:
        return held_out_problems(spec.metric, configs)
    if evaluation is None:
        return ["objective: finished trials are not evaluated; set `eval`, as {pass_at: [1, 8]}"]
    benchmarks = {trial_benchmarks(evaluation, config) for config in configs}
    if len(benchmarks) > 1 or any(len(names) > 1 or set(names) & set(SUITES) for names in benchmarks):
        return ["objective: `eval` has several benchmarks; set one, or use the held-out evaluations (`of: held_out`)"]
    # A benchmark sets its number of samples.
    known_samples = [
        config for config in configs if evaluation.samples is not None or not trial_benchmarks(evaluation, config)
    ]
    return [problem for config in known_samples for problem in _recording_problems(spec.metric, config, evaluation)]


def _unknown_metric(problem: str, name: str, names: Sequence[str]) -> str:
    return f"objective: {problem}.{did_you_mean(name, names)} Metrics: {', '.join(names)}"


def _recording_problems(metric: str, config: Config, evaluation: EvalSpec | None = None) -> list[str]:
    """Return why held-out evaluations, or the ``evaluation`` of finished trials, do not have the metric."""
    section: HeldOutConfig = config.validation
    if evaluation is not None:
        # As in `rlvr eval`: samples without a k keep every default k up to their number.
        options = evaluation.model_dump(include={"samples", "pass_at"}, exclude_defaults=True)
        section = config.eval.model_copy(update={**({"pass_at": ()} if "samples" in options else {}), **options})
    samples, form = section.samples_needed, at_k(metric)
    names = [ACCURACY, *([GREEDY] if section.greedy else []), *(["avg@n", f"avg@{samples}"] if samples else [])]
    names += [*(f"pass@{k}" for k in section.reported_ks), *(f"maj@{k}" for k in section.reported_ks if k > 1)]
    k = None if form is None else samples if form[1] == "n" else int(form[1])
    # For finished trials any k <= samples is computed from the samples.
    if metric in (*names, *sample_metrics()) or (evaluation is not None and k is not None and 0 < k <= samples):
        return []
    where = "the section validation" if evaluation is None else "`eval`"
    return [
        f"objective: {metric} is not recorded; set samples, pass_at or greedy of {where} so that it is. "
        f"Recorded: {', '.join(names)}"
    ]


def _evaluation_settings(spec: EvalSpec | None, configs: Sequence[Config]) -> dict[str, Any]:
    if spec is None:
        return {}
    names = {
        next(iter(trial_benchmarks(spec, config)), None) or problems_name(config.task.name, config.task.data)
        for config in configs
    }
    settings = {"split": spec.split, "benchmark": names.pop() if len(names) == 1 else None}
    return {key: value for key, value in settings.items() if value is not None}


def _mean_of_last_tenth(objective: Objective, run: RunDir) -> float | None:
    """Return the mean over the last tenth of the rollouts, at least one rollout."""
    rows = read_record(run, run.metrics_path)
    last = max((row["rollout"] for row in rows if type(row.get("rollout")) is int), default=0)
    begin = last + 1 - max(1, (last + 1) // 10)
    values = [
        value
        for row in rows
        if row.get("rollout", -1) >= begin and (value := finite(row.get(objective.metric))) is not None
    ]
    return sum(values) / len(values) if values else None


def _last_held_out(objective: Objective, run: RunDir) -> float | None:
    return next((value for _, value in reversed(objective.held_out_values(run))), None)
