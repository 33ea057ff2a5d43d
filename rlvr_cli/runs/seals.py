"""Hashes of the records that a run's results rest on: metrics.jsonl, rollouts/, evaluations on the way.

Sealed at every checkpoint, in records.json of the run and, as of its step, in the checkpoint itself; each file is
hashed once. Verified before a resume goes on from a checkpoint, and before a record is read for a result. What lies
after the newest checkpoint is not sealed yet; a resume makes it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError
from rlvr_cli.runs.atomic import write_text
from rlvr_cli.runs.checkpoints import file_hash
from rlvr_cli.runs.directory import RunDir
from rlvr_cli.runs.records import read_jsonl

FILE = "records.json"
IN_CHECKPOINT = "trainer/records.json"
# What the manifest of a run says whose records are sealed.
SEALED = "sealed"
_BLOCK = 1 << 20

# By the path in the run: `size` and `sha256`; of metrics.jsonl, which grows, those of its first `size` bytes.
Seal = dict[str, dict[str, Any]]


class Sealer:
    """Seals the records of a run while it is trained; only what is new since the last time is read."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self._files = read_seal(run) or {}
        self._metrics, self._at = hashlib.sha256(), 0

    def seal(self) -> Seal:
        """Hash what was recorded until now, and write it to the run."""
        for path in _whole_files(self.run):
            name = path.relative_to(self.run.path).as_posix()
            if name not in self._files:
                self._files[name] = {"size": path.stat().st_size, "sha256": file_hash(path)}
        with self.run.metrics_path.open("rb") as stream:
            stream.seek(self._at)
            while block := stream.read(_BLOCK):
                self._metrics.update(block)
                self._at += len(block)
        self._files[self.run.metrics_path.name] = {"size": self._at, "sha256": self._metrics.hexdigest()}
        write_seal(self.run.path / FILE, self._files)
        return dict(self._files)


def write_seal(path: Path, seal: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace the seal at ``path``."""
    write_text(path, seal_text(seal))


def seal_text(seal: Mapping[str, Mapping[str, Any]]) -> str:
    """A seal as the content of a file, with a hash of its own."""
    own = hashlib.sha256(json.dumps(seal, sort_keys=True).encode()).hexdigest()
    return json.dumps({"files": seal, "sha256": own}, indent=1, sort_keys=True) + "\n"


def parse_seal(path: Path) -> Seal:
    """The seal in a file. Raises RunError where it is missing or was altered."""
    try:
        text = path.read_text(encoding="utf-8")
        seal: Seal = json.loads(text)["files"]
        whole = text == seal_text(seal)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read ({error}). It holds the hashes of the run's records.") from error
    if not whole:
        raise RunError(f"{path}: was altered (its own hash differs). It holds the hashes of the run's records.")
    return seal


def read_seal(run: RunDir) -> Seal | None:
    """The run's seal; None for a run that was begun before there were any. Raises RunError where it is damaged."""
    path = run.path / FILE
    if not path.exists() and not (run.manifest_path.exists() and run.read_manifest().get(SEALED)):
        return None
    return parse_seal(path)


def damaged_records(run: RunDir, seal: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A sentence for each record that is not as it was sealed."""
    for name, entry in seal.items():
        damage = _damage(run.path / name, entry, grows=name == run.metrics_path.name)
        if damage:
            yield f"{run.path / name}: {damage}"


def read_record(run: RunDir, path: Path) -> list[dict[str, Any]]:
    """The lines of a record of the run (:func:`read_jsonl`). Raises RunError where it is not as it was sealed."""
    name = path.relative_to(run.path).as_posix()
    entry = (read_seal(run) or {}).get(name)
    damage = None if entry is None else _damage(path, entry, grows=name == run.metrics_path.name)
    if damage is not None:
        read_jsonl(path)  # names the line, where one can't be read
        raise RunError(f"{path}: {damage}.")
    return read_jsonl(path)


def _damage(path: Path, entry: Mapping[str, Any], *, grows: bool) -> str | None:
    size = entry["size"]
    try:
        found = path.stat().st_size
        if found < size or (found > size and not grows):
            return f"was altered after it was written (it has {found} bytes, not {size})"
        with path.open("rb") as stream:
            sha256, left = hashlib.sha256(), size
            while left and (block := stream.read(min(_BLOCK, left))):
                sha256.update(block)
                left -= len(block)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if sha256.hexdigest() == entry["sha256"] else "was altered after it was written (its hash differs)"


def _whole_files(run: RunDir) -> Iterator[Path]:
    """The records that are written once, but for seconds, and for the files of programs, which begin with a dot."""
    yield from sorted(run.rollouts_dir.glob("rollout-*.jsonl"))
    yield from sorted(path for path in run.held_out_dir.glob("rollout-*/[!.]*") if path.is_file())
