"""Read the scores of the arms of a request, and report all problems at once."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from shlex import quote

from rlvr_cli.compare.request import BENCHMARK, CompareRequest
from rlvr_cli.compare.scores import Scores, SharedScores, TaskScores, read_finals, read_matched
from rlvr_cli.core.errors import UserError, collecting
from rlvr_cli.core.text import did_you_mean, some
from rlvr_cli.store.arm import Arm, Replicate, group_arms, group_by_keys, keys_of, same_arms
from rlvr_cli.store.evaluation import Evaluation, results_in
from rlvr_cli.store.find import Run, eval_options, find_runs, index_in_sweep
from rlvr_cli.store.metrics import metric as declared
from rlvr_cli.store.training import BUDGETS

# With fewer runs per arm, the estimated spread between runs may be far from the true one.
FEW = 5


def read_scores(request: CompareRequest) -> Scores:
    """Read the runs that a request names, for each of its tasks: one, or those of ``request.over``.

    Raises UserError with everything that is wrong, in any task: names, options, records, evaluations that cannot be
    compared.
    """
    selected = find_runs(request.names, request.root, unfinished=request.unfinished)
    problems, notes = [*request.validate(), *selected.problems], list(selected.notes)
    if not request.over:
        only = read_task(request, selected.runs, problems, notes)
        return Scores(request, {str(only.settings["benchmark"]): only}, only.notes)
    by_task: dict[str, list[str]] = {}
    tasks: dict[str, TaskScores] = {}
    members: Mapping[str, tuple[str | None, Sequence[Run]]] = {}
    with collecting(problems):
        members = _members(request, selected.runs, notes)
    for name, (benchmark, runs) in members.items():
        by_task[name] = []
        with collecting(by_task[name]):
            tasks[name] = read_task(replace(request, benchmark=benchmark, baseline=None), runs, pair=False)
    problems += _of_tasks(by_task)
    if not problems:
        with collecting(problems):
            tasks = _alike(request, tasks, notes)
    if problems:
        raise UserError(list(dict.fromkeys(problems)))
    return Scores(request, tasks, (*notes, *_of_tasks({name: scores.notes for name, scores in tasks.items()})))


def read_task(
    request: CompareRequest,
    runs: Sequence[Run],
    problems: Sequence[str] = (),
    notes: Sequence[str] = (),
    *,
    pair: bool = True,
) -> TaskScores:
    """Return the numbers of ``runs`` on one task.

    Args:
        problems, notes: of what came before. pair: whether runs are paired with the baseline's; else all stay.
    Raises UserError with ``problems`` and everything else that is wrong.
    """
    wrong, remarks = list(problems), list(notes)
    arms: tuple[Arm, ...] = ()
    baseline, paired, numbers = "", dict[str, tuple[Replicate, ...]](), None
    with collecting(wrong):
        arms = group_arms(runs, request.by) if runs else ()
        baseline = choose_baseline(request, arms)
        paired = {arm.name: tuple(arm.runs) for arm in arms}
        if pair and arms and not request.unpaired:
            paired, left_out = _pair(paired, baseline)
            remarks += left_out
    used = [arm.runs[key] for arm in arms for key in paired.get(arm.name, ())] or list(runs)
    if used and request.match in (None, *BUDGETS):
        with collecting(wrong):
            numbers = read_finals(request, used) if request.match is None else read_matched(request, used)
            wrong += _misfits(request, numbers)
    if wrong or numbers is None:
        raise UserError(list(dict.fromkeys(wrong)))
    by_arm = {arm.name: {key: numbers.by_path[arm.runs[key].path] for key in paired[arm.name]} for arm in arms}
    scores = TaskScores(request=request, arms=by_arm, baseline=baseline, **vars(numbers))
    few = _few_seeds(scores.arms) if pair else []
    return replace(scores, notes=(*remarks, *scores.notes, *_remarks(arms, used, scores.evaluations), *few))


def _misfits(request: CompareRequest, numbers: SharedScores) -> list[str]:
    """Return options of the request that do not fit the numbers."""
    problems = []
    if request.power is not None and request.power >= 1 and declared(numbers.metric).share:
        points = request.power / 100
        problems.append(
            f"--power {request.power:g}: {numbers.metric} lies between 0 and 1, and so does a difference of it. "
            f"{request.power:g} points are {points:g}."
        )
    if request.unpaired and len(numbers.problems) == 1:
        problems.append("--unpaired: needs at least two problems, to estimate the variance between problems.")
    return problems


def choose_baseline(request: CompareRequest, arms: Sequence[Arm]) -> str:
    """Return the baseline arm: by its name, or by the name of one of its runs.

    Default: the arm of the first command-line argument, if that is a single arm; else the first arm whose method has no
    modifiers, in the order of the sweep file, otherwise by name.
    Raises UserError for an unknown name.
    """
    if request.baseline is not None:
        return _named_arm(request.baseline, {arm.name: list(arm.runs.values()) for arm in arms}) if arms else ""
    first = [arm for arm in arms if any(run.argument_index == 0 for run in arm.runs.values())]
    if len(first) == 1:
        return first[0].name
    ranked = sorted(arms, key=lambda arm: ("+" in arm.method, _first_trial(arm), arm.name))
    return ranked[0].name if ranked else ""


def _first_trial(arm: Arm) -> float:
    """Return the index of the arm's first run in the sweep file; infinity without a sweep."""
    index = index_in_sweep(next(iter(arm.runs.values())).dir.path)
    return math.inf if index is None else index


def _named_arm(wanted: str, arms: Mapping[str, Sequence[Run]]) -> str:
    """Return the arm of this name, or with a run of this name."""
    if wanted in arms:
        return wanted
    named = [name for name, runs in arms.items() if any(wanted in (run.path, run.dir.name) for run in runs)]
    if len(named) > 1:
        raise UserError(
            f"--baseline {wanted}: a run of this name is in {len(named)} arms: {some(named, 6)}. Name the arm, or give "
            "the run's path."
        )
    if not named:
        names = sorted(arms, key=lambda name: not name.startswith(wanted))
        raise UserError(f"--baseline {wanted}: unknown arm.{did_you_mean(wanted, names)} Allowed: {some(names, 6)}.")
    return named[0]


def _pair(
    replicates: Mapping[str, Sequence[Replicate]], baseline: str
) -> tuple[dict[str, tuple[Replicate, ...]], list[str]]:
    """Return the replicates of each arm that are compared, those that the baseline has too, and notes on the others.

    Raises UserError for an arm that has none in common with the baseline.
    """
    base = set(replicates[baseline])
    paired = {arm: tuple(sorted(base.intersection(own))) for arm, own in replicates.items()}
    alone = [arm for arm in paired if not paired[arm]]
    if alone:
        listed = "; ".join(f"{arm}: {replicates_text(replicates[arm])}" for arm in [baseline, *alone])
        raise UserError(
            f"no seed is common to the baseline and {some(alone, 4)} ({listed}). Runs are paired by their seed, which "
            "gives them the same problems in the same order: train the arms with the same seeds, compare fewer arms, "
            "or use --unpaired."
        )
    others = [set(paired[arm]) for arm in paired if arm != baseline]
    if others:
        paired[baseline] = tuple(sorted(set[Replicate]().union(*others)))
    notes = []
    for arm, every in replicates.items():
        if out := [replicate for replicate in every if replicate not in paired[arm]]:
            whose = "no other arm has" if arm == baseline else f"{baseline} does not have"
            notes.append(f"left out because {whose} them: {replicates_text(out)} of {arm}.")
    fewer = [arm for arm in paired if paired[arm] != paired[baseline]]
    return paired, [
        *notes,
        *(f"{arm} is compared with {baseline} on {replicates_text(paired[arm])} alone." for arm in fewer),
    ]


def replicates_text(replicates: Sequence[Replicate]) -> str:
    """Return `seeds 0, 1`; with what else varies, where something does."""
    if any(replicate.rest for replicate in replicates):
        return ", ".join(str(replicate) for replicate in replicates)
    return f"seed{'' if len(replicates) == 1 else 's'} {', '.join(str(replicate.seed) for replicate in replicates)}"


def _members(
    request: CompareRequest, runs: Sequence[Run], notes: list[str]
) -> Mapping[str, tuple[str | None, Sequence[Run]]]:
    """Return the benchmark and the runs of each task."""
    if request.over == BENCHMARK:
        return {name: (name, runs) for name in _benchmarks(request, runs, notes)}
    groups = group_by_keys(runs, keys_of("--over", request.over))
    if len(groups) == 1:
        raise UserError(f"--over {','.join(request.over)}: it is the same in all runs, so there is only one task.")
    return {name: (request.benchmark, group) for name, group in groups.items()}


def _benchmarks(request: CompareRequest, runs: Sequence[Run], notes: list[str]) -> tuple[str, ...]:
    """Return the benchmarks that are requested; else those that every run was evaluated on."""
    if request.benchmarks:
        return request.benchmarks
    of_runs = [{str(result["benchmark"]) for result in results_in(run.dir.eval_dir)} for run in runs]
    every = sorted(set().union(*of_runs))
    common = tuple(name for name in every if all(name in names for names in of_runs))
    if runs and len(common) < 2:
        listed = ", ".join(f"{name} ({sum(name in names for names in of_runs)} of {len(runs)} runs)" for name in every)
        raise UserError(
            f"--over benchmark: it needs two benchmarks on which every run was evaluated; there is {listed or 'none'}. "
            "`rlvr eval RUN --benchmark A,B` evaluates a run on several."
        )
    if out := [name for name in every if name not in common]:
        notes.append(f"left out because not all runs were evaluated on it: {', '.join(out)}.")
    return common


def _alike(request: CompareRequest, tasks: Mapping[str, TaskScores], notes: list[str]) -> dict[str, TaskScores]:
    """Return the tasks with one baseline, and of each arm the replicates that all tasks have."""
    names = {task: tuple(scores.arms) for task, scores in tasks.items()}
    if len(set(names.values())) > 1:
        listed = "; ".join(f"{task}: {', '.join(arms)}" for task, arms in names.items())
        raise UserError(f"the arms are not the same in all tasks ({listed}). Name runs of arms that all tasks have.")
    arms = names[next(iter(names))]
    runs = {arm: [of_run.run for scores in tasks.values() for of_run in scores.arms[arm].values()] for arm in arms}
    # Without a name, the task of the runs that were named first decides, where they are all of one arm.
    baseline = min(tasks.values(), key=_argument_index).baseline
    if request.baseline is not None:
        baseline = _named_arm(request.baseline, runs)
    problems, shared = list[str](), dict[str, tuple[Replicate, ...]]()
    for arm in arms:
        common = set.intersection(*(set(scores.arms[arm]) for scores in tasks.values()))
        shared[arm] = tuple(sorted(common))
        if not common:
            problems.append(f"no seed of {arm} is common to all tasks. Train it with the same seeds on each.")
        for task, scores in tasks.items():
            if out := [replicate for replicate in scores.arms[arm] if replicate not in common]:
                notes.append(f"{task}: left out because not all tasks have them: {replicates_text(out)} of {arm}.")
    problems += [
        f"{task}: needs at least two problems, to estimate the variance between problems."
        for task, scores in tasks.items()
        if len(scores.problems) < 2
    ]
    if not problems and not request.unpaired:
        with collecting(problems):
            shared, left_out = _pair(shared, baseline)
            notes += left_out
    if problems:
        raise UserError(problems)
    notes += _few_seeds(shared)
    return {
        task: replace(
            scores,
            baseline=baseline,
            arms={arm: {replicate: scores.arms[arm][replicate] for replicate in shared[arm]} for arm in arms},
        )
        for task, scores in tasks.items()
    }


def _argument_index(scores: TaskScores) -> int:
    return min(of_run.run.argument_index for arm in scores.arms.values() for of_run in arm.values())


def _of_tasks(lines: Mapping[str, Sequence[str]]) -> list[str]:
    """Return lines of tasks, each once: as it is where all tasks have it, else with its task before it."""
    everywhere = set.intersection(*(set(of_task) for of_task in lines.values())) if lines else set()
    listed = [line if line in everywhere else f"{task}: {line}" for task, of_task in lines.items() for line in of_task]
    return list(dict.fromkeys(listed))


def _remarks(arms: Sequence[Arm], runs: Sequence[Run], evaluations: Mapping[str, Evaluation]) -> list[str]:
    """Return remarks on runs that are not finished, checkpoints that are not the last, other code and machines, and
    arms that cannot differ."""
    by_path = sorted(runs, key=lambda run: run.path)
    remarks = [
        f"{run.path} is not finished: rollout {run.manifest.get('rollout')} of {run.manifest.get('rollouts_total')}."
        for run in by_path
        if run.manifest.get("status") != "finished"
    ]
    remarks += [
        f"{run.path}: evaluated at step {max(evaluation.steps)}, and trained until step {trained}: "
        f"`rlvr eval {quote(run.path)}{eval_options(run.dir.path)}` evaluates the newest checkpoint."
        for run in by_path
        if (evaluation := evaluations.get(run.path)) is not None
        and isinstance(trained := run.manifest.get("step"), int)
        and max(evaluation.steps) < trained
    ]
    for arm in arms:
        code = {_at(run, "method_fingerprint", "code_sha256") for run in arm.runs.values() if run in runs}
        if len(code) > 1:
            remarks.append(f"the runs of {arm.name} were made by {len(code)} versions of the method's code.")
    machines = {(_at(run, "hardware", "processor"), str(run.manifest.get("threads"))) for run in runs}
    if len(machines) > 1:
        listed = "; ".join(f"{processor}, {threads} threads" for processor, threads in sorted(machines))
        remarks.append(f"the runs were made on different machines ({listed}): their seconds cannot be compared.")
    first = {arm.name: next(iter(arm.runs.values())) for arm in arms}
    same = same_arms({name: run.config for name, run in first.items()})
    return [*remarks, *(group.sentence() for group in same if group.when != "first_step")]


def _at(run: Run, *path: str) -> str:
    value: object = run.manifest
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return str(value)


def _few_seeds(arms: Mapping[str, Collection[Replicate]]) -> list[str]:
    """Return the note on one to four runs an arm."""
    fewest = min(map(len, arms.values()))
    whose = "runs an arm" if len(set(map(len, arms.values()))) == 1 else "runs in an arm"
    if fewest < 2:
        single = [name for name, replicates in arms.items() if len(replicates) < 2]
        which = "" if len(single) == len(arms) else f" of {some(single, 6)}"
        return [
            f"one run{which or ' an arm'}: no p value and no verdict on its method, and intervals are over problems "
            "alone. `rlvr sweep` with 3 or more seeds compares methods."
        ]
    if fewest >= FEW:
        return []
    return [
        f"{fewest} {whose}: the variance between runs is a rough estimate, so intervals are wide and sample sizes are "
        f"approximate. Use {FEW} or more seeds, a number fixed in advance: adding seeds until a difference shows has "
        "more than 5% false positives."
    ]
