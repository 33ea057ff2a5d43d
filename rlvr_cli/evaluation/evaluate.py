"""One evaluation from a loaded model to numbers on disk. What a training and `rlvr eval` call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import write_json, write_text
from rlvr_cli.core.hashes import digest
from rlvr_cli.evaluation.metrics import average, equal_answers, problem_metrics, range_of_rewards, summarise
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.evaluation.store import ProgressCallback, Sampler, SampleStore
from rlvr_cli.store.evaluation import (
    FORMAT,
    Evaluation,
    ProblemValues,
    Provenance,
    read_evaluation,
    read_result,
    sealed,
)
from rlvr_cli.store.metrics import GREEDY, REWARD_RANGE
from rlvr_cli.tasks.base import Task
from rlvr_cli.tasks.problem import Problem
from rlvr_cli.tasks.sets import problems_name


def evaluate(
    model: Any,
    tokenizer: Any,
    task: Task,
    problems: Sequence[Problem],
    settings: EvalSettings,
    out_dir: Path,
    progress: ProgressCallback | None = None,
    provenance: Provenance | None = None,
) -> Evaluation:
    """Evaluate ``model`` on ``problems``. Its random state is not touched, and it is put back into its mode.

    Raises:
        UserError: ``out_dir`` is in use, belongs to another evaluation or cannot be written; no problems.
        RunError: files in it were altered, or the model's probabilities are not finite.
    """
    from rlvr_cli.evaluation.sampling import LocalSampler

    sampler = LocalSampler(model, tokenizer, settings.engine)
    return evaluate_with(sampler, task, problems, settings, out_dir, progress, provenance)


def evaluate_with(
    sampler: Sampler,
    task: Task,
    problems: Sequence[Problem],
    settings: EvalSettings,
    out_dir: Path,
    progress: ProgressCallback | None = None,
    provenance: Provenance | None = None,
    *,
    known_identity: dict[str, Any] | None = None,
) -> Evaluation:
    """Evaluate with whatever gives samples: a model here, vLLM or a server.

    Samples already in ``out_dir`` are used, the missing ones generated. Then ``metrics.json`` (numbers with intervals)
    and ``problems.jsonl`` (each problem's values, for averaging and pairing) are replaced, each whole, with the k
    of an earlier evaluation, and its greedy completions if it has these problems; those of a larger evaluation stay
    (:func:`write_results`).

    Args:
        provenance: None = no label, and the name of the task's data as the benchmark.
        known_identity: what decides the samples, where it is at hand; None = ``sampler.identity(task, settings)``.
    Raises:
        UserError, RunError: as :func:`evaluate`.
    """
    if not problems:
        raise UserError("no problem to evaluate on.")
    whole = known_identity or sampler.identity(task, settings)
    store = SampleStore(out_dir, whole, progress)
    with store.open() as samples:
        sampler.fill(store, task, problems, settings)
        settings = _with_earlier(settings, problems, out_dir)
        same = equal_answers(task, problems, samples, settings)
        rows = problem_metrics(problems, samples, settings, task.reasons, same)
        provenance = provenance or Provenance("", "", problems_name(task.name, task.settings["data"]))
        result = metrics_document(rows, settings, task, digest(whole), provenance)
        return write_results(Evaluation(out_dir, result, tuple(rows)))


def _earlier(folder: Path) -> Evaluation | None:
    """Return the evaluation in ``folder``; None without one, or where it was damaged and another takes its place."""
    try:
        return read_evaluation(folder)
    except (UserError, RunError):
        return None


def _with_earlier(settings: EvalSettings, problems: Sequence[Problem], folder: Path) -> EvalSettings:
    """Return the settings with each k, and the greedy completions, of the evaluation in ``folder`` that they replace.

    Greedy completions are of the same problems only.
    """
    earlier = _earlier(folder)
    if earlier is None or earlier.size > (len(problems), settings.samples):
        return settings
    names = earlier.rows[0].values
    ks = {int(name.removeprefix("pass@")) for name in names if name.startswith("pass@")}
    kept = {*settings.pass_at, *(k for k in ks if k <= settings.samples)}
    same = {problem.id for problem in problems} <= {row.id for row in earlier.rows}
    return replace(settings, pass_at=tuple(sorted(kept)), greedy=settings.greedy or (same and GREEDY in names))


def write_average(parts: Sequence[Evaluation], folder: Path) -> Evaluation:
    """Write the mean, problem by problem, of evaluations of checkpoints, the newest first, as one in ``folder``."""
    rows, first = average([part.rows for part in parts]), parts[0].result
    result = {
        **first,
        "label": f"average of {', '.join(part.result['label'] for part in reversed(parts))}",
        "steps": [step for part in reversed(parts) for step in part.steps],
        "fingerprint": digest([part.result["fingerprint"] for part in parts]),
        "averaged": [str(part.folder) for part in reversed(parts)],
        **summarise(rows, first),
    }
    folder.mkdir(parents=True, exist_ok=True)
    return write_results(Evaluation(folder, result, tuple(rows)))


def metrics_document(
    rows: Sequence[ProblemValues], settings: EvalSettings, task: Task, fingerprint: str, provenance: Provenance
) -> dict[str, Any]:
    """Return the content of ``metrics.json``."""
    result = {
        "format": FORMAT,
        **provenance.as_json(),
        "split": settings.split,
        "fingerprint": fingerprint,
        "task": task.settings,
        "sampling": settings.sampling(),
        "problems": len(rows),
        "samples": settings.samples,
        REWARD_RANGE: range_of_rewards(rows, task.reward_range),
    }
    return {**result, **summarise(rows, result)}


def write_results(evaluation: Evaluation) -> Evaluation:
    """Replace ``metrics.json`` and ``problems.jsonl`` in its folder; return it, with the hashes of both.

    An evaluation of more problems stays, or of as many with more samples: then the smaller one is returned alone.
    """
    path = evaluation.folder / "metrics.json"
    with suppress(FileNotFoundError, RunError):
        # Its problems.jsonl may be newer: a process was killed between the two files. The next larger call mends that.
        earlier = read_result(path)
        if (earlier["problems"], earlier["samples"]) > evaluation.size:
            return evaluation
    lines = (json.dumps(row.as_json(), allow_nan=False, ensure_ascii=False) + "\n" for row in evaluation.rows)
    problems = "".join(lines)
    write_text(evaluation.folder / "problems.jsonl", problems)
    written = replace(evaluation, result=sealed(evaluation.result, problems))
    write_json(path, written.result)
    return written
