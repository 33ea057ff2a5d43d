"""HiTab rows from a named set, the hub, a folder or a JSONL file. The row format is in docs/tasks/hitab.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.base import Problem, Split
from rlvr_cli.tasks.hitab.fields import problem_from, rendered
from rlvr_cli.tasks.jsonl import BadLine, lines, parsed, text_problem
from rlvr_cli.tasks.rows import DataSplit, Loader, Place, from_hub, split_of

_TABLES_FILES = ("tables.jsonl", "tables.jsonl.gz")


class _Rows(Loader[Problem]):
    """Questions on tables, which stand in the rows or in a file beside them; those on one table stay together."""

    row = "{question, table or table_id, answer}"

    def __init__(self, corrected: bool) -> None:
        self.corrected = corrected
        self.tables: dict[str, str] = {}

    def begin(self, path: Path, wrong: list[str]) -> None:
        self.tables = _tables(path.parent, wrong)

    def item(self, record: dict[str, Any], place: Place) -> Problem:
        fields = dict(record)
        if self.corrected:
            # One public row has its corrected answer in the question's field; such a row stays as it was.
            for key, kind in (("question", str), ("answer", list)):
                if isinstance(record.get(f"{key}_checked"), kind):
                    fields[key] = record[f"{key}_checked"]
        if fields.get("table") is None and "table_id" in record:
            if str(record["table_id"]) not in self.tables:
                raise UserError(f"{place.where}: table {record['table_id']!r} is not in tables.jsonl beside this file")
            fields["table"] = self.tables[str(record["table_id"])]
        problem = problem_from(fields, place.where)
        if not problem.question.strip() or not problem.data["table"]:
            raise UserError(
                f"{place.where}: a row needs question and table (or table_id, with tables.jsonl beside the file)"
            )
        return problem

    def identity(self, item: Problem) -> str:
        return item.id

    def part(self, item: Problem) -> Split:
        return split_of(item.data["table"])

    def missing(self, folder: Path, source: str, found: Sequence[str]) -> None:
        raise UserError(
            f"task.data={str(folder)!r}: no {source}.jsonl (or .jsonl.gz) in it; it has {', '.join(sorted(found))}. "
            "Choose another split, or train on generated tables (task.data=null)."
        )

    def hub(self, hub_id: str, split: Split) -> list[Problem]:
        source = "test" if split == "test" else "train"
        table = from_hub(hub_id, source, "a local folder of {split}.jsonl files", split=source)
        rows = [(row, Place(f"{hub_id} ({source}):{i}", "", "hitab")) for i, row in enumerate(table)]
        problems = self.items(rows, [])
        return problems if split == "test" else self.share(problems, split)


def load_problems(data: str, split: DataSplit, *, corrected: bool = False, folder: str | None = None) -> list[Problem]:
    """The problems of ``split`` in the data's order.

    Args:
        data: a data set's name (looked for in ``folder``), a folder of ``{train|dev|test}.jsonl[.gz]``, one ``.jsonl``
            or ``.jsonl.gz`` file, or a hub id. Tables stand in the rows, or in ``tables.jsonl[.gz]`` beside the file.
        split: as in :meth:`Loader.load`; rows are divided by their tables.
        corrected: take ``question_checked`` and ``answer_checked`` where a row has them.
    Raises:
        UserError: nothing at ``data``, an unreadable file, malformed rows (each with file:line), or no matching row.
    """
    found = _Rows(corrected).load(data, split, folder)
    if not found:
        raise UserError(f"task.data={data!r}: no {split} problem in it. Choose another split.")
    return found


def _tables(folder: Path, wrong: list[str]) -> dict[str, str]:
    """Rendered tables by id, of the folder's file of tables if it has one."""
    path = next((folder / name for name in _TABLES_FILES if (folder / name).is_file()), None)
    tables: dict[str, str] = {}
    for number, line in lines(path) if path is not None else ():
        where = f"{path}:{number}"
        try:
            record = parsed(line)
        except BadLine as error:
            wrong.append(f"{where}: {error}")
            continue
        try:
            if not isinstance(record, dict) or "id" not in record:
                raise UserError(f"{where}: a table is {{id, title, texts}}")
            problem = text_problem(record)
            if problem is not None:
                raise UserError(f"{where}: {problem}")
            tables[str(record["id"])] = rendered(record, where)
        except UserError as error:
            wrong += error.problems
    return tables
