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
from rlvr_cli.core.user_code import UserFile, awaited, error_line, error_text, load_name, shown, value_text

# Within float32, with room for an advantage; larger rewards are refused like non-finite ones.
LARGEST_REWARD = 1e30
NUMBER = f"a number from -{LARGEST_REWARD:g} to {LARGEST_REWARD:g}"


def ready(settings: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return the job handler of one function's worker.

    A job is None, for which the file is loaded, or ``{"count": rows, "columns": {name: values}}``. The answer is
    ``{"values": one a row, "logged": {name: values}}``, a value being a number, None or ``{"wrong": what it is}``; or
    ``{"wrong": why there are none}``.

    Args:
        settings: `file`, `name` of the function, and `seconds` in which the file may be imported.
    """
    file, name = UserFile.of_json(settings["file"]), settings["name"]
    call = load_name(file, name, settings["seconds"])
    if not callable(call):
        raise RunError(f"{shown(file.path)}: {name} is {value_text(call)}, not a function")

    def answer(job: Any) -> Any:
        if job is None:
            return None
        count, log = job["count"], _Log(job["count"])
        available = {**job["columns"], "log_extra": log.log_extra, "log_metric": log.log_metric}
        arguments, missing = _arguments(call, available)
        if missing:
            return {
                "wrong": f"needs {', '.join(missing)}; available are {', '.join(available)}. Map a column of the data "
                f"(task.columns={{{missing[0]}: ...}}), or give {missing[0]} a default"
            }
        try:
            result = awaited(call(**arguments))
        except BaseException as error:
            raise RunError(f"{error_line(error, file)}: {error_text(error)}") from error
        if hasattr(result, "tolist"):
            result = result.tolist()
        if not isinstance(result, (list, tuple)):
            return {"wrong": f"must return a list of numbers; got {value_text(result)}"}
        if len(result) != count:
            return {"wrong": f"must return {count} values, one per completion; got {len(result)}"}
        return {"values": [reward_number(value) for value in result], "logged": log.columns}

    return answer


def _arguments(call: Callable[..., Any], available: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the function's arguments among ``available``, and the names of missing ones.

    ``**kwargs`` gets all but `completion_ids`, which are long.
    """
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return dict(available), []
    named = [item for item in parameters if item.kind not in (item.VAR_KEYWORD, item.VAR_POSITIONAL)]
    names = {item.name for item in named}
    if any(item.kind is item.VAR_KEYWORD for item in parameters):
        names |= available.keys() - {"completion_ids"}
    missing = [item.name for item in named if item.default is item.empty and item.name not in available]
    return {name: value for name, value in available.items() if name in names}, missing


class _Log:
    """Values that a function records by TRL's `log_extra` and `log_metric`."""

    def __init__(self, count: int) -> None:
        self.columns: dict[str, list[Any]] = {}
        self._count = count

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Record a column of the rollouts: text, a number, a truth value or None for each completion."""
        values = [value.item() if hasattr(value, "item") else value for value in values]
        if len(values) != self._count:
            raise ValueError(
                f"log_extra({column!r}) must have {self._count} values, one per completion; got {len(values)}"
            )
        for value in values:
            if not can_be_logged(value):
                raise ValueError(f"log_extra({column!r}) must have text, None or {NUMBER}; got {value_text(value)}")
        self._keep(column, values)

    def log_metric(self, name: str, value: float) -> None:
        """Record a number for the whole call."""
        number = reward_number(value)
        if not isinstance(number, float):
            raise ValueError(f"log_metric({name!r}) must have {NUMBER}; got {value_text(value)}")
        self._keep(name, [number] * self._count)

    def _keep(self, name: str, values: list[Any]) -> None:
        for text in (name, *values):
            try:
                str(text).encode()
            except UnicodeEncodeError:
                raise ValueError(f"{text!r} is recorded, which has half of a surrogate pair; no text has") from None
        self.columns[str(name)] = values


def can_be_logged(value: Any) -> bool:
    """Return whether a value is text, None or a number whose mean over a rollout is finite."""
    return abs(value) <= LARGEST_REWARD if isinstance(value, (int, float)) else isinstance(value, str | None)


def reward_number(result: Any) -> Any:
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
    return number if abs(number) <= LARGEST_REWARD else {"wrong": value_text(result)}
