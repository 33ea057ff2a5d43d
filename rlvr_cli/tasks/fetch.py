"""Download public data sets into a data folder, each with a manifest: revision, licence, rows and digests."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import write_bytes, write_json
from rlvr_cli.tasks.data import FETCHED, RowReader, find_split_file, load_hub_problems
from rlvr_cli.tasks.hub import resolve_revision


@dataclass(frozen=True)
class FetchedFile:
    name: str
    rows: int
    sha256: str


@dataclass(frozen=True)
class FetchManifest:
    """The manifest of a fetched data set: ``revision`` is a commit, ``left_out`` warnings about skipped rows."""

    name: str
    hub: str
    revision: str
    licence: str
    fetched: str
    files: tuple[FetchedFile, ...]
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = sum(file.rows for file in self.files)
        return f"{rows:,} problems of {self.hub} at {self.revision[:12]}, fetched {self.fetched[:10]}"


def fetch(
    task: RowReader,
    folder: Path,
    *,
    revision: str | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = print,
) -> FetchManifest:
    """Download the public set of ``task`` into ``folder``, atomically; keep an unchanged set of the revision.

    ``revision``: a commit, branch or tag of the hub; None = the newest. Raises UserError for existing files that were
    not fetched or were changed (without ``overwrite``), no network, malformed rows, or a folder that cannot be written
    to.
    """
    name, data_set = task.data, task.sets[task.data]
    assert data_set.hub is not None
    existing = read_manifest(name, folder)
    if existing is not None:
        changed, reason = _changed_files(existing, folder), "was changed"
    else:
        paths = (find_split_file(data_set, split, folder) for split in data_set.files)
        changed, reason = list(filter(None, paths)), "exists, but was not fetched"
    if not overwrite and (present := [str(path) for path in dict.fromkeys(changed) if path.exists()]):
        raise UserError(f"{', '.join(present)}: {reason}. Use --overwrite to replace it, or another --data-dir.")
    if not overwrite and existing is not None and not changed and revision in (None, existing.revision):
        say(f"{name}: already fetched: {existing}. Use --overwrite for the newest.")
        return existing
    commit = resolve_revision(data_set.hub, revision)
    staging = folder / f".{name}.part"
    try:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        lines: dict[str, list[str]] = {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            for split in data_set.files:
                say(f"{name}: loading the {split} rows of {data_set.hub} at {commit[:12]} ...")
                for problem in load_hub_problems(task, f"{data_set.hub}@{commit}", split):
                    row = {**problem.fields, "subgroup": problem.subgroup}
                    line = json.dumps(row, ensure_ascii=False) + "\n"
                    lines.setdefault(task.file_name_of(problem, split), []).append(line)
        left_out = tuple(str(warning.message) for warning in caught if issubclass(warning.category, UserWarning))
        for message in left_out:
            say(f"{name}: {message}")
        files = tuple(_write_rows(staging, file, rows) for file, rows in sorted(lines.items()))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        result = FetchManifest(name, data_set.hub, commit, data_set.licence, now, files, left_out)
        # The manifest first: after an interruption it lists the missing files.
        (folder / FETCHED).mkdir(exist_ok=True)
        write_json(folder / FETCHED / f"{name}.json", asdict(result))
        for stale in existing.files if existing is not None else ():
            (folder / stale.name).unlink(missing_ok=True)
        for file in files:
            (folder / file.name).parent.mkdir(parents=True, exist_ok=True)
            (staging / file.name).replace(folder / file.name)
    except OSError as error:
        raise UserError(
            f"{error.filename or folder}: {error.strerror or error}. Free space, or use another --data-dir."
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return result


def _write_rows(folder: Path, name: str, lines: list[str]) -> FetchedFile:
    content = "".join(lines).encode("utf-8")
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / name, content)
    return FetchedFile(name, len(lines), sha256(content).hexdigest())


def _changed_files(fetched: FetchManifest, folder: Path) -> list[Path]:
    files = [(folder / file.name, file.sha256) for file in fetched.files]
    return [path for path, digest in files if not path.is_file() or sha256(path.read_bytes()).hexdigest() != digest]


def read_manifest(name: str, folder: Path) -> FetchManifest | None:
    """Read the manifest of a data set in ``folder``; None if missing or invalid."""
    try:
        values: dict[str, Any] = json.loads((folder / FETCHED / f"{name}.json").read_text(encoding="utf-8"))
        files = tuple(FetchedFile(**file) for file in values["files"])
        return FetchManifest(**{**values, "files": files, "left_out": tuple(values["left_out"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def describe_origin(name: str, hub: str | None, folder: str | None) -> str:
    """Return a line on the source of a public set; ``folder`` is `task.data_dir`."""
    if folder is None:
        return f"{name}: from the hub ({hub})."
    if (fetched := read_manifest(name, Path(folder))) is None:
        return f"{name}: from {folder}."
    altered = "; its files were ALTERED since" if _changed_files(fetched, Path(folder)) else ""
    return f"{name}: from {folder}, {fetched}{altered}."
