"""Public data sets as files of a data folder, with a manifest each: which rows these are, and where they are from."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import write_json
from rlvr_cli.tasks.data import FETCHED, FromData, file_of, hub_problems
from rlvr_cli.tasks.hub import revision_of
from rlvr_cli.tasks.problem import DataSet, Problem

Say = Callable[[str], None]


@dataclass(frozen=True)
class FetchedFile:
    """A file that was written: its name inside the folder, rows, bytes and SHA-256."""

    name: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Fetched:
    """A data set's entry in a manifest.

    Attributes:
        revision: the hub's commit. left_out: what was said of rows that are no problem.
    """

    name: str
    hub: str
    revision: str
    licence: str
    fetched: str
    files: tuple[FetchedFile, ...]
    left_out: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Problems in all."""
        return sum(one.rows for one in self.files)


def fetch(
    task: FromData, folder: Path, *, revision: str | None = None, overwrite: bool = False, say: Say = print
) -> Fetched:
    """Write the problems of ``task``'s public set into ``folder``, where `task.data` finds them; whole, or not at all.

    What was downloaded stays in the hub's cache, so that a fetch that was interrupted goes on there. A set that is
    there, unaltered and of the revision that is asked for, is left as it is.

    Args:
        revision: a commit, branch or tag of the hub; None = the newest.
    Raises:
        UserError: files in its place that were not fetched (or were altered since, without
            ``overwrite``), no network, rows that are no problems, or a folder that cannot be written to.
    """
    name, one = task.data, task.sets[task.data]
    assert one.hub is not None
    before = manifest(name, folder)
    if not overwrite and _is_whole(one, folder, before) and before is not None and revision in (None, before.revision):
        say(f"{name}: is there, {_described(before)}. --overwrite fetches the newest.")
        return before
    commit = revision_of(one.hub, revision)
    part = folder / f".{name}.part"
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        files, left_out = _written(task, one, commit, part, say)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        result = Fetched(name, one.hub, commit, one.licence, now, files, left_out)
        # First: an interruption from here on leaves a set of which files are known to be missing.
        (folder / FETCHED).mkdir(exist_ok=True)
        write_json(folder / FETCHED / f"{name}.json", asdict(result))
        for stale in before.files if before is not None else ():
            (folder / stale.name).unlink(missing_ok=True)
        for file in files:
            target = folder / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            (part / file.name).replace(target)
    except OSError as error:
        raise UserError(
            f"{error.filename or folder}: {error.strerror or error}. Make room, or give another folder with --data-dir."
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return result


def _written(
    task: FromData, one: DataSet, commit: str, part: Path, say: Say
) -> tuple[tuple[FetchedFile, ...], tuple[str, ...]]:
    """The files of the set's problems in the folder ``part``, and what was said of rows that were left out."""
    files: dict[str, list[Problem]] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        for split in one.files:
            say(f"{task.data}: loading the {split} rows of {one.hub} at {commit[:12]} ...")
            for problem in hub_problems(task, f"{one.hub}@{commit}", split):
                files.setdefault(task.place_of(problem, split), []).append(problem)
    left_out = tuple(str(one.message) for one in caught if issubclass(one.category, UserWarning))
    for said in left_out:
        say(f"{task.data}: {said}")
    return tuple(_write(part, place, problems) for place, problems in sorted(files.items())), left_out


def _write(part: Path, place: str, problems: Iterable[Problem]) -> FetchedFile:
    path = part / place
    path.parent.mkdir(parents=True, exist_ok=True)
    hashed, rows, size = hashlib.sha256(), 0, 0
    with path.open("wb") as stream:
        for problem in problems:
            row = {**problem.fields, "subgroup": problem.subgroup}
            line = (json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8")
            stream.write(line)
            hashed.update(line)
            rows, size = rows + 1, size + len(line)
        stream.flush()
        os.fsync(stream.fileno())
    return FetchedFile(place, rows, size, hashed.hexdigest())


def _is_whole(one: DataSet, folder: Path, before: Fetched | None) -> bool:
    """Whether everything that was fetched is there. Raises UserError for changed files, and for others in its place."""
    again = "--overwrite replaces it, --data-dir names another folder."
    if before is None:
        found = {str(path) for split in one.files if (path := file_of(one, split, folder)) is not None}
        if found:
            raise UserError(f"{', '.join(sorted(found))}: is where the data set belongs, but was not fetched. {again}")
        return False
    digests = {file: _digest(folder / file.name) for file in before.files}
    altered = [str(folder / file.name) for file, digest in digests.items() if digest not in (None, file.sha256)]
    if altered:
        raise UserError(f"{', '.join(altered)}: was changed after it was fetched. {again}")
    return None not in digests.values()


def _digest(path: Path) -> str | None:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return None


def manifest(name: str, folder: Path) -> Fetched | None:
    """What is written of a data set that was fetched into ``folder``; None where none was, or it cannot be read."""
    try:
        values: dict[str, Any] = json.loads((folder / FETCHED / f"{name}.json").read_text(encoding="utf-8"))
        files = tuple(FetchedFile(**one) for one in values["files"])
        return Fetched(**{**values, "files": files, "left_out": tuple(values["left_out"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _described(found: Fetched) -> str:
    return f"{found.rows:,} problems of {found.hub} at {found.revision[:12]}, fetched {found.fetched[:10]}"


def origin_of(name: str, hub: str | None, folder: str | None) -> str:
    """Where the rows of a public set are from, for people; ``folder`` is `task.data_dir`."""
    if folder is None:
        return f"{name}: from the hub ({hub})."
    found = manifest(name, Path(folder))
    if found is None:
        return f"{name}: from {folder}."
    paths = {Path(folder, file.name): file.bytes for file in found.files}
    altered = any(not path.is_file() or path.stat().st_size != size for path, size in paths.items())
    return f"{name}: from {folder}, {_described(found)}{'; its files were ALTERED since' if altered else ''}."
