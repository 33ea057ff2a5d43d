"""Knights & Knaves rows from a named set, the hub, a folder or a JSONL file. The format is in docs/tasks/kk.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.base import Split
from rlvr_cli.tasks.kk.puzzles import MAX_PEOPLE, MIN_PEOPLE, Statement, solve, structure_key
from rlvr_cli.tasks.rows import DataSplit, Loader, Place, from_hub, split_of

_FOLDER_FILE = re.compile(r"(\d)ppl\.(train|dev|test)\.jsonl(\.gz)?")
_MAX_STATEMENTS_TEXT = 20_000


@dataclass(frozen=True)
class Row:
    """One loaded puzzle. ``statements`` is None when the row has none; ``source`` is file:line or the hub split."""

    id: str
    question: str
    names: tuple[str, ...]
    solution: tuple[bool, ...]
    statements: tuple[Statement, ...] | None
    source: str


class _Rows(Loader[Row]):
    """Puzzles with as many people as one of ``people``: a folder and the hub have a file for each number."""

    accepts = "Give a folder of {n}ppl.{split}.jsonl files, a .jsonl file, or `K-and-K/knights-and-knaves`."
    row = "{question, names, solution, ...}"

    def __init__(self, people: list[int]) -> None:
        self.people = people
        self.no_files = (
            f"no file named like 3ppl.test.jsonl (or .jsonl.gz) for {_listed(people)} people. A folder holds "
            "{n}ppl.{train|dev|test}.jsonl[.gz]."
        )

    def item(self, record: dict[str, Any], place: Place) -> Row:
        outcome = _parse(record, place.where, place.default_id)
        if isinstance(outcome, str):
            raise UserError(f"{place.where}: {outcome}")
        return outcome

    def identity(self, item: Row) -> str:
        return item.id

    def part(self, item: Row) -> Split:
        return split_of(structure_key(item.statements) if item.statements is not None else item.question)

    def in_dev(self, item: Row) -> bool:
        return split_of(item.question) == "dev"

    def file_split(self, name: str) -> str | None:
        match = _FOLDER_FILE.fullmatch(name)
        return match[2] if match and int(match[1]) in self.people else None

    def hub(self, hub_id: str, split: Split) -> list[Row]:
        config = "test" if split == "test" else "train"
        rows: list[tuple[Any, Place]] = []
        for number in self.people:
            part, instead = f"{number}ppl", "a local folder of {n}ppl.{split}.jsonl files"
            table = from_hub(hub_id, f"{config}/{part}", instead, name=config, split=part)
            source = f"{hub_id} ({config}, {part})"
            rows += [(row, Place(f"{source}:{i}", f"{part}-{config}-{i}", part)) for i, row in enumerate(table)]
        found = self.items(rows, [])
        return found if config == "test" else self.share(found, split)


def load_rows(data: str, split: DataSplit, people: Iterable[int], folder: str | None = None) -> list[Row]:
    """The rows of ``split`` with a number of people in ``people``.

    Args:
        data: a data set's name (looked for in ``folder``), a folder of ``{n}ppl.{split}.jsonl[.gz]``, one ``.jsonl`` or
            ``.jsonl.gz`` file, or a hub id laid out as `K-and-K/knights-and-knaves` (configs train and test, splits
            2ppl to 8ppl).
        split: as in :meth:`Loader.load`. In files whose name says no split, rows are divided by structure as generated
            problems are; dev is the eighth of the train rows whose question hashes to it.
    Raises:
        UserError: nothing at ``data``, an unreadable file, malformed rows (each with file:line), or no matching row.
    """
    wanted = sorted(set(people))
    rows = _Rows(wanted).load(data, split, folder)
    matching = [row for row in rows if len(row.names) in wanted]
    if not matching:
        found = sorted({len(row.names) for row in rows})
        have = f"it has {_listed(found)} people" if found else "it has no rows"
        raise UserError(
            f"task.data={data!r}: no {split} problem with {_listed(wanted)} people ({have}). "
            "Set task.people to numbers that the data has, or choose another split."
        )
    return matching


def parse_row(record: Any, where: str) -> Row:
    """The puzzle of one row, ``where`` being its place and its id unless it has one.

    Raises:
        UserError: the row is malformed; says ``where`` and what is wrong.
    """
    outcome = _parse(record, where, default_id=where)
    if isinstance(outcome, str):
        raise UserError(f"{where}: {outcome}")
    return outcome


def _parse(record: Any, where: str, default_id: str) -> Row | str:
    if not isinstance(record, dict):
        return "not a JSON object; a row is {question, names, solution, ...}"
    question = record.get("question", record.get("quiz"))
    missing = [key for key in ("names", "solution") if key not in record]
    if question is None:
        missing.insert(0, "question")
    if missing:
        return f"no field {', '.join(missing)}; a row needs question (or quiz), names and solution"
    names, solution = record["names"], record["solution"]
    if not isinstance(question, str) or not question.strip():
        return "question must be text"
    if not _is_list_of(names, str) or not all(name.strip() for name in names) or len(set(names)) != len(names):
        return "names must be a list of different names"
    if not MIN_PEOPLE <= len(names) <= MAX_PEOPLE:
        return f"{len(names)} names; allowed are {MIN_PEOPLE} to {MAX_PEOPLE}"
    if not _is_list_of(solution, bool) or len(solution) != len(names):
        return "solution must be a list of true (knight) and false (knave), one for each name"
    statements = None
    if record.get("statements") is not None:
        statements = _statements(record["statements"], len(names))
        if statements is None:
            return "statements cannot be read; see the row format in docs/tasks/kk.md"
        if solve(statements) != [tuple(solution)]:
            return "statements do not have the stated solution as their only one"
    identifier = record.get("id", default_id)
    return Row(str(identifier), question, tuple(names), tuple(solution), statements, where)


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _statements(value: Any, people: int) -> tuple[Statement, ...] | None:
    if isinstance(value, str):
        if len(value) > _MAX_STATEMENTS_TEXT:
            return None
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None
    if not isinstance(value, list | tuple) or len(value) != people:
        return None
    parsed = [_statement(item, people, depth=0) for item in value]
    return None if any(item is None for item in parsed) else tuple(item for item in parsed if item is not None)


def _statement(value: Any, people: int, depth: int) -> Statement | None:
    if not isinstance(value, list | tuple) or not value or depth > 20:
        return None
    kind, *parts = value
    if kind in ("telling-truth", "lying"):
        valid = len(parts) == 1 and type(parts[0]) is int and 0 <= parts[0] < people
        return (kind, parts[0]) if valid else None
    arity = {"not": 1, "and": 2, "or": 2, "->": 2, "<=>": 2}.get(kind) if isinstance(kind, str) else None
    if arity != len(parts):
        return None
    inner = [_statement(part, people, depth + 1) for part in parts]
    return None if any(part is None for part in inner) else (kind, *inner)


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
