"""List the runs in a folder: summaries, filters, and the progress of running ones."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rlvr_cli.collapse.alerts import active_alerts
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import finite, is_held, tail_jsonl
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.runs.folder import SUBMITTED, RunDir, list_runs

DAMAGED = "damaged"
# States of a run; the last two are inferred, never written.
STATUSES = (SUBMITTED, "running", "finished", "interrupted", "failed", "killed", DAMAGED)
FIELDS = ("method", "task", "model", "seed", "created", "finished", "rollout", "rollouts_total", "step", "steps_total")


def run_summary(path: Path, name: str | None = None) -> dict[str, Any]:
    """Return a run's manifest, with `damage` (a reason, or None) and the status corrected for a dead process.

    Args:
        name: of the run; by default its folder's.
    """
    run = RunDir(path)
    identity = {"name": _printable(name or run.name), "path": _printable(str(path))}
    try:
        manifest = run.read_manifest()
    except RunError as error:
        return {**identity, "damage": _printable(str(error)), "status": DAMAGED, "last_metrics": {}}
    status, last = manifest.get("status"), manifest.get("last_metrics")
    if status == "running" and not is_held(path):
        status = "killed"
    values = {field: manifest.get(field) for field in FIELDS}
    return {
        **identity,
        "damage": None,
        "status": _printable(status) if isinstance(status, str) else None,
        **{field: _printable(value) if isinstance(value, str) else value for field, value in values.items()},
        "last_metrics": last if isinstance(last, dict) else {},
    }


def read_runs(root: Path) -> list[dict[str, Any]]:
    """Return the summary of every run in ``root`` (:func:`run_folders`), by name. Raises OSError."""
    summaries = [(path, run_summary(path, name)) for name, path in run_folders(root).items()]
    # A run deleted meanwhile is not damaged.
    return [summary for path, summary in summaries if summary["damage"] is None or path.exists()]


def newest_unfinished(root: Path) -> RunDir:
    """Return the newest started and unfinished run in ``root``, outside sweeps.

    Raises:
        UserError: there is none, or a process is training it.
    """
    runs = [run_summary(run.path) for run in list_runs(root)]
    unfinished = [summary for summary in runs if summary["status"] not in ("finished", SUBMITTED, DAMAGED)]
    if not unfinished:
        raise UserError(_nothing_to_resume(root, runs))
    newest = unfinished[-1]
    if newest["status"] == "running":
        raise UserError(
            f"--resume: {newest['path']}, the newest unfinished run, is being trained by another process. Wait for it "
            "(`rlvr runs watch` shows it), or name another run."
        )
    return RunDir(Path(newest["path"]))


def _nothing_to_resume(root: Path, runs: list[dict[str, Any]]) -> str:
    if not runs:
        return f"--resume: no run in {root}. `rlvr train` starts one."
    finished = [run for run in runs if run["status"] == "finished"]
    extend = f" To extend the newest: rlvr train --resume {finished[-1]['path']} train.rollouts=N" if finished else ""
    counts = Counter(str(run["status"]) for run in runs)
    summary = ", ".join(f"{number} {status}" for status, number in counts.items())
    return f"--resume: no run in {root} can be continued. Runs there: {summary}.{extend}"


def run_folders(root: Path) -> dict[str, Path]:
    """Return every folder in ``root`` that is, or was, a run, by its name; runs of a sweep as `sweep/run`.

    Raises OSError where ``root`` cannot be read.
    """
    folders: dict[str, Path] = {}
    for name in _folders(root):
        path = root / name
        if is_run(path):
            folders[name] = path
        else:
            folders |= {f"{name}/{inner}": path / inner for inner in _inner(path) if is_run(path / inner)}
    return dict(sorted(folders.items()))


def check_root(root: Path) -> None:
    """Raise UserError where ``root`` is not a folder of runs."""
    if not root.exists():
        raise UserError(f"{root}: no such folder. Name the folder that holds the runs (run.dir).")
    if not root.is_dir():
        raise UserError(f"{root}: is a file. Name the folder that holds the runs (run.dir).")
    if is_run(root):
        raise UserError(
            f"{root}: is itself a run. `rlvr runs show {root}` shows it; --runs takes the folder that contains it."
        )


def _folders(root: Path) -> list[str]:
    """Return the folders except hidden ones: other programs', and runs being replaced."""
    with os.scandir(root) as entries:
        return [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]


def _inner(path: Path) -> list[str]:
    try:
        return _folders(path)
    except (PermissionError, FileNotFoundError):
        # Not readable, or deleted meanwhile.
        return []


def is_run(path: Path) -> bool:
    """Return whether a folder is, or was, a run."""
    run = RunDir(path)
    try:
        if run.manifest_path.exists():
            # On a case-insensitive file system a checkpoint's MANIFEST.json matches; a model is next to it.
            return not (path / "config.json").exists()
        # A folder of configuration files may also have a config.yaml.
        return run.config_path.exists() and run.checkpoints_dir.exists()
    except PermissionError:
        # Not readable.
        return False


def _printable(text: str) -> str:
    """Escape what cannot be encoded: invalid bytes of a folder's name, lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


FILTERS = ("method", "task", "model", "status")


def by_creation(runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs oldest first; those without a readable time last, by name."""
    latest = datetime.max.replace(tzinfo=UTC)
    return sorted(runs, key=lambda run: (moment_of(run.get("created")) or latest, run["name"]))


def select_runs(runs: Iterable[dict[str, Any]], filters: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the runs that match all ``filters``, oldest first.

    Args:
        filters: ``field=pattern`` with a field of ``FILTERS``; shell patterns such as ``method=*lopti*``. A model is
            also matched by the last component of its path or hub id.
    Raises:
        UserError: with every invalid filter.
    """
    pairs = [text.partition("=") for text in filters]
    problems = [
        f"{text}: unknown filter.{did_you_mean(field, FILTERS)} Write FIELD=VALUE, with one of {', '.join(FILTERS)}"
        for text, (field, equals, _) in zip(filters, pairs, strict=True)
        if field not in FILTERS or not equals
    ]
    problems += [
        f"status={value}: unknown status.{did_you_mean(value, STATUSES)} Allowed: {', '.join(STATUSES)}"
        for field, _, value in pairs
        if field == "status" and value not in STATUSES
    ]
    if problems:
        raise UserError(problems)
    return by_creation(run for run in runs if all(_fits(run.get(field), value) for field, _, value in pairs))


def _fits(value: Any, pattern: str) -> bool:
    return isinstance(value, str) and (fnmatchcase(value, pattern) or fnmatchcase(value.rpartition("/")[2], pattern))


def moment_of(value: Any) -> datetime | None:
    """Read a manifest's time, in UTC; None if it is not a time."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
        return moment and (moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC))
    except (ValueError, OverflowError):
        return None


def local_time(value: Any) -> str:
    """Return a manifest's time in local time, to the minute: `2025-01-31 12:30`; other values unchanged."""
    moment = moment_of(value)
    return str(value) if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M}"


NUMBERS = ("reward", "loss", "accuracy", "token_accuracy", "entropy", "length")
# Rollouts over which speed and remaining time are averaged.
RECENT_ROLLOUTS = 10


def live_row(run: dict[str, Any]) -> dict[str, Any]:
    """Return the row of `rlvr runs watch` for a run's summary.

    Of a running run by its newest optimizer step, of another by its manifest: `name`, `status`, `method`, `task`,
    `model`, `seed`, `rollout` (rollouts done), `rollouts_total`, `step`, `steps_total`, the numbers of the last step
    (``NUMBERS``), `alerts` (active ones, as text), `tokens_per_second` (trained on, over the whole loop) and
    `seconds_left`; None where unknown.
    """
    same = {name: run.get(name) for name in ("name", "path", "status", "damage", "method", "task", "model", "seed")}
    totals = {name: finite(run.get(name)) for name in ("rollouts_total", "steps_total")}
    fields = {**same, **totals, "step": finite(run.get("step")), "rollout": finite(run.get("rollout"))}
    if run["status"] != "running":
        return {**fields, **_numbers(run["last_metrics"]), "tokens_per_second": None, "seconds_left": None}
    run_dir = RunDir(Path(run["path"]))
    rows, timings = tail_jsonl(run_dir.metrics_path), tail_jsonl(run_dir.timings_path)
    last = rows[-1] if rows else run["last_metrics"]
    step = finite(last.get("step")) or 0.0
    updates = _updates(totals)
    if rows:
        fields |= {"step": step, "rollout": None if updates is None else float(step // updates)}
    seconds, tokens = _recent(rows, timings, int(updates or 1))
    seconds_left = (
        None if seconds is None or totals["steps_total"] is None else max(0.0, totals["steps_total"] - step) * seconds
    )
    return {**fields, **_numbers(last), "tokens_per_second": tokens, "seconds_left": seconds_left}


def _numbers(row: dict[str, Any]) -> dict[str, float | str | None]:
    return {"alerts": active_alerts(row), **{name: finite(row.get(name)) for name in NUMBERS}}


def _updates(totals: dict[str, float | None]) -> float | None:
    rollouts, steps = totals["rollouts_total"], totals["steps_total"]
    return steps // rollouts if rollouts and steps and rollouts > 0 and steps >= rollouts else None


def _recent(
    rows: list[dict[str, Any]], timings: list[dict[str, Any]], updates: int
) -> tuple[float | None, float | None]:
    """Return seconds per step and tokens per second over the last rollouts, without the first (warm-up).

    Saving and evaluating are excluded.
    """
    trained = {row["step"]: finite(row.get("update_tokens")) for row in rows if type(row.get("step")) is int}
    timed = {row["step"]: finite(row.get("seconds")) for row in timings if type(row.get("step")) is int}
    both = [
        (step, seconds, tokens)
        for step, seconds in sorted(timed.items())[-updates * RECENT_ROLLOUTS :]
        if seconds is not None and (tokens := trained.get(step)) is not None
    ]
    warm = [entry for entry in both if entry[0] > updates] or both
    spent = math.fsum(seconds for _, seconds, _ in warm)
    return (spent / len(warm), math.fsum(tokens for _, _, tokens in warm) / spent) if spent > 0 else (None, None)
