"""Read the store as pandas data frames: runs, optimizer steps, evaluations, problems and samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.core.nested import flatten
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.listing import check_root, find_run_folders, summarize_run
from rlvr_cli.runs.records import read_record
from rlvr_cli.store.arm import expand_keys, group_runs_by_arm
from rlvr_cli.store.evaluation import (
    final_evaluations,
    held_out,
    read_evaluation,
    read_prompts,
    read_samples,
)
from rlvr_cli.store.find import load_runs

# Fields of a run's summary that are not columns; the path is in `run`.
_NOT_COLUMNS = ("path", "damage", "last_metrics")
# Columns that distinguish the evaluations of a run, besides `task.*` and `sampling.*`.
_SETTINGS = ("benchmark", "split", "averaged")
_OF_RUN = ("run", "arm", "seed")
_OF_EVALUATION = (*_OF_RUN, "evaluation", "benchmark", "split", "step", "rollouts")


def runs(*names: str, root: str | Path = "runs", by: str | Sequence[str] = ()) -> pd.DataFrame:
    """Return one row per run: ``run`` (its path), ``arm``, status, method, task, model, seed, times, every key.

    Unfinished runs are included, with their ``status``.

    Args:
        names: runs, folders of runs (a sweep) or globs of either, as for `rlvr compare`; none = all in ``root``.
        by: keys or sections whose values define an arm; none = every key that changes the training except the seed.
    """
    check_root(Path(root))
    selected = load_runs(names or sorted(find_run_folders(Path(root))), Path(root), unfinished=True)
    if selected.problems:
        raise UserError(selected.problems)
    members = selected.runs
    keys = expand_keys("by", [by] if isinstance(by, str) else by)
    arm_of = {run.path: name for name, group in group_runs_by_arm(members, keys).items() for run in group}
    rows = []
    for run in members:
        head = {key: value for key, value in summarize_run(run.dir.path).items() if key not in _NOT_COLUMNS}
        rows.append({"run": run.path, "arm": arm_of[run.path], **head, **run.values})
    return _frame(rows, *_OF_RUN, "method")


def arms(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per arm of a frame of runs: method, number of runs, and seeds."""
    return (
        runs.groupby("arm").agg(method=("method", "first"), runs=("run", "count"), seeds=("seed", list)).reset_index()
    )


def steps(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per optimizer step: ``run``, arm, seed, step, rollout, metrics.jsonl and timings.jsonl.

    Held-out accuracies are columns such as ``eval/avg@4``, set on the step that an evaluation follows.
    """
    rows = []
    for head in _heads(runs):
        run = RunDir(Path(head["run"]))
        timings = {timing["step"]: timing for timing in read_jsonl(run.timings_path)}
        for step in read_record(run, run.metrics_path):
            times = timings.get(step["step"], {})
            rows.append({**head, **flatten(step, separator="/"), **flatten(times, separator="/")})
    return _frame(rows, *_OF_RUN, "step", "rollout")


def evaluations(runs: pd.DataFrame, *, in_training: bool = False) -> pd.DataFrame:
    """Return one row per evaluation: ``evaluation`` (its folder), ``run``, arm, seed, model and settings.

    ``step``: of the checkpoint (the last of ``averaged``); ``rollouts``: of an evaluation in training; settings are
    columns such as ``split``, ``sampling.temperature`` and ``task.style``.

    Args:
        in_training: the held-out evaluations during training instead of those by `rlvr eval`.
    """
    read = held_out if in_training else final_evaluations
    rows = []
    for head in _heads(runs):
        for evaluation in read(RunDir(Path(head["run"]))):
            result = evaluation.result
            row = {
                "evaluation": str(evaluation.folder),
                "benchmark": result["benchmark"],
                "split": result["split"],
                "step": max(evaluation.steps, default=None),
                "averaged": evaluation.settings["averaged"],
                "rollouts": result.get("rollouts"),
                "model": result["model"],
                "problems": result["problems"],
                "samples": result["samples"],
                "trained_on": result.get("trained_on", 0),
            }
            rows.append({**head, **row, **flatten({"sampling": result["sampling"], "task": result["task"]})})
    return _frame(rows, *_OF_EVALUATION, "averaged", "model", "problems", "samples", "trained_on")


def last(evaluations: pd.DataFrame) -> pd.DataFrame:
    """Return the evaluation of the last checkpoint for each run and setting, as `rlvr compare` selects it."""
    settings = [name for name in evaluations if name in _SETTINGS or name.startswith(("task.", "sampling."))]
    ranked = evaluations.sort_values(["step", "problems", "samples", "evaluation"], na_position="first")
    groups = ranked.groupby(["run", *(ranked[name].map(repr) for name in settings)])
    return evaluations.loc[sorted(groups.tail(1).index)]


def problems(evaluations: pd.DataFrame) -> pd.DataFrame:
    """Return one row per problem of each evaluation: its columns, ``problem``, ``subgroup`` and every metric."""
    rows = []
    for head in _heads(evaluations):
        evaluation = read_evaluation(Path(head["evaluation"]))
        rows += [{**head, "problem": row.id, "subgroup": row.subgroup, **row.values} for row in evaluation.rows]
    return _frame(rows, *_OF_EVALUATION, "problem", "subgroup")


def samples(evaluations: pd.DataFrame) -> pd.DataFrame:
    """Return one row per sampled response of each evaluation: its columns, and its line of samples.jsonl.

    ``sample`` is its index or "greedy"; ``prompt`` the prompt's text, or None if not recorded. An average of
    checkpoints has no samples.
    """
    rows = []
    for head in _heads(evaluations):
        folder = Path(head["evaluation"])
        if (folder / "samples.jsonl").is_file():
            prompts = read_prompts(folder)
            for sample in read_samples(folder):
                prompt = prompts.get(sample["problem"])
                rows.append({**head, **flatten(sample, separator="/"), "prompt": prompt})
    return _frame(rows, *_OF_EVALUATION, "problem", "sample")


def _frame(rows: Sequence[Mapping[str, Any]], *columns: str) -> pd.DataFrame:
    """Return a frame of ``rows``; without any, an empty one with ``columns``."""
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=list(columns))


def _heads(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the columns of each row that more detailed rows inherit."""
    columns = [name for name in _OF_EVALUATION if name in frame]
    yield from frame[columns].to_dict("records")
