"""Which evaluation of each run is compared, and whether the evaluations can be compared at all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from shlex import quote
from typing import Any

from rlvr_cli.core.text import did_you_mean, some
from rlvr_cli.methods.preset import flat
from rlvr_cli.store.arm import Arm, Replicate
from rlvr_cli.store.evaluation import Evaluation, finals, last
from rlvr_cli.store.find import Run, eval_options
from rlvr_cli.tasks.sets import problems_name


def choose_evaluations(
    runs: Sequence[Run], problems: list[str], *, benchmark: str | None = None, where: Sequence[str] = ()
) -> dict[str, Evaluation]:
    """Return each run's evaluation of its last checkpoint under the settings that all were evaluated with, by its path.

    Args:
        benchmark: of several. where: `KEY=VALUE` that an evaluation's settings must have, as `split=dev`.
        problems: gets a line for each run without an evaluation, each damaged one, settings that differ, and a choice
            that is left open.
    """
    filters = _filters(where, problems)
    found = {run.path: finals(run.dir, problems) for run in runs}
    if not any(found.values()):
        problems.extend(_none(run, benchmark) for run in runs)
        return {}
    benchmark = _benchmark(benchmark, found, problems)
    if benchmark is None:
        return {}
    kept: dict[str, list[Evaluation]] = {}
    for run in runs:
        own = [one for one in found[run.path] if one.result["benchmark"] == benchmark]
        kept[run.path] = [one for one in own if _fits(one, filters)]
        if not own:
            problems.append(_none(run, benchmark))
        elif not kept[run.path]:
            shown = "; ".join(sorted({_shown(_settings(one)) for one in own}))
            problems.append(f"{run.path}: no evaluation of {benchmark} with {', '.join(where)}; there is {shown}.")
    if any(not candidates for candidates in kept.values()):
        return {}
    return _under_one_setting(kept, problems)


def settings_problems(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """How the settings of evaluations differ, a line for each setting; by the run's path or a like name."""
    lines = []
    settings = {name: dict(flat(evaluation.settings)) for name, evaluation in evaluations.items()}
    for key in dict.fromkeys(key for values in settings.values() for key in values):
        by_value: dict[str, list[str]] = {}
        for name, values in settings.items():
            by_value.setdefault(_json(values.get(key)), []).append(name)
        if len(by_value) > 1:
            shown = "; ".join(f"{value}: {few(names)}" for value, names in by_value.items())
            lines.append(f"the evaluations differ in {key}, so their numbers cannot be compared: {shown}.")
    return lines


def _benchmark(name: str | None, found: Mapping[str, Sequence[Evaluation]], problems: list[str]) -> str | None:
    names = sorted({str(one.result["benchmark"]) for own in found.values() for one in own})
    if name is None and len(names) == 1:
        return names[0]
    if name is None:
        problems.append(
            f"there are evaluations of several benchmarks: {', '.join(names)}. Choose one with --benchmark; "
            "`rlvr compare --over benchmark` compares over all."
        )
    elif name not in names:
        problems.append(
            f"--benchmark {name}: no run was evaluated on it.{did_you_mean(name, names)} There are: {', '.join(names)}."
        )
    else:
        return name
    return None


def _under_one_setting(kept: Mapping[str, Sequence[Evaluation]], problems: list[str]) -> dict[str, Evaluation]:
    by_setting: dict[str, dict[str, list[Evaluation]]] = {}
    for path, candidates in kept.items():
        for one in candidates:
            by_setting.setdefault(_json(_settings(one)), {}).setdefault(path, []).append(one)
    common = [own for own in by_setting.values() if len(own) == len(kept)]
    if not common:
        problems.extend(settings_problems(_last(kept)) or [_averaged(kept)])
        return {}
    if len(common) > 1:
        shown = "; ".join(_shown(_settings(next(iter(own.values()))[0])) for own in common)
        problems.append(f"the runs were evaluated with several settings ({shown}). Choose, as with --where split=test.")
        return {}
    return _last(common[0])


def _last(candidates: Mapping[str, Sequence[Evaluation]]) -> dict[str, Evaluation]:
    return {path: last(own) for path, own in candidates.items()}


def _averaged(kept: Mapping[str, Sequence[Evaluation]]) -> str:
    counts = {path: sorted({max(1, len(one.steps)) for one in own}) for path, own in kept.items()}
    shown = "; ".join(f"{path}: {', '.join(map(str, found))}" for path, found in counts.items())
    return f"the evaluations are averages of different numbers of checkpoints ({shown}). Evaluate all the same way."


def _settings(one: Evaluation) -> dict[str, Any]:
    return {**one.settings, "averaged": max(1, len(one.steps))}


def _shown(settings: Mapping[str, Any]) -> str:
    values = {"split": settings["split"], **dict(flat({"sampling": settings["sampling"]}))}
    if settings["averaged"] > 1:
        values["averaged"] = settings["averaged"]
    return " ".join(f"{key}={_json(value)}" for key, value in values.items())


def _filters(where: Iterable[str], problems: list[str]) -> dict[str, str]:
    filters = {}
    for text in where:
        key, equals, value = text.partition("=")
        if not equals or not key:
            problems.append(f"--where {text}: must be KEY=VALUE, as split=dev or sampling.temperature=0.6.")
        else:
            filters[key] = value
    return filters


def _fits(one: Evaluation, filters: Mapping[str, str]) -> bool:
    values = dict(flat(_settings(one)))
    return all(key in values and _same(values[key], wanted) for key, wanted in filters.items())


def _same(value: Any, wanted: str) -> bool:
    try:
        return bool(value == wanted or value == json.loads(wanted))
    except ValueError:
        return False


def _none(run: Run, benchmark: str | None) -> str:
    begun = [
        path.parent for path in run.dir.eval_dir.glob("*/meta.json") if not (path.parent / "metrics.json").exists()
    ]
    option = (
        ""
        if benchmark in (None, problems_name(run.config.task.name, run.config.task.data))
        else f" --benchmark {benchmark}"
    )
    what = f"an evaluation that was begun and not finished ({begun[0].name})" if begun else "no evaluation"
    of = f" of {benchmark}" if benchmark and not begun else ""
    return (
        f"{run.path}: has {what}{of}. Make it with `rlvr eval {quote(run.path)}{eval_options(run.dir.path) or option}`."
    )


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def few(names: Sequence[str]) -> str:
    """Up to four names; of more than that three, and how many more there are."""
    return some(names, 4 if len(names) <= 4 else 3)


def pair_runs(
    arms: Sequence[Arm], problems: list[str], notes: list[str], *, unpaired: bool = False
) -> dict[str, tuple[Replicate, ...]]:
    """The replicates of each arm that are compared, by its name: those that all arms have, each arm's all if
    ``unpaired``.

    Args:
        problems: gets a line where the arms have none in common. notes: gets one where some are left out.
    """
    if unpaired:
        return {arm.name: tuple(arm.runs) for arm in arms}
    common = set(arms[0].runs).intersection(*(arm.runs for arm in arms))
    if not common:
        shown = "; ".join(f"{arm.name}: {replicates_text(list(arm.runs))}" for arm in arms)
        problems.append(
            f"no seed is common to all arms ({shown}). Runs are paired by their seed, which gives them the same "
            "problems in the same order: train the arms with the same seeds, compare fewer arms, or give --unpaired."
        )
        return {}
    for arm in arms:
        out = [replicate for replicate in arm.runs if replicate not in common]
        if out:
            notes.append(f"left out because not all arms have them: {replicates_text(out)} of {arm.name}.")
    return {arm.name: tuple(sorted(common)) for arm in arms}


def shared_problems(
    evaluations: Mapping[str, Evaluation], problems: list[str], notes: list[str], *, only_common: bool = False
) -> tuple[str, ...]:
    """The ids of the problems that every evaluation has, sorted.

    Args:
        evaluations: by what a reader knows each by.
        problems: gets a line where they are not of the same problems, unless ``only_common`` says to compare those
            that all have; ``notes`` gets it then.
    """
    by_set: dict[frozenset[str], list[str]] = {}
    for name, evaluation in evaluations.items():
        by_set.setdefault(frozenset(row.id for row in evaluation.rows), []).append(name)
    common = frozenset.intersection(*by_set)
    if len(by_set) == 1:
        return tuple(sorted(common))
    shown = "; ".join(f"{len(ids)} in {few(names)}{_example(ids - common)}" for ids, names in by_set.items())
    what = f"the evaluations are of different problems ({shown}): {len(common)} are common to all"
    if not common:
        problems.append(f"{what}, so nothing can be compared. Evaluate all runs with the same --split and --data.")
    elif only_common:
        notes.append(f"{what}, and compared.")
    else:
        problems.append(
            f"{what}. Evaluate all runs with the same --problems, --split and --data, or compare the common ones alone "
            "with --common-problems."
        )
    return tuple(sorted(common))


def _example(ids: frozenset[str]) -> str:
    return f", {len(ids)} of them not in all, as {min(ids)}" if ids else ""


def replicates_text(replicates: Sequence[Replicate]) -> str:
    """`seeds 0, 1`; with what else varies, where something does."""
    if any(one.rest for one in replicates):
        return ", ".join(str(one) for one in replicates)
    return f"seed{'' if len(replicates) == 1 else 's'} {', '.join(str(one.seed) for one in replicates)}"
