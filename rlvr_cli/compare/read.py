"""Read the scores of the arms of a request, and report all problems at once."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from shlex import quote

from rlvr_cli.compare.request import BENCHMARK, CompareRequest
from rlvr_cli.compare.scores import Scores, SharedScores, TaskScores, read_finals, read_matched
from rlvr_cli.core.errors import UserError, collect_problems
from rlvr_cli.core.text import did_you_mean, ellipsize, merge_lines
from rlvr_cli.store.arm import Arm, Replicate, expand_keys, group_arms, group_by_keys, same_arms, training_values
from rlvr_cli.store.evaluation import Evaluation, iter_results
from rlvr_cli.store.find import Run, eval_options, index_in_sweep, load_runs
from rlvr_cli.store.metrics import metric as declared
from rlvr_cli.store.training import BUDGETS

# With fewer runs per arm, the estimated variance between runs may be far from the true one.
FEW = 5


def read_scores(request: CompareRequest) -> Scores:
    """Read a request's scores on one task, or on each of ``request.over``. Raises UserError with all problems."""
    selected = load_runs(request.names, request.root, unfinished=request.unfinished)
    problems, notes = [*request.validate(), *selected.problems], list(selected.notes)
    if not request.over:
        task = read_task(request, selected.runs, problems, notes)
        return Scores(request, {str(task.settings["benchmark"]): task}, task.notes)
    by_task: dict[str, list[str]] = {}
    tasks: dict[str, TaskScores] = {}
    members: Mapping[str, tuple[str | None, Sequence[Run]]] = {}
    with collect_problems(problems):
        members, left_out = _task_members(request, selected.runs)
        notes += left_out
    for name, (benchmark, runs) in members.items():
        by_task[name] = []
        with collect_problems(by_task[name]):
            tasks[name] = read_task(replace(request, benchmark=benchmark, baseline=None), runs, pair=False)
    problems += merge_lines(by_task)
    if not problems:
        with collect_problems(problems):
            tasks, left_out = _align_tasks(request, tasks)
            notes += left_out
    if problems:
        raise UserError(list(dict.fromkeys(problems)))
    return Scores(request, tasks, (*notes, *merge_lines({name: scores.notes for name, scores in tasks.items()})))


def read_task(
    request: CompareRequest,
    runs: Sequence[Run],
    problems: Sequence[str] = (),
    notes: Sequence[str] = (),
    *,
    pair: bool = True,
) -> TaskScores:
    """Read the scores of ``runs``; ``pair``: only of those that pair with the baseline. Raises UserError."""
    errors, remarks = list(problems), list(notes)
    arms: tuple[Arm, ...] = ()
    baseline, paired, shared = "", dict[str, tuple[Replicate, ...]](), None
    with collect_problems(errors):
        arms = group_arms(runs, request.by) if runs else ()
        baseline = choose_baseline(request, arms)
        paired = {arm.name: tuple(arm.runs) for arm in arms}
        if pair and arms and not request.unpaired:
            paired, left_out = _pair(paired, baseline)
            remarks += left_out
    used = [arm.runs[key] for arm in arms for key in paired.get(arm.name, ())] or list(runs)
    if used and request.match in (None, *BUDGETS):
        with collect_problems(errors):
            shared = read_finals(request, used) if request.match is None else read_matched(request, used)
            errors += _option_problems(request, shared)
    if errors or shared is None:
        raise UserError(list(dict.fromkeys(errors)))
    by_arm = {arm.name: {key: shared.by_path[arm.runs[key].path] for key in paired[arm.name]} for arm in arms}
    scores = TaskScores(request=request, arms=by_arm, baseline=baseline, controls=find_controls(arms), **vars(shared))
    few = _few_seeds(scores.arms) if pair else []
    return replace(scores, notes=(*remarks, *scores.notes, *_remarks(arms, used, scores.evaluations), *few))


def find_controls(arms: Sequence[Arm]) -> dict[str, tuple[str, ...]]:
    """Return the control arms of every other arm: of its task, and of its other settings too if there are any."""
    settings = {
        arm.name: {
            (key, text)
            for key, text in training_values(next(iter(arm.runs.values())).values).items()
            if not key.startswith("method.")
        }
        for arm in arms
    }
    names = [arm.name for arm in arms if _is_control(arm)]
    controls = {}
    for arm in settings.keys() - {*names}:
        others = {name: settings[name] - settings[arm] for name in names}
        of_task = [name for name, keys in others.items() if not any(key.startswith("task.") for key, _ in keys)]
        controls[arm] = tuple([name for name in of_task if not others[name]] or of_task)
    return {arm: of_arm for arm, of_arm in controls.items() if of_arm}


def _option_problems(request: CompareRequest, shared: SharedScores) -> list[str]:
    """Return the problems of options that depend on the scores."""
    problems = []
    if request.power is not None and request.power >= 1 and declared(shared.metric).share:
        problems.append(
            f"--power {request.power:g}: must be below 1, as {shared.metric} is a share; for {request.power:g} points "
            f"use {request.power / 100:g}."
        )
    if request.unpaired and len(shared.problems) == 1:
        problems.append("--unpaired: needs at least two problems, to estimate the variance between problems.")
    return problems


def choose_baseline(request: CompareRequest, arms: Sequence[Arm]) -> str:
    """Return the baseline arm, by its name or the name of one of its runs.

    Default: the arm of the first command-line argument, if that is a single arm; else the first arm whose method has no
    modifiers, in the order of the sweep file, otherwise by name.
    Raises UserError for an unknown name.
    """
    if request.baseline is not None:
        return _find_arm(request.baseline, {arm.name: list(arm.runs.values()) for arm in arms}) if arms else ""
    first = [arm for arm in arms if any(run.argument_index == 0 for run in arm.runs.values())]
    if len(first) == 1:
        return first[0].name
    ranked = sorted(arms, key=lambda arm: (_is_control(arm), "+" in arm.method, _first_trial(arm), arm.name))
    return ranked[0].name if ranked else ""


def _is_control(arm: Arm) -> bool:
    policy = next(iter(arm.runs.values())).config.method.policy
    return policy is not None and policy.reward.is_control


def _first_trial(arm: Arm) -> float:
    """Return the index of the arm's first run in the sweep file; infinity without a sweep."""
    index = index_in_sweep(next(iter(arm.runs.values())).dir.path)
    return math.inf if index is None else index


def _find_arm(name: str, arms: Mapping[str, Sequence[Run]]) -> str:
    """Return the arm ``name``, or the one with a run of that name."""
    if name in arms:
        return name
    matches = [arm for arm, runs in arms.items() if any(name in (run.path, run.dir.name) for run in runs)]
    if len(matches) > 1:
        raise UserError(
            f"--baseline {name}: a run of this name is in {len(matches)} arms: {ellipsize(matches, 6)}. "
            "Name the arm, or use the run's path."
        )
    if not matches:
        names = sorted(arms, key=lambda arm: not arm.startswith(name))
        raise UserError(f"--baseline {name}: unknown arm.{did_you_mean(name, names)} Allowed: {ellipsize(names, 6)}.")
    return matches[0]


def _pair(
    replicates: Mapping[str, Sequence[Replicate]], baseline: str
) -> tuple[dict[str, tuple[Replicate, ...]], list[str]]:
    """Return the replicates that the baseline has, and notes on the others. Raises UserError for an arm without any."""
    base = set(replicates[baseline])
    paired = {arm: tuple(sorted(base.intersection(every))) for arm, every in replicates.items()}
    unpaired = [arm for arm in paired if not paired[arm]]
    if unpaired:
        listed = "; ".join(f"{arm}: {format_replicates(replicates[arm])}" for arm in [baseline, *unpaired])
        raise UserError(
            f"no seed is common to the baseline and {ellipsize(unpaired, 4)} ({listed}). Runs are paired by seed, "
            "which gives them the same problems in the same order: train the arms with the same seeds, compare fewer "
            "arms, or use --unpaired."
        )
    others = [set(paired[arm]) for arm in paired if arm != baseline]
    if others:
        paired[baseline] = tuple(sorted(set[Replicate]().union(*others)))
    notes = []
    for arm, every in replicates.items():
        if left_out := [replicate for replicate in every if replicate not in paired[arm]]:
            reason = "no other arm has" if arm == baseline else f"{baseline} does not have"
            notes.append(f"left out because {reason} them: {format_replicates(left_out)} of {arm}.")
    fewer = [arm for arm in paired if paired[arm] != paired[baseline]]
    return paired, [
        *notes,
        *(f"{arm} is compared with {baseline} on {format_replicates(paired[arm])} alone." for arm in fewer),
    ]


def format_replicates(replicates: Sequence[Replicate]) -> str:
    """Format as `seeds 0, 1`, or with the other keys that vary."""
    if any(replicate.rest for replicate in replicates):
        return ", ".join(str(replicate) for replicate in replicates)
    return f"seed{'' if len(replicates) == 1 else 's'} {', '.join(str(replicate.seed) for replicate in replicates)}"


def _task_members(
    request: CompareRequest, runs: Sequence[Run]
) -> tuple[dict[str, tuple[str | None, Sequence[Run]]], list[str]]:
    """Return the benchmark and the runs of each task, and notes."""
    if request.over == BENCHMARK:
        benchmarks, notes = _common_benchmarks(request, runs)
        return {name: (name, runs) for name in benchmarks}, notes
    groups = group_by_keys(runs, expand_keys("--over", request.over))
    if len(groups) == 1:
        raise UserError(f"--over {','.join(request.over)}: is equal in all runs, so there is only one task.")
    return {name: (request.benchmark, group) for name, group in groups.items()}, []


def _common_benchmarks(request: CompareRequest, runs: Sequence[Run]) -> tuple[tuple[str, ...], list[str]]:
    """Return the requested benchmarks, by default those on which every run was evaluated, and a note on the others."""
    if request.benchmarks:
        return request.benchmarks, []
    of_runs = [{str(result["benchmark"]) for result in iter_results(run.dir.eval_dir)} for run in runs]
    every = sorted(set().union(*of_runs))
    common = tuple(name for name in every if all(name in names for names in of_runs))
    if runs and len(common) < 2:
        listed = ", ".join(f"{name} ({sum(name in names for names in of_runs)} of {len(runs)} runs)" for name in every)
        raise UserError(
            f"--over benchmark: needs two benchmarks on which every run was evaluated; there is {listed or 'none'}. "
            "`rlvr eval RUN --benchmark A,B` evaluates a run on several."
        )
    left_out = [name for name in every if name not in common]
    return common, [f"left out because not all runs were evaluated on it: {', '.join(left_out)}."] if left_out else []


def _align_tasks(request: CompareRequest, tasks: Mapping[str, TaskScores]) -> tuple[dict[str, TaskScores], list[str]]:
    """Restrict tasks to common replicates, with notes. Raises UserError if arms differ or have none in common."""
    names = {task: tuple(scores.arms) for task, scores in tasks.items()}
    if len(set(names.values())) > 1:
        listed = "; ".join(f"{task}: {', '.join(arms)}" for task, arms in names.items())
        raise UserError(f"the arms are not the same in all tasks ({listed}). Name runs of arms that all tasks have.")
    arms = names[next(iter(names))]
    runs = {arm: [of_run.run for scores in tasks.values() for of_run in scores.arms[arm].values()] for arm in arms}
    # By default, the baseline of the task whose runs are named first.
    baseline = min(tasks.values(), key=_argument_index).baseline
    if request.baseline is not None:
        baseline = _find_arm(request.baseline, runs)
    problems, notes, shared = list[str](), list[str](), dict[str, tuple[Replicate, ...]]()
    for arm in arms:
        common = set.intersection(*(set(scores.arms[arm]) for scores in tasks.values()))
        shared[arm] = tuple(sorted(common))
        if not common:
            problems.append(f"no seed of {arm} is common to all tasks. Train it with the same seeds on each.")
        for task, scores in tasks.items():
            if left_out := [replicate for replicate in scores.arms[arm] if replicate not in common]:
                listed = format_replicates(left_out)
                notes.append(f"{task}: left out because not all tasks have them: {listed} of {arm}.")
    problems += [
        f"{task}: needs at least two problems, to estimate the variance between problems."
        for task, scores in tasks.items()
        if len(scores.problems) < 2
    ]
    if not problems and not request.unpaired:
        with collect_problems(problems):
            shared, pair_notes = _pair(shared, baseline)
            notes += pair_notes
    if problems:
        raise UserError(problems)
    return {
        task: replace(
            scores,
            baseline=baseline,
            arms={arm: {replicate: scores.arms[arm][replicate] for replicate in shared[arm]} for arm in arms},
        )
        for task, scores in tasks.items()
    }, [*notes, *_few_seeds(shared)]


def _argument_index(scores: TaskScores) -> int:
    return min(of_run.run.argument_index for arm in scores.arms.values() for of_run in arm.values())


def _remarks(arms: Sequence[Arm], runs: Sequence[Run], evaluations: Mapping[str, Evaluation]) -> list[str]:
    """Return notes on unfinished runs, outdated checkpoints, different code and machines, and equivalent arms."""
    by_path = sorted(runs, key=lambda run: run.path)
    remarks = [
        f"{run.path} is not finished: rollout {run.manifest.get('rollout')} of {run.manifest.get('rollouts_total')}."
        for run in by_path
        if run.manifest.get("status") != "finished"
    ]
    remarks += [
        f"{run.path}: evaluated at step {max(evaluation.steps)}, but trained until step {trained}: "
        f"`rlvr eval {quote(run.path)}{eval_options(run.dir.path)}` evaluates the newest checkpoint."
        for run in by_path
        if (evaluation := evaluations.get(run.path)) is not None
        and isinstance(trained := run.manifest.get("step"), int)
        and max(evaluation.steps) < trained
    ]
    for arm in arms:
        code = {_manifest_value(run, "method_fingerprint", "code_sha256") for run in arm.runs.values() if run in runs}
        if len(code) > 1:
            remarks.append(f"the runs of {arm.name} were trained with {len(code)} versions of the method's code.")
    machines = {(_manifest_value(run, "hardware", "processor"), str(run.manifest.get("threads"))) for run in runs}
    if len(machines) > 1:
        listed = "; ".join(f"{processor}, {threads} threads" for processor, threads in sorted(machines))
        remarks.append(f"the runs were trained on different machines ({listed}): their seconds are not comparable.")
    first = {arm.name: next(iter(arm.runs.values())) for arm in arms}
    same = same_arms({name: run.config for name, run in first.items()})
    return [*remarks, *(group.sentence() for group in same if group.when != "first_step")]


def _manifest_value(run: Run, *path: str) -> str:
    value: object = run.manifest
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return str(value)


def _few_seeds(arms: Mapping[str, Collection[Replicate]]) -> list[str]:
    """Return a note on arms with fewer than FEW runs."""
    fewest = min(map(len, arms.values()))
    if fewest < 2:
        single = [name for name, replicates in arms.items() if len(replicates) < 2]
        which = "per arm" if len(single) == len(arms) else f"of {ellipsize(single, 6)}"
        return [
            f"one run {which}: no p-value and no verdict on its method, and intervals are over problems "
            "alone. `rlvr sweep` with 3 or more seeds compares methods."
        ]
    if fewest >= FEW:
        return []
    scope = "per arm" if len(set(map(len, arms.values()))) == 1 else "in an arm"
    return [
        f"with {fewest} runs {scope} the variance between runs is a rough estimate: intervals are wide, and the seeds "
        f"and problems needed are uncertain. Use {FEW} or more, and fix the number in advance: adding seeds until a "
        "difference is significant errs more often than 5%."
    ]
