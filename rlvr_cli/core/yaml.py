"""Read and write YAML 1.2 safely: plain data only, with the line of every value, and limits on depth and size.

The parser is libyaml's, by PyYAML, for speed. Its events become data here, since no library's loader has both lines and
limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 200_000
MAX_DEPTH = 20
MAX_NODES = 5_000

# Keys and list indices from the outermost mapping inwards: `("optimizer", "lr")`.
KeyPath = tuple[Any, ...]

_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Plain scalars in YAML 1.2: `yes` and `1:30` are text, and `1e-6` is a number.
_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_INT = re.compile(r"^[-+]?[0-9]+$")
_FLOAT = re.compile(
    r"^(?:[-+]?(?:\.[0-9]+|[0-9]+\.?[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_NULL = re.compile(r"^(?:~|null|Null|NULL|)$")
_NOT_PRINTABLE = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or 1.2 would read as another type."""


for _kind, _pattern, _first in (
    ("bool", _BOOL, "tTfF"),
    ("int", _INT, "-+0123456789"),
    ("float", _FLOAT, "-+0123456789."),
    ("null", _NULL, ["~", "n", "N", ""]),
):
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", _pattern, list(_first))


@dataclass(frozen=True)
class YamlDocument:
    """A YAML document as plain data, with the line (from 1) of each key or list item."""

    data: Any
    lines: dict[KeyPath, int]

    def line(self, path: KeyPath) -> int | None:
        """Return the line of ``path`` or of the enclosing value; None for a document without lines."""
        numbers = (self.lines.get(path[:length]) for length in range(len(path), -1, -1))
        return next((line for line in numbers if line is not None), None)

    def location(self, file: object, path: KeyPath) -> str:
        """Return the location of ``path``, as `file.yaml:3`."""
        line = self.line(path) if path else None
        return str(file) if line is None else f"{file}:{line}"


class YamlProblem(Exception):
    """An error in YAML text: `line` (from 1, or None) and message."""

    def __init__(self, line: int | None, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message

    def location(self, source: object) -> str:
        """Return the location, as `file.yaml:3`."""
        return f"{source}:{self.line}" if self.line else str(source)


def read_text(path: Path) -> str:
    """Read the text of a configuration file. Raises YamlProblem if missing, unreadable, too large or not UTF-8."""
    try:
        if path.exists() and not path.is_file():
            raise YamlProblem(None, "is a folder, a pipe or a device; give a YAML file")
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise YamlProblem(None, "no such file") from None
    except OSError as error:
        raise YamlProblem(None, f"cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise YamlProblem(None, f"is larger than the maximum of {MAX_BYTES:,} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise YamlProblem(line, "is not UTF-8 text. Save the file as UTF-8") from None


def parse(text: str) -> YamlDocument:
    """Parse YAML text into plain data; an empty document is None.

    Raises YamlProblem for a syntax error, a repeated key, an alias, a tag, or excessive depth or size.
    """
    if control := _NOT_PRINTABLE.search(text):
        line = text.count("\n", 0, control.start()) + 1
        raise YamlProblem(line, f"has a control character (U+{ord(control[0]):04X})")
    try:
        return _Reader(text).document()
    except yaml.MarkedYAMLError as error:
        mark = _mark(error)
        raise YamlProblem(mark.line + 1 if mark else None, _syntax_message(text, error)) from None


def dump(data: Any, *, flow: bool = False) -> str:
    """Write YAML text that `parse` reads back to equal data; on one line with `flow`."""
    style, width = (True, float("inf")) if flow else (None, 100)
    text: str = yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=style, width=width
    )
    return text.strip() if flow else text


def yaml_text(value: Any) -> str:
    if isinstance(value, (dict, list)):
        text = dump(value, flow=True)
    else:
        text = "null" if value is None else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


class _Reader:
    """Builds data from the parser's events within the limits, without expanding aliases."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=_PARSER))
        self._lines: dict[KeyPath, int] = {}
        self._nodes = 0

    def document(self) -> YamlDocument:
        data, documents = None, 0
        for event in self._events:
            if isinstance(event, yaml.NodeEvent):
                data = self._value(event, ())
            elif isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise YamlProblem(_line(event), "a second YAML document starts here; move it to another file")
        return YamlDocument(data, self._lines)

    def _value(self, event: Any, path: KeyPath) -> Any:
        line = _line(event)
        self._lines.setdefault(path, line)
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise YamlProblem(line, f"has more than the maximum of {MAX_NODES:,} values")
        if isinstance(event, yaml.AliasEvent):
            raise YamlProblem(line, f"alias `*{event.anchor}`: aliases are not allowed; write the value out")
        if event.tag is not None:
            raise YamlProblem(line, f"tag `{event.tag}`: tags are not allowed; write plain values")
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event.value, line) if event.implicit[0] else event.value
        if len(path) >= MAX_DEPTH:
            raise YamlProblem(line, f"is nested deeper than the maximum of {MAX_DEPTH} levels")
        return self._list(path) if isinstance(event, yaml.SequenceStartEvent) else self._mapping(path)

    def _list(self, path: KeyPath) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.CollectionEndEvent):
            items.append(self._value(event, (*path, len(items))))
        return items

    def _mapping(self, path: KeyPath) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        while not isinstance(event := next(self._events), yaml.CollectionEndEvent):
            line = _line(event)
            if isinstance(event, yaml.CollectionStartEvent):
                raise YamlProblem(line, "a key must be a single name; got a list or a mapping")
            key = self._value(event, (*path, "?"))
            if key in result:
                dotted = ".".join(map(str, (*path, key)))
                raise YamlProblem(line, f"{dotted}: duplicate key (first on line {self._lines[(*path, key)]})")
            self._lines[(*path, key)] = line
            result[key] = self._value(next(self._events), (*path, key))
        self._lines.pop((*path, "?"), None)
        return result


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _scalar(text: str, line: int) -> Any:
    if _NULL.match(text):
        return None
    if _INT.match(text):
        if len(text) > 30:
            raise YamlProblem(line, f"the number {text[:12]}... has {len(text)} digits; the maximum is 30")
        return int(text)
    if _FLOAT.match(text):
        # float() reads all of YAML's spellings except its dotted infinities and NaN.
        return float(re.sub(r"\.(?=inf|nan)", "", text.lower()))
    return text.lower() == "true" if _BOOL.match(text) else text


def _mark(error: yaml.MarkedYAMLError) -> yaml.Mark | None:
    """Return the location of the error; for a key without a colon that of the key."""
    if error.context == "while scanning a simple key":
        return error.context_mark
    return error.problem_mark or error.context_mark


def _syntax_message(text: str, error: yaml.MarkedYAMLError) -> str:
    mark = _mark(error)
    if mark is not None:
        rows = text.splitlines()
        row = rows[mark.line] if mark.line < len(rows) else ""
        if "\t" in row[: max(mark.column, 1)] or "'\\t'" in str(error.problem):
            return "tab in the indentation. Use spaces"
    column = f" (column {mark.column + 1})" if mark else ""
    return f"not valid YAML: {error.problem or error.context}{column}"
