"""What a report is of: runs and their records, the arms they make, and the comparison, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rlvr_cli.compare.contrasts import Comparison, compare
from rlvr_cli.compare.inputs import choose_baseline, gather_from
from rlvr_cli.compare.options import Question
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.report.report_readiness import Readiness, readiness
from rlvr_cli.results.arms import Arm, group_arms
from rlvr_cli.results.find import Run, find_runs
from rlvr_cli.runs.curves import whole_rows
from rlvr_cli.runs.records import read_jsonl
from rlvr_cli.runs.seals import read_record
from rlvr_cli.runs.summary import summary
from rlvr_cli.sweeps.folder import Plan, SweepDir

NOTE = "No page was written."
Rows = list[dict[str, Any]]
T = TypeVar("T")


@dataclass(frozen=True)
class Subject:
    """Everything that a page is made from, read and checked.

    Attributes:
        arms: the baseline first, the others by their names.
        sweeps: those whose begun trials are all among the runs, by their folders.
        statuses, metrics, timings: of each run, by its path; the lines of metrics.jsonl and timings.jsonl.
        comparison: None where there is one arm, or nothing to compare yet, which ``readiness`` explains.
        notes: what a sweep says of its trials.
    """

    question: Question
    runs: tuple[Run, ...]
    arms: tuple[Arm, ...]
    sweeps: Mapping[Path, Plan]
    statuses: Mapping[str, str]
    metrics: Mapping[str, Rows]
    timings: Mapping[str, Rows]
    readiness: Readiness
    comparison: Comparison | None
    notes: tuple[str, ...]

    @property
    def baseline(self) -> Arm:
        """The arm that others are compared with."""
        return self.arms[0]

    def of_arm(self, arm: Arm, values: Mapping[str, T]) -> list[T]:
        """The values of an arm's runs, in their order."""
        return [values[run.path] for run in arm.runs.values()]


def read_subject(question: Question) -> Subject:
    """Find and read the runs that a question names.

    Raises UserError with everything that is wrong: names, options, records, evaluations that cannot be compared. Runs
    that are not finished or not evaluated are no fault; they take no part in the comparison (unless the question wants
    unfinished ones), and the page says so.
    """
    problems, notes = question.faults(), list[str]()
    runs = find_runs(question.names, question.root, problems, notes, unfinished=True)
    arms = group_arms(runs, problems, question.by, alone=True) if runs else ()
    baseline = choose_baseline(question, arms, problems)
    metrics = {run.path: _steps(run, problems) for run in runs}
    timings = {run.path: _lines(run.dir.timings_path, problems) for run in runs}
    sweeps = _sweeps(runs, problems)
    if problems:
        raise UserError(list(dict.fromkeys(problems)), note=NOTE)
    statuses = {run.path: str(summary(run.dir.path)["status"]) for run in runs}
    ready = readiness(question, arms, baseline, statuses, sweeps)
    comparison = None
    if len(arms) > 1 and not ready.lacking:
        try:
            comparison = compare(gather_from(question, ready.runs, [], [*notes, *ready.left_out]))
        except UserError as error:
            raise UserError(error.problems, note=NOTE) from error
        baseline = _page_baseline(comparison, arms)
    return Subject(
        question=question,
        runs=runs,
        arms=tuple(sorted(arms, key=lambda arm: arm.name != baseline)),
        sweeps=sweeps,
        statuses=statuses,
        metrics=metrics,
        timings=timings,
        readiness=ready,
        comparison=comparison,
        notes=tuple(notes),
    )


def _page_baseline(comparison: Comparison, arms: Sequence[Arm]) -> str:
    """The arm with the comparison's baseline in it: arms of some runs may be called otherwise than those of all."""
    compared = next(arm for arm in comparison.material.arms if arm.name == comparison.material.baseline)
    paths = {run.path for run in compared.runs.values()}
    return next(arm.name for arm in arms if any(run.path in paths for run in arm.runs.values()))


def _steps(run: Run, problems: list[str]) -> Rows:
    try:
        lines = read_record(run.dir, run.dir.metrics_path)
    except RunError as error:
        problems.append(str(error))
        return []
    rows = whole_rows(lines)
    if len(rows) < len(lines):
        wrong = len(lines) - len(rows)
        problems.append(f"{run.dir.metrics_path}: {wrong} of its lines are no optimizer step's. The file was altered.")
    return rows


def _lines(path: Path, problems: list[str]) -> Rows:
    try:
        return read_jsonl(path)
    except RunError as error:
        problems.append(str(error))
        return []


def _sweeps(runs: Sequence[Run], problems: list[str]) -> dict[Path, Plan]:
    found: dict[Path, Plan] = {}
    here = {run.dir.path for run in runs}
    for folder in dict.fromkeys(run.dir.path.parent for run in runs):
        sweep = SweepDir(folder)
        if not sweep.exists():
            continue
        try:
            plan = sweep.read_plan()
        except RunError as error:
            problems.append(str(error))
            continue
        begun = {sweep.run_dir(entry).path for entry in plan.named if sweep.run_dir(entry).manifest_path.exists()}
        if begun <= here:
            found[folder] = plan
    return found
