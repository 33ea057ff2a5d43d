"""User files of a configuration: tasks, methods and rewards.

Commands that train, sample or judge import them: loading then replaces a file by its name and reference and adds its
classes to the schema. Other commands leave such a section unchecked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, create_model, model_serializer

from rlvr_cli.config.keys import KEYS, OTHER_NAMES
from rlvr_cli.config.schema import Config
from rlvr_cli.core.keys import Schema
from rlvr_cli.core.layers import Layer
from rlvr_cli.core.section import Also
from rlvr_cli.core.user_code import COPIES, SUFFIX, UserFile, find_user_file, resolve_path, strip_folder
from rlvr_cli.methods.method import Method, any_method
from rlvr_cli.methods.names import MethodTables
from rlvr_cli.methods.user import UserMethod, build_method_type, build_recorded_method, load_method, tables_of
from rlvr_cli.tasks import Task
from rlvr_cli.tasks import reasoning_gym as rg
from rlvr_cli.tasks.rewards import REWARD, find_reward_file, reward_reference
from rlvr_cli.tasks.user_rows import UserRows
from rlvr_cli.tasks.user_task import load_task, recorded_task
from rlvr_cli.workers.trial import try_files

T = TypeVar("T")
# The keys of references to files, in dotted form.
_REFERENCES = ("task.file", "task.reward", "method.files")


def user_files(config: Config) -> list[UserFile]:
    references = [*getattr(config.method, "files", ()), *filter(None, [getattr(config.task, "file", None)])]
    files = [find_user_file(reference) for reference in references]
    rewards = config.task.reward if isinstance(config.task, UserRows) else ()
    files += [find_reward_file(reward) for reward in rewards if REWARD.fullmatch(reward)]
    return list(dict.fromkeys(files))


def strip_folders(key: str, value: Any) -> Any:
    """Return the value of a key without the folders of files, for comparisons."""
    if key not in _REFERENCES:
        return value
    return [strip_folder(reference) for reference in value] if isinstance(value, list) else strip_folder(value)


@cache
def _import_after_trial(load: Callable[[UserFile], T], file: UserFile) -> T:
    """Import a file after trying it in a separate process, which it may end, block or exhaust. Raises UserError."""
    try_files(f"{load.__module__}:{load.__name__}", [file])
    return load(file)


@dataclass
class Imports:
    """The user files of one load's layers.

    Attributes:
        allowed: whether files are imported. tasks, methods: those of files, by name; later files replace earlier ones.
        recorded: the section ``method`` if its files are not imported. recorded_name: the last method name.
    """

    allowed: bool
    tasks: dict[str, type[Task]] = field(default_factory=dict)
    methods: dict[str, UserMethod] = field(default_factory=dict)
    recorded: type[Method] | None = None
    recorded_name: str = ""

    def layer(self, layer: Layer, folder: Path | None = None) -> Layer:
        """Replace files, relative to ``folder``, by names and references. Raises UserError for an invalid file."""
        for section, change in (("task", self._task), ("method", self._method)):
            written = layer.data.get(section)
            values = written if isinstance(written, dict) else {"name": written}
            changed = change(values, folder)
            if changed is values:
                continue
            lines = layer.lines
            if not isinstance(written, dict) and (section,) in lines:
                lines = {**lines, (section, "name"): lines[(section,)]}
            layer = replace(layer, data={**layer.data, section: changed}, lines=lines)
        return layer

    def _task(self, values: dict[str, Any], folder: Path | None) -> dict[str, Any]:
        name, reference = values.get("name"), values.get("file")
        if isinstance(name, str) and name.startswith(rg.PREFIX):
            return {**values, **rg.parse_keys(name)}
        if "reward" in values and self.allowed:
            values = {**values, "reward": _add_digests(values["reward"], folder)}
        written = name if isinstance(name, str) and name.endswith(SUFFIX) else reference
        if not isinstance(written, str):
            return values
        if not self.allowed:
            self.tasks = {"": recorded_task(str(name))}
            return values
        file = find_user_file(written, folder)
        task: type[Task] = _import_after_trial(load_task, file)
        name = task.model_fields["name"].default
        self.tasks[name] = task
        return {**values, "name": name, "file": file.reference}

    def _method(self, values: dict[str, Any], folder: Path | None) -> dict[str, Any]:
        name, written = values.get("name"), values.get("files")
        references = (
            [reference for reference in written if isinstance(reference, str)] if isinstance(written, list) else []
        )
        named = isinstance(name, str) and names_user_file(name)
        if not self.allowed:
            if named:
                self.recorded = _OPAQUE
            elif references:
                self.recorded = build_recorded_method(values, references)
            elif isinstance(name, str) and name != self.recorded_name:
                self.recorded = None
            self.recorded_name = name if isinstance(name, str) else self.recorded_name
            return values
        for reference in references:
            self._add_method(find_user_file(reference, folder))
        if not named:
            return values
        names = [
            name if isinstance(name, str) else self._add_method(find_user_file(str(name)))
            for name in split_method(str(name), folder)
        ]
        return {**values, "name": "+".join(names)}

    def _add_method(self, file: UserFile) -> str:
        method: UserMethod = _import_after_trial(load_method, file)
        # Move it to the end: of two kinds with the same name, the later wins.
        self.methods.pop(method.preset.name, None)
        self.methods[method.preset.name] = method
        return method.preset.name

    @property
    def tables(self) -> MethodTables | None:
        """Return the names of methods; None if some are in files that are not imported."""
        return None if self.recorded is not None else tables_of(tuple(self.methods.values()))

    @property
    def schema(self) -> Schema:
        if not self.tasks and not self.methods and self.recorded is None:
            return KEYS
        return _schema(tuple(self.tasks.values()), self.recorded or build_method_type(tuple(self.methods.values())))


@lru_cache(maxsize=256)
def _schema(tasks: tuple[type[Task], ...], method: type[Method]) -> Schema:
    fields: dict[str, Any] = {}
    for name, annotation in (("task", Annotated[Task, Also(tasks)]), ("method", any_method(method))):
        declared = Config.model_fields[name]
        fields[name] = (annotation, Field(default=declared.default, description=declared.description))
    kind = create_model("Config", __base__=Config, __doc__=Config.__doc__, **fields)
    return Schema(kind, other_names=OTHER_NAMES, command="rlvr config keys", include=True)


class _AsWritten(Method):
    """A method whose file is not imported; accepts any key."""

    model_config = ConfigDict(extra="allow")
    tables: ClassVar[None] = None

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain: dict[str, Any] = handler(self)
        return {key: value for key, value in plain.items() if key in self.model_fields_set}


_ANY: dict[str, Any] = {key: (Any, None) for key in Method.model_fields if key != "name"}
_OPAQUE: type[Method] = create_model("Method", __base__=_AsWritten, **_ANY)


def _add_digests(written: Any, folder: Path | None) -> Any:
    """Add digests of files and versions of packages to reward functions; invalid ones are reported later."""
    if isinstance(written, list):
        return [_add_digests(reward, folder) for reward in written]
    return reward_reference(written, folder) if isinstance(written, str) else written


def names_user_file(method: str) -> bool:
    return any(name.strip().endswith(SUFFIX) for name in method.split("+"))


def split_method(method: str, folder: Path | None = None) -> Iterator[str | Path]:
    """Split a method at +: names, and paths of files, relative to ``folder`` or to the current one."""
    names = method.split("+")
    while names:
        # A folder's name may contain +.
        ways = ("+".join(names[:end]).strip() for end in range(1, len(names) + 1))
        files = (way for way in ways if way.endswith(SUFFIX) and resolve_path(way, folder).is_file())
        written = next(files, names[0].strip())
        names = names[written.count("+") + 1 :]
        yield resolve_path(written, folder).absolute() if written.endswith(SUFFIX) else written


def make_method_absolute(method: str, folder: Path) -> str:
    """Make the file paths of a method absolute; in a sweep's folder, those of its copies."""

    def absolute(path: Path) -> str:
        copies = sorted((folder / "base" / COPIES).glob(f"*/{path.name}"))
        return str(copies[0].absolute() if copies else path)

    return str(replace_paths({"method": method}, folder, absolute)["method"])


def refer_to_copies(values: dict[str, Any], folder: Path | None) -> tuple[dict[str, Any], list[UserFile]]:
    """Replace files in a configuration's values by their copies; return the values and the files."""
    files: list[UserFile] = []

    def copy(path: Path) -> str:
        files.append(find_user_file(str(path)))
        return f"{COPIES}/{files[-1].digest}/{path.name}"

    return replace_paths(values, folder, copy), files


def replace_paths(values: dict[str, Any], folder: Path | None, written: Callable[[Path], str]) -> dict[str, Any]:
    """Rewrite the file paths in a configuration's values by ``written``, without importing the files."""

    def reward(value: Any) -> Any:
        match = REWARD.fullmatch(value) if isinstance(value, str) else None
        return value if match is None else f"{written(resolve_path(match['file'], folder).absolute())}:{match['name']}"

    values = dict(values)
    for section in ("task", "method"):
        value = values.get(section)
        name = value.get("name") if isinstance(value, dict) else value
        if isinstance(name, str) and names_user_file(name):
            joined = "+".join(name if isinstance(name, str) else written(name) for name in split_method(name, folder))
            values[section] = {**value, "name": joined} if isinstance(value, dict) else joined
    task = values.get("task")
    if isinstance(task, dict) and "reward" in task:
        rewards = task["reward"]
        rewards = [reward(value) for value in rewards] if isinstance(rewards, list) else reward(rewards)
        values["task"] = {**task, "reward": rewards}
    return values
