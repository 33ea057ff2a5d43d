"""HiTab rows from the hub, a folder or a JSONL file. The row format is in docs/tasks/hitab.md."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from rlvr_cli.config.errors import UserError
from rlvr_cli.config.paths import local_path
from rlvr_cli.tasks.base import Problem
from rlvr_cli.tasks.hitab.fields import problem_from, rendered
from rlvr_cli.tasks.jsonl import is_jsonl, lines, raise_if

DataSplit = Literal["train", "dev", "test", "all"]

_SPLITS = ("train", "dev", "test")
_FOLDER_FILE = re.compile(r"(train|dev|test)\.jsonl(\.gz)?")
_TABLES_FILES = ("tables.jsonl", "tables.jsonl.gz")
_SPLIT_MARK = re.compile(r"(?:^|[._-])(train|dev|test)(?:[._-]|$)")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def load_problems(data: str, split: DataSplit, *, corrected: bool = False) -> list[Problem]:
    """The problems of ``split`` in the data's order.

    Args:
        data: a folder of ``{train|dev|test}.jsonl[.gz]``, one ``.jsonl`` or ``.jsonl.gz`` file, or a hub id. Tables
            stand in the rows, or in ``tables.jsonl[.gz]`` in the same folder.
        split: where no dev file exists, dev is the eighth of the train rows whose table hashes to it, and train the
            rest. A file whose name says its split serves that one; one that does not is divided by its tables. ``all``
            takes every row of a file or folder.
        corrected: take ``question_checked`` and ``answer_checked`` where a row has them.
    Raises:
        UserError: nothing at ``data``, an unreadable file, malformed rows (each with file:line), or no matching row.
    """
    path = local_path(data)
    if path.is_dir():
        found = _folder(path, split, corrected)
    elif path.is_file():
        found = _file(path, split, corrected)
    elif _HUB_ID.fullmatch(data) and not data.endswith((".jsonl", ".gz")):
        found = _hub(data, split, corrected)
    else:
        raise UserError(
            f"task.data={data!r}: no such file or folder, and not a hub id (owner/name). Give a folder of "
            "{split}.jsonl files, a .jsonl file, or a hub id."
        )
    if not found:
        raise UserError(f"task.data={data!r}: no {split} problem in it. Choose another split.")
    return found


def _folder(folder: Path, split: DataSplit, corrected: bool) -> list[Problem]:
    files = {match[1]: path for path in sorted(folder.iterdir()) if (match := _FOLDER_FILE.fullmatch(path.name))}
    if not files:
        raise UserError(f"task.data={str(folder)!r}: no file named like test.jsonl (or .jsonl.gz).")
    if split == "all":
        return _read([files[name] for name in _SPLITS if name in files], corrected)
    source = "train" if split == "dev" and "dev" not in files else split
    if source not in files:
        raise UserError(
            f"task.data={str(folder)!r}: no {source}.jsonl (or .jsonl.gz) in it; it has {', '.join(sorted(files))}. "
            "Choose another split, or train on generated tables (task.data=null)."
        )
    problems = _read([files[source]], corrected)
    return problems if split == "test" or "dev" in files else _share_of_train(problems, split)


def _file(path: Path, split: DataSplit, corrected: bool) -> list[Problem]:
    if not is_jsonl(path):
        raise UserError(f"task.data={str(path)!r}: not a .jsonl or .jsonl.gz file. One JSON object a line is read.")
    mark = _SPLIT_MARK.search(path.name)
    if mark is not None and split not in (mark[1], "all") and not (mark[1] == "train" and split == "dev"):
        raise UserError(
            f"task.data={str(path)!r}: by its name this file holds {mark[1]} problems, and {split} ones were asked "
            "for. Give a folder with both, or the file of that split."
        )
    problems = _read([path], corrected)
    if split == "all" or (mark is not None and mark[1] == split != "train"):
        return problems
    if mark is not None:
        return _share_of_train(problems, split)
    return [problem for problem in problems if _split_of(problem) == split]


def _hub(hub_id: str, split: DataSplit, corrected: bool) -> list[Problem]:
    if split == "all":
        raise UserError(f"task.data={hub_id!r}: split `all` is for local files; choose train, dev or test.")
    from datasets import load_dataset

    source = "test" if split == "test" else "train"
    try:
        records = load_dataset(hub_id, split=source)
    # A missing data set, a wrong layout, no network: the hub client has no common base class below these.
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"task.data={hub_id!r}: cannot load {source} ({type(error).__name__}: {error}). Check the id and the "
            "network, or give a local folder of {split}.jsonl files."
        ) from error
    rows = ((f"{hub_id} ({source}):{index}", record) for index, record in enumerate(records))
    problems = _problems(rows, {}, corrected, [])
    return problems if split == "test" else _share_of_train(problems, split)


def _read(paths: list[Path], corrected: bool) -> list[Problem]:
    problems: list[Problem] = []
    for path in paths:
        faults: list[str] = []
        tables = _tables(path.parent, faults)
        problems += _problems(_records(path, faults), tables, corrected, faults)
    return problems


def _records(path: Path, faults: list[str]) -> Iterable[tuple[str, Any]]:
    for number, line in lines(path):
        where = f"{path}:{number}"
        try:
            yield where, json.loads(line)
        except (ValueError, RecursionError) as error:
            faults.append(f"{where}: not a JSON object ({type(error).__name__}: {str(error)[:80]})")


def _tables(folder: Path, faults: list[str]) -> dict[str, str]:
    """Rendered tables by id, of the folder's file of tables if it has one."""
    path = next((folder / name for name in _TABLES_FILES if (folder / name).is_file()), None)
    tables: dict[str, str] = {}
    for where, record in _records(path, faults) if path is not None else ():
        try:
            if not isinstance(record, dict) or "id" not in record:
                raise UserError(f"{where}: a table is {{id, title, texts}}")
            tables[str(record["id"])] = rendered(record, where)
        except UserError as error:
            faults += error.problems
    return tables


def _problems(
    rows: Iterable[tuple[str, Any]], tables: dict[str, str], corrected: bool, faults: list[str]
) -> list[Problem]:
    found: list[Problem] = []
    places: dict[str, str] = {}
    for where, record in rows:
        try:
            problem = _problem(record, where, tables, corrected)
        except UserError as error:
            faults += error.problems
            continue
        if problem.id in places:
            faults.append(f"{where}: id {problem.id!r} is also that of {places[problem.id]}; ids must be distinct")
        places.setdefault(problem.id, where)
        found.append(problem)
    raise_if(faults)
    return found


def _problem(record: Any, where: str, tables: dict[str, str], corrected: bool) -> Problem:
    if not isinstance(record, dict):
        raise UserError(f"{where}: not a JSON object; a row is {{question, table or table_id, answer}}")
    fields = dict(record)
    if corrected:
        # One public row has its corrected answer in the question's field; such a row stays as it was.
        for key, kind in (("question", str), ("answer", list)):
            if isinstance(record.get(f"{key}_checked"), kind):
                fields[key] = record[f"{key}_checked"]
    if fields.get("table") is None and "table_id" in record:
        if str(record["table_id"]) not in tables:
            raise UserError(f"{where}: table {record['table_id']!r} is not in tables.jsonl beside this file")
        fields["table"] = tables[str(record["table_id"])]
    problem = problem_from(fields, where)
    if not problem.question.strip() or not problem.data["table"]:
        raise UserError(f"{where}: a row needs question and table (or table_id, with tables.jsonl beside the file)")
    return problem


def _share_of_train(problems: list[Problem], split: DataSplit) -> list[Problem]:
    return [problem for problem in problems if (_hash(problem) == 1) == (split == "dev")]


def _split_of(problem: Problem) -> str:
    return {0: "test", 1: "dev"}.get(_hash(problem), "train")


def _hash(problem: Problem) -> int:
    """The eighth that a problem's table falls into: questions on one table stay together."""
    return hashlib.sha256(problem.data["table"].encode("utf-8", "surrogatepass")).digest()[0] % 8
