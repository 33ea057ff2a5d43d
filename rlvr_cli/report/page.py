"""Content of a page, by section."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rlvr_cli.compare.document import task_tables
from rlvr_cli.compare.results import TaskComparison
from rlvr_cli.compare.words import baseline_cost, describe_comparison, power_lines
from rlvr_cli.core.errors import UserError, collect_problems
from rlvr_cli.core.table import Table
from rlvr_cli.core.text import to_one_line, unique_labels
from rlvr_cli.report.answer import make_answer
from rlvr_cli.report.charts.chart import MOST_SHOWN, Chart
from rlvr_cli.report.charts.cost import cost_figure
from rlvr_cli.report.charts.effects import effects_figure
from rlvr_cli.report.charts.learning import learning_figures
from rlvr_cli.report.charts.over_k import over_k_figures
from rlvr_cli.report.charts.reasons import reasons_figure
from rlvr_cli.report.data import ReportData
from rlvr_cli.report.evaluations import (
    EvaluatedSetting,
    changes_table,
    compare_at_budgets,
    mean_accuracies,
    measure_change,
    metrics_table,
    select_evaluations,
)
from rlvr_cli.report.explorer import ArmIndices, index_arms, make_explorer
from rlvr_cli.report.provenance import (
    differences_table,
    environment_table,
    make_commands,
    runs_table,
    settings_table,
)
from rlvr_cli.report.training import cost_table, find_alerts, mean_cost, rollout_metrics_table, sum_costs
from rlvr_cli.store.completions import bin_names, sampled_completions

SECTIONS = {
    "differences": "Differences",
    "curves": "Learning curves",
    "comparison": "Comparison",
    "cost": "Cost",
    "reasons": "Reasons",
    "completions": "Completions",
    "alerts": "Alerts",
    "configuration": "Configuration",
    "environment": "Environment",
    "commands": "Commands",
    "notes": "Notes",
}
T = TypeVar("T")


def make_page(data: ReportData, output: Path | None = None) -> dict[str, Any]:
    """Return the content of a report by its name in the template. Raises UserError for damaged records.

    ``output``: the path of the page unless the default.
    """
    problems: list[str] = []
    changes = {arm.name: change for arm in data.arms if (change := measure_change(arm, data.request.root, problems))}
    evaluations = select_evaluations(data, problems)
    alerts = find_alerts(data, problems)
    # The same short name in legends, captions and tables.
    short_names = unique_labels([to_one_line(arm.name) for arm in data.arms], MOST_SHOWN)
    names = [short_names[to_one_line(arm.name)] for arm in data.arms]
    indices = index_arms(data, names)
    spent = sum_costs(data, problems)
    figures = _draw_figures(data, names, indices, evaluations, spent, problems)
    charts = [*figures["learning"], *figures["over_k"], *filter(None, [figures["cost"]])]
    explored = make_explorer(data, names, charts, evaluations, changes, problems)
    if problems:
        raise UserError(list(dict.fromkeys(problems)))
    comparison, ready = data.comparison, data.readiness
    groups = make_commands(data, evaluations, output)
    return {
        "answer": make_answer(data, changes, evaluations),
        "unfinished": ready.unfinished,
        "obstacles": ready.obstacles,
        "missing": ready.commands if ready.obstacles else (),
        "again": groups[-1][1][-1],
        "changes": changes_table(changes) if len(data.arms) > 1 else None,
        "figures": figures,
        "rollouts": rollout_metrics_table(data),
        "comparison": tuple(_comparison_tables(comparison)) if comparison else (),
        "above": (*describe_comparison(comparison)[1:], *power_lines(comparison)) if comparison else (),
        "below": tuple(_make_footnotes(comparison)) if comparison else (),
        "budgets": compare_at_budgets(data),
        "metrics": tuple(table for setting in evaluations if (table := metrics_table(setting)) is not None),
        "cost": cost_table(data, spent),
        "alerts": alerts,
        "differences": differences_table(data),
        "settings": settings_table(data),
        "environment": environment_table(data),
        "runs": runs_table(data),
        "commands": tuple(groups),
        "notes": _make_notes(data),
        "explorer": explored,
        "indices": indices,
        "bins": bin_names(),
        "sections": [(key, title) for key, title in SECTIONS.items() if key != "differences" or figures["effects"]],
    }


def _comparison_tables(comparison: TaskComparison) -> list[Table]:
    base = comparison.scores.baseline
    captions = [f"Effects relative to {base}", "Learning curves up to the common budget"]
    tables = zip(captions, task_tables(comparison), strict=False)
    return [replace(table, title=caption, header=("arm", *table.header[1:])) for caption, table in tables]


def _make_footnotes(comparison: TaskComparison) -> list[str]:
    family = comparison.family
    tests = [f"p: two-sided, Holm-adjusted over {family} comparisons."] if family > 1 else []
    return [
        *tests,
        "won/tied/lost: problems with the arm's mean over seeds above, equal to or below the baseline's.",
        "updates, tokens, update time: per run, relative to the baseline; times with their range over pairs of runs.",
        f"{baseline_cost(comparison)}.",
    ]


def _make_notes(data: ReportData) -> tuple[str, ...]:
    compared: Sequence[str] = data.comparison.scores.notes if data.comparison else ()
    return tuple(dict.fromkeys([*data.notes, *data.readiness.left_out, *compared]))


def _draw_figures(
    data: ReportData,
    names: Sequence[str],
    indices: ArmIndices,
    evaluations: Sequence[EvaluatedSetting],
    spent: Mapping[str, Sequence[Mapping[str, float]]],
    problems: list[str],
) -> dict[str, Any]:
    """Draw the charts by their names in the template, an arm in the same colour in all.

    Args:
        names: of the arms in the charts. problems: errors of damaged records are appended.
    """
    named = list(zip(names, data.arms, strict=True))
    arms = {name: list(arm.runs.values()) for name, arm in named}
    completions = []
    for index, arm in enumerate(data.arms):
        run = next(iter(arm.runs.values()))
        sampled = _try(partial(sampled_completions, run.dir), None, problems)
        if sampled is not None:
            completions.append({"arm": index, "title": f"{arm.name}: {run.dir.name}", "sampled": sampled})
    # A chart shows one setting.
    setting = evaluations[0] if evaluations else None
    evaluated = {name: setting.arms.get(arm.name, ()) if setting else () for name, arm in named}
    metric, means = mean_accuracies(setting) if setting else ("", {})
    learning: list[Chart] = _try(partial(learning_figures, arms, data.request.match or "rollouts"), [], problems)
    over_k: list[Chart] = _try(partial(over_k_figures, evaluated), [], problems)
    return {
        "learning": learning,
        "shared": _shared_sentences(learning),
        "over_k": over_k,
        "over_k_of": setting.title if setting else "",
        "effects": effects_figure(data.comparison, indices.by_name) if data.comparison else None,
        "cost": cost_figure(
            {name: mean_cost(spent[arm.name]) for name, arm in named if arm.name in spent},
            metric,
            {name: means[arm.name] for name, arm in named if arm.name in means},
            names,
        ),
        "reasons": _try(partial(reasons_figure, arms), None, problems),
        "completions": completions,
    }


def _shared_sentences(charts: Sequence[Chart]) -> list[str]:
    """Return the sentences common to the captions of several charts."""
    if len(charts) < 2:
        return []
    return [text for text in charts[0].sentences if all(text in chart.sentences for chart in charts)]


def _try(make: Callable[[], T], fallback: T, problems: list[str]) -> T:
    with collect_problems(problems):
        return make()
    return fallback
