"""A run's records: sealed by hashes, verified when read, and rewound to a checkpoint.

Each checkpoint seals them, in records.json of the run and of the checkpoint. A resume and readers of results verify
them. Records after the newest checkpoint are not sealed; a resume repeats them.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import read_jsonl, truncate_jsonl, write_bytes
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.seal import BadSeal, Entries, compute_entry, find_file_damage, read_seal_file, write_seal

FILE = "records.json"
IN_CHECKPOINT = "trainer/records.json"
# Key of the manifest of a run with sealed records.
SEALED = "sealed"
_BLOCK = 1 << 20


class Sealer:
    """The sealer of a run's records during training; reads only new records."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self._files = read_seal(run) or {}
        self._metrics, self._at = hashlib.sha256(), 0

    def seal(self) -> Entries:
        """Hash the records so far, and write the seal to the run."""
        for path in _complete_files(self.run):
            name = path.relative_to(self.run.path).as_posix()
            if name not in self._files:
                self._files[name] = compute_entry(path)
        with self.run.metrics_path.open("rb") as stream:
            stream.seek(self._at)
            while block := stream.read(_BLOCK):
                self._metrics.update(block)
                self._at += len(block)
        self._files[self.run.metrics_path.name] = {"size": self._at, "sha256": self._metrics.hexdigest()}
        write_seal(self.run.path / FILE, self._files)
        return dict(self._files)


def read_entries(path: Path) -> Entries:
    """Read the entries of a run's seal. Raises RunError if it is missing or was altered."""
    try:
        entries: Entries = read_seal_file(path)["files"]
    except BadSeal as problem:
        raise RunError(f"{path}: {problem}. It holds the hashes of the run's records.") from problem
    return entries


def read_seal(run: RunDir) -> Entries | None:
    """Return the entries of the run's seal; None for a run without seals. Raises RunError if it is damaged."""
    path = run.path / FILE
    if not path.exists() and not (run.manifest_path.exists() and run.read_manifest().get(SEALED)):
        return None
    return read_entries(path)


def damaged_records(run: RunDir, seal: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, entry in seal.items():
        damage = find_file_damage(run.path / name, entry, grows=name == run.metrics_path.name)
        if damage:
            yield f"{run.path / name}: {damage}"


def read_record(run: RunDir, path: Path) -> list[dict[str, Any]]:
    """Return the rows of a record (:func:`read_jsonl`). Raises RunError if it differs from its seal."""
    name = path.relative_to(run.path).as_posix()
    entry = (read_seal(run) or {}).get(name)
    damage = None if entry is None else find_file_damage(path, entry, grows=name == run.metrics_path.name)
    if damage is not None:
        read_jsonl(path)  # reports the line if it cannot be parsed
        raise RunError(f"{path}: {damage}.")
    return read_jsonl(path)


def _complete_files(run: RunDir) -> Iterator[Path]:
    """Yield the files of records that are written once."""
    yield from sorted(run.rollouts_dir.glob("rollout-*.jsonl"))
    yield from sorted(path for path in run.held_out_dir.glob("rollout-*/[!.]*") if path.is_file())


FOLDER = "rewound"
ROLLOUT_FILE = re.compile(r"\.?rollout-(\d+)\.jsonl.*")


def rewind(run: RunDir, step: int, steps_per_rollout: int) -> Path | None:
    """Move the records after ``step`` to ``rewound/<n>``; return that folder, or None without such records.

    They are kept for inexact resumes (on GPUs, after an update of a library); after an exact one
    :func:`delete_repeated_records` deletes them. The next rewind completes an interrupted one. Raises RunError if
    metrics.jsonl has fewer lines than ``step``.
    """
    aside = RunDir(run.path / FOLDER / str(1 + max((int(path.name) for path in _rewound_folders(run)), default=0)))
    for record, copy in ((run.metrics_path, aside.metrics_path), (run.timings_path, aside.timings_path)):
        later = _lines_after(record, step)
        if later:
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(copy, later)
    truncate_jsonl(run.metrics_path, step)
    for path in _rollouts_after(run, step, steps_per_rollout):
        if path.name.startswith("."):
            path.unlink()  # a partial file of a killed process
        else:
            _move(path, aside.rollouts_dir)
    for path in _held_out_after(run, step, steps_per_rollout):
        _move(path, aside.held_out_dir)
    return aside.path if aside.path.exists() else None


def _rollouts_after(run: RunDir, step: int, steps_per_rollout: int) -> Iterator[Path]:
    first_rollout = -(-step // steps_per_rollout)
    for path in sorted(run.rollouts_dir.iterdir()):
        match = ROLLOUT_FILE.fullmatch(path.name)
        if match and int(match[1]) >= first_rollout:
            yield path


def _held_out_after(run: RunDir, step: int, steps_per_rollout: int) -> Iterator[Path]:
    done = step // steps_per_rollout
    for path in sorted(run.held_out_dir.glob("rollout-*")):
        if int(path.name.removeprefix("rollout-")) > done:
            yield path


def _move(path: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path.rename(folder / path.name)


def _lines_after(path: Path, step: int) -> bytes:
    lines = path.read_bytes().split(b"\n", step) if path.is_file() else []
    return lines[step] if len(lines) > step else b""


def delete_repeated_records(run: RunDir) -> None:
    """Delete the rewound records that ``run`` has repeated, and their timings."""
    for aside in _rewound_folders(run):
        for path in list(_visible_files(aside)):
            if _is_repeated(path, run.path / path.relative_to(aside)):
                path.unlink()
        if all(path.name == run.timings_path.name for path in _visible_files(aside)):
            shutil.rmtree(aside)
    folder = run.path / FOLDER
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _visible_files(folder: Path) -> Iterator[Path]:
    for directory, _, names in os.walk(folder):
        yield from (Path(directory) / name for name in names if not name.startswith("."))


def _is_repeated(old: Path, new: Path) -> bool:
    """Return whether every complete line of ``old`` is in ``new``."""
    if not new.is_file():
        return False
    if filecmp.cmp(old, new, shallow=False):
        return True
    complete_lines = old.read_bytes().split(b"\n")[:-1]
    return set(complete_lines) <= set(new.read_bytes().split(b"\n"))


def _rewound_folders(run: RunDir) -> list[Path]:
    folder = run.path / FOLDER
    return [path for path in folder.iterdir() if path.name.isdecimal()] if folder.is_dir() else []


def truncate_timings(path: Path, step: int) -> int:
    """Truncate ``path`` after ``step``, without damaged lines; return the number of earlier steps without timings."""
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    timed = {number: line for line in lines if (number := _parse_step(line)) is not None and number <= step}
    if list(timed) == list(range(1, step + 1)) and lines[:step] == list(timed.values()):
        truncate_jsonl(path, step)
    else:
        write_bytes(path, b"".join(timed[number] for number in sorted(timed)))
    return step - len(timed)


def _parse_step(line: bytes) -> int | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = row.get("step") if isinstance(row, dict) else None
    complete = type(step) is int and step > 0 and line.endswith(b"\n")
    return step if complete else None
