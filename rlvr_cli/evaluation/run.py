"""Carry out jobs: load each model, evaluate it, average checkpoints, compare with another model."""

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
from rlvr_cli.evaluation.jobs import EvalJob
from rlvr_cli.evaluation.loading import load_subject, names_of, revision_of, tokenizer_location
from rlvr_cli.evaluation.metrics import PairedComparison, compare_models
from rlvr_cli.evaluation.progress import ProgressView
from rlvr_cli.evaluation.store import Sampler
from rlvr_cli.evaluation.targets import EvaluatedModel, slug
from rlvr_cli.models.reading import unread
from rlvr_cli.runs.checkpoints import STEP
from rlvr_cli.store.evaluation import Evaluation, Provenance, read_result
from rlvr_cli.tasks.base import HARDLY_READABLE, PROMPTS_MEASURED, prompt_ids, unread_share
from rlvr_cli.tasks.sets import problems_name
from rlvr_cli.tracking.tracking import EvaluationTracking

Outcome = tuple[Evaluation, PairedComparison | None]

TWO_RUNS = (
    "note: this compares two trained models. One seed per method cannot rank methods; use `rlvr sweep` with 3 or more "
    "seeds."
)


def run_jobs(jobs: Sequence[EvalJob], view: ProgressView) -> Iterator[Outcome]:
    """Carry out the jobs of one call, whose problems were read; yield each one's result as soon as it is there.

    Consecutive jobs with the same models share one load; the preset `lab` resolves to a different model per task.
    Raises UserError and RunError as :func:`evaluate` does.
    """
    tracking = _tracking(jobs[0], view)
    try:
        for _, alike in itertools.groupby(jobs, key=lambda job: [subject.model for subject in job.models]):
            for outcome, comparison in _run_on_same_models(list(alike), view):
                if tracking is not None:
                    tracking.add(outcome.result, outcome.folder)
                yield outcome, comparison
    finally:
        if tracking is not None:
            tracking.end()


def _tracking(job: EvalJob, view: ProgressView) -> EvaluationTracking | None:
    """Return the trackers that are sent the results; None where there are none."""
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
    # Before the first model is loaded, and for all models of a comparison: they are sampled at the same length.
    for subject in {subject.model: subject for subject in reversed(subjects)}.values():
        jobs = _fit_positions(jobs, subject, view)
    parts: list[list[Evaluation]] = [[] for _ in jobs]
    for number, subject in enumerate(subjects, start=1):
        # A server has one model; what it is compared with is sampled here.
        engine, compared = jobs[0].settings.engine, against is not None and number == len(subjects)
        sampler = load_subject(subject, config, "auto" if compared and engine == "openai" else engine, view.say)
        if sampler.served_as is not None:
            fits = (sampler.style, sampler.tokenizer, sampler.max_sequence, f"tokens of {config.eval.base_url}")
            jobs = [_fit(job, subject, *fits, view) for job in jobs]
        for job, outcomes in zip(jobs, parts, strict=True):
            outcomes.append(_evaluate(job, subject, sampler, view))
            if number == len(subjects):
                before = outcomes.pop() if against else None
                yield _finish(job, outcomes, before, view)
        del sampler
        gc.collect()


def _fit_positions(jobs: Sequence[EvalJob], subject: EvaluatedModel, view: ProgressView) -> list[EvalJob]:
    """Return every job fitted to the positions of ``subject``. Raises UserError with what is wrong with any."""
    from rlvr_cli.models.tokenizer import load_facts

    try:
        facts = load_facts(*tokenizer_location(subject.model), revision=revision_of(subject, jobs[0].config))
    except UserError:
        # Unknown to this machine (a server's own name), or not to be had: loading it says why.
        return list(jobs)
    fitted: list[EvalJob] = []
    wrong: list[str] = []
    limit = f"positions of {subject.label}"
    for job in jobs:
        with collect_problems(wrong):
            fitted.append(_fit(job, subject, facts.style, facts.tokenizer, facts.positions, limit, view))
    if wrong:
        raise UserError(wrong)
    return fitted


def _fit(
    job: EvalJob,
    subject: EvaluatedModel,
    style: str,
    tokenizer: Any,
    max_sequence: int | None,
    limit: str,
    view: ProgressView,
) -> EvalJob:
    """Return a job whose completions, of a benchmark's or a run's own length, fit into ``max_sequence`` tokens; say so.

    Args:
        style: of the prompts, where the model's is not known yet. max_sequence: None = there is no limit, which
            ``limit`` names.
    Raises:
        UserError: a length that this call asks for does not fit, or a prompt alone does not.
    """
    if max_sequence is None:
        return job
    task = job.config.task.for_model(subject.style or style)
    prompt = max(len(prompt_ids(task, problem, tokenizer)) for problem in job.problems)
    asked, new_tokens, room = job.length_asked, job.settings.max_new_tokens, max_sequence - prompt
    if new_tokens <= room:
        return job
    name = f"{job.benchmark}: " if job.benchmark else ""
    problem = f"prompts of up to {prompt} tokens and {new_tokens} new ones are more than the {max_sequence} {limit}"
    if room < 1:
        raise UserError(f"{name}{problem}. Evaluate on shorter problems.")
    if asked is not None:
        given = f"{asked}{' ' if asked.startswith('--') else '='}{new_tokens}"
        raise UserError(f"{name}{given}: {problem}. Allowed: up to {room}.")
    view.say(f"{name}{problem}; completions are cut at {room}")
    return replace(job, settings=replace(job.settings, max_new_tokens=room))


def _evaluate(job: EvalJob, subject: EvaluatedModel, sampler: Sampler, view: ProgressView) -> Evaluation:
    """Evaluate one model of a job. Raises UserError and RunError as :func:`evaluate` does."""
    from rlvr_cli.evaluation.evaluate import evaluate_with

    task, tokenizer = job.config.task.for_model(subject.style or sampler.style), sampler.tokenizer
    identity = sampler.identity(task, job.settings)
    benchmark = job.benchmark or problems_name(job.config.task.name, job.config.task.data)
    model, stem = names_of(subject, sampler)
    if sampler.served_as is not None and subject.step is not None:
        # A server has any checkpoint under one name.
        identity, stem = {**identity, "step": subject.step}, f"{subject.stem}-{stem}"
    name = f"{slug(benchmark)}-{job.settings.split}-{stem}-{_key(job, digest(identity))}"
    folder = subject.root / name
    if job.out is not None:
        folder = job.out / name if job.several else job.out
    if tokenizer is not None:
        ids = [prompt_ids(task, problem, tokenizer) for problem in job.problems[:PROMPTS_MEASURED]]
        if (share := unread_share(ids, tokenizer)) >= HARDLY_READABLE:
            # The tokenizer does not know what the prompts consist of: no number means much then.
            view.say(f"WARNING: {unread(task.name, model, share)}")
    steps = () if subject.step is None else (subject.step,)
    trained_on = job.trained_on.get(subject.label, 0)
    provenance = Provenance(model, subject.base or subject.model, benchmark, steps, trained_on=trained_on)
    with view.watch(model if job.setting is None else f"{model}, {benchmark}") as progress:
        evaluation = evaluate_with(
            sampler, task, job.problems, job.settings, folder, progress, provenance, known_identity=identity
        )
    return _kept(evaluation, view)


def _key(job: EvalJob, fingerprint: str) -> str:
    """Return what a folder's name ends in; settings of a benchmark keep apart what shares a fingerprint."""
    return (fingerprint if job.setting is None else digest([fingerprint, job.setting.choices()]))[:8]


def _kept(evaluation: Evaluation, view: ProgressView) -> Evaluation:
    """Return the evaluation, after a remark where its folder keeps a larger one."""
    kept = read_result(evaluation.folder / "metrics.json")
    size = kept["problems"], kept["samples"]
    if size > evaluation.size:
        view.say(
            f"{evaluation.folder} keeps its evaluation of {size[0]:,} problems x {size[1]:,} samples, which "
            "`rlvr compare` reads; the new samples are added. The numbers shown are of this call alone."
        )
    return evaluation


def _finish(job: EvalJob, parts: list[Evaluation], before: Evaluation | None, view: ProgressView) -> Outcome:
    """Return the result of the target's evaluations (averaged where there are several), against ``before``."""
    outcome = parts[0]
    if len(parts) > 1:
        from rlvr_cli.evaluation.evaluate import write_average

        key = _key(job, digest([part.result["fingerprint"] for part in parts]))
        name = f"{slug(outcome.result['benchmark'])}-{outcome.result['split']}-last-{len(parts)}-{key}"
        outcome = _kept(write_average(parts, job.out or job.target.subjects[0].root / name), view)
    if before is None:
        return outcome, None
    runs = {target.run.path for target in (job.target, job.against) if target and target.run}
    comparison = compare_models(before, outcome, note=TWO_RUNS if len(runs) > 1 else None)
    write_json(outcome.folder / f"against-{before.folder.name}.json", comparison.as_json())
    return outcome, comparison
