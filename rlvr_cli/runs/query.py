"""Which of the runs are asked for, and in which order: `--method`, `--status`, `--since`, `--sort` and their like."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.methods.names import canonical_name
from rlvr_cli.runs.numbers import number
from rlvr_cli.runs.summary import STATUSES

DATE_FORMS = (
    "2025-01-31, 2025-01-31T12:30, 2025-01-31T12:30+01:00 (UTC where no zone is given), today, yesterday, "
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


def make_query(
    *,
    methods: Sequence[str] = (),
    tasks: Sequence[str] = (),
    models: Sequence[str] = (),
    statuses: Sequence[str] = (),
    since: str | None = None,
    until: str | None = None,
    sort: str = "created",
    reverse: bool = False,
    now: datetime | None = None,
) -> Query:
    """The query that these options describe. Names may be patterns (`*lopti*`); of several, one must fit.

    Args:
        now: that ages are counted from.
    Raises:
        UserError: every option that cannot be understood.
    """
    now = now or datetime.now(UTC)
    problems: list[str] = []
    conditions: list[Condition] = []

    def names(field: str, wanted: Sequence[str], fits: Callable[[str, str], bool]) -> None:
        if wanted:
            text = " ".join(f"--{field} {name}" for name in wanted)
            conditions.append(Condition(text, field, lambda run: _fits_any(run.get(field), wanted, fits)))

    methods = [_method(name, problems) for name in methods]
    names("method", methods, fnmatchcase)
    names("task", tasks, fnmatchcase)
    names("model", models, _model_fits)
    for name in statuses:
        if name not in STATUSES:
            problems.append(
                f"--status {name}: is not known.{did_you_mean(name, STATUSES)} Allowed: {', '.join(STATUSES)}"
            )
    names("status", statuses, str.__eq__)
    first = _moment("--since", since, now, problems, end=False)
    last = _moment("--until", until, now, problems, end=True)
    if first is not None and last is not None and first > last:
        problems.append(f"--since {since} is after --until {until}: no run can be between them.")
    if first is not None:
        conditions.append(Condition(f"--since {since}", "created", lambda run: _created(run, first, datetime.max)))
    if last is not None:
        conditions.append(Condition(f"--until {until}", "created", lambda run: _created(run, datetime.min, last)))
    if sort not in SORT_KEYS:
        problems.append(f"--sort {sort}: is not known.{did_you_mean(sort, SORT_KEYS)} Allowed: {', '.join(SORT_KEYS)}")
    if problems:
        raise UserError(problems)
    return Query(tuple(conditions), sort, reverse)


def parse_moment(text: str, now: datetime, *, end: bool) -> datetime:
    """The moment that ``text`` means, in UTC; of a day its beginning, or with ``end`` its last microsecond.

    Raises ValueError, or OverflowError for a moment outside of the calendar.
    """
    if age := _AGE.fullmatch(text):
        return now - timedelta(**{_UNITS[age[2]]: int(age[1])})
    days = {"today": now.astimezone(UTC).date(), "yesterday": now.astimezone(UTC).date() - timedelta(days=1)}
    return _in_calendar(days[text].isoformat() if text in days else text, end=end)


def moment_of(value: Any) -> datetime | None:
    """A manifest's time in UTC; None where it is no time."""
    try:
        return _in_calendar(value, end=False) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None


def _in_calendar(text: str, *, end: bool) -> datetime:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return datetime.combine(day, time.max if end else time.min, UTC)


def _method(name: str, problems: list[str]) -> str:
    if any(sign in name for sign in "*?["):
        return name
    try:
        return canonical_name(name)
    except ValueError as error:
        problems.append(f"--method: {error}")
        return name


def _moment(option: str, text: str | None, now: datetime, problems: list[str], *, end: bool) -> datetime | None:
    if text is None:
        return None
    try:
        return parse_moment(text, now, end=end)
    except (ValueError, OverflowError):
        problems.append(f"{option} {text}: is no date. Allowed: {DATE_FORMS}")
        return None


def _fits_any(value: Any, wanted: Sequence[str], fits: Callable[[str, str], bool]) -> bool:
    return isinstance(value, str) and any(fits(value, pattern) for pattern in wanted)


def _model_fits(value: str, pattern: str) -> bool:
    """By its whole name, or by the last part of a path or of a hub id."""
    return fnmatchcase(value, pattern) or fnmatchcase(Path(value).name, pattern)


def _created(run: dict[str, Any], first: datetime, last: datetime) -> bool:
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
