"""A method of the user's own as a run records it: what compares and reports runs needs of it, without its code."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field, create_model

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.own_code import OwnFile, blamed
from rlvr_cli.methods import own
from rlvr_cli.methods.base import CODE, Part, PolicyLoss, Shaping
from rlvr_cli.methods.checks import ONE_ON_POLICY, weighs_one_on_policy
from rlvr_cli.methods.method import AnyMethod
from rlvr_cli.methods.preset import MethodPreset, Modifier, Paper

# By the hash of the text and what is recorded of it.
_READ: dict[str, own.OwnMethod] = {}


def about(one: own.OwnMethod, method: AnyMethod) -> dict[str, Any]:
    """What a run records of a file's part in its ``method``: the name that it gives, and its classes by their sections.

    Of a class: its name, and what it says of itself (`names` of passes, `needs_values`) with the values that its keys
    have here. Raises UserError where that raises.
    """
    parts = {}
    for section, kind in one.parts:
        part = functools.reduce(getattr, section.split("."), cast("Any", method))
        if isinstance(part, kind):
            parts[section] = {"class": kind.__name__, **_facts(part, one.source)}
    return {"name": one.preset.name, "modifier": isinstance(one.preset, Modifier), "parts": parts}


def _facts(part: Part, source: OwnFile) -> dict[str, Any]:
    kinds = [base for base in type(part).__mro__ if issubclass(base, Part) and base.__module__.startswith("rlvr_cli.")]
    said = {
        name
        for base in kinds
        for name, value in vars(base).items()
        if not name.startswith("_") and isinstance(value, property | bool | int | str)
    }
    found = {}
    for name in sorted(said | {"main_key"}):
        try:
            value = getattr(part, name)
            found[name] = json.loads(json.dumps(value))
        except TypeError:
            continue
        except Exception as error:
            raise UserError(f"{blamed(error, Path(source.file))} ({name} of {type(part).__name__})") from error
    if isinstance(part, PolicyLoss):
        found[ONE_ON_POLICY] = weighs_one_on_policy(part)
    return found


def stand_in(source: OwnFile, about: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, bool]:
    """As :func:`own.register_method`, for commands that only read a run: the file is not executed.

    Its parts have the keys that the run recorded, and compute nothing.

    Args:
        about: as :func:`about` has it. values: the section `method` of the run.
    """
    if own.is_made(source):
        return own.register_method(source)
    key = json.dumps([source.code, about], sort_keys=True)
    if key not in _READ:
        with own.only_built_in():
            parts = tuple((section, _part(source, section, facts, values)) for section, facts in about["parts"].items())
        kind = Modifier if about["modifier"] else MethodPreset
        name = Path(source.file).name
        preset = kind(about["name"], about["name"], "", Paper(name, "a file of your own"), file=source.file)
        _READ[key] = own.OwnMethod(source, preset, parts)
    return own.register(dataclasses.replace(_READ[key], source=source))


def _part(source: OwnFile, section: str, facts: Mapping[str, Any], values: Mapping[str, Any]) -> type[Part]:
    family: Any = own.FAMILIES.get(section, Shaping)
    kept: Mapping[str, Any] = functools.reduce(lambda place, key: place[key], section.split("."), values)
    said = {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
    fields: dict[str, Any] = {key: (Any, None) for key in kept if key not in family.model_fields}
    fields[CODE] = (Literal[source.code], Field(source.code, description="The hash of the method's file."))
    if section in own.FAMILIES:
        fields["kind"] = (Literal[kept["kind"]], kept["kind"])
    else:
        # Of other runs in this process, which have it with the values that it has by default.
        said["is_on"] = property(lambda self: getattr(self, self.main_key) is not None)
    made: Any = create_model(
        str(said.pop("class")),
        __base__=(type("Recorded", (), said), family),
        __module__=f"rlvr_method_{source.sha256[:16]}",
        **fields,
    )
    made.__abstractmethods__ = frozenset()
    return cast("type[Part]", made)
