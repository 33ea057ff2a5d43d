"""List the runs in a folder: summaries, filters, and the progress of running ones."""

from __future__ import annotations

import math
import os
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
# The last two are inferred, never recorded.
STATUSES = (SUBMITTED, "running", "finished", "interrupted", "failed", "killed", DAMAGED)
FIELDS = ("method", "task", "model", "seed", "created", "finished", "rollout", "rollouts_total", "step", "steps_total")


def summarize_run(path: Path, name: str | None = None) -> dict[str, Any]:
    """Return a run's manifest fields, `damage` (a reason or None), and the status `killed` for a dead process."""
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
    """Return the summary of every run in ``root`` (:func:`find_run_folders`), by name. Raises OSError."""
    summaries = [(path, summarize_run(path, name)) for name, path in find_run_folders(root).items()]
    # Skip runs deleted in the meantime.
    return [summary for path, summary in summaries if summary["damage"] is None or path.exists()]


def find_newest_unfinished(root: Path) -> RunDir:
    """Return the newest started, unfinished run in ``root``, outside sweeps. Raises UserError, also if in use."""
    runs = [summarize_run(run.path) for run in list_runs(root)]
    unfinished = [summary for summary in runs if summary["status"] not in ("finished", SUBMITTED, DAMAGED)]
    if not unfinished:
        finished = [run["path"] for run in runs if run["status"] == "finished"]
        hint = "`rlvr train` starts one."
        if finished:
            hint = f"To extend the newest finished run: rlvr train --resume {finished[-1]} train.rollouts=N"
        raise UserError(f"--resume: no run in {root} can be continued. {hint}")
    newest = unfinished[-1]
    if newest["status"] == "running":
        raise UserError(
            f"--resume: {newest['path']}, the newest unfinished run, is being trained by another process. Wait for it "
            "(see `rlvr runs watch`), or pass another run."
        )
    return RunDir(Path(newest["path"]))


def find_run_folders(root: Path) -> dict[str, Path]:
    """Return every run folder by name, also damaged runs; runs of a sweep as `sweep/run`. Raises OSError."""
    folders: dict[str, Path] = {}
    for name in _folders(root):
        path = root / name
        if is_run(path):
            folders[name] = path
        else:
            folders |= {f"{name}/{inner}": path / inner for inner in _subfolders(path) if is_run(path / inner)}
    return dict(sorted(folders.items()))


def check_root(root: Path) -> None:
    if not root.exists():
        raise UserError(f"{root}: no such folder. Use the folder that holds the runs (run.dir).")
    if not root.is_dir():
        raise UserError(f"{root}: is a file. Use the folder that holds the runs (run.dir).")
    if is_run(root):
        raise UserError(
            f"{root}: is a run. Use `rlvr runs show {root}` for it, or --runs with the folder that contains it."
        )


def _folders(root: Path) -> list[str]:
    """Return the names of folders but hidden ones, of other programs and of runs being replaced."""
    with os.scandir(root) as entries:
        return [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]


def _subfolders(path: Path) -> list[str]:
    try:
        return _folders(path)
    except (PermissionError, FileNotFoundError):
        return []


def is_run(path: Path) -> bool:
    run = RunDir(path)
    try:
        if run.manifest_path.exists():
            # Exclude checkpoints, whose MANIFEST.json matches on a case-insensitive file system.
            return not (path / "config.json").exists()
        # A folder of configuration files may also have a config.yaml.
        return run.config_path.exists() and run.checkpoints_dir.exists()
    except PermissionError:
        return False


def _printable(text: str) -> str:
    """Escape characters that cannot be encoded (surrogates of a folder's invalid bytes)."""
    return text.encode("utf-8", "backslashreplace").decode()


FILTERS = ("method", "task", "model", "status")


def sort_by_creation(runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs oldest first, those without a readable time last."""
    latest = datetime.max.replace(tzinfo=UTC)
    return sorted(runs, key=lambda run: (parse_time(run.get("created")) or latest, run["name"]))


def select_runs(runs: Iterable[dict[str, Any]], filters: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the runs that match all ``filters`` (``method=*lopti*``), oldest first.

    The last component of a model's path or hub id also matches. Raises UserError with every invalid filter.
    """
    pairs = [text.partition("=") for text in filters]
    problems = [
        f"{text}: unknown filter.{did_you_mean(field, FILTERS)} Use FIELD=VALUE, with one of {', '.join(FILTERS)}"
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
    return sort_by_creation(run for run in runs if all(_matches(run.get(field), value) for field, _, value in pairs))


def _matches(value: Any, pattern: str) -> bool:
    return isinstance(value, str) and (fnmatchcase(value, pattern) or fnmatchcase(value.rpartition("/")[2], pattern))


def parse_time(value: Any) -> datetime | None:
    """Parse a manifest's time to UTC; return None for other values."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
        return moment and (moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC))
    except (ValueError, OverflowError):
        return None


def format_local_time(value: Any) -> str:
    """Format a manifest's time as local time, `2025-01-31 12:30`; return other values unchanged."""
    moment = parse_time(value)
    return str(value) if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M}"


NUMBERS = ("reward", "loss", "accuracy", "token_accuracy", "entropy", "length")
# Rollouts over which speed and remaining time are averaged.
RECENT_ROLLOUTS = 10


def read_live_row(run: dict[str, Any]) -> dict[str, Any]:
    """Return the row of `rlvr runs watch` for a run's summary, by its newest optimizer step if it is running.

    The keys: `name`, `status`, `method`, `task`, `model`, `seed`, `rollout` (rollouts done), `rollouts_total`, `step`,
    `steps_total`, the metrics of the last step (``NUMBERS``), `alerts` (active ones, as text), `tokens_per_second`
    (trained on, over the whole loop) and `seconds_left`; None if unknown.
    """
    fixed = {name: run.get(name) for name in ("name", "path", "status", "damage", "method", "task", "model", "seed")}
    totals = {name: finite(run.get(name)) for name in ("rollouts_total", "steps_total")}
    fields = {**fixed, **totals, "step": finite(run.get("step")), "rollout": finite(run.get("rollout"))}
    if run["status"] != "running":
        return {**fields, **_numbers(run["last_metrics"]), "tokens_per_second": None, "seconds_left": None}
    run_dir = RunDir(Path(run["path"]))
    rows, timings = tail_jsonl(run_dir.metrics_path), tail_jsonl(run_dir.timings_path)
    last = rows[-1] if rows else run["last_metrics"]
    step = finite(last.get("step")) or 0.0
    steps_per_rollout = _steps_per_rollout(totals)
    if rows:
        fields |= {"step": step, "rollout": None if steps_per_rollout is None else float(step // steps_per_rollout)}
    seconds, tokens = _recent_speed(rows, timings, int(steps_per_rollout or 1))
    seconds_left = (
        None if seconds is None or totals["steps_total"] is None else max(0.0, totals["steps_total"] - step) * seconds
    )
    return {**fields, **_numbers(last), "tokens_per_second": tokens, "seconds_left": seconds_left}


def _numbers(row: dict[str, Any]) -> dict[str, float | str | None]:
    return {"alerts": active_alerts(row), **{name: finite(row.get(name)) for name in NUMBERS}}


def _steps_per_rollout(totals: dict[str, float | None]) -> float | None:
    rollouts, steps = totals["rollouts_total"], totals["steps_total"]
    return steps // rollouts if rollouts and steps and rollouts > 0 and steps >= rollouts else None


def _recent_speed(
    rows: list[dict[str, Any]], timings: list[dict[str, Any]], steps_per_rollout: int
) -> tuple[float | None, float | None]:
    """Return seconds per step and tokens per second over the last rollouts, without the first (warm-up).

    The time of saves and evaluations is excluded.
    """
    trained = {row["step"]: finite(row.get("update_tokens")) for row in rows if type(row.get("step")) is int}
    timed = {row["step"]: finite(row.get("seconds")) for row in timings if type(row.get("step")) is int}
    both = [
        (step, seconds, tokens)
        for step, seconds in sorted(timed.items())[-steps_per_rollout * RECENT_ROLLOUTS :]
        if seconds is not None and (tokens := trained.get(step)) is not None
    ]
    warm = [entry for entry in both if entry[0] > steps_per_rollout] or both
    spent = math.fsum(seconds for _, seconds, _ in warm)
    return (spent / len(warm), math.fsum(tokens for _, _, tokens in warm) / spent) if spent > 0 else (None, None)
