"""Run a user's reward function in its worker: TRL's signature, with columns from JSON.

Imports only the standard library, so that a worker starts in a few hundredths of a second.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.user_code import (
    UserFile,
    describe_value,
    display_path,
    error_line,
    format_error,
    load_name,
    run_async,
)

# Within float32, with room for an advantage; larger rewards are refused like non-finite ones.
LARGEST_REWARD = 1e30
NUMBER = f"a number from -{LARGEST_REWARD:g} to {LARGEST_REWARD:g}"


def make_handler(settings: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return the job handler of one function's worker.

    A job is None, for which the file is loaded, or ``{"count": rows, "columns": {name: values}}``. The answer is
    ``{"values": one a row, "logged": {name: values}}``, a value being a number, None or ``{"wrong": what it is}``; or
    ``{"wrong": why there are none}``.

    Args:
        settings: `file`, `name` of the function, and `seconds` in which the file may be imported.
    """
    file, name = UserFile.from_json(settings["file"]), settings["name"]
    call = load_name(file, name, settings["seconds"])
    if not callable(call):
        raise RunError(f"{display_path(file.path)}: {name} is {describe_value(call)}, not a function")

    def answer(job: Any) -> Any:
        if job is None:
            return None
        count, log = job["count"], _RecordedValues(job["count"])
        available = {**job["columns"], "log_extra": log.log_extra, "log_metric": log.log_metric}
        arguments, missing = _arguments(call, available)
        if missing:
            return {
                "wrong": f"needs {', '.join(missing)}; available are {', '.join(available)}. Map a column of the data "
                f"(task.columns={{{missing[0]}: ...}}), or give {missing[0]} a default"
            }
        try:
            result = run_async(call(**arguments))
        except BaseException as error:
            raise RunError(f"{error_line(error, file)}: {format_error(error)}") from error
        if hasattr(result, "tolist"):
            result = result.tolist()
        if not isinstance(result, (list, tuple)):
            return {"wrong": f"returned {describe_value(result)}; a list of numbers is needed"}
        if len(result) != count:
            return {"wrong": f"returned {len(result)} values for {count} completions"}
        return {"values": [parse_reward(value) for value in result], "logged": log.columns}

    return answer


def _arguments(call: Callable[..., Any], available: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the function's arguments among ``available``, and the names of missing ones.

    ``**kwargs`` gets all but `completion_ids`, which are long.
    """
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return dict(available), []
    named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    names = {p.name for p in named}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        names |= available.keys() - {"completion_ids"}
    missing = [p.name for p in named if p.default is p.empty and p.name not in available]
    return {name: value for name, value in available.items() if name in names}, missing


class _RecordedValues:
    """Values that a function records by TRL's `log_extra` and `log_metric`."""

    def __init__(self, count: int) -> None:
        self.columns: dict[str, list[Any]] = {}
        self._count = count

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Record a column of the rollouts: text, a number, a truth value or None for each completion."""
        values = [value.item() if hasattr(value, "item") else value for value in values]
        if len(values) != self._count:
            raise ValueError(f"log_extra({column!r}): {len(values)} values for {self._count} completions")
        for value in values:
            if not is_loggable(value):
                raise ValueError(f"log_extra({column!r}) has {describe_value(value)}; text, None or {NUMBER} is needed")
        self._store(column, values)

    def log_metric(self, name: str, value: float) -> None:
        """Record a number for the whole call."""
        number = parse_reward(value)
        if not isinstance(number, float):
            raise ValueError(f"log_metric({name!r}) has {describe_value(value)}; {NUMBER} is needed")
        self._store(name, [number] * self._count)

    def _store(self, name: str, values: list[Any]) -> None:
        for text in (name, *values):
            try:
                str(text).encode()
            except UnicodeEncodeError:
                raise ValueError(f"{text!r} is recorded, which has half of a surrogate pair; no text has") from None
        self.columns[str(name)] = values


def is_loggable(value: Any) -> bool:
    """Return whether a value is text, None or a number whose mean over a rollout is finite."""
    return abs(value) <= LARGEST_REWARD if isinstance(value, (int, float)) else isinstance(value, str | None)


def parse_reward(result: Any) -> Any:
    """Return a reward as a float, None, or ``{"wrong": what it is}``."""
    if result is None:
        return None
    value = result
    if not isinstance(value, Real) and hasattr(value, "item"):
        with contextlib.suppress(Exception):
            value = value.item()
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        number = math.inf
    return number if abs(number) <= LARGEST_REWARD else {"wrong": describe_value(result)}
