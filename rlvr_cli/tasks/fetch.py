"""Fetch public data sets into a data folder, with a manifest each: revision, licence, rows and hashes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import write_json
from rlvr_cli.tasks.data import FETCHED, FromData, file_of, hub_problems
from rlvr_cli.tasks.hub import revision_of


@dataclass(frozen=True)
class FetchedFile:
    """Describe a written file: its name inside the folder, rows and SHA-256."""

    name: str
    rows: int
    sha256: str


@dataclass(frozen=True)
class Fetched:
    """Describe a fetched data set, as its manifest does.

    Attributes:
        revision: the hub's commit. left_out: the warnings of rows that are no problem.
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
        """Count the problems of all files."""
        return sum(file.rows for file in self.files)

    def __str__(self) -> str:
        return f"{self.rows:,} problems of {self.hub} at {self.revision[:12]}, fetched {self.fetched[:10]}"


def fetch(
    task: FromData,
    folder: Path,
    *,
    revision: str | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = print,
) -> Fetched:
    """Write the problems of ``task``'s public set into ``folder``, where `task.data` finds them; all, or none.

    A set that is there, unaltered and of the requested revision, is left as it is.

    Args:
        revision: a commit, branch or tag of the hub; None = the newest.
    Raises:
        UserError: files in its place that were not fetched (or were altered since, without
            ``overwrite``), no network, rows that are no problems, or a folder that cannot be written to.
    """
    name, data_set = task.data, task.sets[task.data]
    assert data_set.hub is not None
    before = manifest(name, folder)
    files_there = [path for split in data_set.files if (path := file_of(data_set, split, folder)) is not None]
    if not overwrite and files_there and (before is None or _altered(before, folder)):
        reason = "is where the data set belongs, but was not fetched" if before is None else "was changed"
        raise UserError(
            f"{', '.join(map(str, dict.fromkeys(files_there)))}: {reason}. --overwrite replaces it, --data-dir names "
            "another folder."
        )
    if not overwrite and before is not None and not _missing(before, folder) and revision in (None, before.revision):
        say(f"{name}: is there, {before}. --overwrite fetches the newest.")
        return before
    commit = revision_of(data_set.hub, revision)
    aside = folder / f".{name}.part"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        lines: dict[str, list[str]] = {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            for split in data_set.files:
                say(f"{name}: loading the {split} rows of {data_set.hub} at {commit[:12]} ...")
                for problem in hub_problems(task, f"{data_set.hub}@{commit}", split):
                    row = {**problem.fields, "subgroup": problem.subgroup}
                    line = json.dumps(row, ensure_ascii=False) + "\n"
                    lines.setdefault(task.place_of(problem, split), []).append(line)
        left_out = tuple(str(warning.message) for warning in caught if issubclass(warning.category, UserWarning))
        for message in left_out:
            say(f"{name}: {message}")
        files = tuple(_write(aside, file, rows) for file, rows in sorted(lines.items()))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        result = Fetched(name, data_set.hub, commit, data_set.licence, now, files, left_out)
        # The manifest first: an interruption from here on leaves a set whose missing files are known.
        (folder / FETCHED).mkdir(exist_ok=True)
        write_json(folder / FETCHED / f"{name}.json", asdict(result))
        for stale in before.files if before is not None else ():
            (folder / stale.name).unlink(missing_ok=True)
        for file in files:
            (folder / file.name).parent.mkdir(parents=True, exist_ok=True)
            (aside / file.name).replace(folder / file.name)
    except OSError as error:
        raise UserError(
            f"{error.filename or folder}: {error.strerror or error}. Make room, or give another folder with --data-dir."
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return result


def _write(folder: Path, name: str, lines: list[str]) -> FetchedFile:
    content = "".join(lines).encode("utf-8")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    return FetchedFile(name, len(lines), hashlib.sha256(content).hexdigest())


def _missing(fetched: Fetched, folder: Path) -> bool:
    return not all((folder / file.name).is_file() for file in fetched.files)


def _altered(fetched: Fetched, folder: Path) -> bool:
    files = [(folder / file.name, file.sha256) for file in fetched.files]
    return any(path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() != digest for path, digest in files)


def manifest(name: str, folder: Path) -> Fetched | None:
    """Read the manifest of a data set that was fetched into ``folder``; None without a readable one."""
    try:
        values: dict[str, Any] = json.loads((folder / FETCHED / f"{name}.json").read_text(encoding="utf-8"))
        files = tuple(FetchedFile(**file) for file in values["files"])
        return Fetched(**{**values, "files": files, "left_out": tuple(values["left_out"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def origin_of(name: str, hub: str | None, folder: str | None) -> str:
    """Describe in a line where the rows of a public set are from; ``folder`` is `task.data_dir`."""
    if folder is None:
        return f"{name}: from the hub ({hub})."
    fetched = manifest(name, Path(folder))
    if fetched is None:
        return f"{name}: from {folder}."
    intact = not _missing(fetched, Path(folder)) and not _altered(fetched, Path(folder))
    return f"{name}: from {folder}, {fetched}{'' if intact else '; its files were ALTERED since'}."
