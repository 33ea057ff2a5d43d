"""A comparison over several tasks: the same arms on several benchmarks, or trained on several tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlvr_cli.compare.choose import listed
from rlvr_cli.compare.inputs import Material, assemble, named_arm
from rlvr_cli.compare.options import BENCHMARK, Question
from rlvr_cli.core.errors import UserError
from rlvr_cli.results.arms import Arm, Replicate, grouped, keys_of
from rlvr_cli.results.find import Run, find_runs


@dataclass(frozen=True)
class TasksMaterial:
    """The same arms on every task, with one baseline and the same replicates.

    Attributes:
        tasks: what was read of each task, by its name.
        notes: what a reader must know of all of them, or of the one that a line begins with.
    """

    question: Question
    tasks: Mapping[str, Material]
    notes: tuple[str, ...]

    @property
    def first(self) -> Material:
        """One of the tasks, for what all share."""
        return next(iter(self.tasks.values()))

    @property
    def baseline(self) -> str:
        return self.first.baseline

    @property
    def together(self) -> bool:
        """Whether a run is evaluated on every task; else each task has runs of its own."""
        return self.question.over == BENCHMARK

    def scores(self) -> dict[str, list[np.ndarray]]:
        """For each arm a table [replicates, problems] a task, in the order of the tasks."""
        tables = [material.scores() for material in self.tasks.values()]
        return {name: [table[name] for table in tables] for name in tables[0]}


def gather_tasks(question: Question) -> TasksMaterial:
    """Read the runs that a question names, for each of its tasks (``question.over``).

    Raises UserError with everything that is wrong, in any task.
    """
    problems, notes = question.faults(), list[str]()
    runs = find_runs(question.names, question.root, problems, notes, unfinished=question.unfinished)
    parts: dict[str, tuple[str | None, Sequence[Run]]]
    if question.over == BENCHMARK:
        parts = {name: (name, runs) for name in _benchmarks(question, runs, problems, notes)}
    else:
        keys = keys_of("--over", question.over, problems)
        parts = {name: (question.benchmark, group) for name, group in grouped(runs, keys).items() if keys}
        if keys and len(parts) == 1:
            problems.append(f"--over {','.join(question.over)}: it is the same in all runs, so there is one task.")
    found: dict[str, Material] = {}
    own: dict[str, list[str]] = {}
    for name, (benchmark, group) in parts.items():
        own[name] = []
        material = assemble(replace(question, benchmark=benchmark, baseline=None), group, own[name])
        if material is not None:
            found[name] = material
    problems += _of_tasks(own)
    if not problems:
        found = _alike(question, found, problems, notes)
    if problems or not found:
        raise UserError(list(dict.fromkeys(problems)), note="Nothing was compared.")
    return TasksMaterial(question, found, (*notes, *_of_tasks({name: one.notes for name, one in found.items()})))


def _benchmarks(question: Question, runs: Sequence[Run], problems: list[str], notes: list[str]) -> tuple[str, ...]:
    """The benchmarks that are asked for; else those that every run was evaluated on."""
    if question.benchmarks:
        return question.benchmarks
    of_runs = [_evaluated_on(run) for run in runs]
    every = sorted(set().union(*of_runs))
    common = tuple(name for name in every if all(name in own for own in of_runs))
    if runs and len(common) < 2:
        shown = ", ".join(f"{name} ({sum(name in own for own in of_runs)} of {len(runs)} runs)" for name in every)
        problems.append(
            f"--over benchmark: it takes two benchmarks that every run was evaluated on; there is {shown or 'none'}. "
            "`rlvr eval RUN --benchmark A,B` evaluates a run on several."
        )
        return ()
    if out := [name for name in every if name not in common]:
        notes.append(f"left out, for not all runs were evaluated on it: {', '.join(out)}.")
    return common


def _evaluated_on(run: Run) -> set[str]:
    """The benchmarks of a run's evaluations; what is damaged is told where they are read."""
    names = set()
    for path in run.dir.eval_dir.glob("*/metrics.json"):
        try:
            names.add(str(json.loads(path.read_text(encoding="utf-8"))["benchmark"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return names


def _alike(
    question: Question, found: Mapping[str, Material], problems: list[str], notes: list[str]
) -> dict[str, Material]:
    """The tasks with one baseline, and the replicates that all of them have."""
    names = {task: tuple(arm.name for arm in material.arms) for task, material in found.items()}
    if len(set(names.values())) > 1:
        shown = "; ".join(f"{task}: {', '.join(arms)}" for task, arms in names.items())
        problems.append(f"the arms are not the same in all tasks ({shown}). Name runs of arms that all tasks have.")
        return {}
    arms: list[Arm] = [arm for material in found.values() for arm in material.arms]
    if question.baseline is not None:
        baseline = named_arm(question.baseline, arms, problems)
    else:
        # The task of the runs that were named first decides, where they are all of one arm.
        baseline = min(found.values(), key=_place).baseline
    runs: dict[str, tuple[Replicate, ...]] = {}
    for arm in names[next(iter(names))]:
        common = set.intersection(*(set(material.runs[arm]) for material in found.values()))
        if not common:
            problems.append(f"no seed of {arm} is common to all tasks. Train it with the same seeds on each.")
        runs[arm] = tuple(sorted(common))
        for task, material in found.items():
            if out := [one for one in material.runs[arm] if one not in common]:
                notes.append(f"{task}: left out, for not all tasks have them: {listed(out)} of {arm}.")
    problems += [
        f"{task}: one problem tells nothing of the spread between problems; it takes two."
        for task, material in found.items()
        if len(material.read.problems) < 2
    ]
    return {task: replace(one, baseline=baseline, runs=runs) for task, one in found.items()}


def _place(material: Material) -> int:
    return min(run.place for arm in material.arms for run in arm.runs.values())


def _of_tasks(lines: Mapping[str, Sequence[str]]) -> list[str]:
    """Lines of tasks, each once: as it is where all tasks have it, else with its task before it."""
    everywhere = set.intersection(*(set(own) for own in lines.values())) if lines else set()
    found = [line if line in everywhere else f"{task}: {line}" for task, own in lines.items() for line in own]
    return list(dict.fromkeys(found))
