"""A run taken back to a checkpoint: what was recorded after it moves aside, and goes once it was made again."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from rlvr_cli.runs.atomic import write_bytes
from rlvr_cli.runs.directory import RunDir
from rlvr_cli.runs.records import truncate_jsonl

FOLDER = "rewound"
ROLLOUT_FILE = re.compile(r"\.?rollout-(\d+)\.jsonl.*")


def rewind(run: RunDir, step: int, steps_per_rollout: int) -> Path | None:
    """Move what ``run`` recorded after ``step`` to ``rewound/<n>``, which is returned; None where there was nothing.

    Nothing is lost where a resumed run is not exact (on GPUs, after an update of a library); where it is,
    :func:`drop_made_again` deletes what stands in the run again. A process that is killed in it leaves the rest to the
    next one. Raises RunError where metrics.jsonl has fewer lines than ``step``.
    """
    aside = RunDir(run.path / FOLDER / str(1 + max((int(path.name) for path in _folders(run)), default=0)))
    for record, kept in ((run.metrics_path, aside.metrics_path), (run.timings_path, aside.timings_path)):
        later = _lines_after(record, step)
        if later:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(kept, later)
    truncate_jsonl(run.metrics_path, step)
    for path in _rollouts_after(run, step, steps_per_rollout):
        if path.name.startswith("."):
            path.unlink()  # half a file, of a process that was killed while it wrote
        else:
            _move(path, aside.rollouts_dir)
    for path in _held_out_after(run, step, steps_per_rollout):
        _move(path, aside.held_out_dir)
    return aside.path if aside.path.exists() else None


def _rollouts_after(run: RunDir, step: int, steps_per_rollout: int) -> Iterator[Path]:
    """The files of the rollouts that had not begun at ``step``, whole or not."""
    begun = -(-step // steps_per_rollout)
    for path in sorted(run.rollouts_dir.iterdir()):
        match = ROLLOUT_FILE.fullmatch(path.name)
        if match and int(match[1]) >= begun:
            yield path


def _held_out_after(run: RunDir, step: int, steps_per_rollout: int) -> Iterator[Path]:
    """The folders of the evaluations on the way that came after ``step``."""
    done = step // steps_per_rollout
    for path in sorted(run.held_out_dir.glob("rollout-*")):
        if int(path.name.removeprefix("rollout-")) > done:
            yield path


def _move(path: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path.rename(folder / path.name)


def _lines_after(path: Path, step: int) -> bytes:
    """What stands after the first ``step`` lines of a file."""
    lines = path.read_bytes().split(b"\n", step) if path.is_file() else []
    return lines[step] if len(lines) > step else b""


def drop_made_again(run: RunDir) -> None:
    """Delete what was moved aside and stands in ``run`` again, line by line; the seconds of it too."""
    for aside in _folders(run):
        for path in list(_files(aside)):
            if _made_again(path, run.path / path.relative_to(aside)):
                path.unlink()
        if all(path.name == run.timings_path.name for path in _files(aside)):
            shutil.rmtree(aside)
    folder = run.path / FOLDER
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _files(folder: Path) -> Iterator[Path]:
    """Its records; what begins with a dot is none."""
    for place, _, names in os.walk(folder):
        yield from (Path(place) / name for name in names if not name.startswith("."))


def _made_again(old: Path, new: Path) -> bool:
    """Whether every whole line of ``old`` is in ``new``."""
    if not new.is_file():
        return False
    if filecmp.cmp(old, new, shallow=False):
        return True
    whole = old.read_bytes().split(b"\n")[:-1]
    return set(whole) <= set(new.read_bytes().split(b"\n"))


def _folders(run: RunDir) -> list[Path]:
    folder = run.path / FOLDER
    return [path for path in folder.iterdir() if path.name.isdecimal()] if folder.is_dir() else []
