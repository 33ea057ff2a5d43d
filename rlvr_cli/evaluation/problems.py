"""The problems of jobs, read before a model is loaded, which takes long: bad data must show first."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.evaluation.jobs import MOST_COMPLETIONS, EvalJob
from rlvr_cli.evaluation.targets import Target
from rlvr_cli.runs.trained_on import FILE, training_problems, wording_hash
from rlvr_cli.tasks import Problem, Task
from rlvr_cli.tasks.problem import FEW
from rlvr_cli.tasks.sets import data_sets

Say = Callable[[str], None]


def with_problems(jobs: Sequence[EvalJob], say: Say) -> list[EvalJob]:
    """Return the jobs with their problems, and with how many of them each model was trained on.

    Raises UserError with what is wrong with every job's data; the hub, which may be slow to answer, is asked only where
    nothing is wrong with the others.
    """
    read: dict[int, EvalJob] = {}
    wrong: list[str] = []
    for number in sorted(range(len(jobs)), key=lambda number: _on_hub(jobs[number])):
        if wrong and _on_hub(jobs[number]):
            break
        try:
            read[number] = _with_problems(jobs[number], say)
        except UserError as error:
            wrong += error.problems
    if wrong:
        raise UserError(list(dict.fromkeys(wrong)))
    return [read[number] for number in range(len(jobs))]


def _on_hub(job: EvalJob) -> bool:
    task = job.config.task
    return task.data_dir is None and task.data in data_sets() and data_sets()[task.data].hub is not None


def _with_problems(job: EvalJob, say: Say) -> EvalJob:
    if job.several and job.out is not None and (job.out / "meta.json").exists():
        raise UserError(f"{job.out}: holds a single evaluation. Choose another --output for several evaluations.")
    for note in job.notes:
        say(note)
    # Every model must be one that the task has prompts for. One of the hub has no known style yet; which problems there
    # are does not depend on it.
    task, *_ = [job.config.task.for_model(model.style or "logic_rl") for model in job.models]
    problems = _read(job, task, say)
    job = replace(job, problems=tuple(problems), settings=replace(job.settings, problems=len(problems)))
    wordings = [wording_hash(task.problem_wording(problem)) for problem in problems]
    trained_on: dict[str, int] = {}
    for target, option in ((job.target, ""), (job.against, " (--against)")):
        if target is not None:
            count = _trained_on(job, task, target, option, wordings, say)
            trained_on |= dict.fromkeys((model.label for model in target.subjects), count)
    return replace(job, trained_on=trained_on)


def _read(job: EvalJob, task: Task, say: Say) -> list[Problem]:
    settings, name = job.settings, f"{job.benchmark}: " if job.setting else ""
    count = MOST_COMPLETIONS if job.whole else settings.problems
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        problems = task.problems(settings.split, count, settings.problems_seed)
    for warning in caught:
        say(f"{name}{warning.message}")
    if len(problems) * max(1, settings.samples) > MOST_COMPLETIONS:
        raise UserError(
            f"--samples {settings.samples}: with {len(problems)} problems at most "
            f"{MOST_COMPLETIONS // len(problems)} (the samples of an evaluation are held in memory)."
        )
    if len(problems) < settings.problems and not job.whole:
        few = "; the intervals will be wide" if len(problems) < FEW else ""
        say(f"{name}{len(problems)} problems: that is all the data has ({settings.problems} were requested){few}")
    return problems


def _trained_on(job: EvalJob, task: Task, target: Target, option: str, wordings: Sequence[str], say: Say) -> int:
    """Return how many of the problems a model was trained on, and say so: its accuracy is not one on new problems."""
    subject = target.subjects[0]
    known = training_problems(target.run.path if target.run else local_path(subject.model))
    if known is None:
        if target.run is not None:
            say(f"{target.run.path}: has no {FILE}, so it is not known which problems it was trained on")
        return 0
    count = sum(wording in known for wording in wordings)
    if count:
        name = f"{target.run.name if target.run else subject.label}{option}"
        overlap = f"{count:,} of these {len(wordings):,} problems are training problems of {name}"
        say(f"WARNING: {overlap}{_without_them(job, task, known)}")
    return count


def _without_them(job: EvalJob, task: Task, known: frozenset[str]) -> str:
    """Return what leaves the training problems out, where that is known."""
    if job.settings.split != "all":
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            test = task.problems("test", MOST_COMPLETIONS, job.settings.problems_seed)
        except UserError:
            return ""
    left = sum(wording_hash(task.problem_wording(problem)) in known for problem in test)
    return "; --split test leaves them out" if not left else f"; with --split test {left:,} of {len(test):,} are"
