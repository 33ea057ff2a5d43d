"""Rows of data from a named set, a file, a folder or the hub: the shape that every task's loader shares."""

from __future__ import annotations

import hashlib
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.tasks.base import Split
from rlvr_cli.tasks.jsonl import BadLine, is_jsonl, lines, parsed, raise_if, text_problem
from rlvr_cli.tasks.sets import data_sets, generated_hint, location, looks_like_hub_id

DataSplit = Literal["train", "dev", "test", "all"]
NO_ALL = "split `all` is for loaded problems (task.data); generated ones have train, dev and test."
Item = TypeVar("Item")

_SPLIT_MARK = re.compile(r"(?:^|[._-])(train|dev|test)(?:[._-]|$)")
_SPLIT_FILE = re.compile(r"(train|dev|test)\.jsonl(\.gz)?")
_PLACES_SHOWN = 3
# What lies beside rows: HiTab's tables.
_BESIDE = ("tables.jsonl", "tables.jsonl.gz")


@dataclass(frozen=True)
class Place:
    """Where a row stands.

    Attributes:
        where: what errors name: `file:line`, or the hub data set and the row's number.
        default_id: the id of its problem unless the row has one.
        source: the file's name without its endings, or the hub data set's name.
    """

    where: str
    default_id: str
    source: str


class LeftOut(UserError):
    """A row that is well formed, yet cannot be judged: a loader leaves it out and counts it.

    Args:
        where: its place.
        reason: goes on from "rows", as `without an answer`.
    """

    def __init__(self, where: str, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{where}: a row {reason} cannot be judged")


class Loader(ABC, Generic[Item]):
    """Reads the rows of one task's data; a task says how a row becomes a problem and how unmarked rows are divided.

    Attributes:
        accepts: what may be given, for the error where there is nothing.
        row: what a row is, for the error where it is no JSON object.
        no_files: the error for a folder without a file of the task, without its name.
        sorted_all: split `all` of a folder is in the order of its files' names; else train, dev, test.
    """

    accepts = "Give a folder of {split}.jsonl files, a .jsonl file, or a hub id."
    row = "an object"
    no_files = "no file named like test.jsonl (or .jsonl.gz)."
    sorted_all = False

    @abstractmethod
    def item(self, record: dict[str, Any], place: Place) -> Item:
        """What a row becomes. Raises UserError naming ``place.where``, or LeftOut."""

    @abstractmethod
    def identity(self, item: Item) -> str:
        """The id, distinct within what is read."""

    @abstractmethod
    def part(self, item: Item) -> Split:
        """The split that a row belongs to where its file's name says none."""

    def in_dev(self, item: Item) -> bool:
        """Whether a training row is of the eighth that serves as dev where no dev rows exist."""
        return self.part(item) == "dev"

    @abstractmethod
    def hub(self, hub_id: str, split: Split) -> list[Item]:
        """The problems of ``split`` of a hub data set. Raises UserError."""

    def file_split(self, name: str) -> str | None:
        """The split of a folder's file by its name; "" = it is divided, None = it is no file of the task's data."""
        match = _SPLIT_FILE.fullmatch(name)
        return match[1] if match else None

    def place(self, path: Path, number: int) -> Place:
        """The place of line ``number`` of a file."""
        return Place(f"{path}:{number}", f"{path.name}:{number}", stem(path))

    def begin(self, path: Path, wrong: list[str]) -> None:
        """Called before a file is read: for what lies beside it. What is wrong with that goes into ``wrong``."""

    def missing(self, folder: Path, source: str, found: Sequence[str]) -> None:
        """Called where a folder has files, but none of the split ``source``; raises UserError if that is an error."""

    def distinct(self, items: list[Item], data: str) -> list[Item]:
        """The items of ``data`` (a set's name or a hub id) without repeated ones, where that data set repeats rows."""
        return items

    def load(self, data: str, split: DataSplit, folder: str | None = None) -> list[Item]:
        """The items of ``split`` in the order of the data; none is no error.

        Args:
            data: a data set's name, a hub id, a file or a folder.
            split: a file whose name says its split serves that one; in one that does not, rows are divided. Where no
                dev rows exist, dev is an eighth of the train rows, and train the rest. ``all`` takes every row of a
                file or folder. Of a named set, ``test`` is all of its test rows, whatever the name of their file.
            folder: where named sets are looked for; None = the hub.
        Warns:
            UserWarning: rows that are no problem were left out.
        Raises:
            UserError: nothing at ``data``, an unreadable file, or malformed rows (each with file:line).
        """
        if data in data_sets():
            return self._named(data, split, local_path(folder) if folder is not None else None)
        path = local_path(data)
        if path.is_dir():
            return self._folder(path, split)
        if path.is_file():
            return self._file(path, split)
        if looks_like_hub_id(data):
            return self._hub(data, split)
        hint = did_you_mean(data, data_sets())
        raise UserError(
            f"task.data={data!r}: no such file or folder, and not a hub id (owner/name).{hint} {self.accepts}"
        )

    def items(self, rows: Iterable[tuple[Any, Place]], wrong: list[str]) -> list[Item]:
        """The items of ``rows``. Raises UserError with every problem, those in ``wrong`` first."""
        found: list[Item] = []
        places: dict[str, str] = {}
        left_out: dict[str, list[str]] = {}
        for record, place in rows:
            try:
                item = self.item(self._checked(record, place), place)
            except LeftOut as error:
                left_out.setdefault(error.reason, []).append(place.where)
                continue
            except UserError as error:
                wrong += error.problems
                continue
            identity = self.identity(item)
            if identity in places:
                wrong.append(f"{place.where}: id {identity!r} is also that of {places[identity]}; ids must be distinct")
            places.setdefault(identity, place.where)
            found.append(item)
        raise_if(wrong)
        for reason, where in left_out.items():
            shown = ", ".join(where[:_PLACES_SHOWN]) + (" ..." if len(where) > _PLACES_SHOWN else "")
            warnings.warn(f"{len(where)} rows {reason} were left out ({shown})", stacklevel=2)
        return found

    def record(self, value: Any, place: Place) -> dict[str, Any]:
        """A row's JSON value as an object. Raises UserError where it is none."""
        if not isinstance(value, dict):
            raise UserError(f"{place.where}: not a JSON object; a row is {self.row}")
        return value

    def _checked(self, value: Any, place: Place) -> dict[str, Any]:
        """A row as an object that can be written; an id of null is none. Raises UserError."""
        record = self.record(value, place)
        problem = text_problem(record)
        if problem is not None:
            raise UserError(f"{place.where}: {problem}")
        return {key: part for key, part in record.items() if key != "id" or part is not None}

    def share(self, train: list[Item], split: DataSplit) -> list[Item]:
        """The dev eighth of train rows, or the rest."""
        return [item for item in train if self.in_dev(item) == (split == "dev")]

    def divided(self, items: list[Item], split: DataSplit) -> list[Item]:
        """Those of ``split`` among rows whose file says no split."""
        return [item for item in items if self.part(item) == split]

    def _named(self, name: str, split: DataSplit, folder: Path | None) -> list[Item]:
        one = data_sets()[name]
        if folder is None:
            return self._hub(location(name, next(iter(one.files)) if split == "all" else split, None), split)
        shared = len(set(one.files.values())) < len(one.files)
        if split == "all":
            places = {Path(location(name, part, folder)): part for part in one.files}
            paths: list[Path] = []
            for path, part in places.items():
                paths += self._every(self._files(path, "" if shared else part)) if path.is_dir() else [path]
            return self.distinct(self._read(paths), name)
        home = "train" if split == "dev" else split
        path = Path(location(name, split, folder))
        if path.is_dir():
            return self.distinct(self._folder(path, split, "" if shared else home), name)
        items = self.distinct(self._read([path]), name)
        return self.share(items, split) if split != "test" else items

    def _files(self, folder: Path, home: str = "") -> dict[str, list[Path]]:
        """The folder's files by split, those that are divided under "".

        Args:
            home: the split that the folder is the place of, and so are its files whose name says none; "" = of several.
        Raises:
            UserError: there is none.
        """
        files: dict[str, list[Path]] = {"train": [], "dev": [], "test": [], "": []}
        for path in sorted(folder.iterdir()):
            mark = self.file_split(path.name)
            if home and not mark and split_at_home(path, home):
                mark = home
            if mark is not None:
                files[mark].append(path)
        if not any(files.values()):
            raise UserError(f"task.data={str(folder)!r}: {self.no_files}")
        return files

    def _every(self, files: dict[str, list[Path]]) -> list[Path]:
        every = [path for group in files.values() for path in group]
        return sorted(every) if self.sorted_all else every

    def _folder(self, folder: Path, split: DataSplit, home: str = "") -> list[Item]:
        files = self._files(folder, home)
        if split == "all":
            return self._read(self._every(files))
        source = "train" if split == "dev" and not files["dev"] else split
        if not files[source]:
            self.missing(folder, source, [mark for mark in files if mark and files[mark]])
        items = self._read(files[source])
        if split != "test" and not files["dev"]:
            items = self.share(items, split)
        return items + self.divided(self._read(files[""]), split) if files[""] else items

    def _file(self, path: Path, split: DataSplit) -> list[Item]:
        if not is_jsonl(path):
            raise UserError(f"task.data={str(path)!r}: not a .jsonl or .jsonl.gz file. One JSON object a line is read.")
        mark = split_mark(path)
        if mark is not None and split not in (mark, "all") and (mark, split) != ("train", "dev"):
            raise UserError(
                f"task.data={str(path)!r}: by its name this file holds {mark} problems, and {split} ones were asked "
                "for. Give a folder with both, or the file of that split."
            )
        items = self._read([path])
        if split == "all":
            return items
        if mark is None:
            return self.divided(items, split)
        return self.share(items, split) if mark == "train" else items

    def _hub(self, hub_id: str, split: DataSplit) -> list[Item]:
        if split == "all":
            raise UserError(f"task.data={hub_id!r}: split `all` is for local files; choose train, dev or test.")
        return self.hub(hub_id, split)

    def _read(self, paths: Sequence[Path]) -> list[Item]:
        wrong: list[str] = []
        return self.items(self._rows(paths, wrong), wrong)

    def _rows(self, paths: Sequence[Path], wrong: list[str]) -> Iterable[tuple[Any, Place]]:
        for path in paths:
            self.begin(path, wrong)
            for number, line in lines(path):
                place = self.place(path, number)
                try:
                    record = parsed(line)
                except BadLine as error:
                    wrong.append(f"{place.where}: {error}")
                    continue
                yield record, place


def split_mark(path: Path) -> str | None:
    """The split that a file's name says (`my.test.jsonl`), if it says one."""
    mark = _SPLIT_MARK.search(path.name)
    return mark[1] if mark else None


def split_at_home(path: Path, home: str) -> bool:
    """Whether a file has rows of ``home``, in a folder that is the place of that split alone."""
    return is_jsonl(path) and path.name not in _BESIDE and split_mark(path) in (None, home)


def has_split_mark(data: str) -> bool:
    """Whether the split of ``data`` is settled by its layout: a named set, a folder, a hub id, or a file's name."""
    path = local_path(data)
    return data in data_sets() or not path.is_file() or split_mark(path) is not None


def split_of(key: str) -> Split:
    """The split that a key belongs to: test 1/8, dev 1/8, train 6/8, by SHA-256."""
    bucket = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[0] % 8
    return "test" if bucket == 0 else "dev" if bucket == 1 else "train"


def from_hub(hub_id: str, what: str, instead: str, **options: Any) -> Any:
    """``datasets.load_dataset`` for people.

    Where it fails, the error names the data set that has this id, and the generated problems of its task.

    Args:
        what: the part that is loaded, for the error.
        instead: what to give when it fails.
    Raises:
        UserError: it cannot be loaded.
    """
    from datasets import load_dataset

    try:
        return load_dataset(hub_id, **options)
    # A missing data set, a wrong layout, no network: the hub client has no common base class below these.
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"task.data={hub_id!r}: cannot load {what} ({type(error).__name__}: {error}). Check the id and the "
            f"network, or give {instead}.{_elsewhere(hub_id)}"
        ) from error


def _elsewhere(hub_id: str) -> str:
    """What else a data set that is not to be had from the hub can be had from, and what else there is."""
    names = [name for name, one in data_sets().items() if one.hub == hub_id]
    if not names:
        return ""
    return (
        f" {names[0]} is looked for in the folder of --data-dir (or RLVR_DATA_DIR) where one is given."
        f"{generated_hint(names[0])}"
    )


def stem(path: Path) -> str:
    """The name of a file without `.jsonl` or `.jsonl.gz`."""
    return path.name.removesuffix(".gz").removesuffix(".jsonl")
