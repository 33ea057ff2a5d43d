"""Knights & Knaves rows from the hub, a folder or a JSONL file. The row format is in docs/tasks/kk.md."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlvr_cli.config.errors import UserError
from rlvr_cli.config.paths import local_path
from rlvr_cli.tasks.jsonl import is_jsonl, lines, raise_if
from rlvr_cli.tasks.kk.puzzles import MAX_PEOPLE, MIN_PEOPLE, Statement, solve, split_of, structure_key

DataSplit = Literal["train", "dev", "test", "all"]

_FOLDER_FILE = re.compile(r"(\d)ppl\.(train|dev|test)\.jsonl(\.gz)?")
_SPLIT_MARK = re.compile(r"(?:^|[._-])(train|dev|test)(?:[._-]|$)")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
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


def load_rows(data: str, split: DataSplit, people: Iterable[int]) -> list[Row]:
    """The rows of ``split`` with a number of people in ``people``.

    Args:
        data: a folder of ``{n}ppl.{split}.jsonl[.gz]``, one ``.jsonl`` or ``.jsonl.gz`` file, or a hub id laid out as
            `K-and-K/knights-and-knaves` (configs train and test, splits 2ppl to 8ppl).
        split: where no dev files exist, dev is the eighth of the train rows whose question hashes to it, and train the
            rest. A file whose name says its split serves that one; in one that does not, rows are divided by
            structure as generated problems are. ``all`` takes every row of a file or folder.
    Raises:
        UserError: nothing at ``data``, an unreadable file, malformed rows (each with file:line), or no matching row.
    """
    wanted = sorted(set(people))
    path = local_path(data)
    if path.is_dir():
        rows = _folder_rows(path, split, wanted)
    elif path.is_file():
        rows = _file_rows(path, split)
    elif _HUB_ID.fullmatch(data) and not data.endswith((".jsonl", ".gz")):
        rows = _hub_rows(data, split, wanted)
    else:
        raise UserError(
            f"task.data={data!r}: no such file or folder, and not a hub id (owner/name). "
            "Give a folder of {n}ppl.{split}.jsonl files, a .jsonl file, or `K-and-K/knights-and-knaves`."
        )
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


def has_split_mark(data: str) -> bool:
    """Whether the split of ``data`` is settled by its layout: a folder, a hub id, or a file named for its split."""
    path = local_path(data)
    return not path.is_file() or _SPLIT_MARK.search(path.name) is not None


def _folder_rows(folder: Path, split: DataSplit, people: list[int]) -> list[Row]:
    files: dict[str, list[Path]] = {"train": [], "dev": [], "test": []}
    for path in sorted(folder.iterdir()):
        match = _FOLDER_FILE.fullmatch(path.name)
        if match and int(match[1]) in people:
            files[match[2]].append(path)
    if not any(files.values()):
        raise UserError(
            f"task.data={str(folder)!r}: no file named like 3ppl.test.jsonl (or .jsonl.gz) for {_listed(people)} "
            "people. A folder holds {n}ppl.{train|dev|test}.jsonl[.gz]."
        )
    if split == "all":
        return _read_files([path for group in files.values() for path in group])
    if split == "test" or files["dev"]:
        return _read_files(files[split])
    return [row for row in _read_files(files["train"]) if _in_dev_share(row) == (split == "dev")]


def _file_rows(path: Path, split: DataSplit) -> list[Row]:
    if not is_jsonl(path):
        raise UserError(f"task.data={str(path)!r}: not a .jsonl or .jsonl.gz file. One JSON object a line is read.")
    rows = _read_files([path])
    mark = _SPLIT_MARK.search(path.name)
    if split == "all":
        return rows
    if mark is None:
        return [row for row in rows if split_of(_structure_or_question(row)) == split]
    if mark[1] == "train" and split in ("train", "dev"):
        return [row for row in rows if _in_dev_share(row) == (split == "dev")]
    if mark[1] != split:
        raise UserError(
            f"task.data={str(path)!r}: by its name this file holds {mark[1]} problems, and {split} ones were asked "
            "for. Give a folder with both, or the file of that split."
        )
    return rows


def _hub_rows(hub_id: str, split: DataSplit, people: list[int]) -> list[Row]:
    if split == "all":
        raise UserError(f"task.data={hub_id!r}: split `all` is for local files; choose train, dev or test.")
    from datasets import load_dataset

    config = "test" if split == "test" else "train"
    rows: list[Row] = []
    problems: list[str] = []
    for number in people:
        source = f"{hub_id} ({config}, {number}ppl)"
        try:
            table = load_dataset(hub_id, name=config, split=f"{number}ppl")
        # A missing data set, a wrong layout, no network: the hub client has no common base class below these.
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(
                f"task.data={hub_id!r}: cannot load {config}/{number}ppl ({type(error).__name__}: {error}). Check the "
                "id and the network, or give a local folder of {n}ppl.{split}.jsonl files."
            ) from error
        for index, record in enumerate(table):
            _parse_into(rows, problems, record, f"{source}:{index}", default_id=f"{number}ppl-{config}-{index}")
    raise_if(problems)
    if config == "test":
        return rows
    return [row for row in rows if _in_dev_share(row) == (split == "dev")]


def _read_files(paths: list[Path]) -> list[Row]:
    rows: list[Row] = []
    problems: list[str] = []
    for path in paths:
        for number, line in lines(path):
            where = f"{path}:{number}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                problems.append(f"{where}: not a JSON object ({type(error).__name__}: {str(error)[:80]})")
                continue
            _parse_into(rows, problems, record, where, default_id=f"{path.name}:{number}")
    seen: dict[str, str] = {}
    for row in rows:
        if row.id in seen:
            problems.append(f"{row.source}: id {row.id!r} is also that of {seen[row.id]}; ids must be distinct")
        seen.setdefault(row.id, row.source)
    raise_if(problems)
    return rows


def _parse_into(rows: list[Row], problems: list[str], record: Any, where: str, *, default_id: str) -> None:
    outcome = _parse(record, where, default_id)
    if isinstance(outcome, Row):
        rows.append(outcome)
    else:
        problems.append(f"{where}: {outcome}")


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


def _in_dev_share(row: Row) -> bool:
    return hashlib.sha256(row.question.encode()).digest()[0] % 8 == 1


def _structure_or_question(row: Row) -> str:
    return structure_key(row.statements) if row.statements is not None else row.question


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
