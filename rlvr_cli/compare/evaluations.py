"""Choose the compared evaluation of each run, and check that the evaluations are comparable."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

from rlvr_cli.core.errors import UserError, collecting
from rlvr_cli.core.text import count, did_you_mean, some
from rlvr_cli.methods.preset import flat
from rlvr_cli.store.evaluation import Evaluation, finals, last, results_in
from rlvr_cli.store.find import Run, eval_options, sweep_evaluation
from rlvr_cli.tasks.sets import problems_name


def choose_evaluations(
    runs: Sequence[Run], *, benchmark: str | None = None, where: Sequence[str] = ()
) -> dict[str, Evaluation]:
    """Return each run's evaluation of its last checkpoint under the settings that all were evaluated with, by its path.

    Args:
        benchmark: of several. where: `KEY=VALUE` that an evaluation's settings must have, as `split=dev`.
    Raises UserError with a line for each run without an evaluation, each damaged one, settings that differ, and a
    choice that is left open.
    """
    problems, by_run = list[str](), dict[str, list[Evaluation]]()
    for run in runs:
        with collecting(problems):
            by_run[run.path] = finals(run.dir, benchmark)
    if not problems:
        benchmark = _benchmark(benchmark, runs, by_run)
    filters = [_filter(text, problems) for text in where]
    fitting: dict[str, list[Evaluation]] = {}
    by_command: dict[str, list[str]] = {}
    for run in (run for run in runs if run.path in by_run):
        of_benchmark = by_run[run.path]
        fitting[run.path] = [each for each in of_benchmark if all(_fits(each, *wanted) for wanted in filters)]
        if not of_benchmark and (command := sweep_evaluation(run.dir.path)):
            by_command.setdefault(command, []).append(run.path)
        elif not of_benchmark:
            problems.append(_none(run, benchmark))
        elif not fitting[run.path]:
            listed = "; ".join(sorted({_described(evaluation) for evaluation in of_benchmark}))
            problems.append(f"{run.path}: no evaluation of {benchmark} with {', '.join(where)}; there is {listed}.")
    for command, paths in by_command.items():
        problems.append(f"{count(len(paths), 'run')} without an evaluation: {few(paths)}. `{command}` evaluates them.")
    if problems:
        raise UserError(problems)
    return _under_one_setting(fitting)


def settings_problems(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """Return how the settings of evaluations differ, a line for each setting; by the run's path or a like name."""
    lines = []
    settings = {name: dict(flat(evaluation.settings)) for name, evaluation in evaluations.items()}
    for key in dict.fromkeys(key for values in settings.values() for key in values):
        by_value: dict[str, list[str]] = {}
        for name, values in settings.items():
            by_value.setdefault(_json(values.get(key)), []).append(name)
        if len(by_value) > 1:
            listed = "; ".join(f"{value}: {few(names)}" for value, names in by_value.items())
            lines.append(f"the evaluations differ in {key}, so their numbers cannot be compared: {listed}.")
    return lines


def _benchmark(name: str | None, runs: Sequence[Run], by_run: Mapping[str, Sequence[Evaluation]]) -> str | None:
    """Return the benchmark that is compared; None without any evaluation."""
    names = {str(each.result["benchmark"]) for evaluations in by_run.values() for each in evaluations}
    if name is None and len(names) > 1:
        raise UserError(
            f"there are evaluations of several benchmarks: {', '.join(sorted(names))}. Choose one with --benchmark; "
            "`rlvr compare --over benchmark` compares over all."
        )
    if name is not None and not names:
        others = sorted({str(result["benchmark"]) for run in runs for result in results_in(run.dir.eval_dir)})
        if others:
            raise UserError(
                f"--benchmark {name}: no run was evaluated on it.{did_you_mean(name, others)} Allowed: "
                f"{', '.join(others)}."
            )
    return name or next(iter(names), None)


def _under_one_setting(fitting: Mapping[str, Sequence[Evaluation]]) -> dict[str, Evaluation]:
    by_setting: dict[str, dict[str, list[Evaluation]]] = {}
    for path, evaluations in fitting.items():
        for evaluation in evaluations:
            by_setting.setdefault(_json(evaluation.settings), {}).setdefault(path, []).append(evaluation)
    common = [of_runs for of_runs in by_setting.values() if len(of_runs) == len(fitting)]
    if not common:
        raise UserError(settings_problems({path: last(every) for path, every in fitting.items()}))
    if len(common) > 1:
        settings = [dict(flat(next(iter(of_runs.values()))[0].settings)) for of_runs in common]
        keys = dict.fromkeys(key for values in settings for key in values)
        differing = [key for key in keys if len({_json(values.get(key)) for values in settings}) > 1]
        listed = "; ".join(" ".join(f"{key}={_json(values.get(key))}" for key in differing) for values in settings)
        wanted = f"{differing[0]}={_json(settings[0].get(differing[0]))}"
        raise UserError(f"the runs were evaluated with several settings ({listed}). Choose, as with --where {wanted}.")
    return {path: last(every) for path, every in common[0].items()}


def _described(evaluation: Evaluation) -> str:
    settings = evaluation.settings
    values = {"split": settings["split"], **dict(flat({"sampling": settings["sampling"]}))}
    if settings["averaged"] > 1:
        values["averaged"] = settings["averaged"]
    return " ".join(f"{key}={_json(value)}" for key, value in values.items())


def _filter(text: str, problems: list[str]) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        problems.append(f"--where {text}: must be KEY=VALUE, as split=dev or sampling.temperature=0.6.")
    return key, value


def _fits(evaluation: Evaluation, key: str, wanted: str) -> bool:
    value = dict(flat(evaluation.settings)).get(key)
    try:
        return value is not None and (value == wanted or bool(value == json.loads(wanted)))
    except ValueError:
        return False


def _none(run: Run, benchmark: str | None) -> str:
    own = benchmark in (None, problems_name(run.config.task.name, run.config.task.data))
    folders = [path.parent for path in run.dir.eval_dir.glob("*/meta.json")]
    started = [folder for folder in folders if own and not (folder / "metrics.json").exists()]
    option = "" if own else f" --benchmark {benchmark}"
    lacks = f"an unfinished evaluation ({started[0].name})" if started else "no evaluation"
    of = f" of {benchmark}" if benchmark and not started else ""
    options = eval_options(run.dir.path) or option
    return f"{run.path}: has {lacks}{of}. Make it with `rlvr eval {quote(run.path)}{options}`."


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def few(names: Sequence[str]) -> str:
    """Return up to four names; of more than that three, and how many more there are."""
    return some(names, 4 if len(names) <= 4 else 3)


def shared_problems(evaluations: Mapping[str, Evaluation], *, only_common: bool = False) -> tuple[tuple[str, ...], str]:
    """Return the ids of the problems that every evaluation has, sorted, and a note where others have more.

    Args:
        evaluations: by what the user knows each by. only_common: whether to compare those that all have.
    Raises UserError where they are not of the same problems, unless ``only_common``, or have none in common.
    """
    by_set: dict[frozenset[str], list[str]] = {}
    for name, evaluation in evaluations.items():
        by_set.setdefault(frozenset(row.id for row in evaluation.rows), []).append(name)
    common = frozenset(common_problems(list(evaluations.values())))
    if len(by_set) == 1:
        return tuple(sorted(common)), ""
    listed = "; ".join(f"{len(ids)} in {few(names)}{_example(ids - common)}" for ids, names in by_set.items())
    difference = f"the evaluations are of different problems ({listed}): {len(common)} are common to all"
    if not common:
        raise UserError(
            f"{difference}, so nothing can be compared. Evaluate all runs with the same --split and --data."
        )
    if not only_common:
        raise UserError(
            f"{difference}. Evaluate all runs with the same --problems, --split and --data, or compare the common ones "
            "alone with --common-problems."
        )
    return tuple(sorted(common)), f"{difference}, and compared."


def common_problems(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the ids of the problems that every evaluation has, sorted."""
    return sorted(frozenset.intersection(*(frozenset(row.id for row in each.rows) for each in evaluations)))


def _example(ids: frozenset[str]) -> str:
    return f", {len(ids)} of them not in all, as {min(ids)}" if ids else ""
