"""Turns what pydantic and the cross-field checks find into messages that name file, line, key and remedy."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rlvr_cli.config.checks import cross_field_problems
from rlvr_cli.config.keys import describe_field, nearest, sections, suggest_key, variant_names
from rlvr_cli.config.origins import Merged, Path
from rlvr_cli.config.schema import Config
from rlvr_cli.config.yaml_reader import dump

GAP = "  "
PLAIN = re.compile(r"[^\s\"'`]+")


def validate(merged: Merged) -> tuple[Config, list[tuple[str, str]]]:
    """Validates the merged layers.

    Returns:
        The configuration, and every problem as (places that set the values, message). Where there are
        problems, the offending values stand at their defaults: the checks between keys run on the rest.
    """
    data = copy.deepcopy(merged.data)
    problems: list[tuple[str, str]] = []
    bad: set[str] = set()
    for path in _paths_with_a_key_that_is_not_text(data):
        problems.append((merged.places([path]), f"{_dotted(path)}: {_unknown_key(path)}"))
        _drop(data, path)
    while True:
        try:
            config = Config.model_validate(data)
            break
        except ValidationError as error:
            for path, message in _field_problems(error, data):
                problems.append((merged.places([path]), f"{_dotted(path)}: {message}"))
                bad.add(".".join(map(str, path[:2])))
                _drop(data, path)
    for cross in cross_field_problems(config):
        if not any(key in bad or key.split(".")[0] in bad for key in cross.keys):
            places = merged.places(tuple(key.split(".")) for key in cross.keys)
            problems.append((places, cross.message))
    return config, problems


def layout(problems: list[tuple[str, str]]) -> list[str]:
    """One line a problem, the messages aligned behind the places where those are of like length."""
    widths = [len(place) for place, _ in problems if len(place) <= 40]
    width = max(widths, default=0)
    return [f"{place:<{width}}{GAP}{message}" if place else message for place, message in problems]


def _paths_with_a_key_that_is_not_text(data: dict[Any, Any]) -> list[Path]:
    """Such keys are kept from pydantic, which names them in its own way."""
    paths: list[Path] = [(section,) for section in data if not isinstance(section, str)]
    for section in sections():
        values = data.get(section)
        if isinstance(values, dict):
            paths += [(section, key) for key in values if not isinstance(key, str)]
    return paths


def _field_problems(error: ValidationError, data: Any) -> list[tuple[Path, str]]:
    """One (path, message) for each offending key; a key with several faults gets one message."""
    found: dict[Path, str] = {}
    for detail in error.errors(include_url=False, include_context=False):
        path = _key_path(detail)
        found.setdefault(path, _message(detail, path, data))
    return list(found.items())


def _key_path(detail: ErrorDetails) -> Path:
    section, *rest = detail["loc"]
    if len(sections().get(str(section), ())) > 1 and rest and rest[0] in variant_names(str(section)):
        rest = rest[1:]  # pydantic puts the chosen variant's name between section and key
    if detail["type"].startswith("union_tag"):
        rest = ["name"]
    return (section, *rest[:1])


def _message(detail: ErrorDetails, path: Path, data: Any) -> str:
    if detail["type"] == "extra_forbidden":
        return _unknown_key(path)
    if len(path) == 1:
        return f"must be a mapping with the keys {_key_names(path[0])}; got {shown(data[path[0]])}"
    section, key = path
    value = data[section].get(key)
    names = variant_names(section) if key == "name" else []
    if names:
        guess = nearest(value, names) if isinstance(value, str) else None
        hint = f" Did you mean `{guess}`?" if guess else ""
        return f"unknown {section} {shown(value)}.{hint} Allowed: {', '.join(names)}"
    field = next(variant.model_fields[key] for variant in sections()[section] if key in variant.model_fields)
    return f"must be {describe_field(field)}; got {shown(value)}{_remedy(value, field.annotation)}"


def _unknown_key(path: Path) -> str:
    guess = suggest_key([str(part) for part in path])
    if guess:
        return "unknown key. Did you mean " + " or ".join(f"`{name}`" for name in guess.split(" or ")) + "?"
    if len(path) > 1:
        return f"unknown key. Keys of {path[0]}: {_key_names(path[0])}"
    return f"unknown section. Sections: {', '.join(sections())}"


def _key_names(section: str) -> str:
    names = [name for variant in sections()[section] for name in variant.model_fields]
    return ", ".join(dict.fromkeys(names))


def _remedy(value: Any, annotation: Any) -> str:
    if isinstance(value, float) and value.is_integer() and annotation in (int, int | None):
        return f" (write {int(value)})"
    if isinstance(value, str) and value.replace(".", "", 1).isdigit() and annotation is not str:
        return " (text: remove the quotes)"
    if annotation is bool and isinstance(value, str) and value.lower() in ("yes", "no", "on", "off"):
        return " (YAML 1.2 has no yes and no)"
    return ""


def shown(value: Any) -> str:
    """A value as a user would write it, shortened."""
    if isinstance(value, (dict, list)):
        text = dump(value, flow=True)
    else:
        text = "null" if value is None else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _dotted(path: Path) -> str:
    return ".".join(part if isinstance(part, str) and PLAIN.fullmatch(part) else shown(part) for part in path)


def _drop(data: Any, path: Path) -> None:
    if len(path) == 1:
        del data[path[0]]
    else:
        del data[path[0]][path[1]]
