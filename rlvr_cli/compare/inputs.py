"""Everything that a comparison is made from, read and checked: every problem is found before a number is shown."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from rlvr_cli.compare.evaluations import pair_runs, replicates_text
from rlvr_cli.compare.request import BENCHMARK, CompareRequest
from rlvr_cli.compare.scores import RunCurve, RunScores, read_finals, read_matched
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import did_you_mean, some
from rlvr_cli.methods.equivalence import same_gradients
from rlvr_cli.results.arms import Arm, Replicate, group_arms, grouped, keys_of, learned
from rlvr_cli.results.evaluations import Evaluation
from rlvr_cli.results.find import Run, find_runs, place_in_sweep
from rlvr_cli.results.metrics import metric as declared
from rlvr_cli.results.spending import BUDGETS, Spent

T = TypeVar("T")


@dataclass(frozen=True)
class TaskInputs:
    """The arms' numbers over the same problems of one task, by the arm's name.

    Attributes:
        runs: the replicates that are compared, of each arm; the same of all arms, unless they are not paired.
        by_run: settings, problems and metric, and the numbers by the run's path.
        notes: what a reader must know next to the numbers.
    """

    request: CompareRequest
    arms: tuple[Arm, ...]
    baseline: str
    runs: Mapping[str, tuple[Replicate, ...]]
    by_run: RunScores
    notes: tuple[str, ...]

    @property
    def paired(self) -> bool:
        """Whether the rows of two arms' scores belong together."""
        return not self.request.unpaired

    def scores(self) -> dict[str, np.ndarray]:
        """[replicates, problems] of each arm."""
        return {name: np.stack(rows) for name, rows in self._by_arm(self.by_run.scores).items()}

    def spent(self) -> dict[str, list[Spent]]:
        """What each run of an arm had spent."""
        return self._by_arm(self.by_run.spent)

    def curves(self) -> dict[str, list[RunCurve]]:
        """The learning curve of each run of an arm; only of a matched comparison."""
        return self._by_arm(self.by_run.curves)

    def _by_arm(self, values: Mapping[str, T]) -> dict[str, list[T]]:
        return {arm.name: [values[arm.runs[one].path] for one in self.runs[arm.name]] for arm in self.arms}


@dataclass(frozen=True)
class Inputs:
    """The same arms on one or several tasks, with one baseline and the same replicates.

    Attributes:
        tasks: what was read of each task, by its name.
        notes: what a reader must know next to the numbers, of all tasks or of the one that a line begins with.
    """

    request: CompareRequest
    tasks: Mapping[str, TaskInputs]
    notes: tuple[str, ...]

    @property
    def first(self) -> TaskInputs:
        """One of the tasks, for what all share."""
        return next(iter(self.tasks.values()))

    @property
    def baseline(self) -> str:
        return self.first.baseline

    @property
    def together(self) -> bool:
        """Whether a run is evaluated on every task; else each task has runs of its own."""
        return self.request.over == BENCHMARK

    def scores(self) -> dict[str, list[np.ndarray]]:
        """For each arm a table [replicates, problems] a task, in the order of the tasks."""
        tables = [inputs.scores() for inputs in self.tasks.values()]
        return {name: [table[name] for table in tables] for name in tables[0]}


def gather(request: CompareRequest) -> Inputs:
    """Read the runs that a request names, for each of its tasks: one, or those of ``request.over``.

    Raises UserError with everything that is wrong, in any task: names, options, records, evaluations that cannot be
    compared.
    """
    problems, notes = request.faults(), list[str]()
    runs = find_runs(request.names, request.root, problems, notes, unfinished=request.unfinished)
    if not request.over:
        only = gather_from(request, runs, problems, notes)
        return Inputs(request, {str(only.by_run.result["benchmark"]): only}, only.notes)
    own: dict[str, list[str]] = {}
    found: dict[str, TaskInputs] = {}
    for name, (benchmark, group) in _parts(request, runs, problems, notes).items():
        own[name] = []
        inputs = assemble(replace(request, benchmark=benchmark, baseline=None), group, own[name])
        if inputs is not None:
            found[name] = inputs
    problems += _of_tasks(own)
    if not problems:
        found = _alike(request, found, problems, notes)
    if problems or not found:
        raise UserError(list(dict.fromkeys(problems)))
    return Inputs(request, found, (*notes, *_of_tasks({name: one.notes for name, one in found.items()})))


def gather_from(
    request: CompareRequest, runs: Sequence[Run], problems: list[str], notes: Sequence[str] = ()
) -> TaskInputs:
    """One task of the ``runs`` at hand, with what was found wrong and to be told while they were looked for."""
    inputs = assemble(request, runs, problems, notes)
    if problems or inputs is None:
        raise UserError(list(dict.fromkeys(problems)))
    return inputs


def assemble(
    request: CompareRequest, runs: Sequence[Run], problems: list[str], notes: Sequence[str] = ()
) -> TaskInputs | None:
    """What ``runs`` give for the request; None, and lines in ``problems``, where that is nothing."""
    notes = list(notes)
    arms = group_arms(runs, problems, request.by) if runs else ()
    baseline = choose_baseline(request, arms, problems)
    pairs = pair_runs(arms, problems, notes, unpaired=request.unpaired) if arms else {}
    used = [arm.runs[replicate] for arm in arms for replicate in pairs.get(arm.name, ())] or list(runs)
    read = None
    if used and request.match in (None, *BUDGETS):
        reader = read_finals if request.match is None else read_matched
        read = reader(request, used, problems, notes)
        problems.extend(_misfits(request, read) if read is not None else ())
    if problems or read is None:
        return None
    return TaskInputs(
        request, arms, baseline, pairs, read, (*notes, *remarks(arms, used, read.chosen), *few_seeds(pairs))
    )


def _misfits(request: CompareRequest, read: RunScores) -> list[str]:
    """What of the request does not fit the numbers that were read."""
    found = []
    if request.power is not None and request.power >= 1 and declared(read.metric).share:
        points = request.power / 100
        found.append(
            f"--power {request.power:g}: {read.metric} lies between 0 and 1, and so does a difference of it. "
            f"{request.power:g} points are {points:g}."
        )
    if request.unpaired and len(read.problems) == 1:
        found.append("--unpaired: one problem says nothing about the spread between problems; at least two are needed.")
    return found


def choose_baseline(request: CompareRequest, arms: Sequence[Arm], problems: list[str]) -> str:
    """The arm that is asked for: by its name, or by the name of one of its runs; else a line in ``problems``.

    Without one: the arm of the first word of the command line, if that is all of one arm's; else the first whose method
    is without modifiers, in the order of the sweep file, and by the alphabet where there is none.
    """
    if request.baseline is not None:
        return named_arm(request.baseline, arms, problems)
    first = [arm for arm in arms if any(run.place == 0 for run in arm.runs.values())]
    if len(first) == 1:
        return first[0].name
    ranked = sorted(arms, key=lambda arm: ("+" in arm.method, _first_trial(arm), arm.name))
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
        names = sorted(dict.fromkeys(arm.name for arm in arms), key=lambda name: not name.startswith(wanted))
        problems.append(
            f"--baseline {wanted}: no such arm.{did_you_mean(wanted, names)} The arms are: {some(names, 6)}."
        )
    return named[0].name if named else ""


def _parts(
    request: CompareRequest, runs: Sequence[Run], problems: list[str], notes: list[str]
) -> Mapping[str, tuple[str | None, Sequence[Run]]]:
    """The benchmark and the runs of each task."""
    if request.over == BENCHMARK:
        return {name: (name, runs) for name in _benchmarks(request, runs, problems, notes)}
    keys = keys_of("--over", request.over, problems)
    parts = {name: (request.benchmark, group) for name, group in grouped(runs, keys).items() if keys}
    if keys and len(parts) == 1:
        problems.append(f"--over {','.join(request.over)}: it is the same in all runs, so there is only one task.")
    return parts


def _benchmarks(request: CompareRequest, runs: Sequence[Run], problems: list[str], notes: list[str]) -> tuple[str, ...]:
    """The benchmarks that are asked for; else those that every run was evaluated on."""
    if request.benchmarks:
        return request.benchmarks
    of_runs = [_evaluated_on(run) for run in runs]
    every = sorted(set().union(*of_runs))
    common = tuple(name for name in every if all(name in own for own in of_runs))
    if runs and len(common) < 2:
        shown = ", ".join(f"{name} ({sum(name in own for own in of_runs)} of {len(runs)} runs)" for name in every)
        problems.append(
            f"--over benchmark: it needs two benchmarks on which every run was evaluated; there is {shown or 'none'}. "
            "`rlvr eval RUN --benchmark A,B` evaluates a run on several."
        )
        return ()
    if out := [name for name in every if name not in common]:
        notes.append(f"left out because not all runs were evaluated on it: {', '.join(out)}.")
    return common


def _evaluated_on(run: Run) -> set[str]:
    """The benchmarks of a run's evaluations; damage is reported where they are read."""
    names = set()
    for path in run.dir.eval_dir.glob("*/metrics.json"):
        try:
            names.add(str(json.loads(path.read_text(encoding="utf-8"))["benchmark"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return names


def _alike(
    request: CompareRequest, found: Mapping[str, TaskInputs], problems: list[str], notes: list[str]
) -> dict[str, TaskInputs]:
    """The tasks with one baseline, and the replicates that all of them have."""
    names = {task: tuple(arm.name for arm in inputs.arms) for task, inputs in found.items()}
    if len(set(names.values())) > 1:
        shown = "; ".join(f"{task}: {', '.join(arms)}" for task, arms in names.items())
        problems.append(f"the arms are not the same in all tasks ({shown}). Name runs of arms that all tasks have.")
        return {}
    arms: list[Arm] = [arm for inputs in found.values() for arm in inputs.arms]
    if request.baseline is not None:
        baseline = named_arm(request.baseline, arms, problems)
    else:
        # The task of the runs that were named first decides, where they are all of one arm.
        baseline = min(found.values(), key=_place).baseline
    runs: dict[str, tuple[Replicate, ...]] = {}
    for arm in names[next(iter(names))]:
        common = set.intersection(*(set(inputs.runs[arm]) for inputs in found.values()))
        if not common:
            problems.append(f"no seed of {arm} is common to all tasks. Train it with the same seeds on each.")
        runs[arm] = tuple(sorted(common))
        for task, inputs in found.items():
            if out := [one for one in inputs.runs[arm] if one not in common]:
                notes.append(f"{task}: left out because not all tasks have them: {replicates_text(out)} of {arm}.")
    problems += [
        f"{task}: one problem says nothing about the spread between problems; at least two are needed."
        for task, inputs in found.items()
        if len(inputs.by_run.problems) < 2
    ]
    return {task: replace(one, baseline=baseline, runs=runs) for task, one in found.items()}


def _place(inputs: TaskInputs) -> int:
    return min(run.place for arm in inputs.arms for run in arm.runs.values())


def _of_tasks(lines: Mapping[str, Sequence[str]]) -> list[str]:
    """Lines of tasks, each once: as it is where all tasks have it, else with its task before it."""
    everywhere = set.intersection(*(set(own) for own in lines.values())) if lines else set()
    found = [line if line in everywhere else f"{task}: {line}" for task, own in lines.items() for line in own]
    return list(dict.fromkeys(found))


# Below so many runs an arm, the estimated spread between them may be far from the true one.
FEW = 5


def remarks(arms: Sequence[Arm], runs: Sequence[Run], chosen: Mapping[str, Evaluation]) -> list[str]:
    """Remarks on runs that are not finished, checkpoints that are not the last, other code and machines, and arms that
    cannot differ."""
    found = [
        f"{run.path} is not finished: rollout {run.manifest.get('rollout')} of {run.manifest.get('rollouts_total')}."
        for run in sorted(runs, key=lambda run: run.path)
        if run.manifest.get("status") != "finished"
    ]
    found += [
        f"{run.path}: evaluated at step {max(evaluation.steps)}, and trained until step {trained}: "
        f"`rlvr eval {run.path}` evaluates the newest checkpoint."
        for run in sorted(runs, key=lambda run: run.path)
        if (evaluation := chosen.get(run.path)) is not None
        and isinstance(trained := run.manifest.get("step"), int)
        and max(evaluation.steps) < trained
    ]
    for arm in arms:
        code = {_at(run, "method_fingerprint", "code_sha256") for run in arm.runs.values() if run in runs}
        if len(code) > 1:
            found.append(f"the runs of {arm.name} were made by {len(code)} versions of the method's code.")
    machines = {(_at(run, "hardware", "processor"), str(run.manifest.get("threads"))) for run in runs}
    if len(machines) > 1:
        shown = "; ".join(f"{processor}, {threads} threads" for processor, threads in sorted(machines))
        found.append(f"the runs were made on different machines ({shown}): their seconds cannot be compared.")
    return [*found, *_cannot_differ(arms)]


def few_seeds(pairs: Mapping[str, Sequence[Replicate]]) -> list[str]:
    """What one to four runs an arm cannot tell."""
    fewest = min(map(len, pairs.values()))
    if fewest < 2:
        return [
            "one run tells of itself and not of its method: there is neither p nor verdict, and intervals are over "
            "problems alone. `rlvr sweep` with 3 or more seeds compares methods."
        ]
    if fewest >= FEW:
        return []
    return [
        f"{fewest} runs an arm tell little of the spread between runs: intervals are as wide as that makes them, and "
        f"how many seeds or problems would be needed is a rough guess. {FEW} seeds tell much more; choose their number "
        "before you look, since adding seeds until a difference shows errs more often than 5%."
    ]


def _cannot_differ(arms: Sequence[Arm]) -> list[str]:
    """Of arms that differ in the method alone: those whose methods are the same gradient at their number of updates."""
    alike: dict[str, list[tuple[str, Config]]] = {}
    for arm in arms:
        run = next(iter(arm.runs.values()))
        rest = {key: value for key, value in learned(run).items() if not key.startswith("method.")}
        alike.setdefault(json.dumps(rest, sort_keys=True), []).append((arm.name, run.config))
    found = []
    for group in alike.values():
        update = group[0][1].update
        same = same_gradients({name: run.method for name, run in group}, update.mini_batches * update.epochs)
        found += [one.sentence() for one in same if one.when != "first_step"]
    return found


def _at(run: Run, *path: str) -> str:
    value: object = run.manifest
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return str(value)
