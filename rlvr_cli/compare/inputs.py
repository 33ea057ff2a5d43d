"""Everything that a comparison is made from, read and checked: every problem is found before a number is shown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from rlvr_cli.compare.choose import pair_runs
from rlvr_cli.compare.notes import few_seeds, remarks
from rlvr_cli.compare.options import Question
from rlvr_cli.compare.scores import Readings, RunCurve, read_finals, read_matched
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.methods.names import parse_method_name
from rlvr_cli.results.arms import Arm, Replicate, group_arms
from rlvr_cli.results.find import Run, find_runs, place_in_sweep
from rlvr_cli.results.metrics import metric as declared
from rlvr_cli.results.spending import BUDGETS, Spent

T = TypeVar("T")


@dataclass(frozen=True)
class Material:
    """The arms' numbers over the same problems, by the arm's name.

    Attributes:
        runs: the replicates that are compared, of each arm; the same of all arms, unless they are not paired.
        read: settings, problems and metric, and the numbers by the run's path.
        notes: what a reader must know beside the numbers.
    """

    question: Question
    arms: tuple[Arm, ...]
    baseline: str
    runs: Mapping[str, tuple[Replicate, ...]]
    read: Readings
    notes: tuple[str, ...]

    @property
    def paired(self) -> bool:
        """Whether the rows of two arms' scores belong together."""
        return not self.question.unpaired

    def scores(self) -> dict[str, np.ndarray]:
        """[replicates, problems] of each arm."""
        return {name: np.stack(rows) for name, rows in self._by_arm(self.read.scores).items()}

    def spent(self) -> dict[str, list[Spent]]:
        """What each run of an arm had spent."""
        return self._by_arm(self.read.spent)

    def curves(self) -> dict[str, list[RunCurve]]:
        """The learning curve of each run of an arm; only of a matched comparison."""
        return self._by_arm(self.read.curves)

    def _by_arm(self, values: Mapping[str, T]) -> dict[str, list[T]]:
        return {arm.name: [values[arm.runs[one].path] for one in self.runs[arm.name]] for arm in self.arms}


def gather(question: Question) -> Material:
    """Read the runs that a question names.

    Raises UserError with everything that is wrong: names, options, records, evaluations that cannot be compared.
    """
    problems, notes = question.faults(), list[str]()
    runs = find_runs(question.names, question.root, problems, notes, unfinished=question.unfinished)
    return gather_from(question, runs, problems, notes)


def gather_from(question: Question, runs: Sequence[Run], problems: list[str], notes: Sequence[str] = ()) -> Material:
    """:func:`gather` with the runs at hand, and what was found wrong and to be told while they were looked for."""
    material = assemble(question, runs, problems, notes)
    if problems or material is None:
        raise UserError(list(dict.fromkeys(problems)), note="Nothing was compared.")
    return material


def assemble(
    question: Question, runs: Sequence[Run], problems: list[str], notes: Sequence[str] = ()
) -> Material | None:
    """What ``runs`` give for the question; None, and lines in ``problems``, where that is nothing."""
    notes = list(notes)
    arms = group_arms(runs, problems, question.by) if runs else ()
    baseline = choose_baseline(question, arms, problems)
    pairs = pair_runs(arms, problems, notes, unpaired=question.unpaired) if arms else {}
    used = [arm.runs[replicate] for arm in arms for replicate in pairs.get(arm.name, ())] or list(runs)
    read = None
    if used and question.match in (None, *BUDGETS):
        reader = read_finals if question.match is None else read_matched
        read = reader(question, used, problems, notes)
        problems.extend(_misfits(question, read) if read is not None else ())
    if problems or read is None:
        return None
    return Material(
        question, arms, baseline, pairs, read, (*notes, *remarks(arms, used, read.chosen), *few_seeds(pairs))
    )


def _misfits(question: Question, read: Readings) -> list[str]:
    """What of the question does not fit the numbers that were read."""
    found = []
    if question.power is not None and question.power >= 1 and declared(read.metric).share:
        points = question.power / 100
        found.append(
            f"--power {question.power:g}: {read.metric} lies between 0 and 1, and so does a difference of it. "
            f"{question.power:g} points are {points:g}."
        )
    if question.unpaired and len(read.problems) == 1:
        found.append("--unpaired: one problem tells nothing of the spread between problems; it takes two.")
    return found


def choose_baseline(question: Question, arms: Sequence[Arm], problems: list[str]) -> str:
    """The arm that is asked for: by its name, or by the name of one of its runs; else a line in ``problems``.

    Without one: the arm of the first word of the command line, if that is all of one arm's; else the first whose method
    is without modifiers, in the order of the sweep file, and by the alphabet where there is none.
    """
    if question.baseline is not None:
        return named_arm(question.baseline, arms, problems)
    first = [arm for arm in arms if any(run.place == 0 for run in arm.runs.values())]
    if len(first) == 1:
        return first[0].name
    ranked = sorted(arms, key=lambda arm: (bool(parse_method_name(arm.method).modifiers), _first_trial(arm), arm.name))
    return ranked[0].name if ranked else ""


def _first_trial(arm: Arm) -> float:
    """Where the sweep file has the arm, by its first run; infinite for runs of no sweep."""
    place = place_in_sweep(next(iter(arm.runs.values())).dir.path)
    return math.inf if place is None else place


def named_arm(wanted: str, arms: Sequence[Arm], problems: list[str]) -> str:
    """The arm of this name, or with a run of it; empty, and a line in ``problems``, where there is none."""
    named = [arm for arm in arms if arm.name == wanted]
    named += [arm for arm in arms if any(wanted in (run.path, run.dir.name) for run in arm.runs.values())]
    if arms and not named:
        names = list(dict.fromkeys(arm.name for arm in arms))
        problems.append(
            f"--baseline {wanted}: no such arm.{did_you_mean(wanted, names)} The arms are: {', '.join(names)}."
        )
    return named[0].name if named else ""
