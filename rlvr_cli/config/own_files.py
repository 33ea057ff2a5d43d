"""Files of Python that a configuration names or has copies of: tasks, methods and rewards of the user's own.

They are registered where a configuration is read, so that their names and keys are known like those of built-in ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvr_cli.config.keys import KEYS
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.include import CODE, SourceFile
from rlvr_cli.core.keys import schema_of
from rlvr_cli.core.layers import Layer
from rlvr_cli.core.own_code import ENDING, OwnFile, copied_file, find_own_file, packaged, read_own_file
from rlvr_cli.core.yaml import dump
from rlvr_cli.methods import own, recorded
from rlvr_cli.methods.method import rebuild as rebuild_methods
from rlvr_cli.methods.names import ALIASES, METHODS, MODIFIER_PRESETS
from rlvr_cli.tasks import Task
from rlvr_cli.tasks import reasoning_gym as rg
from rlvr_cli.tasks.from_file import register_task, stand_in, task_file
from rlvr_cli.tasks.own import Own
from rlvr_cli.tasks.rewards import REWARD, keep_source

# What is known of a method without its code; what a file of reward functions is.
ABOUT, REWARDS = "about", "reward"
_REGISTER = {"task": register_task, "method": own.register_method}
# What a task is called where its name stands for keys -> what they are.
_PREFIXES = {rg.PREFIX: rg.keys_of}


def own_files(config: Config) -> list[OwnFile]:
    """The files of the user's own that the configuration depends on."""
    return [*_task_files(config.task), *(one.source for one in own.methods_of_files(config.method))]


def copies(config: Config) -> list[dict[str, Any]]:
    """Their text, and what is known of methods without it, as a configuration's key `code` has them."""
    methods = own.methods_of_files(config.method)
    blocks = [one.source.block() | {ABOUT: recorded.about(one, config.method)} for one in methods]
    return [*(one.block() for one in _task_files(config.task)), *blocks]


def _task_files(task: Task) -> list[OwnFile]:
    file = task_file(task)
    return [*([] if file is None else [file]), *(task.reward_files if isinstance(task, Own) else [])]


def kept_code(source: SourceFile, problems: list[tuple[str, str]], run_code: bool = True) -> list[OwnFile]:
    """The files of Python whose text the file holds, registered."""
    if CODE not in source.document.data:
        return []
    blocks = source.document.data[CODE]
    kept: list[OwnFile] = []
    for block in blocks if isinstance(blocks, list) else [None]:
        one = _copied(block)
        values = None if one is None else source.values.get(one.of)
        try:
            if one is None or not (run_code or one.of == REWARDS or isinstance(values, dict)):
                raise TypeError
            if one.of == REWARDS:
                keep_source(one)
            elif not run_code:
                assert values is not None and isinstance(block, dict)
                known = stand_in(one, values) if one.of == "task" else recorded.stand_in(one, block[ABOUT], values)
                if known[1]:
                    rebuild()
            elif not one.module:  # a package's is found by its name
                _registered(one)
        except (KeyError, TypeError):
            said = f"{CODE}: is a list of copies of files, as a run's configuration has it; it is not written by hand"
            problems.append((source.document.at(source.path, (CODE,)), said))
            return []
        kept.append(one)
    return kept


def _copied(block: Any) -> OwnFile | None:
    """The file of an entry of `code`; None where the entry is not as `dump_yaml` writes it."""
    if not isinstance(block, dict) or block.get("of") not in (*_REGISTER, REWARDS):
        return None
    return copied_file({key: value for key, value in block.items() if key != ABOUT})


def _registered(source: OwnFile) -> str:
    """The name of a file's task or method, which configurations know from now on."""
    try:
        name, new = _REGISTER[source.of](source)
    except UserError as error:
        if not source.package:
            raise
        raise UserError([f"the package {source.package}: {said}" for said in error.problems]) from None
    if new:
        rebuild()
        if source.of == "method":
            try:
                own.check_values(name)
            except UserError:
                own.withdraw(name)
                rebuild()
                raise
    return name


def rebuild() -> None:
    """Have the configuration's schema know the tasks and methods that are registered now."""
    rebuild_methods()
    Config.model_rebuild(force=True)
    KEYS.forget()
    schema_of.cache_clear()


def with_own_files(layer: Layer, folder: Path | None = None) -> Layer:
    """The layer with names where it has files of Python, from ``folder``: of a task, of methods; and with the digests
    of its rewards' files. Raises UserError.
    """
    return _named(layer, folder)[0]


def _named(layer: Layer, folder: Path | None) -> tuple[Layer, list[OwnFile]]:
    """The layer with names in the place of files, and the files."""
    found: list[OwnFile] = []
    task = layer.data.get("task")
    if isinstance(task, dict) and "reward" in task:
        layer = replace(layer, data={**layer.data, "task": {**task, "reward": _stamped(task["reward"], folder, found)}})
    for section in ("task", "method"):
        values = layer.data.get(section)
        written = values.get("name") if isinstance(values, dict) else values
        if not isinstance(written, str):
            continue
        if section == "method":
            chosen = {"name": method_named(written, folder, found)}
        elif written.startswith(tuple(_PREFIXES)):
            chosen = _PREFIXES[written.partition(":")[0] + ":"](written)
        else:
            source = _source_of_task(written, folder)
            if source is None:
                continue
            said = values.get("code") if isinstance(values, dict) else None
            if source.module and said not in (None, source.code):
                raise UserError(
                    f"{layer.label}: was written with another version of the task {written} than that of the package "
                    f"{source.package}, which is installed. Reinstall the earlier version."
                )
            chosen = {"name": _registered(source), "code": source.code}
            if source.module:
                _check_offered(source, "task", written, chosen["name"])
            found.append(source)
        if chosen["name"] == written and "code" not in chosen:
            continue
        more = values if isinstance(values, dict) else {}
        lines = layer.lines
        if not isinstance(values, dict) and (section,) in lines:
            lines = {**lines, (section, "name"): lines[(section,)]}
        layer = replace(layer, data={**layer.data, section: {**more, **chosen}}, lines=lines)
    return layer, found


def _stamped(written: Any, folder: Path | None, found: list[OwnFile]) -> Any:
    """Reward functions with the digests of their files, which are kept; what is wrong with others is said later."""
    if isinstance(written, list):
        return [_stamped(one, folder, found) for one in written]
    named = REWARD.fullmatch(written) if isinstance(written, str) else None
    if named is None or named["digest"] or not (path := find_own_file(named["file"], folder)).is_file():
        return written
    found.append(read_own_file(path, REWARDS))
    return f"{written}@{keep_source(found[-1])}"


def _source_of_task(written: str, folder: Path | None) -> OwnFile | None:
    """The file of a task that is named by its path, or that a package offers; None of any other name."""
    if written.endswith(ENDING):
        return read_own_file(find_own_file(written, folder), "task")
    known = Task.kinds.get(written)
    if known is not None and known.__module__.startswith("rlvr_cli."):
        return None
    of_file = task_file(known)
    return packaged(written, "task") if of_file is None or of_file.module else None


def _check_offered(source: OwnFile, of: str, offered: str, name: str) -> None:
    """What a package offers is found by its name. Raises UserError where the file has another."""
    if name != offered:
        raise UserError(f"the package {source.package} offers a {of} {offered}, and it is called {name}")


def names_a_file(method: str) -> bool:
    """Whether a method, modifiers joined with +, names a file of Python."""
    return any(part.strip().endswith(ENDING) for part in method.split("+"))


def method_named(text: str, folder: Path | None = None, found: list[OwnFile] | None = None) -> str:
    """The method with names where it has files, from ``folder``: `my.py+lopti` is `power+lopti`, known from now on.

    So are the names that installed packages offer. ``found`` gets the files.

    Raises UserError for a file that is none or has no method.
    """
    names: list[str] = []
    parts = text.split("+")
    while parts:
        # A folder may have a + in its name.
        ways = ("+".join(parts[:end]).strip() for end in range(1, len(parts) + 1))
        there = (way for way in ways if way.endswith(ENDING) and find_own_file(way, folder).is_file())
        written = next(there, parts[0])
        parts = parts[written.count("+") + 1 :]
        of_file = written.strip().endswith(ENDING)
        source = (
            read_own_file(find_own_file(written.strip(), folder), "method")
            if of_file
            else _method_of_package(written.strip())
        )
        if source is not None:
            name = _registered(source)
            if source.module:
                _check_offered(source, "method", written.strip(), name)
            written = name
            if found is not None:
                found.append(source)
        names.append(written)
    return "+".join(names)


def _method_of_package(name: str) -> OwnFile | None:
    """The file of a method that no table has and a package offers."""
    known = name.lower() in {*METHODS, *MODIFIER_PRESETS, *ALIASES}
    return None if known or not name else packaged(name, "method")


def self_contained(source: SourceFile) -> str:
    """The file as text that needs no other one: neither what it includes, nor files of a task or method."""
    kept = kept_code(source, [])
    layer, found = _named(Layer("", source.values), source.path.parent)
    if not found:
        return source.alone if not kept else dump({**source.values, **_bare(kept)})
    return dump({**layer.data, **_bare([*kept, *found])})


def of_files(files: Iterable[OwnFile]) -> str:
    """A configuration that has the files' text and sets nothing."""
    return dump(_bare(files))


def _bare(files: Iterable[OwnFile]) -> dict[str, Any]:
    different = {(Path(one.file).name, one.sha256): one for one in files if not one.module}
    return {CODE: [one.block(bare=True) for one in different.values()]}
