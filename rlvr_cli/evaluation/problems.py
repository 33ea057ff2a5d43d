"""Read the problems of jobs before a model is loaded, so that bad data are reported at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

from rlvr_cli.core.errors import UserError, collect_problems
from rlvr_cli.core.files import local_path
from rlvr_cli.evaluation.jobs import MOST_COMPLETIONS, EvalJob
from rlvr_cli.evaluation.targets import Target
from rlvr_cli.models.libraries import quiet_hub
from rlvr_cli.runs.trained_on import FILE, read_training_problems, wording_digest
from rlvr_cli.tasks import Problem, Task
from rlvr_cli.tasks.problem import FEW_PROBLEMS
from rlvr_cli.tasks.prompts import DEFAULT_STYLE

Say = Callable[[str], None]


def with_problems(jobs: Sequence[EvalJob], say: Say) -> list[EvalJob]:
    """Return the jobs with their problems. Raises UserError with the errors of all."""
    quiet_hub()
    read, problems = list[EvalJob](), list[str]()
    for job in jobs:
        with collect_problems(problems, UserError):
            read.append(_with_problems(job, say))
    if problems:
        raise UserError(list(dict.fromkeys(problems)))
    return read


def _with_problems(job: EvalJob, say: Say) -> EvalJob:
    if len(job.models) > 1 and job.out is not None and (job.out / "meta.json").exists():
        raise UserError(f"{job.out}: holds a single evaluation. Choose another --output for several evaluations.")
    for note in job.notes:
        say(note)
    # Check that the task has prompts for every model. The style of a hub model is unknown yet; the problems do not
    # depend on it.
    task, *_ = [job.config.task.for_model(model.style or DEFAULT_STYLE) for model in job.models]
    problems = _read_problems(job, task, say)
    job = replace(job, problems=tuple(problems), settings=replace(job.settings, problems=len(problems)))
    wordings = [wording_digest(task.problem_wording(problem)) for problem in problems]
    trained_on: dict[str, int] = {}
    for target, option in ((job.target, ""), (job.against, " (--against)")):
        if target is not None:
            count = _count_training_problems(job, target, option, wordings, say)
            trained_on |= dict.fromkeys((model.label for model in target.subjects), count)
    return replace(job, trained_on=trained_on)


def _read_problems(job: EvalJob, task: Task, say: Say) -> list[Problem]:
    settings, name = job.settings, f"{job.benchmark}: " if job.setting else ""
    count = MOST_COMPLETIONS if job.all_problems else settings.problems
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
    if len(problems) < settings.problems and not job.all_problems:
        few = "; the intervals will be wide" if len(problems) < FEW_PROBLEMS else ""
        say(f"{name}{len(problems)} problems: that is all the data has ({settings.problems} were requested){few}")
    return problems


def _count_training_problems(job: EvalJob, target: Target, option: str, wordings: Sequence[str], say: Say) -> int:
    """Return how many of the problems a model was trained on, with a warning: its accuracy is not held-out accuracy."""
    subject = target.subjects[0]
    training = read_training_problems(target.run.path if target.run else local_path(subject.model))
    if training is None:
        if target.run is not None:
            say(f"{target.run.path}: has no {FILE}, so overlap with its training problems cannot be detected")
        return 0
    count = sum(wording in training for wording in wordings)
    if count:
        name = f"{target.run.name if target.run else subject.label}{option}"
        overlap = f"{count:,} of these {len(wordings):,} problems are training problems of {name}"
        remedy = "; --split test leaves out the rows of the training split" if job.settings.split == "all" else ""
        say(f"WARNING: {overlap}{remedy}")
    return count
