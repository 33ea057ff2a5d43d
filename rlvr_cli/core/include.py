"""Read configuration files and the files that they `include` as layers."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.core.recipes import config_file, read_config
from rlvr_cli.core.version import FORMAT_KEY, other_format
from rlvr_cli.core.yaml import YamlDocument, YamlProblem, dump, parse, yaml_text

INCLUDE = "include"
# A refused key: code in a configuration.
CODE = "code"


@dataclass(frozen=True)
class SourceFile:
    path: Path
    text: str
    document: YamlDocument
    values: dict[Any, Any]

    @property
    def bare_text(self) -> str:
        """Return the file's text, or its values as YAML if it includes files."""
        return dump(self.values) if INCLUDE in self.document.data else self.text


def load_source_files(file: Path, sections: Collection[str], problems: list[tuple[str, str]]) -> list[SourceFile]:
    """Load ``file`` and, recursively, the files of its key `include`, the lowest layer first.

    Paths are relative to the including file; names of recipes are allowed. A file that is included twice is loaded
    once, at its first occurrence, so that it does not override layers above it.

    Args:
        sections: the top-level keys of a configuration.
        problems: collects (location, message).
    """
    loaded: set[str] = set()

    def load(file: Path, origin: str, above: tuple[Path, ...]) -> Iterator[SourceFile]:
        """Yield ``file``, named in ``origin``, and its includes; ``above``: the including files, outermost first."""
        real = os.path.realpath(file)
        prefix = f"{INCLUDE}: {file}: " if above else ""
        cycle = [number for number, other in enumerate(above) if os.path.realpath(other) == real]
        if cycle:
            chain = " -> ".join(str(path) for path in (*above[cycle[0] :], file))
            problems.append((origin, f"{prefix}includes itself: {chain}"))
            return
        if real in loaded:
            return
        loaded.add(real)
        if above and not (is_yaml(str(file)) and is_yaml(real)) and not Path(real).is_dir():
            problems.append((origin, f"{prefix}must be named *.yaml or *.yml"))
            return
        try:
            text = read_config(file)
            document = parse(text)
        except YamlProblem as problem:
            reason = problem.message if is_yaml(real) else "not valid YAML"
            problems.append(
                (problem.location(file), reason) if problem.line else (origin, f"{prefix}{problem.message}")
            )
            return
        if document.data is None:
            problems.append((origin, f"{prefix}is empty; a configuration sets at least one key"))
        elif not isinstance(document.data, dict):
            # Its content is not printed: the file may contain passwords.
            got = "a list" if isinstance(document.data, list) else "a single value"
            location = f"{file}:{document.lines[()]}"
            problems.append((location, f"must be a mapping of sections, as in `rollout: ...`; got {got}"))
        elif CODE in document.data:
            reason = (
                f"{CODE}: code is not allowed in a configuration, and none was run. Write it to a file and name that: "
                "`method: my.py`, `task: my.py`, or `task: {name: own, reward: my.py:function}`"
            )
            problems.append((document.location(file, (CODE,)), reason))
        elif not is_yaml(real) and not set(document.data) <= {*sections, INCLUDE, FORMAT_KEY}:
            # Not printed, for the same reason.
            reason = "is not a configuration: not named *.yaml, and its keys are not sections"
            problems.append((str(file), reason))
        elif fault := other_format(document.data):
            problems.append((document.location(file, (FORMAT_KEY,)), fault))
        else:
            for path, line in _included_files(file, document, problems):
                yield from load(path, f"{file}:{line}", (*above, file))
            values = {key: value for key, value in document.data.items() if key not in (INCLUDE, FORMAT_KEY)}
            yield SourceFile(file, text, document, values)

    return list(load(file, str(file), ()))


def is_yaml(name: str) -> bool:
    """Return whether a file is YAML by its name. Errors print no content of other files."""
    return name.endswith((".yaml", ".yml"))


def _normalize_path(path: Path) -> Path:
    """Return ``path`` without `..`, unless a link makes that another location."""
    short = Path(os.path.normpath(path))
    return short if os.path.realpath(short) == os.path.realpath(path) else path


def _included_files(file: Path, document: YamlDocument, problems: list[tuple[str, str]]) -> Iterator[tuple[Path, int]]:
    """Yield the files that ``file`` includes, each with its line."""
    if INCLUDE not in document.data:
        return
    value, line = document.data[INCLUDE], document.lines[(INCLUDE,)]
    names = [value] if isinstance(value, str) else value
    valid = isinstance(names, list) and all(isinstance(name, str) and name and "\0" not in name for name in names)
    if not valid or not names:
        needed = "must be a file or a list of files, relative to this file's folder"
        problems.append((f"{file}:{line}", f"{INCLUDE}: {needed}; got {yaml_text(value)}"))
        return
    for number, name in enumerate(names):
        yield _normalize_path(config_file(name, file.parent)), document.lines.get((INCLUDE, number), line)
