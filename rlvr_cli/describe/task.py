"""Tasks to look at: what there is, an example of each with judged responses, and problems written to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from rlvr_cli.config.load import preset_of_task, preset_task
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path, output_file, output_problems, write_text
from rlvr_cli.core.table import ResultDocument, Table
from rlvr_cli.evaluation.score import verdict_as_json
from rlvr_cli.models.source import PRESETS
from rlvr_cli.tasks import Problem, Split, Task
from rlvr_cli.tasks.base import prompt_ids
from rlvr_cli.tasks.data import file_of, set_files
from rlvr_cli.tasks.files import file_rows
from rlvr_cli.tasks.sets import data_sets, is_generated, problems_name, task_kinds, whole_set

SPLITS = ("train", "dev", "test")
NO_ANSWER = "I do not know."


class NoTemplate:
    """A tokenizer with neither a chat template nor special tokens: prompts are as a base model reads them."""

    chat_template = None
    bos_token = None
    bos_token_id = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        """No ids: nothing is put in front of a text."""
        return {"input_ids": []}


def task_rows() -> list[dict[str, Any]]:
    """Every task: its name, what it is, which lab model reads it, its keys and the reasons of its verdicts."""
    rows = []
    for name, kind in task_kinds().items():
        keys = [key for key in kind.model_fields if key != "name"]
        data = kind.model_fields["data"].default
        own = preset_of_task("lab", name)
        lab = own if own in PRESETS and preset_task(own) == name else None
        rows.append(
            {
                "name": name,
                "what": str(kind.__doc__),
                "data": data,
                "lab": lab,
                "keys": keys,
                "reasons": list(kind.reasons),
            }
        )
    return rows


def tasks_document() -> ResultDocument:
    """Every task."""
    rows = task_rows()
    # Said once: what every task has.
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
    said = f"Keys of every task: {', '.join(shared)}. `rlvr config keys task` says what they mean."
    return ResultDocument(tables=[Table("", header, cells)], data={"tasks": rows}, after=[said], rows=rows)


def example(config: Task, seed: int, model: str | None = None) -> dict[str, Any]:
    """One problem of the task with its prompt, and verdicts on a worked solution (where there is one) and on nothing.

    Args:
        model: the prompt is the one that this model is given (a preset, a folder, a hub id), and its tokens are
            counted; None = a model without a chat template.
    Raises:
        UserError: the task has no problem to show, or the model's tokenizer cannot be had.
    """
    tokenizer: Any = NoTemplate()
    style = "logic_rl"
    about: dict[str, Any] = {}
    if model is not None:
        tokenizer, style = _tokenizer_and_style(model)
    task = config.for_model(style)
    problem = _first(task, config.data, seed)
    responses = [*_worked(task, problem), NO_ANSWER]
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


def _tokenizer_and_style(model: str) -> tuple[Any, str]:
    """What decides how prompts for a model are written; its weights are not loaded."""
    from rlvr_cli.models.load import load_model_config, load_tokenizer
    from rlvr_cli.models.source import prompt_style

    return load_tokenizer(model), prompt_style(load_model_config(model))


def data_set_rows(folder: Path | None) -> list[dict[str, Any]]:
    """Every data set by name; with the number of its rows in ``folder`` (None where it has no such file).

    Raises UserError when there is no such folder, or a file in it cannot be read.
    """
    if folder is not None and not folder.is_dir():
        raise UserError(f"--data-dir {folder} (or RLVR_DATA_DIR): no such folder.")
    rows = []
    for name, one in data_sets().items():
        row: dict[str, Any] = {"name": name, "task": one.task, "what": one.what, "hub": one.hub, "licence": one.licence}
        row["files"] = dict(one.files)
        if folder is not None:
            row["rows"] = {split: _rows(name, split, folder) for split in one.files}
        rows.append(row)
    return rows


def _first(task: Task, data: str, seed: int) -> Problem:
    """A training problem, or a test problem where none of those can be had."""
    if data in data_sets() and not is_generated(data) and "train" not in data_sets()[data].files:
        return task.problems("test", 1, seed)[0]
    try:
        return task.problems("train", 1, seed)[0]
    except UserError as error:
        try:
            return task.problems("test", 1, seed)[0]
        except UserError:
            raise error from None


def _worked(task: Task, problem: Problem) -> list[str]:
    """A worked solution where the task has one; a loaded problem may not hold enough for that."""
    try:
        solutions = task.solutions(problem)
        return [] if solutions is None else [next(solutions)]
    except UserError:
        return []


def _rows(name: str, split: str, folder: Path) -> int | None:
    path = file_of(data_sets()[name], split, folder)
    if path is None:
        return None
    try:
        files = set_files(whole_set(name), path, split)[split]
    except UserError:
        return None  # a folder without files of rows
    return sum(map(file_rows, files)) if files else None


def write_problems(config: Task, target: Path, *, count: int, split: str, seed: int, overwrite: bool = False) -> int:
    """Write ``count`` problems of ``split`` to ``target``, one a line, and return how many there are.

    Raises UserError for an unknown split, what is wrong with ``target``, and what the task says of its data.
    """
    problems = []
    if split not in SPLITS:
        problems.append(f"--split {split}: unknown. Allowed: {', '.join(SPLITS)}")
    source = local_path(config.data) if config.data not in data_sets() else None
    problems += output_problems(target, source=source, rows=True, overwrite=overwrite)
    if problems:
        raise UserError(problems)
    task: Task = config.for_model("logic_rl")
    found = task.problems(cast(Split, split), count, seed)
    write_text(output_file(target), "".join(json.dumps(problem.fields, ensure_ascii=False) + "\n" for problem in found))
    return len(found)
