"""Run a user's reward function in its worker, with TRL's signature and columns from JSON.

Imports only the standard library, so that a worker starts within 0.1 s.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.core.user_code import (
    UserFile,
    describe_value,
    display_path,
    error_line,
    format_error,
    load_name,
    run_async,
)

# Within float32, with room for an advantage. Larger rewards are refused as non-finite ones.
LARGEST_REWARD = 1e30
NUMBER = f"a number from -{LARGEST_REWARD:g} to {LARGEST_REWARD:g}"


def make_handler(settings: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return the job handler of a function's worker.

    A job is None (only load the file) or ``{"count": rows, "columns": {name: values}}``. The answer is ``{"values":
    [per row], "logged": {name: values}}``, with a number, None or ``{"wrong": description}`` as a value, or ``{"wrong":
    error}``.

    Args:
        settings: `name` of the function, its `file` or installed `module`, and `seconds` in which a file may be
            imported.
    """
    name, file = settings["name"], UserFile.from_json(settings["file"]) if "file" in settings else None
    where = settings["module"] if file is None else display_path(file.path)
    call = _import_installed(where, name) if file is None else load_name(file, name, settings["seconds"])
    if not callable(call):
        raise RunError(f"{where}: {name} is {describe_value(call)}, not a function")

    def handle(job: Any) -> Any:
        if job is None:
            return None
        count, log = job["count"], _RecordedValues(job["count"])
        available = {**job["columns"], "log_extra": log.log_extra, "log_metric": log.log_metric}
        arguments, missing = _select_arguments(call, available)
        if missing:
            return {
                "wrong": f"needs {', '.join(missing)}; available are {', '.join(available)}. Map a column of the data "
                f"(task.columns={{{missing[0]}: ...}}), or set a default for {missing[0]}"
            }
        try:
            result = run_async(call(**arguments))
        except BaseException as error:
            line = f"{where}:{name}" if file is None else error_line(error, file)
            raise RunError(f"{line}: {format_error(error)}") from error
        if hasattr(result, "tolist"):
            result = result.tolist()
        if not isinstance(result, (list, tuple)):
            return {"wrong": f"must return a list of numbers; got {describe_value(result)}"}
        if len(result) != count:
            return {"wrong": f"must return {count} values, one per completion; got {len(result)}"}
        return {"values": [parse_reward(value) for value in result], "logged": log.columns}

    return handle


def _import_installed(module: str, name: str) -> Any:
    """Return a function of an installed module. Raises RunError without it."""
    try:
        loaded = importlib.import_module(module)
        value = getattr(loaded, name, None)
    except Exception as error:
        raise RunError(f"{module}: cannot be imported: {format_error(error)}") from error
    if value is None:
        raise RunError(f"{module}: has no {name}.{did_you_mean(name, [key for key in dir(loaded) if key[0] != '_'])}")
    return value


def _select_arguments(call: Callable[..., Any], available: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the function's arguments from ``available``, and the names of missing ones.

    ``**kwargs`` receives all but `completion_ids`, which are long.
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
    """The columns that a function records by TRL's `log_extra` and `log_metric`."""

    def __init__(self, count: int) -> None:
        self.columns: dict[str, list[Any]] = {}
        self._count = count

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Record a column of the rollouts: text, a number, a bool or None per completion."""
        values = [value.item() if hasattr(value, "item") else value for value in values]
        if len(values) != self._count:
            raise ValueError(
                f"log_extra({column!r}) must have {self._count} values, one per completion; got {len(values)}"
            )
        for value in values:
            if not is_loggable(value):
                raise ValueError(f"log_extra({column!r}): must be text, None or {NUMBER}; got {describe_value(value)}")
        self._store(column, values)

    def log_metric(self, name: str, value: float) -> None:
        number = parse_reward(value)
        if not isinstance(number, float):
            raise ValueError(f"log_metric({name!r}): must be {NUMBER}; got {describe_value(value)}")
        self._store(name, [number] * self._count)

    def _store(self, name: str, values: list[Any]) -> None:
        for text in (name, *values):
            try:
                str(text).encode()
            except UnicodeEncodeError:
                raise ValueError(f"{text!r} has half of a surrogate pair, which is not valid text") from None
        self.columns[str(name)] = values


def is_loggable(value: Any) -> bool:
    """Return whether a value is text, None or a number with a finite mean over a rollout."""
    return abs(value) <= LARGEST_REWARD if isinstance(value, (int, float)) else isinstance(value, str | None)


def parse_reward(result: Any) -> Any:
    """Convert a reward to a float or None; return ``{"wrong": description}`` for other values."""
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
