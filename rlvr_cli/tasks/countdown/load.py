"""Countdown problems from the hub, a folder or a JSONL file. The row format is in docs/tasks/countdown.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rlvr_cli.config.errors import UserError
from rlvr_cli.config.paths import local_path
from rlvr_cli.tasks.base import Problem
from rlvr_cli.tasks.countdown.prompt import question
from rlvr_cli.tasks.countdown.puzzles import MAX_NUMBERS, MIN_NUMBERS, Puzzle, key
from rlvr_cli.tasks.jsonl import is_jsonl, lines, raise_if
from rlvr_cli.tasks.kk.puzzles import split_of

DataSplit = Literal["train", "dev", "test", "all"]

_FOLDER_FILE = re.compile(r"(train|dev|test)\.jsonl(\.gz)?")
_SPLIT_MARK = re.compile(r"(?:^|[._-])(train|dev|test)(?:[._-]|$)")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_LARGEST = 10**9

# TinyZero's rows of `Jiayi-Pan/Countdown-Tasks-3to4`, whose one split is called train.
_HUB_TRAIN, _HUB_TEST = 327_680, 1_024


def problem_from(fields: Mapping[str, Any], where: str) -> Problem:
    """The problem of a row's fields `nums` and `target`; `id` is ``where`` when there is none.

    Raises UserError naming ``where`` and the field.
    """
    missing = [name for name in ("nums", "target") if name not in fields]
    if missing:
        raise UserError(f"{where}: no field {', '.join(missing)}; a row needs nums (the numbers) and target")
    nums, target = fields["nums"], fields["target"]
    if not isinstance(nums, list) or not all(type(n) is int and 0 <= n <= _LARGEST for n in nums):
        raise UserError(f"{where}: nums must be a list of whole numbers from 0 to {_LARGEST}")
    if not MIN_NUMBERS <= len(nums) <= MAX_NUMBERS:
        raise UserError(f"{where}: nums has {len(nums)} numbers; allowed are {MIN_NUMBERS} to {MAX_NUMBERS}")
    if type(target) is not int or abs(target) > _LARGEST:
        raise UserError(f"{where}: target must be a whole number from -{_LARGEST} to {_LARGEST}")
    return make_problem(Puzzle(tuple(nums), target), str(fields.get("id", where)))


def make_problem(puzzle: Puzzle, identifier: str) -> Problem:
    """The problem that asks for a puzzle's solution."""
    return Problem(
        id=identifier,
        question=question(puzzle.nums, puzzle.target),
        data={"nums": list(puzzle.nums), "target": puzzle.target},
        subgroup=f"{len(puzzle.nums)} numbers",
        structure=key(puzzle),
    )


def load_problems(data: str, split: DataSplit, numbers: Iterable[int]) -> list[Problem]:
    """The problems of ``split`` with as many numbers as one of ``numbers``, in the order of the data.

    Args:
        data: a folder of `{train|dev|test}.jsonl[.gz]`, one `.jsonl` or `.jsonl.gz` file, or a hub id laid out as
            `Jiayi-Pan/Countdown-Tasks-3to4`.
        split: where no dev rows exist, dev is the eighth of the train rows that their key hashes to, and train the
            rest. A file whose name says its split serves that one; in one that does not, rows are divided as
            generated problems are. ``all`` takes every row of a file or folder.
    Raises:
        UserError: nothing at ``data``, an unreadable file, malformed rows (each with file:line), or no matching row.
    """
    wanted = sorted(set(numbers))
    path = local_path(data)
    if path.is_dir():
        problems = _folder_problems(path, split)
    elif path.is_file():
        problems = _file_problems(path, split)
    elif _HUB_ID.fullmatch(data) and not data.endswith((".jsonl", ".gz")):
        problems = _hub_problems(data, split)
    else:
        raise UserError(
            f"task.data={data!r}: no such file or folder, and not a hub id (owner/name). "
            "Give a folder of {split}.jsonl files, a .jsonl file, or `Jiayi-Pan/Countdown-Tasks-3to4`."
        )
    matching = [problem for problem in problems if len(problem.data["nums"]) in wanted]
    if not matching:
        found = sorted({len(problem.data["nums"]) for problem in problems})
        have = f"it has {_listed(found)} numbers" if found else "it has no rows"
        raise UserError(
            f"task.data={data!r}: no {split} problem with {_listed(wanted)} numbers ({have}). "
            "Set task.numbers to what the data has, or choose another split."
        )
    return matching


def _folder_problems(folder: Path, split: DataSplit) -> list[Problem]:
    files: dict[str, list[Path]] = {"train": [], "dev": [], "test": []}
    for path in sorted(folder.iterdir()):
        if match := _FOLDER_FILE.fullmatch(path.name):
            files[match[1]].append(path)
    if not any(files.values()):
        raise UserError(
            f"task.data={str(folder)!r}: no file named test.jsonl (or .jsonl.gz). A folder holds "
            "{train|dev|test}.jsonl[.gz]."
        )
    if split == "all":
        return _read_files([path for group in files.values() for path in group])
    if split == "test" or files["dev"]:
        return _read_files(files[split])
    return _share(_read_files(files["train"]), split)


def _file_problems(path: Path, split: DataSplit) -> list[Problem]:
    if not is_jsonl(path):
        raise UserError(f"task.data={str(path)!r}: not a .jsonl or .jsonl.gz file. One JSON object a line is read.")
    problems = _read_files([path])
    mark = _SPLIT_MARK.search(path.name)
    if split == "all":
        return problems
    if mark is None:
        return [problem for problem in problems if split_of(str(problem.structure)) == split]
    if mark[1] == "train" and split in ("train", "dev"):
        return _share(problems, split)
    if mark[1] != split:
        raise UserError(
            f"task.data={str(path)!r}: by its name this file holds {mark[1]} problems, and {split} ones were asked "
            "for. Give a folder with both, or the file of that split."
        )
    return problems


def _hub_problems(hub_id: str, split: DataSplit) -> list[Problem]:
    if split == "all":
        raise UserError(f"task.data={hub_id!r}: split `all` is for local files; choose train, dev or test.")
    from datasets import load_dataset

    try:
        table = load_dataset(hub_id, split="train")
    # A missing data set, a wrong layout, no network: the hub client has no common base class below these.
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"task.data={hub_id!r}: cannot load its split train ({type(error).__name__}: {error}). Check the id and "
            "the network, or give a local folder of {split}.jsonl files."
        ) from error
    problems: list[Problem] = []
    wrong: list[str] = []
    for index, record in enumerate(table):
        if index == _HUB_TRAIN + _HUB_TEST:
            break
        _parse_into(problems, wrong, record, f"{hub_id}:{index}", default_id=f"countdown-{index}")
    raise_if(wrong)
    if len(problems) < _HUB_TRAIN + _HUB_TEST:
        return [problem for problem in problems if split_of(str(problem.structure)) == split]
    train, test = problems[:_HUB_TRAIN], problems[_HUB_TRAIN:]
    if split == "test":
        return test
    held_out = {problem.structure for problem in test}
    return _share([problem for problem in train if problem.structure not in held_out], split)


def _share(train: Sequence[Problem], split: DataSplit) -> list[Problem]:
    """The dev eighth of train rows, or the rest; equal puzzles stay together."""
    return [problem for problem in train if (split_of(str(problem.structure)) == "dev") == (split == "dev")]


def _read_files(paths: Sequence[Path]) -> list[Problem]:
    problems: list[Problem] = []
    wrong: list[str] = []
    seen: dict[str, str] = {}
    for path in paths:
        for number, line in lines(path):
            where = f"{path}:{number}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                wrong.append(f"{where}: not a JSON object ({type(error).__name__}: {str(error)[:80]})")
                continue
            if not _parse_into(problems, wrong, record, where, default_id=f"{path.name}:{number}"):
                continue
            identifier = problems[-1].id
            if identifier in seen:
                wrong.append(f"{where}: id {identifier!r} is also that of {seen[identifier]}; ids must be distinct")
            seen.setdefault(identifier, where)
    raise_if(wrong)
    return problems


def _parse_into(problems: list[Problem], wrong: list[str], record: Any, where: str, *, default_id: str) -> bool:
    if not isinstance(record, dict):
        wrong.append(f'{where}: not a JSON object; a row is {{"nums": [...], "target": n}}')
        return False
    try:
        problems.append(problem_from({"id": default_id, **record}, where))
    except UserError as error:
        wrong.extend(error.problems)
        return False
    return True


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
