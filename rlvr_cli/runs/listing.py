"""The runs in a folder: each in a few fields, chosen and sorted, and how far the running ones are."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from rlvr_cli.collapse.alerts import alerts_on
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import is_held, number, tail_jsonl
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.methods.names import canonical_name
from rlvr_cli.runs.folder import SUBMITTED, RunDir, list_runs

DAMAGED = "damaged"
# What a run can be; the last two are seen from outside and stand in no manifest.
STATUSES = (SUBMITTED, "running", "finished", "interrupted", "failed", "killed", DAMAGED)
FIELDS = ("method", "task", "model", "seed", "created", "finished", "rollout", "rollouts_total", "step", "steps_total")


def run_summary(path: Path, name: str | None = None) -> dict[str, Any]:
    """What a run's manifest says, with `damage` (a reason, or None) and the status corrected for a dead process.

    Args:
        name: that the run goes by; default: its folder's.
    """
    run = RunDir(path)
    place = {"name": _printable(name or run.name), "path": _printable(str(path))}
    try:
        manifest = run.read_manifest()
    except RunError as error:
        return {**place, "damage": _printable(str(error)), "status": DAMAGED, "last_metrics": {}}
    status, last = manifest.get("status"), manifest.get("last_metrics")
    if status == "running" and not is_held(path):
        status = "killed"
    values = {field: manifest.get(field) for field in FIELDS}
    return {
        **place,
        "damage": None,
        "status": _printable(status) if isinstance(status, str) else None,
        **{field: _printable(value) if isinstance(value, str) else value for field, value in values.items()},
        "last_metrics": last if isinstance(last, dict) else {},
    }


def read_runs(root: Path) -> list[dict[str, Any]]:
    """The summary of every run in ``root`` (:func:`run_folders`), by name. Raises OSError where it cannot be read."""
    found = [(path, run_summary(path, name)) for name, path in run_folders(root).items()]
    # One that was deleted in the meantime is not damaged.
    return [one for path, one in found if one["damage"] is None or path.exists()]


def newest_unfinished(root: Path) -> RunDir:
    """The run in ``root``, not in a sweep, that was created last of those that have begun and are not finished.

    Raises:
        UserError: there is none, or a process is training it.
    """
    found = [run_summary(run.path) for run in list_runs(root)]
    unfinished = [one for one in found if one["status"] not in ("finished", SUBMITTED, DAMAGED)]
    if not unfinished:
        raise UserError(_nothing_to_resume(root, found))
    newest = unfinished[-1]
    if newest["status"] == "running":
        raise UserError(
            f"--resume: {newest['path']}, the newest unfinished run, is being trained by another process. Wait for it "
            "(`rlvr runs watch` shows it), or name another run."
        )
    return RunDir(Path(newest["path"]))


def _nothing_to_resume(root: Path, found: list[dict[str, Any]]) -> str:
    if not found:
        return f"--resume: there is no run in {root}. `rlvr train` starts one."
    finished = [one for one in found if one["status"] == "finished"]
    extend = f" To extend the newest: rlvr train --resume {finished[-1]['path']} train.rollouts=N" if finished else ""
    counts = Counter(str(one["status"]) for one in found)
    there = ", ".join(f"{number} {status}" for status, number in counts.items())
    return f"--resume: no run in {root} can be continued. Runs there: {there}.{extend}"


def run_folders(root: Path) -> dict[str, Path]:
    """Every folder in ``root`` that is, or was, a run, by its name; those inside a sweep's folder as `sweep/run`.

    Raises OSError where ``root`` cannot be read.
    """
    found: dict[str, Path] = {}
    for name in _folders(root):
        path = root / name
        if is_run(path):
            found[name] = path
        else:
            found |= {f"{name}/{inner}": path / inner for inner in _inner(path) if is_run(path / inner)}
    return dict(sorted(found.items()))


def check_root(root: Path) -> None:
    """Raise UserError where ``root`` is no folder that could hold runs."""
    if not root.exists():
        raise UserError(f"{root}: no such folder. Name the folder that holds the runs (run.dir).")
    if not root.is_dir():
        raise UserError(f"{root}: is a file. Name the folder that holds the runs (run.dir).")
    if is_run(root):
        raise UserError(
            f"{root}: is itself a run. `rlvr runs show {root}` shows it; --runs takes the folder that contains it."
        )


def _folders(root: Path) -> list[str]:
    """Hidden folders are left out: those of other programs, and runs that are being replaced."""
    with os.scandir(root) as entries:
        return [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]


def _inner(path: Path) -> list[str]:
    try:
        return _folders(path)
    except (PermissionError, FileNotFoundError):
        # May not be looked into, or is gone by now.
        return []


def is_run(path: Path) -> bool:
    """Whether a folder is, or was, a run."""
    run = RunDir(path)
    try:
        if run.manifest_path.exists():
            # A checkpoint's MANIFEST.json is the same file where a file system ignores case; a model lies next to it.
            return not (path / "config.json").exists()
        # A folder of configuration files may have a config.yaml as well.
        return run.config_path.exists() and run.checkpoints_dir.exists()
    except PermissionError:
        # What may not be looked into is no run for this reader.
        return False


def _printable(text: str) -> str:
    """``text`` with escapes for what no output can hold: bytes of a folder's name that are no text, half characters."""
    return text.encode("utf-8", "backslashreplace").decode()


DATE_FORMS = (
    "2025-01-31, 2025-01-31T12:30, 2025-01-31T12:30+01:00 (local time where no zone is given), today, yesterday, "
    "or an age as 90m, 12h, 3d, 2w"
)
SORT_KEYS = ("created", "finished", "name", "status", "method", "task", "model", "rollout", "reward", "accuracy")
_AGE = re.compile(r"(\d{1,6})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True)
class Condition:
    """One filter, as it was written on the command line, and whether a run passes it.

    Attributes:
        field: the field of a run's summary that it looks at.
    """

    text: str
    field: str
    passes: Callable[[dict[str, Any]], bool]


@dataclass(frozen=True)
class Query:
    """Runs that pass all conditions, sorted by a key; those without a value for it come last."""

    conditions: tuple[Condition, ...] = ()
    sort: str = "created"
    reverse: bool = False

    def select(self, runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The runs asked for, in order."""
        passing = [run for run in runs if all(condition.passes(run) for condition in self.conditions)]
        passing.sort(key=lambda run: run["name"], reverse=self.reverse)
        known = [run for run in passing if self._value(run) is not None]
        known.sort(key=self._value, reverse=self.reverse)
        return known + [run for run in passing if self._value(run) is None]

    def explained(self, runs: Sequence[dict[str, Any]]) -> list[str]:
        """For a query that no run passes: how many each of its conditions leaves, and what there is instead."""
        return [f"  {condition.text}: {_left(condition, runs)}" for condition in self.conditions]

    def _value(self, run: dict[str, Any]) -> Any:
        if run["damage"] is not None and self.sort not in ("name", "status"):
            return None
        value = run["last_metrics"].get(self.sort) if self.sort in ("reward", "accuracy") else run[self.sort]
        if self.sort in ("created", "finished"):
            return moment_of(value)
        if self.sort in ("rollout", "reward", "accuracy"):
            return number(value)
        return value if isinstance(value, str) else None


def make_query(filters: Sequence[str] = (), sort: str = "created", now: datetime | None = None) -> Query:
    """The query that a command line describes.

    Args:
        filters: `field=value`, as `status=failed`. Names may be patterns (`method=*lopti*`); of several values for a
            field, one must fit.
        sort: one of ``SORT_KEYS``, with a `-` before it in reverse.
        now: that ages are counted from.
    Raises:
        UserError: every filter that cannot be understood.
    """
    now = now or datetime.now(UTC)
    problems: list[str] = []
    given: dict[str, list[str]] = {field: [] for field in FILTERS}
    for text in filters:
        field, equals, value = text.partition("=")
        if field not in given or not equals:
            problems.append(
                f"{text}: is not a filter.{did_you_mean(field, FILTERS)} A filter is FIELD=VALUE, with the fields "
                f"{', '.join(FILTERS)}"
            )
        else:
            given[field].append(_method(value, problems) if field == "method" else value)
    problems += [
        f"status={name}: unknown sort key.{did_you_mean(name, STATUSES)} Allowed: {', '.join(STATUSES)}"
        for name in given["status"]
        if name not in STATUSES
    ]
    conditions = [
        Condition(_text(field, given[field]), field, partial(_fits_any, field, given[field], fits))
        for field, fits in _NAMES.items()
        if given[field]
    ]
    moments = {}
    for field in ("since", "until"):
        for text in given[field][:1]:
            moments[field] = _moment(field, text, now, problems)
        if len(given[field]) > 1:
            problems.append(f"{_text(field, given[field])}: give one of them.")
    first, last = moments.get("since"), moments.get("until")
    if first is not None and last is not None and first > last:
        said = (_text(field, given[field]) for field in ("since", "until"))
        problems.append(f"{' is after '.join(said)}: no run can be between them.")
    if first is not None:
        conditions.append(Condition(_text("since", given["since"]), "created", partial(_created, first, datetime.max)))
    if last is not None:
        conditions.append(Condition(_text("until", given["until"]), "created", partial(_created, datetime.min, last)))
    key = sort.removeprefix("-")
    if key not in SORT_KEYS:
        problems.append(
            f"--sort {sort}: unknown sort key.{did_you_mean(key, SORT_KEYS)} Allowed: {', '.join(SORT_KEYS)}"
        )
    if problems:
        raise UserError(problems)
    return Query(tuple(conditions), key, sort.startswith("-"))


def _text(field: str, values: Sequence[str]) -> str:
    return " ".join(f"{field}={value}" for value in values)


def parse_moment(text: str, now: datetime, *, end: bool) -> datetime:
    """The moment that ``text`` means, by the local clock; of a day its beginning, or with ``end`` its last microsecond.

    Raises ValueError, or OverflowError for a moment outside of the calendar.
    """
    if age := _AGE.fullmatch(text):
        return now - timedelta(**{_UNITS[age[2]]: int(age[1])})
    today = now.astimezone().date()
    days = {"today": today, "yesterday": today - timedelta(days=1)}
    try:
        day = days[text] if text in days else date.fromisoformat(text)
    except ValueError:
        return datetime.fromisoformat(text).astimezone(UTC)
    return datetime.combine(day, time.max if end else time.min).astimezone(UTC)


def moment_of(value: Any) -> datetime | None:
    """A manifest's time in UTC; None where it is no time."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
        return moment and (moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC))
    except (ValueError, OverflowError):
        return None


def local_time(value: Any) -> str:
    """A manifest's time by the local clock, to the minute: `2025-01-31 12:30`; what is no time as it is."""
    moment = moment_of(value)
    return str(value) if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M}"


def _method(name: str, problems: list[str]) -> str:
    if any(sign in name for sign in "*?["):
        return name
    try:
        return canonical_name(name)
    except ValueError as error:
        problems.append(f"method: {error}")
        return name


def _moment(field: str, text: str, now: datetime, problems: list[str]) -> datetime | None:
    try:
        return parse_moment(text, now, end=field == "until")
    except (ValueError, OverflowError):
        problems.append(f"{field}={text}: is no date. Allowed: {DATE_FORMS}")
        return None


def _fits_any(field: str, wanted: Sequence[str], fits: Callable[[str, str], bool], run: dict[str, Any]) -> bool:
    value = run.get(field)
    return isinstance(value, str) and any(fits(value, pattern) for pattern in wanted)


def _model_fits(value: str, pattern: str) -> bool:
    """By its whole name, or by the last part of a path or of a hub id."""
    return fnmatchcase(value, pattern) or fnmatchcase(Path(value).name, pattern)


# The fields of a run that a filter names, and how a value fits one.
_NAMES: dict[str, Callable[[str, str], bool]] = {
    "method": fnmatchcase,
    "task": fnmatchcase,
    "model": _model_fits,
    "status": str.__eq__,
}
FILTERS = (*_NAMES, "since", "until")


def _created(first: datetime, last: datetime, run: dict[str, Any]) -> bool:
    created = moment_of(run.get("created"))
    return created is not None and first.replace(tzinfo=UTC) <= created <= last.replace(tzinfo=UTC)


def _left(condition: Condition, runs: Sequence[dict[str, Any]]) -> str:
    left = f"fits {sum(map(condition.passes, runs))} of {len(runs)}"
    if condition.field == "created":
        times = sorted(moment for run in runs if (moment := moment_of(run.get("created"))) is not None)
        return f"{left}; they were created from {times[0].isoformat()} to {times[-1].isoformat()}" if times else left
    counts = Counter(str(run.get(condition.field)) for run in runs if run.get(condition.field) is not None)
    there = ", ".join(f"{name} ({count})" for name, count in counts.most_common(8))
    more = f" and {len(counts) - 8} more" if len(counts) > 8 else ""
    return f"{left}; there are {there}{more}" if there else left


NUMBERS = ("reward", "loss", "accuracy", "token_accuracy", "entropy", "length")
# Rollouts that speed and time to go are averaged over.
RECENT_ROLLOUTS = 10


def live_row(run: dict[str, Any]) -> dict[str, Any]:
    """What `rlvr runs watch` shows of a run, from its summary.

    Of a running one by its newest optimizer step, of another by its manifest: `name`, `status`, `method`, `task`,
    `model`, `seed`, `rollout` (rollouts done), `rollouts_total`, `step`, `steps_total`, the numbers of the last step
    (``NUMBERS``), `alerts` (those that are on, as text), `tokens_per_second` (trained on, over the whole loop) and
    `seconds_left`; None where unknown.
    """
    same = {name: run.get(name) for name in ("name", "path", "status", "damage", "method", "task", "model", "seed")}
    totals = {name: number(run.get(name)) for name in ("rollouts_total", "steps_total")}
    shown = {**same, **totals, "step": number(run.get("step")), "rollout": number(run.get("rollout"))}
    if run["status"] != "running":
        return {**shown, **_numbers(run["last_metrics"]), "tokens_per_second": None, "seconds_left": None}
    place = RunDir(Path(run["path"]))
    rows, timings = tail_jsonl(place.metrics_path), tail_jsonl(place.timings_path)
    last = rows[-1] if rows else run["last_metrics"]
    step = number(last.get("step")) or 0.0
    updates = _updates(totals)
    if rows:
        shown |= {"step": step, "rollout": None if updates is None else float(step // updates)}
    seconds, tokens = _recent(rows, timings, int(updates or 1))
    left = (
        None if seconds is None or totals["steps_total"] is None else max(0.0, totals["steps_total"] - step) * seconds
    )
    return {**shown, **_numbers(last), "tokens_per_second": tokens, "seconds_left": left}


def _numbers(row: dict[str, Any]) -> dict[str, float | str | None]:
    return {"alerts": alerts_on(row), **{name: number(row.get(name)) for name in NUMBERS}}


def _updates(totals: dict[str, float | None]) -> float | None:
    """Optimizer steps of a rollout."""
    rollouts, steps = totals["rollouts_total"], totals["steps_total"]
    return steps // rollouts if rollouts and steps and rollouts > 0 and steps >= rollouts else None


def _recent(
    rows: list[dict[str, Any]], timings: list[dict[str, Any]], updates: int
) -> tuple[float | None, float | None]:
    """Seconds a step, and tokens a second, over the last rollouts of so many steps; without the first, which warms up.

    Saving and evaluating are not among the seconds.
    """
    trained = {row["step"]: number(row.get("update_tokens")) for row in rows if type(row.get("step")) is int}
    timed = {row["step"]: number(row.get("seconds")) for row in timings if type(row.get("step")) is int}
    both = [
        (step, seconds, tokens)
        for step, seconds in sorted(timed.items())[-updates * RECENT_ROLLOUTS :]
        if seconds is not None and (tokens := trained.get(step)) is not None
    ]
    warm = [entry for entry in both if entry[0] > updates] or both
    spent = math.fsum(seconds for _, seconds, _ in warm)
    return (spent / len(warm), math.fsum(tokens for _, _, tokens in warm) / spent) if spent > 0 else (None, None)
