"""Evaluate a loaded model and write the results, for trainings and `rlvr eval`."""

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
from rlvr_cli.evaluation.estimates import average, find_equal_answers, problem_metrics, range_of_rewards, summarise
from rlvr_cli.evaluation.sample_store import ProgressCallback, Sampler, SampleStore
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.store.evaluation import (
    FORMAT,
    Evaluation,
    Provenance,
    add_hashes,
    read_evaluation,
    read_result,
)
from rlvr_cli.store.metrics import GREEDY, REWARD_RANGE
from rlvr_cli.tasks.base import Task
from rlvr_cli.tasks.problem import Problem
from rlvr_cli.tasks.sets import problems_name


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
    """Evaluate with any sampler: a model in this process, vLLM or a server.

    Samples in ``out_dir`` are reused, missing ones generated. Then ``metrics.json`` (estimates with intervals) and
    ``problems.jsonl`` (per-problem values, for averaging and pairing) are replaced atomically, including each k of the
    earlier evaluation, and its greedy completions if they cover these problems; those of a larger evaluation stay
    (:func:`write_results`).

    Args:
        provenance: None = no label, and the name of the task's data as the benchmark.
        known_identity: precomputed ``sampler.identity(task, settings)``.
    Raises:
        UserError: ``out_dir`` is in use, belongs to another evaluation or cannot be written; no problems.
        RunError: files in it were altered, or the model's probabilities are not finite.
    """
    if not problems:
        raise UserError("no problem to evaluate on.")
    identity = known_identity or sampler.identity(task, settings)
    store = SampleStore(out_dir, identity, progress)
    with store.open() as samples:
        sampler.fill(store, task, problems, settings)
        settings = _extend_settings(settings, problems, out_dir)
        same = find_equal_answers(task, problems, samples, settings)
        rows = problem_metrics(problems, samples, settings, task.reasons, same)
        provenance = provenance or Provenance("", "", problems_name(task.name, task.settings["data"]))
        result = {
            "format": FORMAT,
            **provenance.as_json(),
            "split": settings.split,
            "fingerprint": digest(identity),
            "task": task.settings,
            "sampling": settings.sampling(),
            "problems": len(rows),
            "samples": settings.samples,
            REWARD_RANGE: range_of_rewards(rows, task.reward_range),
        }
        return write_results(Evaluation(out_dir, {**result, **summarise(rows, result)}, tuple(rows)))


def _extend_settings(settings: EvalSettings, problems: Sequence[Problem], folder: Path) -> EvalSettings:
    """Add each k, and greedy completions of the same problems, of the evaluation in ``folder`` to be replaced."""
    try:
        earlier = read_evaluation(folder)
    except (UserError, RunError):  # none, or a damaged one
        return settings
    if earlier.size > (len(problems), settings.samples):
        return settings
    names = earlier.rows[0].values
    earlier_ks = {int(name.removeprefix("pass@")) for name in names if name.startswith("pass@")}
    ks = {*settings.pass_at, *(k for k in earlier_ks if k <= settings.samples)}
    same = {problem.id for problem in problems} <= {row.id for row in earlier.rows}
    return replace(settings, pass_at=tuple(sorted(ks)), greedy=settings.greedy or (same and GREEDY in names))


def write_average(evaluations: Sequence[Evaluation], folder: Path) -> Evaluation:
    """Average evaluations of checkpoints (the newest first) problem by problem, and write the result to ``folder``."""
    rows, first = average([each.rows for each in evaluations]), evaluations[0].result
    oldest_first = evaluations[::-1]
    result = {
        **first,
        "label": f"average of {', '.join(each.result['label'] for each in oldest_first)}",
        "steps": [step for each in oldest_first for step in each.steps],
        "fingerprint": digest([each.result["fingerprint"] for each in evaluations]),
        "averaged": [str(each.folder) for each in oldest_first],
        **summarise(rows, first),
    }
    folder.mkdir(parents=True, exist_ok=True)
    return write_results(Evaluation(folder, result, tuple(rows)))


def write_results(evaluation: Evaluation) -> Evaluation:
    """Write the results unless those of a larger evaluation are on disk; return them with their hashes."""
    path = evaluation.folder / "metrics.json"
    with suppress(FileNotFoundError, RunError):
        # Its problems.jsonl may be newer if a process was killed between the two writes; a larger call repairs that.
        earlier = read_result(path)
        if (earlier["problems"], earlier["samples"]) > evaluation.size:
            return evaluation
    problems = "".join(json.dumps(row.as_json(), allow_nan=False, ensure_ascii=False) + "\n" for row in evaluation.rows)
    write_text(evaluation.folder / "problems.jsonl", problems)
    written = replace(evaluation, result=add_hashes(evaluation.result, problems))
    write_json(path, written.result)
    return written
