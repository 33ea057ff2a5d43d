"""The charts of a page, and the completions that it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.text import one_line, told_apart
from rlvr_cli.report.charts.effects import effects_figure
from rlvr_cli.report.charts.figure_html import Figure
from rlvr_cli.report.charts.labels import MOST_SHOWN
from rlvr_cli.report.charts.learning import learning_figures
from rlvr_cli.report.charts.reasons import reasons_figure
from rlvr_cli.report.charts.samples_over_k import over_k_figures
from rlvr_cli.report.report_measures import Measured
from rlvr_cli.report.report_subject import Subject
from rlvr_cli.results.completions import SampledCompletions, sampled_completions

T = TypeVar("T")


@dataclass(frozen=True)
class Shown:
    """One arm's completions: ``title`` names the arm and the run that they are of."""

    title: str
    found: SampledCompletions


@dataclass(frozen=True)
class Figures:
    """The charts by their section; an arm has the same colour in all of them. ``over_k_of``: which evaluation."""

    learning: tuple[Figure, ...]
    over_k: tuple[Figure, ...]
    over_k_of: str
    effects: Figure | None
    reasons: Figure | None
    completions: tuple[Shown, ...]


def draw(subject: Subject, evaluations: Sequence[Measured], problems: list[str]) -> Figures:
    """All charts; ``problems`` gets a line for each record that is damaged."""
    # One name of an arm in the legend, the caption and the numbers of every chart.
    called = told_apart([one_line(arm.name) for arm in subject.arms], MOST_SHOWN)
    arms = {called[one_line(arm.name)]: [run.dir for run in arm.runs.values()] for arm in subject.arms}
    completions = []
    for arm in subject.arms:
        run = next(iter(arm.runs.values()))
        found = _try(partial(sampled_completions, run.dir), None, problems)
        if found is not None:
            completions.append(Shown(f"{arm.name}: {run.dir.name}", found))
    # Of several settings the first: a chart holds one.
    measured = evaluations[0] if evaluations else None
    own = {called[one_line(arm.name)]: measured.arms.get(arm.name, ()) if measured else () for arm in subject.arms}
    return Figures(
        learning=tuple(_try(partial(learning_figures, arms, subject.question.match or "rollouts"), [], problems)),
        over_k=tuple(_try(partial(over_k_figures, own), [], problems)),
        over_k_of=measured.title if measured else "",
        effects=effects_figure(subject.comparison) if subject.comparison else None,
        reasons=_try(partial(reasons_figure, arms), None, problems),
        completions=tuple(completions),
    )


def _try(make: Callable[[], T], otherwise: T, problems: list[str]) -> T:
    try:
        return make()
    except UserError as error:
        problems.extend(error.problems)
    except RunError as error:
        problems.append(str(error))
    return otherwise
