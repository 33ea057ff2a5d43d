"""Reads configuration files, and the files that they `include`, as layers over one another."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.config.keys import sections
from rlvr_cli.config.origins import Layer
from rlvr_cli.config.paths import local_path
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.yaml import Document, YamlProblem, dump, parse, read_text, shown

INCLUDE = "include"
MAX_DEPTH = 20


@dataclass(frozen=True)
class SourceFile:
    """One file of a configuration: where it is, its text, and its values without `include`."""

    path: Path
    text: str
    document: Document
    values: dict[Any, Any]

    @property
    def alone(self) -> str:
        """The file as text that includes nothing: as it stands where it does not, else its values."""
        return dump(self.values) if INCLUDE in self.document.data else self.text


def file_layers(files: Sequence[Path], problems: list[tuple[str, str]]) -> list[Layer]:
    """The layers of ``files``, each above the files that it includes; ``problems`` get what is wrong with them."""
    return [
        Layer(str(source.path), of_today(source.values), source.document.lines)
        for file in files
        for source in source_files(Path(file), problems)
    ]


def source_files(file: Path, problems: list[tuple[str, str]]) -> list[SourceFile]:
    """``file`` below which lie, recursively, the files of its key `include`, the lowest first.

    Paths are relative to the file that includes. A file that is included twice is laid once, where it is met first, so
    that it does not undo what lies above it.
    """
    return list(_sources(file, str(file), (), set(), problems))


def _sources(
    file: Path, place: str, above: tuple[Path, ...], laid: set[str], problems: list[tuple[str, str]]
) -> Iterator[SourceFile]:
    """
    Args:
        place: what names the file: its path, or the line that includes it.
        above: the files that include this one, the outermost first.
        laid: the real paths of all that was read.
    """
    real = os.path.realpath(file)
    prefix = f"{INCLUDE}: {file}: " if above else ""
    circle = [number for number, other in enumerate(above) if os.path.realpath(other) == real]
    if circle:
        way = " -> ".join(str(path) for path in (*above[circle[0] :], file))
        problems.append((place, f"{prefix}includes itself: {way}"))
        return
    if real in laid:
        return
    laid.add(real)
    if above and not (is_yaml(str(file)) and is_yaml(real)) and not Path(real).is_dir():
        problems.append((place, f"{prefix}is not named *.yaml or *.yml; only such files are included"))
        return
    if len(above) > MAX_DEPTH:
        problems.append((place, f"{prefix}lies below more than {MAX_DEPTH} files; a configuration has a few levels"))
        return
    try:
        text = read_text(file)
        document = parse(text)
    except YamlProblem as problem:
        if problem.line:
            problems.append((f"{file}:{problem.line}", problem.message if is_yaml(real) else "not valid YAML"))
        else:
            problems.append((place, f"{prefix}{problem.message}"))
        return
    if document.data is None:
        problems.append((place, f"{prefix}is empty; a configuration sets at least one key"))
    elif not isinstance(document.data, dict):
        # Not shown: it may be any file, of passwords too.
        got = "a list" if isinstance(document.data, list) else "a single value"
        where = f"{file}:{document.lines[()]}"
        problems.append((where, f"must be a mapping of sections, as in `rollout: ...`; it is {got}"))
    elif not is_yaml(real) and not set(document.data) <= {*sections(), INCLUDE}:
        # Not shown either.
        problems.append((str(file), "is not a configuration: it is not named *.yaml, and its keys are no sections"))
    else:
        for path, line in _included(file, document, problems):
            yield from _sources(path, f"{file}:{line}", (*above, file), laid, problems)
        values = {key: value for key, value in document.data.items() if key != INCLUDE}
        yield SourceFile(file, text, document, values)


def is_yaml(name: str) -> bool:
    """Whether a file says by its name that it is YAML. Of any other one, errors show nothing."""
    return name.endswith((".yaml", ".yml"))


def _short(path: Path) -> Path:
    """``path`` without `..`, where no link on the way makes that another place."""
    short = Path(os.path.normpath(path))
    return short if os.path.realpath(short) == os.path.realpath(path) else path


def _included(file: Path, document: Document, problems: list[tuple[str, str]]) -> Iterator[tuple[Path, int]]:
    """The files that ``file`` includes, each with its line."""
    if INCLUDE not in document.data:
        return
    value, line = document.data[INCLUDE], document.lines[(INCLUDE,)]
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(map(_is_name, names)):
        said = "must be a file or a list of files, their paths from this file's folder"
        problems.append((f"{file}:{line}", f"{INCLUDE}: {said}; got {shown(value)}"))
        return
    for number, name in enumerate(names):
        at = document.lines.get((INCLUDE, number), line)
        try:
            yield _short(file.parent / local_path(name)), at
        except UserError as error:
            problems.append((f"{file}:{at}", f"{INCLUDE}: {error}"))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value


def of_today(values: dict[Any, Any]) -> dict[Any, Any]:
    """The values of a file with `method.lora_rank` and `lora_alpha`, which stored runs have, as `model.adapter`."""
    method = values.get("method")
    if not isinstance(method, dict) or not {"lora_rank", "lora_alpha"} <= method.keys():
        return values
    rank, alpha = method["lora_rank"], method["lora_alpha"]
    others = {key: value for key, value in method.items() if key not in ("lora_rank", "lora_alpha")}
    values = {**values, "method": others}
    model = values.get("model")
    if rank is None or not isinstance(model, dict) or "adapter" in model:
        return values
    return {**values, "model": {**model, "adapter": {"kind": "lora", "rank": rank, "alpha": alpha}}}
