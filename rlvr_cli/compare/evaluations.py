"""Choose the evaluation of each run, and check that all are comparable."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

from rlvr_cli.core.errors import UserError, collect_problems
from rlvr_cli.core.nested import flatten
from rlvr_cli.core.text import count, did_you_mean, ellipsize
from rlvr_cli.store.evaluation import Evaluation, final_evaluations, iter_results, last
from rlvr_cli.store.find import Run, eval_options, sweep_evaluation_command
from rlvr_cli.tasks.sets import problems_name


def choose_evaluations(
    runs: Sequence[Run], *, benchmark: str | None = None, where: Sequence[str] = ()
) -> dict[str, Evaluation]:
    """Return by run path the evaluation of the last checkpoint, under settings that all runs share.

    Args:
        benchmark: one of several. where: `KEY=VALUE` filters on settings, as `split=dev`.
    Raises UserError with a line for each run without an evaluation, each damaged evaluation, settings that differ, and
    an ambiguous choice.
    """
    problems, by_run = list[str](), dict[str, list[Evaluation]]()
    for run in runs:
        with collect_problems(problems):
            by_run[run.path] = final_evaluations(run.dir, benchmark)
    if not problems:
        benchmark = _resolve_benchmark(benchmark, runs, by_run)
    filters = list[tuple[str, str]]()
    for text in where:
        key, equals, value = text.partition("=")
        if not equals or not key:
            problems.append(f"--where {text}: must be KEY=VALUE, as split=dev or sampling.temperature=0.6.")
        filters.append((key, value))
    matching: dict[str, list[Evaluation]] = {}
    by_command: dict[str, list[str]] = {}
    for run in (run for run in runs if run.path in by_run):
        of_benchmark = by_run[run.path]
        matching[run.path] = [each for each in of_benchmark if all(_has_setting(each, *pair) for pair in filters)]
        if not of_benchmark and (command := sweep_evaluation_command(run.dir.path)):
            by_command.setdefault(command, []).append(run.path)
        elif not of_benchmark:
            problems.append(_missing_message(run, benchmark))
        elif not matching[run.path]:
            listed = "; ".join(sorted({_format_settings(evaluation) for evaluation in of_benchmark}))
            problems.append(f"{run.path}: no evaluation of {benchmark} with {', '.join(where)}; there is {listed}.")
    for command, paths in by_command.items():
        problems.append(f"{count(len(paths), 'run')} without an evaluation: {_few(paths)}. `{command}` evaluates them.")
    if problems:
        raise UserError(problems)
    return _choose_common_setting(matching)


def settings_problems(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """Return one line per setting in which evaluations, by run path, differ."""
    lines = []
    settings = {name: flatten(evaluation.settings) for name, evaluation in evaluations.items()}
    for key in dict.fromkeys(key for values in settings.values() for key in values):
        by_value: dict[str, list[str]] = {}
        for name, values in settings.items():
            by_value.setdefault(_json(values.get(key)), []).append(name)
        if len(by_value) > 1:
            listed = "; ".join(f"{value}: {_few(names)}" for value, names in by_value.items())
            lines.append(f"the evaluations differ in {key}, so their numbers cannot be compared: {listed}.")
    return lines


def _resolve_benchmark(name: str | None, runs: Sequence[Run], by_run: Mapping[str, Sequence[Evaluation]]) -> str | None:
    """Return the benchmark to compare; None without any evaluation."""
    names = {str(each.result["benchmark"]) for evaluations in by_run.values() for each in evaluations}
    if name is None and len(names) > 1:
        raise UserError(
            f"there are evaluations of several benchmarks: {', '.join(sorted(names))}. Choose one with --benchmark; "
            "`rlvr compare --over benchmark` compares over all."
        )
    if name is not None and not names:
        others = sorted({str(result["benchmark"]) for run in runs for result in iter_results(run.dir.eval_dir)})
        if others:
            raise UserError(
                f"--benchmark {name}: no run was evaluated on it.{did_you_mean(name, others)} Allowed: "
                f"{', '.join(others)}."
            )
    return name or next(iter(names), None)


def _choose_common_setting(matching: Mapping[str, Sequence[Evaluation]]) -> dict[str, Evaluation]:
    by_setting: dict[str, dict[str, list[Evaluation]]] = {}
    for path, evaluations in matching.items():
        for evaluation in evaluations:
            by_setting.setdefault(_json(evaluation.settings), {}).setdefault(path, []).append(evaluation)
    common = [of_runs for of_runs in by_setting.values() if len(of_runs) == len(matching)]
    if not common:
        raise UserError(settings_problems({path: last(every) for path, every in matching.items()}))
    if len(common) > 1:
        settings = [flatten(next(iter(of_runs.values()))[0].settings) for of_runs in common]
        keys = dict.fromkeys(key for values in settings for key in values)
        differing = [key for key in keys if len({_json(values.get(key)) for values in settings}) > 1]
        listed = "; ".join(" ".join(f"{key}={_json(values.get(key))}" for key in differing) for values in settings)
        example = f"{differing[0]}={_json(settings[0].get(differing[0]))}"
        raise UserError(f"the runs were evaluated with several settings ({listed}). Choose, as with --where {example}.")
    return {path: last(every) for path, every in common[0].items()}


def _format_settings(evaluation: Evaluation) -> str:
    settings = evaluation.settings
    values = {"split": settings["split"], **flatten({"sampling": settings["sampling"]})}
    if settings["averaged"] > 1:
        values["averaged"] = settings["averaged"]
    return " ".join(f"{key}={_json(value)}" for key, value in values.items())


def _has_setting(evaluation: Evaluation, key: str, text: str) -> bool:
    value = flatten(evaluation.settings).get(key)
    try:
        return value is not None and (value == text or bool(value == json.loads(text)))
    except ValueError:
        return False


def _missing_message(run: Run, benchmark: str | None) -> str:
    is_default = benchmark in (None, problems_name(run.config.task.name, run.config.task.data))
    folders = [path.parent for path in run.dir.eval_dir.glob("*/meta.json")]
    unfinished = [folder for folder in folders if is_default and not (folder / "metrics.json").exists()]
    of_benchmark = f" of {benchmark}" if benchmark else ""
    content = f"an unfinished evaluation ({unfinished[0].name})" if unfinished else f"no evaluation{of_benchmark}"
    options = eval_options(run.dir.path) or ("" if is_default else f" --benchmark {benchmark}")
    action = "Finish" if unfinished else "Create"
    return f"{run.path}: has {content}. {action} it with `rlvr eval {quote(run.path)}{options}`."


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _few(names: Sequence[str]) -> str:
    """Return up to four names, or three and the number of others."""
    return ellipsize(names, 4 if len(names) <= 4 else 3)


def shared_problems(evaluations: Mapping[str, Evaluation], *, only_common: bool = False) -> tuple[tuple[str, ...], str]:
    """Return the sorted ids of the problems that all evaluations have, and a note if some have more.

    Args:
        evaluations: by their name in messages. only_common: compare the common problems alone.
    Raises UserError if the problems differ, unless ``only_common``, or none is common.
    """
    by_set: dict[frozenset[str], list[str]] = {}
    for name, evaluation in evaluations.items():
        by_set.setdefault(frozenset(row.id for row in evaluation.rows), []).append(name)
    common = frozenset(common_problems(list(evaluations.values())))
    if len(by_set) == 1:
        return tuple(sorted(common)), ""
    listed = "; ".join(f"{len(ids)} in {_few(names)}{_example(ids - common)}" for ids, names in by_set.items())
    difference = f"the evaluations are of different problems ({listed}): {len(common)} are common to all"
    if not common:
        raise UserError(
            f"{difference}, so nothing can be compared. Evaluate all runs with the same --split and --data."
        )
    if not only_common:
        raise UserError(
            f"{difference}. Evaluate all runs with the same --problems, --split and --data, or compare only the common "
            "problems with --common-problems."
        )
    return tuple(sorted(common)), f"{difference}, and compared."


def common_problems(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the sorted ids of the problems that all evaluations have."""
    return sorted(frozenset.intersection(*(frozenset(row.id for row in each.rows) for each in evaluations)))


def _example(ids: frozenset[str]) -> str:
    return f", {len(ids)} of them not in all, as {min(ids)}" if ids else ""
