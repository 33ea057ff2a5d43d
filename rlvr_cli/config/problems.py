"""Turns what pydantic and the cross-field checks find into messages that name file, line, key and remedy."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rlvr_cli.config.checks import cross_field_problems
from rlvr_cli.config.keys import describe_field, sections, suggest_key
from rlvr_cli.config.origins import Merged
from rlvr_cli.config.schema import Config
from rlvr_cli.config.tree import Path, Variant, choices, chosen, default, discriminator, is_choice, variants
from rlvr_cli.core.text import did_you_mean, nearest
from rlvr_cli.core.yaml import shown
from rlvr_cli.tasks.sets import data_sets

PLAIN = re.compile(r"[^\s\"'`]+")


def validate(merged: Merged) -> tuple[Config, list[tuple[str, str]]]:
    """Validates the merged layers.

    Returns:
        The configuration, and every problem as (places that set the values, message). Where there are
        problems, the offending values stand at their defaults: the checks between keys run on the rest.
    """
    data = copy.deepcopy(merged.data)
    problems: list[tuple[str, str]] = []
    bad: set[Path] = set()
    for path in [path for path in _paths(data) if not isinstance(path[-1], str)]:
        # Kept from pydantic, which names them in its own way.
        problems.append((merged.places([path]), f"{_dotted(path)}: {_unknown_key(path, data)}"))
        _drop(data, path)
    while True:
        _state_kinds(data)
        try:
            config = Config.model_validate(data)
            break
        except ValidationError as error:
            for path, message in _field_problems(error, data):
                problems.append((merged.places([path]), f"{_dotted(path)}: {message}"))
                bad.add(path)
                _drop(data, path)
    for cross in cross_field_problems(config, merged.set_by_user):
        paths = [tuple(key.split(".")) for key in cross.keys]
        if not any(_judged_wrong(path, bad) for path in paths):
            problems.append((merged.places(paths), cross.message))
    return config, problems


def _paths(values: dict[Any, Any], path: Path = ()) -> Iterator[Path]:
    """Every section and key that is set."""
    for key, value in values.items():
        place = (*path, key)
        yield place
        if isinstance(value, dict) and variants(place):
            yield from _paths(value, place)


def _state_kinds(data: dict[Any, Any]) -> None:
    """Writes the default kind into sections that are silent about theirs: pydantic wants to be told."""
    for path in list(_paths(data)):
        values = _at(data, path)
        if is_choice(path) and isinstance(values, dict):
            chooser = str(discriminator(path))
            values.setdefault(chooser, getattr(default(path), chooser))


def _judged_wrong(path: Path, bad: set[Path]) -> bool:
    """Whether a value that was judged wrong has a say in the value at `path`: its own, or that of a choice above."""
    return any(
        wrong == path[: len(wrong)] or (wrong[-1] == discriminator(wrong[:-1]) and wrong[:-1] == path[: len(wrong) - 1])
        for wrong in bad
    )


def _field_problems(error: ValidationError, data: Any) -> list[tuple[Path, str]]:
    """One (path, message) for each offending key; a key with several faults gets one message."""
    found: dict[Path, str] = {}
    for detail in error.errors(include_url=False, include_context=False):
        path = _key_path(detail)
        if path not in found:
            found[path] = _message(detail, path, data)
    return list(found.items())


def _key_path(detail: ErrorDetails) -> Path:
    """Where in the data: pydantic's place without the names of variants that it puts in between."""
    path: Path = ()
    rest = list(detail["loc"])
    while rest:
        if len(variants(path)) > 1:
            rest.pop(0)
        elif path and not variants(path):
            break
        if rest:
            path = (*path, rest.pop(0))
    return (*path, discriminator(path)) if detail["type"].startswith("union_tag") else path


def _message(detail: ErrorDetails, path: Path, data: Any) -> str:
    if detail["type"] == "extra_forbidden":
        return _unknown_key(path, data)
    if detail["type"] == "value_error":
        return detail["msg"].removeprefix("Value error, ")
    value = _at(data, path)
    if choices(path) and discriminator(path) == "kind":
        kinds = ", ".join(choices(path))
        return f"must be one of {kinds}, or a mapping with the key kind and its parameters; got {shown(value)}"
    if variants(path):
        return f"must be a mapping with the keys {_key_names(variants(path))}; got {shown(value)}"
    section, key = path[:-1], path[-1]
    listed = choices(section)
    if key == discriminator(section) and len(listed) == len(variants(section)):
        what = section[-1] if key == "name" else f"{section[-1]} {key}"
        hint = did_you_mean(value, listed) if isinstance(value, str) else ""
        if section == ("task",) and isinstance(value, str) and value in data_sets():
            task = data_sets()[value].task
            hint = f" It is a data set of the task {task}: task={task} task.data={value}."
        return f"unknown {what} {shown(value)}.{hint} Allowed: {', '.join(listed)}"
    parent = chosen(section, _at(data, section))
    assert parent is not None
    field = parent.model_fields[key]
    return f"must be {describe_field(field)}; got {shown(value)}{_remedy(value, field.annotation)}"


def _unknown_key(path: Path, data: Any) -> str:
    section, key = path[:-1], path[-1]
    values = _at(data, section)
    own = chosen(section, values)
    others = [variant for variant in variants(section) if variant is not own and key in variant.model_fields]
    if others:
        return _of_another_kind(path, values, others)
    meant = _deepest(path, _at(data, path)) if section else path
    guess = suggest_key([str(part) for part in meant], own if section else None)
    if guess:
        return "unknown key. Did you mean " + " or ".join(f"`{name}`" for name in guess.split(" or ")) + "?"
    if section:
        known = (own,) if own else variants(section)
        return f"unknown key. Keys of {_dotted(section)}: {_key_names(known)}"
    return f"unknown section. Sections: {', '.join(sections())}; in a file also `include`"


def _of_another_kind(path: Path, values: Any, others: list[Variant]) -> str:
    """For a key that the section has, but not with the kind that is chosen."""
    section, key = path[:-1], path[-1]
    chooser = discriminator(section)
    tags = [tag for tag, variant in choices(section).items() if variant in others]
    is_kind = chooser == "kind"
    subject = f"{section[-1]} kind" if is_kind else section[-1]
    tag = values.get(chooser, getattr(default(section), str(chooser)))
    if not tags:
        return f"{subject} {tag} has no {key}; other methods have"
    listed = f"{', '.join(tags[:-1])} and {tags[-1]} have" if len(tags) > 1 else f"{tags[0]} has"
    place = _dotted((*section, chooser) if is_kind else section)
    hint = f" Did you mean {place}={tags[0]}?" if len(tags) == 1 else ""
    return f"{subject} {tag} has no {key}; {listed}.{hint}"


def _deepest(path: Path, value: Any) -> Path:
    """`path` and on through mappings of one key: `update.kl.beta=0` was meant as a dotted name."""
    while isinstance(value, dict) and len(value) == 1:
        ((key, value),) = value.items()
        path = (*path, key)
    return path


def _key_names(known: tuple[Variant, ...]) -> str:
    return ", ".join(dict.fromkeys(name for variant in known for name in variant.model_fields))


def _remedy(value: Any, annotation: Any) -> str:
    if isinstance(value, float) and value.is_integer() and annotation in (int, int | None):
        return f" (write {int(value)})"
    if isinstance(value, str) and value.replace(".", "", 1).isdigit() and annotation is not str:
        return " (text: remove the quotes)"
    if annotation is bool and isinstance(value, str) and value.lower() in ("yes", "no", "on", "off"):
        return " (YAML 1.2 has no yes and no)"
    return ""


def _dotted(path: Path) -> str:
    return ".".join(part if isinstance(part, str) and PLAIN.fullmatch(part) else shown(part) for part in path)


def _at(data: Any, path: Path) -> Any:
    """The value at `path`; None where there is none."""
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _drop(data: Any, path: Path) -> None:
    """Takes the value at `path` out; with a choice, what was set of it, except where the choice meant is plain."""
    section = path[:-1]
    if path[-1] == discriminator(section) and is_choice(section):
        values = _at(data, section)
        chooser = path[-1]
        guess = nearest(values[chooser], choices(section)) if isinstance(values.get(chooser), str) else None
        if guess and guess != values[chooser]:
            values[chooser] = guess
        else:
            values.clear()
        return
    del _at(data, section)[path[-1]]
