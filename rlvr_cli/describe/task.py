"""Describe tasks: lists, an example with judged responses, and problems written to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from rlvr_cli.config.load import preset_of_task, preset_task
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path, output_problems, resolve_output, write_text
from rlvr_cli.core.table import ResultDocument, Table
from rlvr_cli.evaluation.score import verdict_as_json
from rlvr_cli.models.source import PRESETS
from rlvr_cli.tasks import Problem, Split, Task
from rlvr_cli.tasks.base import prompt_ids
from rlvr_cli.tasks.data import find_set_files, find_split_file
from rlvr_cli.tasks.files import count_rows
from rlvr_cli.tasks.prompts import DEFAULT_STYLE
from rlvr_cli.tasks.sets import data_sets, is_generated, problems_name, task_kinds, task_of_set

SPLITS = ("train", "dev", "test")
NO_ANSWER = "I do not know."


class NoTemplate:
    """Tokenizer without chat template and special tokens, for the prompts of a base model."""

    chat_template = None
    bos_token = None
    bos_token_id = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": []}


def task_rows() -> list[dict[str, Any]]:
    """Return a row per task: name, description, lab model, keys and reasons of verdicts."""
    rows = []
    for name, kind in task_kinds().items():
        keys = [key for key in kind.model_fields if key != "name"]
        data = kind.model_fields["data"].default
        preset = preset_of_task("lab", name)
        lab = preset if preset in PRESETS and preset_task(preset) == name else None
        rows.append(
            {
                "name": name,
                "what": str(kind.__doc__),
                "data": data,
                "lab": lab,
                "keys": keys,
                # Those of a mixture depend on its tasks.
                "reasons": [] if isinstance(kind.reasons, property) else list(kind.reasons),
            }
        )
    return rows


def tasks_document() -> ResultDocument:
    rows = task_rows()
    # Keys of every task are in the note.
    shared = [key for key in rows[0]["keys"] if all(key in row["keys"] for row in rows)]
    header = ("task", "what it is", "problems (task.data)", "lab", "keys (task.*)", "a verdict's reasons")
    cells = [
        (
            row["name"],
            row["what"],
            row["data"],
            row["lab"] or "-",
            ", ".join(key for key in row["keys"] if key not in shared),
            ", ".join(row["reasons"]),
        )
        for row in rows
    ]
    note = f"Keys of every task: {', '.join(shared)}. `rlvr config keys task` explains them."
    return ResultDocument(tables=[Table("", header, cells)], data={"tasks": rows}, after=[note], rows=rows)


def show_example(config: Task, seed: int, model: str | None = None) -> dict[str, Any]:
    """Return a problem with its prompt, and verdicts on a worked solution (if any) and on a non-answer.

    Args:
        model: a preset, folder or hub id, for the prompt's format and token count; None = no chat template.

    Raises:
        UserError: the task has no problem to show, or the model's tokenizer cannot be loaded.
    """
    tokenizer: Any = NoTemplate()
    style: str = DEFAULT_STYLE
    about: dict[str, Any] = {}
    if model is not None:
        from rlvr_cli.models.load import load_facts

        facts = load_facts(model)
        tokenizer, style = facts.tokenizer, facts.style
    task = config.for_model(style)
    problem = _draw_problem(task, config.data, seed)
    responses = [*_worked_solutions(task, problem), NO_ANSWER]
    if model is not None:
        tokens = len(prompt_ids(task, problem, tokenizer))
        about = {"model": model, "chat_template": bool(tokenizer.chat_template), "prompt_tokens": tokens}
    return {
        "name": task.name,
        "data": problems_name(task.name, config.data),
        "what": str(type(config).__doc__),
        "reward_range": list(task.reward_range),
        "problem": problem.fields,
        "prompt": task.prompt(problem, tokenizer),
        **about,
        "judged": [
            {"response": response, "verdict": verdict_as_json(task.judge(problem, response))} for response in responses
        ],
    }


def data_set_rows(folder: Path | None) -> list[dict[str, Any]]:
    """Return a row per data set, with its rows in ``folder`` (None for a missing file). Raises UserError."""
    if folder is not None and not folder.is_dir():
        raise UserError(f"--data-dir {folder} (or RLVR_DATA_DIR): no such folder.")
    rows = []
    for name, data_set in data_sets().items():
        row: dict[str, Any] = {"name": name, "task": data_set.task, "what": data_set.summary}
        row |= {"hub": data_set.hub, "licence": data_set.licence, "files": dict(data_set.files)}
        if folder is not None:
            row["rows"] = {split: _count_rows(name, split, folder) for split in data_set.files}
        rows.append(row)
    return rows


def _draw_problem(task: Task, data: str, seed: int) -> Problem:
    """Return a training problem, or a test problem if none can be loaded."""
    if data in data_sets() and not is_generated(data) and "train" not in data_sets()[data].files:
        return task.problems("test", 1, seed)[0]
    try:
        return task.problems("train", 1, seed)[0]
    except UserError as error:
        try:
            return task.problems("test", 1, seed)[0]
        except UserError:
            raise error from None


def _worked_solutions(task: Task, problem: Problem) -> list[str]:
    """Return a worked solution if the task has one; a loaded problem may lack the data for it."""
    try:
        solutions = task.solutions(problem)
        return [] if solutions is None else [next(solutions)]
    except UserError:
        return []


def _count_rows(name: str, split: str, folder: Path) -> int | None:
    path = find_split_file(data_sets()[name], split, folder)
    if path is None:
        return None
    try:
        files = find_set_files(task_of_set(name), path, split)[split]
    except UserError:
        return None  # a folder without files of rows
    return sum(map(count_rows, files)) if files else None


def write_problems(config: Task, target: Path, *, count: int, split: str, seed: int, overwrite: bool = False) -> int:
    """Write up to ``count`` problems of ``split``, one per line, and return their number. Raises UserError."""
    problems = []
    if split not in SPLITS:
        problems.append(f"--split {split}: must be one of {', '.join(SPLITS)}.")
    source = local_path(config.data) if config.data not in data_sets() else None
    problems += output_problems(target, source=source, rows=True, overwrite=overwrite)
    if problems:
        raise UserError(problems)
    task: Task = config.for_model(DEFAULT_STYLE)
    drawn = task.problems(cast(Split, split), count, seed)
    write_text(
        resolve_output(target), "".join(json.dumps(problem.fields, ensure_ascii=False) + "\n" for problem in drawn)
    )
    return len(drawn)
