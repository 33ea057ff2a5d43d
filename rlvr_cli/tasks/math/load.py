"""Rows of question and answer from the hub, a folder or a JSONL file. The row format is in docs/tasks/math.md."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlvr_cli.config.errors import UserError
from rlvr_cli.config.paths import local_path
from rlvr_cli.tasks.base import Problem
from rlvr_cli.tasks.jsonl import is_jsonl, lines, raise_if
from rlvr_cli.tasks.math.hub import hub_records

DataSplit = Literal["train", "dev", "test", "all"]
ProblemFrom = Callable[[dict[str, Any], str], Problem]

_SPLIT_MARK = re.compile(r"(?:^|[._-])(train|dev|test)(?:[._-]|$)")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class _Source:
    """Where a row stands and what is known of it from there."""

    where: str
    default_id: str
    subgroup: str


def load_problems(data: str, split: DataSplit, problem_from: ProblemFrom) -> list[Problem]:
    """The problems of ``split``, in the order of the data.

    Args:
        data: a folder of ``.jsonl`` or ``.jsonl.gz`` files, one such file, or a hub id.
        split: a file whose name says its split serves that one; in one that does not, rows are divided by a hash of
            their question (1/8 test, 1/8 dev). Where no dev file exists, dev is an eighth of the train rows. ``all``
            takes every row of a file or folder.
        problem_from: makes a problem of a row's fields; raises UserError naming the place it is given.
    Warns:
        UserWarning: rows with an empty answer, which cannot be judged, were left out.
    Raises:
        UserError: nothing at ``data``, an unreadable file, malformed rows (each with file:line), or no matching row.
    """
    path = local_path(data)
    if path.is_dir():
        problems = _folder(path, split, problem_from)
    elif path.is_file():
        problems = _file(path, split, problem_from)
    elif _HUB_ID.fullmatch(data) and not data.endswith((".jsonl", ".gz")):
        problems = _hub(data, split, problem_from)
    else:
        raise UserError(
            f"task.data={data!r}: no such file or folder, and not a hub id (owner/name). Give a .jsonl or .jsonl.gz "
            "file, a folder of them, or a hub id such as `openai/gsm8k`."
        )
    if not problems:
        raise UserError(f"task.data={data!r}: no {split} problem. Choose another split, or give other data.")
    return problems


def has_split_mark(data: str) -> bool:
    """Whether the split of ``data`` is settled by its layout: a folder, a hub id, or a file named for its split."""
    path = local_path(data)
    return not path.is_file() or _SPLIT_MARK.search(path.name) is not None


def split_of(key: str) -> Literal["train", "dev", "test"]:
    """The split a text falls into by its hash: an eighth test, an eighth dev, the rest train."""
    number = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[0] % 8
    return "test" if number == 0 else "dev" if number == 1 else "train"


def _folder(folder: Path, split: DataSplit, problem_from: ProblemFrom) -> list[Problem]:
    files = [path for path in sorted(folder.iterdir()) if is_jsonl(path)]
    if not files:
        raise UserError(f"task.data={str(folder)!r}: no .jsonl or .jsonl.gz file in this folder.")
    if split == "all":
        return _read(files, problem_from)
    marks = {path: mark[1] if (mark := _SPLIT_MARK.search(path.name)) else None for path in files}
    has_dev = "dev" in marks.values()
    problems = _read([path for path in files if marks[path] == split], problem_from)
    if not has_dev and split in ("train", "dev"):
        train = problems if split == "train" else _read([p for p in files if marks[p] == "train"], problem_from)
        problems = [problem for problem in train if _in_dev_share(problem) == (split == "dev")]
    unmarked = _read([path for path in files if marks[path] is None], problem_from)
    return problems + [problem for problem in unmarked if split_of(problem.question) == split]


def _file(path: Path, split: DataSplit, problem_from: ProblemFrom) -> list[Problem]:
    if not is_jsonl(path):
        raise UserError(f"task.data={str(path)!r}: not a .jsonl or .jsonl.gz file. One JSON object a line is read.")
    mark = _SPLIT_MARK.search(path.name)
    if mark is not None and split not in ("all", mark[1]) and (mark[1], split) != ("train", "dev"):
        raise UserError(
            f"task.data={str(path)!r}: by its name this file holds {mark[1]} problems, and {split} ones were asked "
            "for. Give a folder with both, or the file of that split."
        )
    problems = _read([path], problem_from)
    if split == "all" or (mark is not None and mark[1] != "train"):
        return problems
    if mark is None:
        return [problem for problem in problems if split_of(problem.question) == split]
    return [problem for problem in problems if _in_dev_share(problem) == (split == "dev")]


def _hub(hub_id: str, split: DataSplit, problem_from: ProblemFrom) -> list[Problem]:
    records, divided = hub_records(hub_id, split)
    name = hub_id.split("/")[1]
    rows = ((record, _Source(f"{hub_id}:{number}", f"{name}-{number}", name)) for number, record in enumerate(records))
    problems = _parsed(rows, problem_from)
    if not divided:
        return problems
    return [problem for problem in problems if _in_dev_share(problem) == (split == "dev")]


def _read(paths: list[Path], problem_from: ProblemFrom) -> list[Problem]:
    rows: list[tuple[Any, _Source]] = []
    broken: list[str] = []
    for path in paths:
        stem = path.name.removesuffix(".gz").removesuffix(".jsonl")
        for number, line in lines(path):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                broken.append(f"{path}:{number}: not a JSON object ({type(error).__name__}: {str(error)[:80]})")
                continue
            rows.append((record, _Source(f"{path}:{number}", f"{stem}:{number}", stem)))
    raise_if(broken)
    return _parsed(rows, problem_from)


def _parsed(rows: Iterable[tuple[Any, _Source]], problem_from: ProblemFrom) -> list[Problem]:
    problems: list[Problem] = []
    broken: list[str] = []
    left_out: list[str] = []
    seen: dict[str, str] = {}
    for record, source in rows:
        if not isinstance(record, dict):
            broken.append(f"{source.where}: not a JSON object; a row is {{question, answer, ...}}")
            continue
        if isinstance(record.get("answer"), str) and not record["answer"].strip():
            left_out.append(source.where)
            continue
        try:
            problem = problem_from({"id": source.default_id, "subgroup": source.subgroup, **record}, source.where)
        except UserError as error:
            broken.append(str(error))
            continue
        if problem.id in seen:
            broken.append(f"{source.where}: id {problem.id!r} is also that of {seen[problem.id]}; ids must be distinct")
        seen.setdefault(problem.id, source.where)
        problems.append(problem)
    raise_if(broken)
    if left_out:
        shown = ", ".join(left_out[:3]) + (" ..." if len(left_out) > 3 else "")
        warnings.warn(f"{len(left_out)} rows with an empty answer were left out ({shown})", stacklevel=2)
    return problems


def _in_dev_share(problem: Problem) -> bool:
    # Not the hash's first byte: that one divides unmarked files.
    return hashlib.sha256(problem.question.encode("utf-8", "surrogatepass")).digest()[1] % 8 == 1
