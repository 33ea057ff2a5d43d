"""Rows of question and answer from a named set, the hub, a folder or a JSONL file; the format: docs/tasks/math.md."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.base import Problem, Split
from rlvr_cli.tasks.jsonl import is_jsonl
from rlvr_cli.tasks.math.fields import from_turns
from rlvr_cli.tasks.math.hub import hub_records, repeats_rows
from rlvr_cli.tasks.rows import DataSplit, LeftOut, Loader, Place, split_mark, split_of, stem

ProblemFrom = Callable[[dict[str, Any], str], Problem]


class _Rows(Loader[Problem]):
    """Questions with an answer; ``problem_from`` makes a problem of a row's fields."""

    accepts = "Give a .jsonl or .jsonl.gz file, a folder of them, or a hub id such as `openai/gsm8k`."
    row = "{question, answer, ...}"
    no_files = "no .jsonl or .jsonl.gz file in this folder."
    sorted_all = True

    def __init__(self, problem_from: ProblemFrom) -> None:
        self.problem_from = problem_from

    def place(self, path: Path, number: int) -> Place:
        return Place(f"{path}:{number}", f"{stem(path)}:{number}", stem(path))

    def record(self, value: Any, place: Place) -> dict[str, Any]:
        return super().record(from_turns(value), place)

    def item(self, record: dict[str, Any], place: Place) -> Problem:
        if isinstance(record.get("answer"), str) and not record["answer"].strip():
            raise LeftOut(place.where, "with an empty answer")
        return self.problem_from({"id": place.default_id, "subgroup": place.source, **record}, place.where)

    def identity(self, item: Problem) -> str:
        return item.id

    def part(self, item: Problem) -> Split:
        return split_of(item.question)

    def in_dev(self, item: Problem) -> bool:
        # Not the hash's first byte: that one divides unmarked files.
        return hashlib.sha256(item.question.encode("utf-8", "surrogatepass")).digest()[1] % 8 == 1

    def file_split(self, name: str) -> str | None:
        path = Path(name)
        return (split_mark(path) or "") if is_jsonl(path) else None

    def distinct(self, items: list[Problem], data: str) -> list[Problem]:
        return distinct(items) if repeats_rows(data) else items

    def hub(self, hub_id: str, split: Split) -> list[Problem]:
        records, divided = hub_records(hub_id, split)
        name = hub_id.split("/")[1]
        rows = ((record, Place(f"{hub_id}:{number}", f"{name}-{number}", name)) for number, record in records)
        problems = self.distinct(self.items(rows, []), hub_id)
        return self.share(problems, split) if divided else problems


def load_problems(data: str, split: DataSplit, problem_from: ProblemFrom, folder: str | None = None) -> list[Problem]:
    """The problems of ``split``, in the order of the data.

    Args:
        data: a data set's name (looked for in ``folder``), a folder of ``.jsonl`` or ``.jsonl.gz`` files, one such
            file, or a hub id.
        split: as in :meth:`Loader.load`; rows are divided by a hash of their question.
        problem_from: makes a problem of a row's fields; raises UserError naming the place it is given.
    Warns:
        UserWarning: rows without an answer that can be read, which cannot be judged, were left out.
    Raises:
        UserError: nothing at ``data``, an unreadable file, malformed rows (each with file:line), or no matching row.
    """
    problems = _Rows(problem_from).load(data, split, folder)
    if not problems:
        raise UserError(f"task.data={data!r}: no {split} problem. Choose another split, or give other data.")
    return problems


def distinct(problems: list[Problem]) -> list[Problem]:
    """The first of each question's problems; none of a question that has different answers.

    Warns:
        UserWarning: questions were left out because their rows do not agree.
    """
    answers: dict[str, set[str]] = {}
    for problem in problems:
        answers.setdefault(problem.question, set()).add(str(problem.data["answer"]))
    first = {problem.question: problem for problem in reversed(problems)}
    agreed = {question for question, found in answers.items() if len(found) == 1}
    if len(agreed) < len(answers):
        count = len(answers) - len(agreed)
        warnings.warn(f"{count} questions whose rows have different answers were left out", stacklevel=2)
    return [first[question] for question in answers if question in agreed]
