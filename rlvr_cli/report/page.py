"""The content of a page, section by section."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from rlvr_cli.compare.document import task_tables
from rlvr_cli.compare.results import TaskComparison
from rlvr_cli.compare.words import baseline_cost, describe_comparison, power_lines
from rlvr_cli.core.errors import UserError, collect_problems
from rlvr_cli.core.table import Table
from rlvr_cli.core.text import to_one_line, unique_labels
from rlvr_cli.report.answer import PageAnswer, answer
from rlvr_cli.report.charts.chart import MOST_SHOWN, Chart
from rlvr_cli.report.charts.cost import cost_figure
from rlvr_cli.report.charts.effects import effects_figure
from rlvr_cli.report.charts.learning import learning_figures
from rlvr_cli.report.charts.over_k import over_k_figures
from rlvr_cli.report.charts.reasons import reasons_figure
from rlvr_cli.report.data import ReportData
from rlvr_cli.report.evaluations import (
    Budgets,
    MeasuredSetting,
    accuracies,
    budgets,
    change_of,
    changes_table,
    measured,
    measures_table,
)
from rlvr_cli.report.explorer import ArmIndices, Explorer, arm_indices, explorer
from rlvr_cli.report.setup import Commands, commands, differences_table, environment_table, runs_table, settings_table
from rlvr_cli.report.training import AlertReport, arms_spent, cost_table, course_table, find_alerts, mean_cost
from rlvr_cli.store.completions import SampledCompletions, bin_names, sampled_completions

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
    "notes": "What was left out",
}
T = TypeVar("T")


@dataclass(frozen=True)
class Page:
    """The content for the template.

    Attributes:
        unfinished: lines on unfinished runs. lacking: why there is no comparison; missing: the commands that make it.
        changes: before and after on held-out problems. course: the same of the completions of training.
        comparison: the tables of `rlvr compare`, with the lines ``above`` and ``below`` them. budgets: the same at
            equal budget. measures: every metric of every evaluation setting.
    """

    answer: PageAnswer
    unfinished: tuple[str, ...]
    lacking: tuple[str, ...]
    missing: tuple[str, ...]
    again: str
    changes: Table | None
    figures: Figures
    course: Table | None
    comparison: tuple[Table, ...]
    above: tuple[str, ...]
    below: tuple[str, ...]
    budgets: Budgets
    measures: tuple[Table, ...]
    cost: Table | None
    alerts: AlertReport
    differences: Table | None
    settings: Table
    environment: Table
    runs: Table
    commands: tuple[Commands, ...]
    notes: tuple[str, ...]
    explorer: Explorer
    indices: ArmIndices

    @property
    def bins(self) -> list[str]:
        """Return the name of each bin of probability in the legend of the completions."""
        return bin_names()

    @property
    def sections(self) -> list[tuple[str, str]]:
        """Return anchor and title of each section."""
        return [item for item in SECTIONS.items() if item[0] != "differences" or self.figures.effects]


def make_page(subject: ReportData, output: Path | None = None) -> Page:
    """Return the page of a subject, written to ``output`` if not to its default path.

    Raises UserError with every evaluation and record that is damaged.
    """
    problems: list[str] = []
    changes = {arm.name: change for arm in subject.arms if (change := change_of(arm, subject.request.root, problems))}
    evaluations = measured(subject, problems)
    alerts = find_alerts(subject, problems)
    # One name of an arm in the legend, the caption and the numbers of every chart.
    short_names = unique_labels([to_one_line(arm.name) for arm in subject.arms], MOST_SHOWN)
    names = [short_names[to_one_line(arm.name)] for arm in subject.arms]
    indices = arm_indices(subject, names)
    spent = arms_spent(subject, problems)
    figures = _draw_figures(subject, names, indices, evaluations, spent, problems)
    charts = [*figures.learning, *figures.over_k, *filter(None, [figures.cost])]
    explored = explorer(subject, names, charts, evaluations, changes, problems)
    if problems:
        raise UserError(list(dict.fromkeys(problems)))
    comparison, ready = subject.comparison, subject.readiness
    groups = commands(subject, evaluations, output)
    return Page(
        answer=answer(subject, changes, evaluations),
        unfinished=ready.unfinished,
        lacking=ready.lacking,
        missing=ready.commands if ready.lacking else (),
        again=groups[-1].lines[-1],
        # One arm's sentence says all of it.
        changes=changes_table(changes) if len(subject.arms) > 1 else None,
        figures=figures,
        course=course_table(subject),
        comparison=tuple(_tables(comparison)) if comparison else (),
        above=(*describe_comparison(comparison)[1:], *power_lines(comparison)) if comparison else (),
        below=tuple(_below(comparison)) if comparison else (),
        budgets=budgets(subject),
        measures=tuple(table for setting in evaluations if (table := measures_table(setting)) is not None),
        cost=cost_table(subject, spent),
        alerts=alerts,
        differences=differences_table(subject),
        settings=settings_table(subject),
        environment=environment_table(subject),
        runs=runs_table(subject),
        commands=tuple(groups),
        notes=_notes(subject),
        explorer=explored,
        indices=indices,
    )


def _tables(comparison: TaskComparison) -> list[Table]:
    base = comparison.scores.baseline
    captions = [f"Arms by their effect, against {base}", "Learning curves up to the common budget"]
    tables = zip(captions, task_tables(comparison), strict=False)
    return [replace(table, title=caption, header=("arm", *table.header[1:])) for caption, table in tables]


def _below(comparison: TaskComparison) -> list[str]:
    family = comparison.family
    tests = [f"p: two-sided, Holm's correction over {family} comparisons."] if family > 1 else []
    return [
        *tests,
        "won/tied/lost: problems on which the arm's mean over seeds is above, at or below the baseline's.",
        "updates, tokens, update time: of a run, as a multiple of the baseline's; "
        "of time with the range over pairs of runs, for it depends on the machine's load too.",
        f"{baseline_cost(comparison)}.",
    ]


def _notes(subject: ReportData) -> tuple[str, ...]:
    own: Sequence[str] = subject.comparison.scores.notes if subject.comparison else ()
    return tuple(dict.fromkeys([*subject.notes, *subject.readiness.left_out, *own]))


@dataclass(frozen=True)
class ArmCompletions:
    """An arm's completions of training; ``title``: the names of the arm and of its run."""

    arm: int
    title: str
    sampled: SampledCompletions


@dataclass(frozen=True)
class Figures:
    """The charts by their section; an arm has the same colour in all of them.

    ``over_k_of``: the title of the evaluations over k.
    """

    learning: tuple[Chart, ...]
    over_k: tuple[Chart, ...]
    over_k_of: str
    effects: Chart | None
    cost: Chart | None
    reasons: Chart | None
    completions: tuple[ArmCompletions, ...]

    @property
    def shared(self) -> tuple[str, ...]:
        """Return the sentences that the captions of all learning curves have."""
        first, *others = self.learning
        return tuple(text for text in first.sentences if others and all(text in chart.sentences for chart in others))


def _draw_figures(
    subject: ReportData,
    names: Sequence[str],
    indices: ArmIndices,
    evaluations: Sequence[MeasuredSetting],
    spent: Mapping[str, Sequence[Mapping[str, float]]],
    problems: list[str],
) -> Figures:
    """Draw all charts, with these ``names`` of the arms; ``problems`` gets a line for each damaged record."""
    named = list(zip(names, subject.arms, strict=True))
    arms = {name: list(arm.runs.values()) for name, arm in named}
    completions = []
    for index, arm in enumerate(subject.arms):
        run = next(iter(arm.runs.values()))
        sampled = _try(partial(sampled_completions, run.dir), None, problems)
        if sampled is not None:
            completions.append(ArmCompletions(index, f"{arm.name}: {run.dir.name}", sampled))
    # Of several settings the first: a chart holds one.
    measured = evaluations[0] if evaluations else None
    own = {name: measured.arms.get(arm.name, ()) if measured else () for name, arm in named}
    metric, means = accuracies(measured) if measured else ("", {})
    return Figures(
        learning=tuple(_try(partial(learning_figures, arms, subject.request.match or "rollouts"), [], problems)),
        over_k=tuple(_try(partial(over_k_figures, own), [], problems)),
        over_k_of=measured.title if measured else "",
        effects=effects_figure(subject.comparison, indices.by_name) if subject.comparison else None,
        cost=cost_figure(
            {name: mean_cost(spent[arm.name]) for name, arm in named if arm.name in spent},
            metric,
            {name: means[arm.name] for name, arm in named if arm.name in means},
            names,
        ),
        reasons=_try(partial(reasons_figure, arms), None, problems),
        completions=tuple(completions),
    )


def _try(make: Callable[[], T], otherwise: T, problems: list[str]) -> T:
    with collect_problems(problems):
        return make()
    return otherwise
