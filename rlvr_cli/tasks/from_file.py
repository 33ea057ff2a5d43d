"""A task of the user's own: a Python file with one class, or with plain functions, imported by its path and registered
as the built-in ones.

The text of the file goes wherever the configuration goes, under the key `code`: a run, a sweep and every process that
they start have the task by that text, wherever the file is now. A class made here has one key more than the user's,
`task.code`, the hash of the text: runs and evaluations of two versions of a file are never taken for one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

from pydantic import Field, create_model

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.own_code import OwnFile, class_lines, imported, line_of
from rlvr_cli.tasks.base import Task
from rlvr_cli.tasks.functions import has_functions, task_of_functions
from rlvr_cli.tasks.guarded import LIMITS, Guarded, Recorded, answers
from rlvr_cli.tasks.hub import looks_like_hub_id
from rlvr_cli.tasks.problem import made_here

PAGE = "docs/tasks/own.md"
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,49}$")
_CODE = "The hash of the task's file."
# The methods that it needs: one of each, by the first of which it is asked for.
_NEEDED = (("prompt",), ("judge", "judge_many", "judging"))
_ONE_OF = ("generate", "problem_from")


# The class by the name of the file, which may be the task's, and the hash of the text: a file is imported once.
_LOADED: dict[tuple[str, str], type[Task]] = {}
# The same of files that were not executed, with the keys that the run recorded.
_UNREAD: dict[tuple[str, str, tuple[str, ...]], type[Task]] = {}


def task_file(task: object) -> OwnFile | None:
    """The file that a task was made from; None of a built-in one."""
    return getattr(task, "own_file", None)


def _key(source: OwnFile) -> tuple[str, str]:
    return Path(source.file).stem, source.code


def register_task(source: OwnFile) -> tuple[str, bool]:
    """Import the file where it was not, and give its task its name: that name, and whether anything is new by it.

    Another version of a file that was registered under the same name gives its place up.

    Raises:
        UserError: with file and line: a syntax error, an exception, no class, several, a taken name, a lack.
    """
    kind = _LOADED.get(_key(source)) or _made(source)
    _LOADED[_key(source)] = kind
    return _registered(kind, source)


def _registered(kind: Any, source: OwnFile) -> tuple[str, bool]:
    kind.own_file = source
    name = str(kind.model_fields["name"].default)
    new = Task.kinds.get(name) is not kind
    if new:
        Task.kinds = dict(sorted({**Task.kinds, name: kind}.items()))
    return name, new


def stand_in(source: OwnFile, values: Mapping[str, Any]) -> tuple[str, bool]:
    """As :func:`register_task`, for commands that only read a run: the file is not executed.

    The class has the keys that the run recorded, ``values``, and no problems, prompts or verdicts.
    """
    if _key(source) in _LOADED:
        return register_task(source)
    name, data = str(values.get("name")), str(values.get("data"))
    key = (*_key(source), tuple(values))
    if key not in _UNREAD:
        before = Task.kinds
        Task.kinds = {}
        try:
            # In the order of the file's class, in which a run's keys are printed.
            own: dict[str, Any] = {field: (Any, None) for field in values if field not in Task.model_fields}
            own["code"] = (Literal[source.code], Field(source.code, description=_CODE))
            fixed: dict[str, Any] = {"name": (Literal[name], name), "data": (str, data)}
            make: Any = create_model
            made = make(
                "TaskOfARun",
                __base__=(Recorded, Task),
                __module__=_module(source),
                **(fixed | own),
            )
        finally:
            Task.kinds = before
        if not (local_path(data).exists() or looks_like_hub_id(data)):
            made.sets = {data: made_here(f"The problems of {Path(source.file).name}.")}
        _UNREAD[key] = made
    return _registered(_UNREAD[key], source)


def _made(source: OwnFile) -> type[Task]:
    """The class of the file, as it is registered; the registry is as before."""
    from rlvr_cli.tasks.sets import task_kinds

    before = task_kinds()
    # Whatever was defined elsewhere is another file's or package's.
    built_in = {name: kind for name, kind in before.items() if kind.__module__.startswith("rlvr_cli.")}
    Task.kinds = dict(built_in)
    try:
        module = _imported(source)
        classes = [
            one
            for one in vars(module).values()
            if isinstance(one, type) and issubclass(one, Task) and one.__module__ == module.__name__
        ]
        if not classes and has_functions(module):
            task_of_functions(module, built_in)
        found = {name: kind for name, kind in Task.kinds.items() if name not in built_in}
    finally:
        Task.kinds = before
    lines = class_lines(source.text)
    if not found:
        unnamed = [f"{source.file}:{lines.get(one.__name__, 1)}: {one.__name__}" for one in classes]
        has = (
            f"{unnamed[0]} has no name: give it `name: Literal[...] = Field(...)`"
            if unnamed
            else f"{source.file}: has no task: functions problems, prompt and reward, or a class of rlvr_cli.tasks.Task"
        )
        raise UserError(f"{has} ({PAGE}).")
    if len(found) > 1:
        placed = sorted((lines.get(kind.__name__, 1), kind.__name__) for kind in found.values())
        named = ", ".join(f"{name} (line {line})" for line, name in placed)
        raise UserError(f"{source.file}: has several tasks, {named}; a file has one. Put each into a file of its own.")
    ((name, kind),) = found.items()
    line = lines.get(kind.__name__)
    where = source.file if line is None else f"{source.file}:{line}: {kind.__name__}"
    _check(where, name, cast("type[Task]", kind), built_in)
    make: Any = create_model
    made = make(
        kind.__name__,
        __base__=(Guarded, kind),
        __module__=module.__name__,
        __doc__=kind.__doc__ or f"The task of {Path(source.file).name}.",
        code=(Literal[source.code], Field(source.code, description=_CODE)),
        **LIMITS,
    )
    return cast("type[Task]", made)


def task_worker(settings: Mapping[str, Any]) -> Callable[[Any], Any]:
    """What a worker process of a file's task does. Args: `source`, the file; `task`, the values of the task's keys."""
    name, _ = register_task(OwnFile(**settings["source"]))
    return answers(Task.kinds[name], settings["task"])


def _module(source: OwnFile) -> str:
    return f"rlvr_task_{Path(source.file).stem}_{source.code}"


def _imported(source: OwnFile) -> ModuleType:
    """The file as a module. Raises UserError for whatever it raises."""
    try:
        return imported(source, _module(source))
    except UserError as error:
        if error.__cause__ is not None and any(not isinstance(kind, str) for kind in Task.kinds):
            where = line_of(error.__cause__, source.file)
            raise UserError(f'{where}: name has no default; write `name: Literal["x"] = Field("x")`.') from None
        raise


def _check(where: str, name: str, kind: type[Task], built_in: Mapping[str, Any]) -> None:
    """Refuse a class that is no whole task. Raises UserError with all that it lacks."""
    problems = []
    if not isinstance(name, str) or not _NAME.match(name):
        problems.append(f"{where}: its name {name!r} must be of letters, digits, _ and -, at most 50 of them")

    def lacks(methods: tuple[str, ...]) -> bool:
        return all(getattr(kind, method) is getattr(Task, method) for method in methods)

    lacking = [methods[0] for methods in _NEEDED if lacks(methods)]
    if lacks(_ONE_OF):
        lacking.append(" or ".join(_ONE_OF))
    if lacking:
        problems.append(f"{where} lacks the method{'' if len(lacking) == 1 else 's'} {', '.join(lacking)} ({PAGE})")
    if kind.model_fields["data"].is_required():
        problems.append(f'{where}: data has no default; write `data: Data = "{name}-gen"` ({PAGE})')
    for key in [key for key in ("code", *LIMITS) if key in kind.model_fields]:
        problems.append(f"{where}: {key} is a key that the task gets here; rename yours")
    for other, theirs in built_in.items():
        for taken in [one for one in kind.sets if one in theirs.sets]:
            problems.append(f"{where}: the name of its data set {taken} is taken by the task {other}")
    if problems:
        raise UserError(problems)
