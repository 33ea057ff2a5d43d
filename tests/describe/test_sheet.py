"""What `rlvr methods show` says is what the presets, the schema and the code say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rlvr_cli
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.describe.sheet import (
    MethodSheet,
    Parameter,
    method_sheet,
    method_text,
    sheet_as_dict,
    short_cost,
    table_rows,
)
from rlvr_cli.methods.names import BASES, METHODS, MODIFIERS
from rlvr_cli.methods.preset import flat

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
        for key, value in flat(preset.values):
            if not key.endswith("kind"):
                assert shown[f"method.{key}"].value == value, name
                assert shown[f"method.{key}"].set_by == name, name
        sheet = method_sheet(name)
        of_kinds = {f"{choice.name}.kind": choice.source for choice in sheet.choices if choice.kind is not None}
        sources = {key.removeprefix("method."): item.source for key, item in shown.items()} | of_kinds
        assert {key: sources[key] for key in preset.sources} == preset.sources, name


def test_the_row_of_a_kind_has_what_it_decides_and_its_source() -> None:
    rows = {row[0]: row[-1] for row in table_rows(method_sheet("gtpo+lopti"))}
    assert rows["policy_loss = no_is"].startswith("the weight F of a token from its ratio; GTPO paper, section 6")
    assert rows["passes = lopti"].endswith("AR-Lopti paper, algorithm 1, lines 12 to 20")
    assert rows["kl"] == "the penalty against the starting model"


def test_the_values_are_those_that_training_would_use() -> None:
    for name in COMPOSED:
        resolved = load_config(method=name).method.model_dump()
        resolved.pop("name")
        values = {key.removeprefix("method."): item.value for key, item in parameters(method_sheet(name)).items()}
        kinds = {key: value for key, value in flat(resolved) if key.endswith("kind")}
        assert {**values, **kinds} == dict(flat(resolved)), name


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


def test_the_defaults_are_those_of_the_kind() -> None:
    assert parameters(method_sheet("gspo"))["method.policy_loss.eps_low"].default == 3e-4
    assert parameters(method_sheet("dapo"))["method.policy_loss.eps_high"].default == 0.2


@pytest.mark.parametrize("text", ["REINFORCE++", "reinforce_pp", "Reinforce-PP"])
def test_any_spelling(text: str) -> None:
    assert method_sheet(text).name == "reinforce-pp"


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UserError, match="Did you mean `dgpo`"):
        method_sheet("dgop")


def test_a_choice_of_which_nothing_is_used_is_one_row() -> None:
    rows = [row[0] for row in table_rows(method_sheet("grpo"))]
    assert "shaping: none" in rows
    assert not any("method.shaping" in row for row in rows)


def test_a_short_cost_is_the_first_clause() -> None:
    assert short_cost("a second pass over the rollout: twice the steps, more") == "a second pass over the rollout"
    assert short_cost("none") == "none"


def test_a_docstring_is_taken_apart() -> None:
    text = method_text("rlvr_cli.methods.dgpo")
    assert text.headline.startswith("DGPO:")
    assert text.equation.splitlines()[0].startswith("l = -A sg(F)")
    assert "equations 9 and 10" in text.definition
    assert len(text.differences) == 1 and text.differences[0].startswith("How we differ from the released code")
    assert "\n" not in text.differences[0]
