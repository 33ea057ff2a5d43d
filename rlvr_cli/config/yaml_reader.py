"""Reads and writes YAML safely: plain data only, every value with its line, and nothing that can blow up."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 200_000
MAX_DEPTH = 20
MAX_NODES = 5_000

Place = tuple[Any, ...]

# The YAML 1.2 core schema, so that `yes` and `1:30` stay text and `1e-6` is a number.
_RESOLVERS: tuple[tuple[str, str, Sequence[str]], ...] = (
    ("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("tag:yaml.org,2002:int", r"^[-+]?[0-9]+$", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+\.?[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+0123456789.",
    ),
    ("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
)
_PLAIN_TAGS = {"tag:yaml.org,2002:" + kind for kind in ("bool", "int", "float", "null", "str", "seq", "map")}


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012  (PyYAML declares it as an instance variable)


class _Dumper(yaml.SafeDumper):
    """Quotes text that either YAML 1.1 or our reader would take for something else."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        key: list(value) for key, value in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }


for _tag, _pattern, _first in _RESOLVERS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, re.compile(_pattern), list(_first))


@dataclass(frozen=True)
class Document:
    """A YAML document as plain data, and the line (from 1) on which each key or list item stands."""

    data: Any
    lines: dict[Place, int]


class YamlProblem(Exception):
    """One thing wrong with a YAML text: `line` (from 1, or None) and a message."""

    def __init__(self, line: int | None, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


def read_text(path: Path) -> str:
    """The text of a configuration file.

    Raises:
        YamlProblem: missing, unreadable, too large or not UTF-8.
    """
    try:
        _check_regular(path.stat().st_mode)
        # Should a pipe have taken its place meanwhile, opening it does not wait for a writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            _check_regular(os.fstat(file.fileno()).st_mode)
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise YamlProblem(None, "no such file") from None
    except OSError as error:
        raise YamlProblem(None, f"cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise YamlProblem(None, f"is larger than {MAX_BYTES:,} bytes; a configuration is a few kilobytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise YamlProblem(line, "is not UTF-8 text; save the file as UTF-8") from None


def _check_regular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise YamlProblem(None, "is a folder; name a YAML file in it")
    if not stat.S_ISREG(mode):
        raise YamlProblem(None, "is a pipe, a device or a socket; a configuration is a file")


def parse(text: str) -> Document:
    """Plain data from YAML text. An empty document is None.

    Raises:
        YamlProblem: a syntax error, a repeated key, an alias, a tag, or more depth or size than is sensible.
    """
    try:
        _check_events(text)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            lines: dict[Place, int] = {}
            data = None if node is None else _build(loader, node, (), lines)
            return Document(data, lines)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlProblem(mark.line + 1 if mark else None, _syntax_message(text, error)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlProblem(line, f"has a control character ({_code_point(error.character)})") from None


def dump(data: Any, *, flow: bool = False) -> str:
    """YAML text that `parse` reads back to equal data; on one line with `flow`."""
    style, width = (True, float("inf")) if flow else (None, 100)
    text: str = yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=style, width=width
    )
    return text.strip() if flow else text


def _code_point(character: Any) -> str:
    return f"U+{character if isinstance(character, int) else ord(character):04X}"


def _check_events(text: str) -> None:
    """Bounds depth and size, and refuses aliases, before anything recursive or expanding runs."""
    depth = nodes = documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark else None
        if isinstance(event, yaml.AliasEvent):
            raise YamlProblem(line, f"alias `*{event.anchor}`: aliases are not allowed; write the value out")
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise YamlProblem(line, "a second YAML document starts here; put it into a file of its own")
        if isinstance(event, yaml.NodeEvent):
            nodes += 1
            if nodes > MAX_NODES:
                raise YamlProblem(line, f"has more than {MAX_NODES:,} values; a configuration has fewer")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise YamlProblem(line, f"is nested deeper than {MAX_DEPTH} levels; a configuration has 4")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _build(loader: _Loader, node: yaml.Node, path: Place, lines: dict[Place, int]) -> Any:
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if node.tag not in _PLAIN_TAGS:
        raise YamlProblem(line, f"tag `{node.tag}`: tags are not allowed; write plain values")
    if isinstance(node, yaml.SequenceNode):
        return [_build(loader, item, (*path, index), lines) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        return _build_mapping(loader, node, path, lines)
    if node.tag.endswith(":int"):
        return _integer(node.value, line)
    if node.tag.endswith(":float"):
        # float() reads every spelling of YAML's but its dotted infinities and NaN.
        return float(re.sub(r"\.(?=inf|nan)", "", node.value.lower()))
    return loader.construct_object(node)


def _build_mapping(loader: _Loader, node: yaml.MappingNode, path: Place, lines: dict[Place, int]) -> dict[Any, Any]:
    result: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise YamlProblem(line, "a key is a list or a mapping; a key is a single name")
        key = _build(loader, key_node, (*path, "?"), {})
        if key in result:
            dotted = ".".join(map(str, (*path, key)))
            raise YamlProblem(line, f"{dotted}: the key stands twice (first on line {lines[(*path, key)]})")
        lines[(*path, key)] = line
        result[key] = _build(loader, value_node, (*path, key), lines)
    return result


def _integer(text: str, line: int) -> int:
    if len(text) > 30:
        raise YamlProblem(line, f"the number {text[:12]}... has {len(text)} digits; no key takes one that long")
    return int(text)


def _syntax_message(text: str, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    if mark is not None:
        rows = text.splitlines()
        row = rows[mark.line] if mark.line < len(rows) else ""
        if "\t" in row[: max(mark.column, 1)] or "'\\t'" in str(error.problem):
            return "a tab is used for indentation; YAML wants spaces"
    column = f" (column {mark.column + 1})" if mark else ""
    return f"not valid YAML: {error.problem or error.context}{column}"
