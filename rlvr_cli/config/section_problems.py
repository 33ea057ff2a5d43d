"""What is wrong with plain data that should be a section: every problem, and where in the data it is."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from rlvr_cli.config.keys import describe_field
from rlvr_cli.core.section import Section
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.core.yaml import shown

Path = tuple[Any, ...]


def section_problems(model: type[Section], data: Any, error: ValidationError) -> list[tuple[Path, str]]:
    """Each offending key of ``data`` once, as its path and what is allowed there."""
    found: dict[Path, str] = {}
    for detail in error.errors(include_url=False, include_context=False):
        path, section, field = _place(model, data, detail["loc"])
        if detail["type"] == "missing":
            key = str(detail["loc"][-1])
            found.setdefault((*path, key), f"{_dotted((*path, key))}: is missing; it must be {_of(section, key)}")
        elif field is None and path:
            hint = did_you_mean(str(path[-1]), _keys(section))
            keys = ", ".join(_keys(section))
            found.setdefault(path, f"{_dotted(path)}: unknown key.{hint} Keys: {keys}")
        elif field is None:
            found.setdefault(path, f"must be a mapping with the keys {', '.join(_keys(section))}; got {shown(data)}")
        else:
            found.setdefault(path, f"{_dotted(path)}: must be {_wanted(field)}; got {shown(_at(data, path))}")
    return list(found.items())


def _place(model: type[Section], data: Any, location: Path) -> tuple[Path, type[Section], FieldInfo | None]:
    """The part of pydantic's place that is in the data, the section it is in, and its field (None: it has none)."""
    path: Path = ()
    section, field = model, None
    for part in location:
        inner = section if field is None else _section_of(field)
        if not isinstance(data, dict) or part not in data or inner is None:
            break
        section, path = inner, (*path, part)
        data = data[part]
        field = _fields(section).get(str(part))
        if field is None:
            break
    if field is not None and isinstance(data, dict) and len(path) < len(location):
        section = _section_of(field) or section
    return path, section, field


def _section_of(field: FieldInfo) -> type[Section] | None:
    """The section that a field holds; None for a field of plain values."""
    kinds = [field.annotation, *get_args(field.annotation)]
    kinds += [inner for kind in kinds for inner in get_args(kind)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def _fields(section: type[Section]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in section.model_fields.items()}


def _keys(section: type[Section]) -> list[str]:
    return list(_fields(section))


def _of(section: type[Section], key: str) -> str:
    field = _fields(section).get(key)
    return "given" if field is None else _wanted(field)


def _wanted(field: FieldInfo) -> str:
    return field.title or describe_field(field)


def _at(data: Any, path: Path) -> Any:
    for part in path:
        data = data[part]
    return data


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))
