"""The content of a page, section by section, from what was read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlvr_cli.compare.contrasts import Comparison
from rlvr_cli.compare.sentences import base_cost
from rlvr_cli.compare.tables import tables
from rlvr_cli.core.errors import UserError
from rlvr_cli.report.report_alerts import Alerts, find_alerts
from rlvr_cli.report.report_answer import Answer, answer
from rlvr_cli.report.report_budgets import Budgets, budgets
from rlvr_cli.report.report_commands import Commands, commands
from rlvr_cli.report.report_configs import configurations, differences_table
from rlvr_cli.report.report_environment import environment_table, runs_table
from rlvr_cli.report.report_figures import Figures, draw
from rlvr_cli.report.report_learned import change_of, changes_table
from rlvr_cli.report.report_measures import measured, measures_table
from rlvr_cli.report.report_subject import NOTE, Subject
from rlvr_cli.report.report_table import Table, table
from rlvr_cli.report.report_training import cost_table, course_table
from rlvr_cli.results.completions import bin_names

SECTIONS = {
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


@dataclass(frozen=True)
class Page:
    """What the template shows.

    Attributes:
        unfinished: what is not finished yet. lacking: why there is no comparison; missing: the commands that make it.
        changes: before and after on held-out problems. course: the same of training's own completions.
        comparison: the tables of `rlvr compare`; below: what stands below them. budgets: the same at
            equal budget. measures: all that was evaluated.
    """

    answer: Answer
    unfinished: tuple[str, ...]
    lacking: tuple[str, ...]
    missing: tuple[str, ...]
    again: str
    changes: Table | None
    figures: Figures
    course: Table | None
    comparison: tuple[Table, ...]
    below: tuple[str, ...]
    budgets: Budgets
    measures: tuple[Table, ...]
    cost: Table | None
    alerts: Alerts
    differences: Table | None
    configurations: tuple[tuple[str, str], ...]
    environment: Table
    runs: Table
    commands: tuple[Commands, ...]
    notes: tuple[str, ...]

    @property
    def bins(self) -> list[str]:
        """What the legend of the completions calls each bin of probability."""
        return bin_names()

    @property
    def sections(self) -> list[tuple[str, str]]:
        """Anchor and title of each section."""
        return list(SECTIONS.items())


def make_page(subject: Subject, output: Path | None = None) -> Page:
    """The page of a subject, written to ``output`` if not to its default place.

    Raises UserError with every evaluation and record that is damaged.
    """
    problems: list[str] = []
    found = {arm.name: change_of(arm, subject.question.root, problems) for arm in subject.arms}
    changes = {name: change for name, change in found.items() if change is not None}
    evaluations = measured(subject, problems)
    alerts = find_alerts(subject, problems)
    figures = draw(subject, evaluations, problems)
    cost = cost_table(subject, problems)
    if problems:
        raise UserError(list(dict.fromkeys(problems)), note=NOTE)
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
        below=tuple(_below(comparison)) if comparison else (),
        budgets=budgets(subject),
        measures=tuple(one for each in evaluations if (one := measures_table(each)) is not None),
        cost=cost,
        alerts=alerts,
        differences=differences_table(subject),
        configurations=tuple(configurations(subject)),
        environment=environment_table(subject),
        runs=runs_table(subject),
        commands=tuple(groups),
        notes=_notes(subject),
    )


def _tables(comparison: Comparison) -> list[Table]:
    material = comparison.material
    captions = [f"Arms by their effect, against {material.baseline}", "Learning curves up to the common budget"]
    found = []
    for caption, (header, rows) in zip(captions, tables(comparison), strict=False):
        found.append(table(caption, ("arm", *header[1:]), rows))
    return found


def _below(comparison: Comparison) -> list[str]:
    family = comparison.family
    tests = [f"p: two-sided, Holm's correction over {family} comparisons."] if family > 1 else []
    counts = ["won/tied/lost: problems on which the arm's mean over seeds is above, at or below the baseline's."]
    costs = [
        "updates, tokens, update time: of a run, as a multiple of the baseline's; "
        "of time with the range over pairs of runs, for it depends on the machine's load too."
    ]
    return [*tests, *counts, *costs, f"{base_cost(comparison)}."]


def _notes(subject: Subject) -> tuple[str, ...]:
    own: Sequence[str] = subject.comparison.material.notes if subject.comparison else ()
    return tuple(dict.fromkeys([*subject.notes, *subject.readiness.left_out, *own]))
