"""A reward function of the user's, as its worker has it: TRL's signature, called with columns that came as JSON.

Standard library alone: a worker starts in a few hundredths of a second.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.own_code import OwnFile, blamed, from_code, shown

# What TRL gives a function to record by.
LOGS = ("log_extra", "log_metric")
# What float32 holds with room for an advantage; a reward beyond is refused as one that is not finite.
LARGEST_REWARD = 1e30


def ready(settings: Mapping[str, Any]) -> Callable[[Any], Any]:
    """What the worker of one function does with a job.

    A job is None, which asks for the function's parameters (`names`; `needed`: those without a default; `any`: whether
    it takes others), or ``{"count": rows, "columns": {name: values}}``, whose answer is one value a row: a number or
    None; in place of a value, and of them all, stands ``{"wrong": what was returned instead}``. Where the function
    called `log_extra` or `log_metric`, it is ``{"values": those, "logged": {name: values}}``.

    Args:
        settings: `source`, the file; `name` of the function.
    """
    source, name = OwnFile(**settings["source"]), settings["name"]
    path = Path(source.file)
    call = from_code(source, name)
    if not callable(call):
        raise RunError(f"{shown(path)}: {name} is {_shown(call)}, not a function")
    loops: list[Any] = []

    parameters = _parameters(call)
    names = [name for name in LOGS if parameters["any"] or name in parameters["names"]]

    def answer(job: Any) -> Any:
        if job is None:
            return parameters
        log = _Log(job["count"])
        try:
            # A function may keep what it was given, and change it.
            said = call(**{**copy.deepcopy(job["columns"]), **log.given(names)})
            if inspect.isawaitable(said):
                import asyncio  # slow to import, and few rewards need it

                # One for all calls, as clients that a module keeps belong to theirs.
                loops[:] = loops or [asyncio.new_event_loop()]
                said = loops[0].run_until_complete(said)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise RunError(blamed(error, path)) from error
        if hasattr(said, "tolist"):
            said = said.tolist()
        if not isinstance(said, (list, tuple)):
            return {"wrong": f"{_shown(said)}; a list of numbers is needed"}
        if len(said) != job["count"]:
            return {"wrong": f"{len(said)} values for {job['count']} completions"}
        values = [_value(one) for one in said]
        return {"values": values, "logged": log.columns} if log.columns else values

    return answer


class _Log:
    """What a function records next to its rewards, by TRL's `log_extra` and `log_metric`."""

    def __init__(self, count: int) -> None:
        self.columns: dict[str, list[Any]] = {}
        self._count = count

    def given(self, names: Sequence[str]) -> dict[str, Callable[..., None]]:
        """Those of the two that the function is called with."""
        return {name: getattr(self, name) for name in names}

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """A column of the rollouts: text, a number, a truth value or None for each completion."""
        values = [one.item() if hasattr(one, "item") else one for one in values]
        if len(values) != self._count:
            raise ValueError(f"log_extra({column!r}): {len(values)} values for {self._count} completions")
        _check_text("log_extra", column)
        for value in values:
            _check_text("log_extra", value)
            finite = not isinstance(value, float) or math.isfinite(value)
            if not (value is None or (isinstance(value, (str, bool, int, float)) and finite)):
                raise ValueError(f"log_extra({column!r}) has {_shown(value)}; text, a finite number or None is needed")
        self.columns[str(column)] = values

    def log_metric(self, name: str, value: float) -> None:
        """A number of the whole call."""
        _check_text("log_metric", name)
        number = _value(value)
        if not isinstance(number, float):
            raise ValueError(f"log_metric({name!r}) has {_shown(value)}; a finite number is needed")
        self.columns[str(name)] = [number] * self._count


def _check_text(function: str, value: Any) -> None:
    """Raises ValueError for text that cannot be written as UTF-8."""
    try:
        str(value).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{function} has {_shown(value)}, which has half of a surrogate pair; no text has") from None


def _parameters(call: Callable[..., Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return {"names": [], "needed": [], "any": True}
    named = [one for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    return {
        "names": [one.name for one in named],
        "needed": [one.name for one in named if one.default is one.empty],
        "any": any(one.kind is one.VAR_KEYWORD for one in parameters),
    }


def _value(value: Any) -> Any:
    if value is None:
        return None
    given = value
    if not isinstance(value, Real) and hasattr(value, "item"):
        with contextlib.suppress(Exception):
            value = value.item()
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        number = math.inf
    return number if abs(number) <= LARGEST_REWARD else {"wrong": _shown(given)}


def _shown(value: Any) -> str:
    return f"{repr(value)[:80]} ({type(value).__name__})"
