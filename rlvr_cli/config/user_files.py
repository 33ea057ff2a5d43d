"""Files of Python that a configuration names: the tasks, methods and rewards of the user's.

A load of a configuration that may import them (of commands that train, sample or judge) replaces a file by its name and
its reference, and knows its classes: :func:`config_type`. Any other load leaves such a section as it stands, unchecked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, create_model, model_serializer

from rlvr_cli.config.keys import KEYS, OTHER_NAMES
from rlvr_cli.config.schema import Config
from rlvr_cli.core.files import local_path
from rlvr_cli.core.keys import Schema
from rlvr_cli.core.layers import Layer
from rlvr_cli.core.section import Also
from rlvr_cli.core.user_code import COPIES, ENDING, UserFile, find_user_file, without_folder
from rlvr_cli.methods import user as user_methods
from rlvr_cli.methods.checks import try_files
from rlvr_cli.methods.method import Method, any_method
from rlvr_cli.methods.names import BUILT_IN, MethodTables
from rlvr_cli.methods.user import UserMethod, load_method, method_type, recorded_method, tables_of
from rlvr_cli.tasks import Task
from rlvr_cli.tasks import reasoning_gym as rg
from rlvr_cli.tasks import user as user_tasks
from rlvr_cli.tasks.own import Own
from rlvr_cli.tasks.rewards import REWARD, reward_file
from rlvr_cli.tasks.user import load_task, recorded_task, try_task

# What a task is called where its name stands for keys -> what they are.
_PREFIXES = {rg.PREFIX: rg.keys_of}
# The keys of references to files, in dotted form.
_REFERENCES = ("task.file", "task.reward", "method.files")


def user_files(config: Config) -> list[UserFile]:
    """Read the files without which the configuration would not be what it is, each once."""
    references = [*getattr(config.method, "files", ()), *filter(None, [getattr(config.task, "file", None)])]
    files = [find_user_file(one) for one in references]
    files += [reward_file(one) for one in config.task.reward] if isinstance(config.task, Own) else []
    return list({(one.path, one.digest): one for one in files}.values())


def identifying(key: str, value: Any) -> Any:
    """Return the value of a key without the folders of files, which identify nothing."""
    if key not in _REFERENCES:
        return value
    return [without_folder(one) for one in value] if isinstance(value, list) else without_folder(value)


@dataclass
class Imports:
    """What the layers of one load name.

    Attributes:
        allowed: whether files are imported.
    """

    allowed: bool
    tasks: list[type[Task]] = field(default_factory=list)
    methods: list[UserMethod] = field(default_factory=list)
    recorded: type[Method] | None = None

    def layer(self, layer: Layer, folder: Path | None = None) -> Layer:
        """Return the layer with names and references in place of files, which are relative to ``folder``.

        Raises UserError for a file that is none, or fails when it is imported.
        """
        for section, change in (("task", self._task), ("method", self._method)):
            given = layer.data.get(section)
            values = given if isinstance(given, dict) else {"name": given}
            changed = change(values, folder)
            if changed is values:
                continue
            lines = layer.lines
            if not isinstance(given, dict) and (section,) in lines:
                lines = {**lines, (section, "name"): lines[(section,)]}
            layer = replace(layer, data={**layer.data, section: changed}, lines=lines)
        return layer

    def _task(self, values: dict[str, Any], folder: Path | None) -> dict[str, Any]:
        name, reference = values.get("name"), values.get("file")
        if isinstance(name, str) and name.startswith(tuple(_PREFIXES)):
            return {**values, **_PREFIXES[name.partition(":")[0] + ":"](name)}
        if "reward" in values and self.allowed:
            values = {**values, "reward": _with_digest(values["reward"], folder)}
        written = name if isinstance(name, str) and name.endswith(ENDING) else reference
        if not isinstance(written, str):
            return values
        if not self.allowed:
            self.tasks[:] = [recorded_task({**{key: None for one in self.tasks for key in one.model_fields}, **values})]
            return values
        file = find_user_file(written, folder)
        if not user_tasks.is_loaded(file):
            try_task(file)
        kind = load_task(file)
        task_name = kind.model_fields["name"].default
        self.tasks[:] = [one for one in self.tasks if one.model_fields["name"].default != task_name] + [kind]
        return {**values, "name": task_name, "file": file.reference}

    def _method(self, values: dict[str, Any], folder: Path | None) -> dict[str, Any]:
        name, references = values.get("name"), values.get("files")
        written = (
            list(references) if isinstance(references, list) and all(isinstance(o, str) for o in references) else []
        )
        named = isinstance(name, str) and names_a_file(name)
        if not self.allowed:
            if named:
                self.recorded = _opaque_method(values)
            elif written:
                self.recorded = recorded_method(values, written)
            return values
        for one in written:
            self._know(find_user_file(one, folder))
        if not named:
            return values
        parts = parts_of(str(name), folder)
        names = [self._know(find_user_file(str(one))) if isinstance(one, Path) else one for one in parts]
        return {**values, "name": "+".join(names)}

    def _know(self, file: UserFile) -> str:
        """Import a method's file; another version of a file, or another file of the same name, gives its place up."""
        if not user_methods.is_loaded(file):
            try_files([file])
        one = load_method(file)
        self.methods[:] = [*(other for other in self.methods if not other.clashes(one)), one]
        return one.preset.name

    @property
    def tables(self) -> MethodTables | None:
        """Return the names of methods; None where some are in files that are not imported."""
        return None if self.recorded is not None else tables_of(tuple(self.methods)) if self.methods else BUILT_IN

    @property
    def schema(self) -> Schema:
        """Return the schema of a configuration that knows the files' classes."""
        if not self.tasks and not self.methods and self.recorded is None:
            return KEYS
        return _schema(config_type(tuple(self.tasks), self.recorded or method_type(tuple(self.methods))))


@cache
def _schema(kind: type[Config]) -> Schema:
    return Schema(kind, other_names=OTHER_NAMES, command="rlvr config keys", include=True)


@lru_cache(maxsize=256)
def config_type(tasks: tuple[type[Task], ...], method: type[Method]) -> type[Config]:
    """Make the configuration with these tasks besides the built-in ones, and this section ``method``."""
    fields: dict[str, Any] = {}
    for name, annotation in (("task", Annotated[Task, Also(tasks)]), ("method", any_method(method))):
        declared = Config.model_fields[name]
        fields[name] = (annotation, Field(default=declared.default, description=declared.description))
    return create_model("Config", __base__=Config, __doc__=Config.__doc__, **fields)


class _AsWritten(Method):
    """Keep a method whose file is not imported as it is written; an override may set any of its keys."""

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain: dict[str, Any] = handler(self)
        return {key: value for key, value in plain.items() if key in self.model_fields_set}


def _opaque_method(values: Mapping[str, Any]) -> type[Method]:
    fields: dict[str, Any] = {key: (Any, None) for key in (*Method.model_fields, *values) if key != "name"}
    made: type[Method] = create_model("Method", __base__=_AsWritten, name=(str, str(values["name"])), **fields)
    made.tables = None
    return made


def _with_digest(written: Any, folder: Path | None) -> Any:
    """Return reward functions with the digests of their files; what is wrong with others is reported later."""
    if isinstance(written, list):
        return [_with_digest(one, folder) for one in written]
    match = REWARD.fullmatch(written) if isinstance(written, str) else None
    if match is None:
        return written
    file = find_user_file(match["file"] if match["digest"] is None else f"{match['file']}@{match['digest']}", folder)
    return f"{file.path}:{match['name']}@{file.digest}"


def names_a_file(method: str) -> bool:
    """Whether a method, modifiers joined with +, names a file of Python."""
    return any(part.strip().endswith(ENDING) for part in method.split("+"))


def parts_of(method: str, folder: Path | None = None) -> Iterator[str | Path]:
    """Split a method at its +: names, and paths of files, which are relative to ``folder`` or to the current one."""
    parts = method.split("+")
    while parts:
        # A folder may have a + in its name.
        ways = ("+".join(parts[:end]).strip() for end in range(1, len(parts) + 1))
        there = (way for way in ways if way.endswith(ENDING) and _near(way, folder).is_file())
        written = next(there, parts[0].strip())
        parts = parts[written.count("+") + 1 :]
        yield _near(written, folder) if written.endswith(ENDING) else written


def _near(name: str, folder: Path | None) -> Path:
    path = local_path(name)
    near = path if folder is None else folder / path
    return (near if near.exists() or not path.exists() else path).absolute()


def absolute_method(method: str, folder: Path) -> str:
    """Return a method with absolute paths of its files; in a sweep's folder, those of the copies that it keeps."""
    parts = []
    for one in parts_of(method, folder):
        copies = sorted((folder / "base" / COPIES).glob(f"*/{one.name}")) if isinstance(one, Path) else []
        parts.append(str(copies[0].absolute() if copies else one))
    return "+".join(parts)


def with_absolute_files(layer: Layer, folder: Path) -> Layer:
    """Return the layer with absolute paths of the files that it names, relative to ``folder``; nothing is imported."""
    return replace(layer, data=_with_paths(layer.data, folder, lambda path: str(path)))


def with_copied_files(values: dict[str, Any], folder: Path, files: list[UserFile]) -> dict[str, Any]:
    """Return a configuration's values with the copies next to it in place of the files that it names.

    Args:
        folder: of the configuration. files: gets the files to copy.
    """

    def copied(path: Path) -> str:
        files.append(find_user_file(str(path)))
        return _copy(files[-1])

    return _with_paths(values, folder, copied)


def with_copied_method(method: str | None, folder: Path, files: list[UserFile]) -> str | None:
    """Return a method with the copies in ``folder`` in place of its files, which ``files`` gets."""
    if method is None or not names_a_file(method):
        return method
    parts = []
    for one in parts_of(method):
        if isinstance(one, Path):
            files.append(find_user_file(str(one)))
            one = str(folder.absolute() / _copy(files[-1]))
        parts.append(one)
    return "+".join(parts)


def _copy(file: UserFile) -> str:
    return f"{COPIES}/{file.digest}/{file.path.name}"


def _with_paths(values: dict[str, Any], folder: Path, written: Callable[[Path], str]) -> dict[str, Any]:
    """Return a configuration's values with other paths of the files that it names."""

    def reward(one: Any) -> Any:
        match = REWARD.fullmatch(one) if isinstance(one, str) else None
        return one if match is None else f"{written(_near(match['file'], folder))}:{match['name']}"

    values = dict(values)
    for section in ("task", "method"):
        given = values.get(section)
        name = given.get("name") if isinstance(given, dict) else given
        if isinstance(name, str) and names_a_file(name):
            parts = [str(one) if isinstance(one, str) else written(one) for one in parts_of(name, folder)]
            joined = "+".join(parts)
            values[section] = {**given, "name": joined} if isinstance(given, dict) else joined
    task = values.get("task")
    if isinstance(task, dict) and "reward" in task:
        rewards = task["reward"]
        rewards = [reward(one) for one in rewards] if isinstance(rewards, list) else reward(rewards)
        values["task"] = {**task, "reward": rewards}
    return values
