"""Problems that a model finds hard, or easy, or neither: kept by how many of its attempts at them are right.

The landscape paper made Numina-Hard this way: the problems at which Qwen2.5-7B fails in both of two attempts (section
3 and appendix L). Sampling is that of `rlvr eval`, and so is its store: nothing is sampled twice. Imports no torch
until a model is loaded.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlvr_cli.config.load import load_config, preset_of_task
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import local_path, output_file, output_problems, write_text
from rlvr_cli.core.hashes import digest, text_digest
from rlvr_cli.evaluation.jobs import MOST_COMPLETIONS, EvalJob, collect, runs_root
from rlvr_cli.evaluation.loading import load_subject, names_of
from rlvr_cli.evaluation.progress import ProgressView
from rlvr_cli.evaluation.served.options import key_note, option_problems
from rlvr_cli.evaluation.settings import EvalSettings, asked_by, only
from rlvr_cli.evaluation.store import SampleKey, SampleStore
from rlvr_cli.evaluation.targets import find_target, slug
from rlvr_cli.tasks import Problem, Task
from rlvr_cli.tasks.base import ALL_ROWS
from rlvr_cli.tasks.sets import check_folder, data_sets, problems_name

SPLITS = ("train", "dev", "test", "all")
FORMAT = 1
_RANGE = re.compile(r"(\d{1,9})|(\d{0,9})\.\.(\d{0,9})")

Fate = Literal["kept", "dropped", "undecided"]
FATES: tuple[Fate, ...] = ("kept", "dropped", "undecided")


@dataclass(frozen=True)
class FilterOptions:
    """The command line of `rlvr tasks filter`, as given; None = not given."""

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
    """Return the attempts to make as a job with its problems, checked against the models and data on disk.

    Raises UserError with every problem found.
    """
    wrong: list[str] = []
    if options.attempts < 1:
        wrong.append(f"--samples {options.attempts}: must be at least 1.")
    else:
        try:
            parse_keep(options.keep_correct, options.attempts)
        except ValueError as error:
            wrong.append(f"--keep-correct {options.keep_correct}: {error}")
    if options.split not in SPLITS:
        wrong.append(f"--split {options.split}: must be one of {', '.join(SPLITS)}.")
    root = runs_root(options.overrides, wrong)
    target = collect(wrong, find_target, preset_of_task(options.model, options.task), root)
    files = [target.run.config_path] if target is not None and target.run is not None else []
    model = None if files or target is None else options.model
    # Bounds of eval.* that this command does not use would only get in the way.
    overrides = [*options.overrides, "eval.samples=1", "eval.pass_at=[1]"]
    config = collect(
        wrong,
        load_config,
        files,
        task=options.task,
        model=model,
        overrides=overrides,
        import_files=True,
        from_start=True,
    )
    if config is not None and config.task.is_generated and options.split == "all":
        wrong.append("--split all: is for problems from task.data; generated ones have train, dev and test.")
    source = local_path(config.task.data) if config is not None and config.task.data not in data_sets() else None
    wrong += output_problems(
        options.output, source=source, rows=True, overwrite=options.overwrite, companions=[_meta(options.output)]
    )
    if config is not None and config.eval.engine == "openai":
        wrong += option_problems(config, named=bool(only(options.overrides, "eval.base_url=")))
    # A run's own folder may be left over; one that this call names is meant.
    if config is not None and any(text.startswith("task.data_dir=") for text in options.overrides):
        collect(wrong, check_folder, config.task)
    problems: list[Problem] = []
    if config is not None and not wrong:
        style = target.subjects[0].style if target is not None else None
        problems = collect(wrong, _problems, config, style, options, fallback=[])
    if len(problems) * options.attempts > MOST_COMPLETIONS:
        wrong.append(
            f"--samples {options.attempts}: with {len(problems)} problems at most "
            f"{MOST_COMPLETIONS // len(problems)} (the attempts are held in memory). Or give --problems."
        )
    if wrong or config is None or target is None:
        raise UserError(list(dict.fromkeys(wrong)))
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
    """Sample what attempts are missing, decide, and write the problems kept and the account of all.

    Returns the content of ``<output>.meta.json`` but for the single problems. Raises UserError where the folder of the
    samples is in use or holds other samples; RunError where no problem is kept (then nothing is written), or as
    evaluations do.
    """
    output, subject = output_file(options.output), job.models[0]
    keep = parse_keep(options.keep_correct, options.attempts)
    for note in job.notes:
        view.say(note)
    sampler = load_subject(subject, job.config, job.settings.engine, view.say)
    task = job.config.task.for_model(subject.style or sampler.style)
    identity = sampler.identity(task, job.settings)
    problems = problems_name(job.config.task.name, job.config.task.data)
    label, stem = names_of(subject, sampler)
    folder = subject.root / f"{slug(problems)}-{job.settings.split}-{stem}-{digest(identity)[:8]}"
    with view.watch(f"{label} on {problems}") as progress:
        store = SampleStore(folder, identity, progress)
        with store.open() as samples:
            sampler.fill(store, task, job.problems, job.settings)
            counts = [count_right(problem.id, samples, job.settings.samples) for problem in job.problems]
    fates = [fate(right, unjudged, keep) for right, unjudged in counts]
    kept = [problem for problem, what in zip(job.problems, fates, strict=True) if what == "kept"]
    if not kept:
        raise RunError(
            f"no problem is kept: {_none_kept(keep, options.attempts, counts, fates)}. Nothing was written. The "
            f"attempts stay in {store.folder}, so another --keep-correct needs no new attempts."
        )
    result: dict[str, Any] = {
        "format": FORMAT,
        "task": task.settings,
        "split": job.settings.split,
        "problems_seed": job.config.run.seed,
        "model": {"name": subject.model, "label": label, "weights": sampler.weights},
        "sampling": job.settings.sampling(),
        "attempts": job.settings.samples,
        "keep_correct": list(keep),
        "problems": len(job.problems),
        **{name: fates.count(name) for name in FATES},
        "unjudged_attempts": sum(unjudged for _, unjudged in counts),
        "by_correct": {str(right): number for right, number in sorted(Counter(right for right, _ in counts).items())},
        "samples": str(store.folder),
    }
    return _written(job, output, task, kept, counts, fates, result)


def filter_sentences(output: Path, found: Mapping[str, Any]) -> list[str]:
    """Return the lines that sum up the account ``found`` of the problems that were written to ``output``."""
    sampling = found["sampling"]
    low, high = found["keep_correct"]
    lines = [
        f"{found['problems']:,} {found['split']} problems of {found['task']['name']}, {found['attempts']} attempts "
        f"each by {found['model']['label']} (temperature {sampling['temperature']:g}, top_p {sampling['top_p']:g}, "
        f"at most {sampling['max_new_tokens']} tokens, seed {sampling['seed']})",
        *(
            f"  {right} right: {number:,} problems{', kept' if low <= int(right) <= high else ''}"
            for right, number in found["by_correct"].items()
        ),
        f"kept {found['kept']:,} ({found['kept'] / found['problems']:.1%}), dropped {found['dropped']:,}",
    ]
    if found["undecided"]:
        lines.append(
            f"undecided, so not kept: {found['undecided']:,}, for attempts that could not be judged "
            f"({found['unjudged_attempts']:,} in all)"
        )
    held_out = found["kept"] - found["for_training"]
    rest = f"; {held_out:,} of them are held out as its dev and test problems" if held_out else ""
    return [
        *lines,
        f"problems: {output}, for training with task.data={output}{rest}",
        f"account of every problem: {_meta(output)}; attempts: {found['samples']}",
    ]


def count_right(problem: str, samples: Mapping[SampleKey, Mapping[str, Any]], attempts: int) -> tuple[int, int]:
    """How many of a problem's attempts are right, and how many could not be judged."""
    rows = [samples[problem, index] for index in range(attempts)]
    return sum(bool(row["correct"]) for row in rows), sum(not row.get("scorable", True) for row in rows)


def fate(right: int, unjudged: int, keep: tuple[int, int]) -> Fate:
    """Kept or dropped where that does not depend on the attempts that could not be judged, else undecided."""
    low, high = keep
    if low <= right and right + unjudged <= high:
        return "kept"
    return "dropped" if right > high or right + unjudged < low else "undecided"


def parse_keep(text: str, attempts: int) -> tuple[int, int]:
    """The least and the most of ``3``, ``1..7``, ``1..`` or ``..3``. Raises ValueError saying what is wrong."""
    match = _RANGE.fullmatch(text.strip())
    if match is None or text.strip() == "..":
        raise ValueError("must be a number or a range of right attempts, as 0, 1..7, 1.. or ..3.")
    low, high = (match[1], match[1]) if match[1] else (match[2] or "0", match[3] or str(attempts))
    if int(low) > int(high):
        raise ValueError(f"{low} is above {high}, so no problem would be kept.")
    if int(high) > attempts:
        raise ValueError(f"there are only {attempts} attempts. Give --samples {high}, or a smaller number.")
    return int(low), int(high)


def _problems(config: Config, style: str | None, options: FilterOptions) -> list[Problem]:
    """All problems of the data; of a generator, as many as training has; of either, no more than asked for."""
    task = config.task.for_model(style or "logic_rl")
    most = config.task.training_problems if config.task.is_generated else ALL_ROWS
    if asked_by(options.overrides, "eval.problems"):
        most = config.eval.problems
    return task.problems(options.split, most, config.run.seed)  # type: ignore[arg-type]


def _written(
    job: EvalJob,
    output: Path,
    task: Task,
    kept: Sequence[Problem],
    counts: Sequence[tuple[int, int]],
    fates: Sequence[Fate],
    result: dict[str, Any],
) -> dict[str, Any]:
    """Write the account first: where the output is, it is whole and accounted for."""
    text = "".join(json.dumps(problem.fields, ensure_ascii=False) + "\n" for problem in kept)
    account = {**result, "output_sha256": text_digest(text)}
    rows = ",\n".join(
        "    " + json.dumps({"problem": problem.id, "correct": right, "unjudged": unjudged, "fate": what})
        for problem, (right, unjudged), what in zip(job.problems, counts, fates, strict=True)
    )
    head = json.dumps(account, indent=2, ensure_ascii=False).removesuffix("\n}")
    output.unlink(missing_ok=True)
    meta = _meta(job.out or output)
    write_text(meta, f'{head},\n  "attempted": [\n{rows}\n  ]\n}}\n')
    write_text(output, text)
    return {**account, "for_training": _for_training(job, task)}


def _for_training(job: EvalJob, task: Task) -> int:
    """How many of the problems kept a training run that reads the output has; the others it holds out."""
    data = f"./{job.out}" if job.out is not None and not job.out.is_absolute() else str(job.out)
    config = job.config.task.model_copy(update={"data": data, "data_dir": None})
    style = str(task.settings.get("style", "logic_rl"))
    try:
        return len(config.for_model(style).problems("train", ALL_ROWS, 0))
    except UserError:
        return 0


def _none_kept(keep: tuple[int, int], attempts: int, counts: Sequence[tuple[int, int]], fates: Sequence[Fate]) -> str:
    low, high = keep
    wanted = f"{low}" if low == high else f"{low} to {high}"
    found = Counter(right for right, _ in counts)
    listed = ", ".join(f"{number} with {right} right" for right, number in sorted(found.items()))
    unsure = f", {fates.count('undecided')} undecided for attempts that could not be judged"
    return f"of {len(counts)} problems none has {wanted} of {attempts} attempts right ({listed}" + (
        f"{unsure})" if "undecided" in fates else ")"
    )


def _meta(output: Path) -> Path:
    return output.with_name(f"{output.name}.meta.json")
