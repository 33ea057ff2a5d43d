"""Append-only JSON lines that survive being cut off in the middle of a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError
from rlvr_cli.runs.atomic import write_bytes


def append_jsonl(path: Path, rows: Iterable[Mapping[str, Any]], *, durable: bool = False) -> None:
    """Append ``rows`` in one write; ``durable`` waits until they are on the disk.

    Raises ValueError for NaN or infinity, which JSON cannot hold.
    """
    text = "".join(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n" for row in rows)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        if durable:
            os.fsync(stream.fileno())


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All complete lines of ``path``; an unfinished last line (the writer was killed) is left out.

    Raises RunError, naming file and line, for a damaged line that is not the last, a line that is no JSON object, and
    for what is no readable file.
    """
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}).") from error
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RunError(f"{path}:{number}: not a JSON line ({error}). The file was altered.") from error
        if not isinstance(row, dict):
            raise RunError(f"{path}:{number}: not a JSON object ({line[:40]}). The file was altered.")
        rows.append(row)
    return rows


def tail_jsonl(path: Path, most_bytes: int = 1 << 17) -> list[dict[str, Any]]:
    """The last complete lines of a file that is being written; lines that are no JSON object are passed over.

    A reader that looks while a run is rewound may meet anything; who reads the whole (:func:`read_jsonl`) names damage.
    """
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - most_bytes))
            lines = stream.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}).") from error
    if size > most_bytes:
        lines = lines[1:]
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def truncate_jsonl(path: Path, keep_lines: int) -> None:
    """Cut ``path`` after its first ``keep_lines`` lines. Raises RunError if it has fewer."""
    if keep_lines == 0 and not path.exists():
        return
    data = path.read_bytes() if path.exists() else b""
    position = 0
    for number in range(keep_lines):
        position = data.find(b"\n", position) + 1
        if position == 0:
            raise RunError(f"{path} has {number} lines where the checkpoint expects {keep_lines}: it was altered.")
    with path.open("r+b") as stream:
        stream.truncate(position)
        os.fsync(stream.fileno())


def truncate_timings(path: Path, step: int) -> int:
    """Cut ``path`` after ``step``; returns how many of the steps until then have no seconds in it.

    Only seconds are in it, so what is missing or damaged is left out and no reason to stop.
    """
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    timed = {number: line for line in lines if (number := _step_of(line)) is not None and number <= step}
    if list(timed) == list(range(1, step + 1)) and lines[:step] == list(timed.values()):
        truncate_jsonl(path, step)
    else:
        write_bytes(path, b"".join(timed[number] for number in sorted(timed)))
    return step - len(timed)


def _step_of(line: bytes) -> int | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = row.get("step") if isinstance(row, dict) else None
    whole = type(step) is int and step > 0 and line.endswith(b"\n")
    return step if whole else None
