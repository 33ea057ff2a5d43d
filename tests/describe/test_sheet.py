"""What `rlvr methods show` says is what the presets, the schema and the code say."""

from __future__ import annotations

import json
from pathlib import Path

import rlvr_cli
from rlvr_cli.config.load import load_config
from rlvr_cli.core.nested import flatten
from rlvr_cli.describe.sheet import (
    MethodSheet,
    Parameter,
    method_sheet,
    sheet_as_dict,
)
from rlvr_cli.methods.names import BASES, METHODS, MODIFIERS

POLICY_METHODS = [name for name in BASES if name != "sft"]
COMPOSED = [*BASES, *(f"grpo+{name}" for name in MODIFIERS), "reinforce-pp+reweight+lopti"]


def parameters(sheet: MethodSheet) -> dict[str, Parameter]:
    return {parameter.key: parameter for choice in sheet.choices for parameter in choice.parameters}


def test_every_method_has_a_sheet() -> None:
    for name in COMPOSED:
        sheet = method_sheet(name)
        assert sheet.name == name, name
        assert json.loads(json.dumps(sheet_as_dict(sheet)))["name"] == name, name
        for file, text in sheet.texts:
            assert (Path(rlvr_cli.__file__).parents[1] / file).is_file(), name
            assert text.headline and text.definition and text.differences, name


def test_every_value_of_a_preset_is_shown_with_its_source() -> None:
    for name in POLICY_METHODS:
        shown = parameters(method_sheet(name))
        preset = METHODS[name]
        for key, value in flatten(preset.values).items():
            if not key.endswith("kind"):
                assert shown[f"method.{key}"].value == value, name
                assert shown[f"method.{key}"].set_by == name, name
        sheet = method_sheet(name)
        of_kinds = {f"{choice.name}.kind": choice.source for choice in sheet.choices if choice.kind is not None}
        sources = {key.removeprefix("method."): item.source for key, item in shown.items()} | of_kinds
        assert {key: sources[key] for key in preset.sources} == preset.sources, name


def test_the_values_are_those_that_training_would_use() -> None:
    for name in COMPOSED:
        resolved = load_config(method=name).method.model_dump()
        resolved.pop("name")
        values = {key.removeprefix("method."): item.value for key, item in parameters(method_sheet(name)).items()}
        kinds = {key: value for key, value in flatten(resolved).items() if key.endswith("kind")}
        assert {**values, **kinds} == flatten(resolved), name


def test_what_modifiers_changed() -> None:
    changes = {
        (change.key, change.before, change.after, change.modifier) for change in method_sheet("dgpo+lopti").changes
    }
    assert ("method.passes.kind", "one_pass", "lopti", "lopti") in changes
    assert ("method.passes.eta", None, 0.5, "lopti") in changes
    assert all(modifier == "lopti" for *_, modifier in changes)
    assert method_sheet("dgpo").changes == ()


def test_a_modifier_may_set_another_value_for_one_base() -> None:
    assert parameters(method_sheet("grpo+reweight"))["method.shaping.reweight.alpha"].value == 0.3
    special = parameters(method_sheet("reinforce-pp+reweight"))["method.shaping.reweight.alpha"]
    assert (special.value, special.set_by) == (0.1, "reweight")
