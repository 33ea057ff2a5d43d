"""Everything that `rlvr eval` measured, by arm: one table for each benchmark and setting."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlvr_cli.compare.means import arm_mean
from rlvr_cli.core.text import count
from rlvr_cli.evaluation.tables import metric_name, with_interval
from rlvr_cli.report.report_subject import Subject
from rlvr_cli.report.report_table import Table, table
from rlvr_cli.results.evaluations import SETTINGS, Evaluation, read_checked, steps_of
from rlvr_cli.results.find import Run


@dataclass(frozen=True)
class Measured:
    """Evaluations under one setting: the newest of each run that has one, by arm. ``title`` says which setting."""

    title: str
    arms: Mapping[str, tuple[Evaluation, ...]]


def measured(subject: Subject, problems: list[str]) -> list[Measured]:
    """The evaluations of a page: those that are compared, else all settings that some run was evaluated under.

    Args:
        problems: gets a line for each that is damaged.
    """
    comparison = subject.comparison
    if comparison is not None and comparison.material.read.chosen:
        material = comparison.material
        compared = [arm.runs[one].path for arm in material.arms for one in material.runs[arm.name]]
        own = {
            arm.name: tuple(
                material.read.chosen[run.path].evaluation for run in arm.runs.values() if run.path in compared
            )
            for arm in subject.arms
        }
        own = {name: evaluations for name, evaluations in own.items() if evaluations}
        return [Measured(_title(next(iter(own.values()))[0]), own)]
    found: dict[str, dict[str, list[Evaluation]]] = {}
    for arm in subject.arms:
        for run in arm.runs.values():
            for key, evaluation in _newest(run, problems).items():
                found.setdefault(key, {}).setdefault(arm.name, []).append(evaluation)
    return [
        Measured(_title(next(iter(arms.values()))[0]), {name: tuple(own) for name, own in arms.items()})
        for _, arms in sorted(found.items())
    ]


def measures_table(one: Measured) -> Table | None:
    """Metrics by arms, means over runs and the problems that all have; None where they have no problem in common."""
    ids, metrics = _common(one)
    if not ids:
        return None
    tables = {name: [{row.id: row.values for row in each.rows} for each in own] for name, own in one.arms.items()}
    rows = [[metric_name(metric).strip(), *(_cell(metric, own, ids) for own in tables.values())] for metric in metrics]
    seeds = "; ".join(f"{name}: {count(len(own), 'run')}" for name, own in one.arms.items())
    return table(
        f"{one.title}, {count(len(ids), 'problem')}",
        ("measure", *(f"{name} [95%]" for name in one.arms)),
        rows,
        note=f"Means over problems and runs ({seeds}). Intervals of two arms may overlap where their paired difference "
        "is clear.",
    )


def final_accuracy(one: Measured) -> str | None:
    """`avg@8 0.733 [0.676, 0.791] (kk-gen, test: ...)` of the only arm; None without problems or accuracy."""
    ids, metrics = _common(one)
    metric = next((name for name in metrics if name.startswith("avg@")), "greedy" if "greedy" in metrics else None)
    if not ids or metric is None:
        return None
    ((_, own),) = one.arms.items()
    cell = _cell(metric, [{row.id: row.values for row in each.rows} for each in own], ids)
    return f"{metric_name(metric)} {cell} ({one.title}, {count(len(ids), 'problem')}, {count(len(own), 'run')})"


def _common(one: Measured) -> tuple[list[str], list[str]]:
    """The problems that all evaluations have, and the metrics that all of their problems have."""
    everything = [evaluation for own in one.arms.values() for evaluation in own]
    ids = sorted(frozenset.intersection(*(frozenset(row.id for row in each.rows) for each in everything)))
    names = everything[0].rows[0].values
    return ids, [name for name in names if all(name in row.values for each in everything for row in each.rows)]


def _cell(metric: str, own: Sequence[Mapping[str, Mapping[str, float]]], ids: Sequence[str]) -> str:
    estimate = arm_mean(np.array([[values[name][metric] for name in ids] for values in own]), metric)
    return with_interval(metric, {"value": estimate.value, "low": estimate.low, "high": estimate.high})


def _newest(run: Run, problems: list[str]) -> dict[str, Evaluation]:
    """A run's evaluations, of those under one setting the one of the last checkpoint."""
    found: dict[str, tuple[int, Evaluation]] = {}
    for path in sorted(run.dir.eval_dir.glob("*/metrics.json")):
        evaluation = read_checked(path.parent, problems)
        if evaluation is None:
            continue
        key = json.dumps([evaluation.result[part] for part in SETTINGS], sort_keys=True)
        step = max(steps_of(evaluation), default=-1)
        if key not in found or found[key][0] < step:
            found[key] = step, evaluation
    return {key: evaluation for key, (_, evaluation) in found.items()}


def _title(evaluation: Evaluation) -> str:
    result = evaluation.result
    sampling = result["sampling"]
    samples = count(result["samples"], "sample") + " a problem" if result["samples"] else "greedy"
    shown = ", ".join(f"{key} {value}" for key, value in sampling.items() if key != "seed")
    return f"{result['benchmark']}, {result['split']}: {samples}, {shown}"
