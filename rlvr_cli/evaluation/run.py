"""Run evaluation jobs: load each model, evaluate it, average checkpoints, compare with another model."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import UserError, collect_problems
from rlvr_cli.core.files import write_json
from rlvr_cli.core.hashes import digest
from rlvr_cli.evaluation.estimates import PairedComparison, compare_by_subgroup
from rlvr_cli.evaluation.jobs import EvalJob
from rlvr_cli.evaluation.loading import label_and_stem, load_subject, revision_of
from rlvr_cli.evaluation.progress import ProgressView
from rlvr_cli.evaluation.sample_store import Sampler
from rlvr_cli.evaluation.targets import EvaluatedModel, slug
from rlvr_cli.models.reading import unknown_tokens_error
from rlvr_cli.runs.checkpoints import STEP
from rlvr_cli.store.evaluation import Evaluation, Provenance, read_result
from rlvr_cli.tasks.base import HARDLY_READABLE, PROMPTS_MEASURED, prompt_ids, unknown_token_share
from rlvr_cli.tasks.sets import problems_name
from rlvr_cli.tracking.tracking import EvaluationTracking

Outcome = tuple[Evaluation, PairedComparison | None]

TWO_RUNS = (
    "note: this compares two trained models. One seed per method cannot rank methods; use `rlvr sweep` with 3 or more "
    "seeds."
)


def run_jobs(jobs: Sequence[EvalJob], view: ProgressView) -> Iterator[Outcome]:
    """Run jobs whose problems were read; yield each result as soon as it is complete.

    Consecutive jobs with the same models share one load; the preset `lab` resolves to a different model per task.
    Raises UserError and RunError as :func:`evaluate_with`.
    """
    tracking = _start_tracking(jobs[0], view)
    try:
        for _, group in itertools.groupby(jobs, key=lambda job: [subject.model for subject in job.models]):
            for outcome, comparison in _run_on_same_models(list(group), view):
                if tracking is not None:
                    tracking.add(outcome.result, outcome.folder)
                yield outcome, comparison
    finally:
        if tracking is not None:
            tracking.end()


def _start_tracking(job: EvalJob, view: ProgressView) -> EvaluationTracking | None:
    if not job.config.track.to:
        return None
    run, subject = job.target.run, job.target.subjects[0]
    step = STEP.fullmatch(Path(subject.model).name) if run else None
    return EvaluationTracking(
        job.config, run.name if run else subject.label, run, int(step[1]) if step else 0, view.say
    )


def _run_on_same_models(jobs: list[EvalJob], view: ProgressView) -> Iterator[Outcome]:
    config, against = jobs[0].config, jobs[0].against
    for note in (*jobs[0].target.notes, *(against.notes if against else ())):
        view.say(note)
    subjects = jobs[0].models
    # Clip before the first model is loaded, by all models: those of a comparison are sampled with the same limit.
    for subject in {subject.model: subject for subject in reversed(subjects)}.values():
        jobs = _clip_to_positions(jobs, subject, view)
    evaluations: list[list[Evaluation]] = [[] for _ in jobs]
    for number, subject in enumerate(subjects, start=1):
        # A server has one model; the model it is compared with is sampled locally.
        engine, compared = jobs[0].settings.engine, against is not None and number == len(subjects)
        sampler = load_subject(subject, config, "auto" if compared and engine == "openai" else engine, view.say)
        if sampler.served_as is not None:
            limits = (sampler.style, sampler.tokenizer, sampler.max_sequence, f"tokens of {config.eval.base_url}")
            jobs = [_clip_max_tokens(job, subject, *limits, view) for job in jobs]
        for job, of_job in zip(jobs, evaluations, strict=True):
            of_job.append(_evaluate(job, subject, sampler, view))
            if number == len(subjects):
                before = of_job.pop() if against else None
                yield _finish(job, of_job, before, view)
        del sampler
        gc.collect()


def _clip_to_positions(jobs: Sequence[EvalJob], subject: EvaluatedModel, view: ProgressView) -> list[EvalJob]:
    """Clip the completions of every job to the positions of ``subject``. Raises UserError with all problems."""
    from rlvr_cli.models.load import load_facts

    try:
        facts = load_facts(subject.model, revision=revision_of(subject, jobs[0].config))
    except UserError:
        # A served model, or one that cannot be loaded: loading reports the reason.
        return list(jobs)
    clipped, problems = list[EvalJob](), list[str]()
    limits = (facts.style, facts.tokenizer, facts.positions, f"positions of {subject.label}")
    for job in jobs:
        with collect_problems(problems, UserError):
            clipped.append(_clip_max_tokens(job, subject, *limits, view))
    if problems:
        raise UserError(problems)
    return clipped


def _clip_max_tokens(
    job: EvalJob,
    subject: EvaluatedModel,
    style: str,
    tokenizer: Any,
    max_sequence: int | None,
    limit: str,
    view: ProgressView,
) -> EvalJob:
    """Return the job with ``max_new_tokens`` clipped so that prompt and completion fit in ``max_sequence`` tokens.

    Args:
        style: of the prompts, if the model's is unknown. max_sequence: None = unlimited. limit: its name in messages.
    Raises UserError if a prompt does not fit, or a length that this call sets.
    """
    if max_sequence is None:
        return job
    task = job.config.task.for_model(subject.style or style)
    prompt = max(len(prompt_ids(task, problem, tokenizer)) for problem in job.problems)
    option, new_tokens, room = job.max_tokens_option, job.settings.max_new_tokens, max_sequence - prompt
    if new_tokens <= room:
        return job
    name = f"{job.benchmark}: " if job.benchmark else ""
    problem = f"prompts of up to {prompt} tokens and {new_tokens} new ones are more than the {max_sequence} {limit}"
    if room < 1:
        raise UserError(f"{name}{problem}. Evaluate on shorter problems.")
    if option is not None:
        option += f"{' ' if option.startswith('--') else '='}{new_tokens}"
        raise UserError(f"{name}{option}: {problem}. Allowed: up to {room}.")
    view.say(f"{name}{problem}; completions are cut at {room}")
    return replace(job, settings=replace(job.settings, max_new_tokens=room))


def _evaluate(job: EvalJob, subject: EvaluatedModel, sampler: Sampler, view: ProgressView) -> Evaluation:
    from rlvr_cli.evaluation.evaluate import evaluate_with

    task, tokenizer = job.config.task.for_model(subject.style or sampler.style), sampler.tokenizer
    identity = sampler.identity(task, job.settings)
    benchmark = job.benchmark or problems_name(job.config.task.name, job.config.task.data)
    model, stem = label_and_stem(subject, sampler)
    if sampler.served_as is not None and subject.step is not None:
        # A server may serve any checkpoint under the same name.
        identity, stem = {**identity, "step": subject.step}, f"{subject.stem}-{stem}"
    name = f"{slug(benchmark)}-{job.settings.split}-{stem}-{_key(job, digest(identity))}"
    folder = subject.root / name
    if job.out is not None:
        folder = job.out / name if len(job.models) > 1 else job.out
    if tokenizer is not None:
        ids = [prompt_ids(task, problem, tokenizer) for problem in job.problems[:PROMPTS_MEASURED]]
        if (share := unknown_token_share(ids, tokenizer)) >= HARDLY_READABLE:
            # The tokenizer cannot encode the prompts, so the numbers mean little.
            view.say(f"WARNING: {unknown_tokens_error(task.name, model, share)}")
    steps = () if subject.step is None else (subject.step,)
    trained_on = job.trained_on.get(subject.label, 0)
    provenance = Provenance(model, subject.base or subject.model, benchmark, steps, trained_on=trained_on)
    with view.watch(model if job.setting is None else f"{model}, {benchmark}") as progress:
        evaluation = evaluate_with(
            sampler, task, job.problems, job.settings, folder, progress, provenance, known_identity=identity
        )
    _note_larger(evaluation, view)
    return evaluation


def _key(job: EvalJob, fingerprint: str) -> str:
    """Return the last component of a folder's name: a digest of what determines the samples and the setting."""
    return (fingerprint if job.setting is None else digest([fingerprint, job.setting.choices()]))[:8]


def _note_larger(evaluation: Evaluation, view: ProgressView) -> None:
    result = read_result(evaluation.folder / "metrics.json")
    size = result["problems"], result["samples"]
    if size > evaluation.size:
        view.say(
            f"{evaluation.folder} keeps its evaluation of {size[0]:,} problems x {size[1]:,} samples, which "
            "`rlvr compare` reads; the new samples are added. The numbers shown are of this call alone."
        )


def _finish(job: EvalJob, evaluations: list[Evaluation], before: Evaluation | None, view: ProgressView) -> Outcome:
    """Return the target's evaluation (the average of several), and its comparison with ``before``."""
    outcome = evaluations[0]
    if len(evaluations) > 1:
        from rlvr_cli.evaluation.evaluate import write_average

        key = _key(job, digest([each.result["fingerprint"] for each in evaluations]))
        name = f"{slug(outcome.result['benchmark'])}-{outcome.result['split']}-last-{len(evaluations)}-{key}"
        outcome = write_average(evaluations, job.out or job.target.subjects[0].root / name)
        _note_larger(outcome, view)
    if before is None:
        return outcome, None
    runs = {target.run.path for target in (job.target, job.against) if target and target.run}
    comparison = compare_by_subgroup(before, outcome, note=TWO_RUNS if len(runs) > 1 else None)
    write_json(outcome.folder / f"against-{before.folder.name}.json", comparison.as_json())
    return outcome, comparison
