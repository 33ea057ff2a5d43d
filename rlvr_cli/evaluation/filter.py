"""Filter problems by difficulty: the number of a model's correct attempts.

The landscape paper made Numina-Hard this way: the problems at which Qwen2.5-7B fails in both of two attempts (section
3 and appendix L). Samples are those of `rlvr eval`, in the same store. Imports torch only to load a model.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from rlvr_cli.config.load import load_config, preset_of_task
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError, UserError, collect_problems
from rlvr_cli.core.files import local_path, output_problems, resolve_output, write_json, write_text
from rlvr_cli.core.hashes import digest, text_digest
from rlvr_cli.evaluation.jobs import MOST_COMPLETIONS, EvalJob, runs_root
from rlvr_cli.evaluation.loading import label_and_stem, load_subject
from rlvr_cli.evaluation.progress import ProgressView
from rlvr_cli.evaluation.sample_store import SampleStore
from rlvr_cli.evaluation.served.options import key_note, option_problems
from rlvr_cli.evaluation.settings import EvalSettings, filter_overrides, find_option
from rlvr_cli.evaluation.tables import describe_sampling
from rlvr_cli.evaluation.targets import Target, find_target, slug
from rlvr_cli.tasks import Task
from rlvr_cli.tasks.base import ALL_ROWS
from rlvr_cli.tasks.problem import DataSplit
from rlvr_cli.tasks.prompts import DEFAULT_STYLE
from rlvr_cli.tasks.sets import check_folder, data_sets, problems_name

SPLITS = ("train", "dev", "test", "all")
FORMAT = 1
_RANGE = re.compile(r"(\d{1,9})|(\d{0,9})\.\.(\d{0,9})")

Decision = Literal["kept", "dropped", "undecided"]
DECISIONS: tuple[Decision, ...] = ("kept", "dropped", "undecided")


@dataclass(frozen=True)
class FilterOptions:
    task: str
    model: str
    output: Path
    overrides: tuple[str, ...] = ()
    attempts: int = 2
    keep_correct: str = "0"
    split: str = "train"
    seed: int = 0
    overwrite: bool = False


def make_filter(options: FilterOptions) -> EvalJob:
    """Return the attempts as a job with its problems. Raises UserError with all problems of the request."""
    errors: list[str] = []
    root, source = Path(Config().run.dir), None
    target: Target | None = None
    config: Config | None = None
    if options.attempts < 1:
        errors.append(f"--samples {options.attempts}: must be at least 1.")
    else:
        with collect_problems(errors, UserError):
            parse_keep(options.keep_correct, options.attempts)
    if options.split not in SPLITS:
        errors.append(f"--split {options.split}: must be one of {', '.join(SPLITS)}.")
    with collect_problems(errors, UserError):
        root = runs_root(options.overrides)
    with collect_problems(errors, UserError):
        target = find_target(preset_of_task(options.model, options.task), root)
    files = [target.run.config_path] if target is not None and target.run is not None else []
    with collect_problems(errors, UserError):
        config = load_config(
            files,
            task=options.task,
            model=None if files or target is None else options.model,
            overrides=options.overrides,
            import_files=True,
            from_start=True,
        )
    if config is not None:
        source = local_path(config.task.data) if config.task.data not in data_sets() else None
        if config.task.is_generated and options.split == "all":
            errors.append("--split all: is for problems from task.data; generated ones have train, dev and test.")
        if config.eval.engine == "openai":
            errors += option_problems(config, named=bool(filter_overrides(options.overrides, "eval.base_url=")))
        # Check only a folder that this call sets: a run's may be unused.
        if filter_overrides(options.overrides, "task.data_dir="):
            with collect_problems(errors, UserError):
                check_folder(config.task)
    meta = _meta_path(options.output)
    errors += output_problems(options.output, source=source, rows=True, overwrite=options.overwrite, companions=[meta])
    if errors or config is None or target is None:
        raise UserError(list(dict.fromkeys(errors)))
    task = config.task.for_model(target.subjects[0].style or DEFAULT_STYLE)
    most = config.task.training_problems if task.is_generated else ALL_ROWS
    if find_option(options.overrides, "eval.problems"):
        most = config.eval.problems
    problems = task.problems(cast(DataSplit, options.split), most, config.run.seed)
    if len(problems) * options.attempts > MOST_COMPLETIONS:
        raise UserError(
            f"--samples {options.attempts}: with {len(problems)} problems at most "
            f"{MOST_COMPLETIONS // len(problems)} (the attempts are held in memory). Or use --problems."
        )
    settings = EvalSettings.from_config(
        config,
        problems=len(problems),
        samples=options.attempts,
        pass_at=(1,),
        greedy=False,
        split=options.split,
        seed=options.seed,
    )
    notes = (*target.notes, *key_note(config))
    return EvalJob(config, settings, target, None, options.output, notes=notes, problems=tuple(problems))


def run_filter(job: EvalJob, options: FilterOptions, view: ProgressView) -> dict[str, Any]:
    """Sample the missing attempts, filter, and write the kept problems and the report on all.

    Returns the content of ``<output>.meta.json`` without the list of problems.
    Raises UserError if the folder of the samples is in use or holds other samples; RunError if no problem is kept (then
    nothing is written), or as evaluations.
    """
    output, subject = resolve_output(options.output), job.models[0]
    bounds = parse_keep(options.keep_correct, options.attempts)
    for note in job.notes:
        view.say(note)
    sampler = load_subject(subject, job.config, job.settings.engine, view.say)
    task = job.config.task.for_model(subject.style or sampler.style)
    identity = sampler.identity(task, job.settings)
    name = problems_name(job.config.task.name, job.config.task.data)
    label, stem = label_and_stem(subject, sampler)
    folder = subject.root / f"{slug(name)}-{job.settings.split}-{stem}-{digest(identity)[:8]}"
    attempted: list[dict[str, Any]] = []
    with view.watch(f"{label} on {name}") as progress:
        store = SampleStore(folder, identity, progress)
        with store.open() as samples:
            sampler.fill(store, task, job.problems, job.settings)
            for problem in job.problems:
                rows = [samples[problem.id, index] for index in range(job.settings.samples)]
                right, unjudged = sum(row["correct"] for row in rows), sum(not row["scorable"] for row in rows)
                fate = decide(right, unjudged, bounds)
                attempted.append({"problem": problem.id, "correct": right, "unjudged": unjudged, "fate": fate})
    numbers = dict(sorted(Counter(row["correct"] for row in attempted).items()))
    decisions = Counter(row["fate"] for row in attempted)
    if not decisions["kept"]:
        low, high = bounds
        counts = ", ".join(f"{number} with {right} correct" for right, number in numbers.items())
        if decisions["undecided"]:
            counts += f", {decisions['undecided']} undecided for attempts that could not be judged"
        raise RunError(
            f"no problem is kept: of {len(attempted)} problems none has {low if low == high else f'{low} to {high}'} "
            f"of {options.attempts} attempts correct ({counts}). Nothing was written. The "
            f"attempts stay in {store.folder}, so another --keep-correct needs no new attempts."
        )
    report: dict[str, Any] = {
        "format": FORMAT,
        "task": task.settings,
        "split": job.settings.split,
        "problems_seed": job.config.run.seed,
        "model": {"name": subject.model, "label": label, "weights": sampler.weights},
        "sampling": job.settings.sampling(),
        "attempts": job.settings.samples,
        "keep_correct": list(bounds),
        "problems": len(attempted),
        **{decision: decisions[decision] for decision in DECISIONS},
        "unjudged_attempts": sum(row["unjudged"] for row in attempted),
        "by_correct": {str(right): number for right, number in numbers.items()},
        "samples": str(store.folder),
    }
    chosen = [problem for problem, row in zip(job.problems, attempted, strict=True) if row["fate"] == "kept"]
    text = "".join(json.dumps(problem.fields, ensure_ascii=False) + "\n" for problem in chosen)
    report["output_sha256"] = text_digest(text)
    # The report first, so that an existing output always has one.
    output.unlink(missing_ok=True)
    write_json(_meta_path(job.out or output), {**report, "attempted": attempted})
    write_text(output, text)
    return {**report, "for_training": _count_training(job, task)}


def filter_sentences(output: Path, report: Mapping[str, Any]) -> list[str]:
    sampling, (low, high) = report["sampling"], report["keep_correct"]
    lines = [
        f"{report['problems']:,} {report['split']} problems of {report['task']['name']}, {report['attempts']} "
        f"attempts each by {report['model']['label']} ({describe_sampling(sampling)}, "
        f"at most {sampling['max_new_tokens']} tokens, seed {sampling['seed']})",
        *(
            f"  {right} correct: {number:,} problems{', kept' if low <= int(right) <= high else ''}"
            for right, number in report["by_correct"].items()
        ),
        f"kept {report['kept']:,} ({report['kept'] / report['problems']:.1%}), dropped {report['dropped']:,}",
    ]
    if report["undecided"]:
        lines.append(
            f"undecided, so not kept: {report['undecided']:,}, for attempts that could not be judged "
            f"({report['unjudged_attempts']:,} in all)"
        )
    held_out = report["kept"] - report["for_training"]
    rest = f"; {held_out:,} of them are held out as its dev and test problems" if held_out else ""
    return [
        *lines,
        f"problems: {output}, for training with task.data={output}{rest}",
        f"account of every problem: {_meta_path(output)}; attempts: {report['samples']}",
    ]


def decide(right: int, unjudged: int, keep: tuple[int, int]) -> Decision:
    """Return whether a problem is kept; undecided if that depends on attempts that could not be judged."""
    low, high = keep
    if low <= right and right + unjudged <= high:
        return "kept"
    return "dropped" if right > high or right + unjudged < low else "undecided"


def parse_keep(text: str, attempts: int) -> tuple[int, int]:
    """Parse ``3``, ``1..7``, ``1..`` or ``..3`` to the fewest and most correct attempts. Raises UserError."""
    match, option = _RANGE.fullmatch(text.strip()), f"--keep-correct {text}:"
    if match is None or text.strip() == "..":
        raise UserError(f"{option} must be a number or a range of correct attempts, such as 0, 1..7, 1.. or ..3.")
    low, high = (match[1], match[1]) if match[1] else (match[2] or "0", match[3] or str(attempts))
    if int(low) > int(high):
        raise UserError(f"{option} {low} is above {high}, so no problem would be kept.")
    if int(high) > attempts:
        raise UserError(f"{option} only {attempts} attempts are made. Use --samples {high}, or a smaller number.")
    return int(low), int(high)


def _count_training(job: EvalJob, task: Task) -> int:
    """Return the number of training problems in the output; the others are its held-out splits."""
    data = f"./{job.out}" if job.out is not None and not job.out.is_absolute() else str(job.out)
    config = job.config.task.model_copy(update={"data": data, "data_dir": None})
    style = str(task.settings.get("style", DEFAULT_STYLE))
    try:
        return len(config.for_model(style).problems("train", ALL_ROWS, 0))
    except UserError:
        return 0


def _meta_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.meta.json")
