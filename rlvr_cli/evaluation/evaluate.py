"""One evaluation from a loaded model to numbers on disk. The programmatic entry, also for use during training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import write_json, write_text
from rlvr_cli.core.hashes import digest
from rlvr_cli.evaluation.metrics import equal_answers, problem_metrics, range_of_rewards, summarise
from rlvr_cli.evaluation.plan import ProgressCallback, Sampler
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.evaluation.store import SampleStore
from rlvr_cli.results.evaluations import ProblemValues, sealed
from rlvr_cli.results.metrics import REWARD_RANGE
from rlvr_cli.tasks.base import Task
from rlvr_cli.tasks.problem import Problem
from rlvr_cli.tasks.sets import problems_name

FORMAT = 1


def evaluate(
    model: Any,
    tokenizer: Any,
    task: Task,
    problems: Sequence[Problem],
    settings: EvalSettings,
    out_dir: Path,
    progress: ProgressCallback | None = None,
    *,
    label: str = "",
    known_identity: dict[str, Any] | None = None,
    benchmark: str | None = None,
) -> dict[str, Any]:
    """Evaluate ``model`` on ``problems`` and return what is written to ``out_dir/metrics.json``.

    Samples already in ``out_dir`` are used, the missing ones generated; then ``metrics.json`` (numbers with intervals)
    and ``problems.jsonl`` (each problem's values, for averaging and pairing) are replaced atomically. The model is put
    in eval mode and, afterwards, back; its random state is not touched.

    Args:
        label: what the reader knows the model by. known_identity: ``identity(...)`` of these arguments, if at hand.
        benchmark: what the reader knows the problems by; None = the name of the task's data.
    Raises:
        UserError: ``out_dir`` is in use, belongs to another evaluation or cannot be written; no problems.
        RunError: files in it were altered, or the model's probabilities are not finite.
    """
    from rlvr_cli.evaluation.sampling import LocalSampler

    return evaluate_with(
        LocalSampler(model, tokenizer),
        task,
        problems,
        settings,
        out_dir,
        progress,
        label=label,
        known_identity=known_identity,
        benchmark=benchmark,
    )


def evaluate_with(
    sampler: Sampler,
    task: Task,
    problems: Sequence[Problem],
    settings: EvalSettings,
    out_dir: Path,
    progress: ProgressCallback | None = None,
    *,
    label: str = "",
    known_identity: dict[str, Any] | None = None,
    benchmark: str | None = None,
    trained_on: int = 0,
) -> dict[str, Any]:
    """``evaluate`` with whatever gives samples: a model here, vLLM or a server. Raises as it does.

    Args:
        trained_on: how many of the problems the model was trained on.
    """
    if not problems:
        raise UserError("there is no problem to evaluate on.")
    whole = known_identity or sampler.identity(task, settings)
    store = SampleStore(out_dir, whole)
    with store.open() as samples:
        sampler.fill(store, samples, task, problems, settings, progress)
        same = equal_answers(task, problems, samples, settings)
        rows = problem_metrics(problems, samples, settings, task.reasons, same)
        name = benchmark or problems_name(task.name, task.settings["data"])
        result = report(rows, settings, task, label=label, fingerprint=digest(whole), benchmark=name)
        return write_results(out_dir, result | ({"trained_on": trained_on} if trained_on else {}), rows)


def report(
    rows: Sequence[ProblemValues], settings: EvalSettings, task: Task, *, label: str, fingerprint: str, benchmark: str
) -> dict[str, Any]:
    """The content of ``metrics.json``."""
    result = {
        "format": FORMAT,
        "label": label,
        "benchmark": benchmark,
        "split": settings.split,
        "fingerprint": fingerprint,
        "task": task.settings,
        "sampling": settings.sampling(),
        "problems": len(rows),
        "samples": settings.samples,
        REWARD_RANGE: range_of_rewards(rows, task.reward_range),
    }
    return {**result, **summarise(rows, result)}


def write_results(folder: Path, result: dict[str, Any], rows: Sequence[ProblemValues]) -> dict[str, Any]:
    """Replace ``metrics.json`` and ``problems.jsonl`` in ``folder``; returns the first, with the hashes of both."""
    lines = (json.dumps(row.as_json(), allow_nan=False, ensure_ascii=False) + "\n" for row in rows)
    problems = "".join(lines)
    write_text(folder / "problems.jsonl", problems)
    whole = sealed(result, problems)
    write_json(folder / "metrics.json", whole)
    return whole
