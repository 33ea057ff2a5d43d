"""The presets of methods and modifiers: complete, valid, and every value with its source."""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.core.nested import flatten
from rlvr_cli.methods.method import AnyMethod, Method
from rlvr_cli.methods.names import BASES, METHODS, MODIFIER_PRESETS, MODIFIERS
from rlvr_cli.methods.preset import MethodPreset, Modifier, Paper, Preset

ALL: tuple[Preset, ...] = (*METHODS.values(), *MODIFIER_PRESETS.values())
METHOD: TypeAdapter[Any] = TypeAdapter(AnyMethod)


def test_every_value_is_valid_and_arrives() -> None:
    for preset in ALL:
        variants: list[tuple[str, Any]] = [(preset.name, preset.values)]
        if isinstance(preset, Modifier):
            variants = [(f"grpo+{preset.name}", preset.values)]
            variants += [(f"{base}+{preset.name}", values) for base, values in preset.for_base.items()]
        for name, values in variants:
            config = load_config(method=name).method
            assert config.name == name, preset
            resolved = flatten(config.model_dump())
            for key, value in flatten(values).items():
                assert resolved[key] == value, key
                assert type(resolved[key]) is type(value), key


def test_alpha_is_that_of_the_paper_for_the_task() -> None:
    """AR-Lopti, table 3: 0.3 for Knights & Knaves, 0.1 for mathematics."""

    def alpha(method: str, *overrides: str, task: str | None = None) -> float:
        config = load_config(method=method, task=task, overrides=overrides).method
        assert isinstance(config, Method)
        return dict(config.shaping)["reweight"].alpha

    for method in ("reweight", "grpo+reweight", "dgpo+reweight+lopti"):
        assert alpha(method) == alpha(method, task="countdown") == 0.3
        assert alpha(method, task="math") == alpha(method, "task.name=gsm8k") == 0.1
        assert alpha(method, "method.shaping.reweight=0.2", task="math") == 0.2
    assert alpha("reinforce-pp+reweight") == alpha("reinforce-pp+reweight", task="math") == 0.1


def test_a_method_states_every_choice() -> None:
    """So that none of them moves with the defaults of the schema."""
    for name in [name for name in BASES if name != "sft"]:
        values = METHODS[name].values
        assert {"advantage", "policy_loss", "aggregation", "passes", "kl"} <= set(values), name
        config = load_config(method=name).method
        assert isinstance(config, Method), name
        for choice in ("advantage", "policy_loss", "passes"):
            assert set(values[choice]) == set(getattr(config, choice).model_dump()), name


def test_the_papers_settings() -> None:
    for name, expected in [
        (
            "grpo",
            {"advantage.scale": "std", "policy_loss.eps_high": 0.2, "aggregation.kind": "token_mean", "kl.beta": 0},
        ),
        ("dapo", {"policy_loss.eps_low": 0.2, "policy_loss.eps_high": 0.28}),
        ("dr-grpo", {"advantage.scale": "none", "aggregation.kind": "constant_length", "aggregation.sequences": "all"}),
        ("gspo", {"policy_loss.eps_low": 3e-4, "policy_loss.eps_high": 4e-4, "aggregation.kind": "sequence_mean"}),
        ("ce-gppo", {"policy_loss.kind": "gppo", "policy_loss.beta1": 0.75, "policy_loss.beta2": 1.0}),
        ("aspo", {"policy_loss.eps": 0.2, "policy_loss.soft_clip_positive": 3.0, "kl.beta": 0.001}),
        ("dgpo", {"policy_loss.n": 1.0, "policy_loss.m": 2.0, "policy_loss.eps_low": 0.2, "policy_loss.eps_high": 0.2}),
        (
            "acpo",
            {
                "policy_loss.alpha": 3.0,
                "policy_loss.eps_b": 0.1,
                "policy_loss.bins": 5,
                "aggregation.kind": "sequence_mean",
            },
        ),
        ("acpo-max", {"policy_loss.bound": "max"}),
        ("acpo-mean", {"policy_loss.bound": "mean"}),
        ("reweight", {"shaping.reweight.alpha": 0.3, "policy_loss.eps_high": 0.24, "kl.beta": 0.001}),
        ("lopti", {"passes.order": "low_first", "passes.eta": 0.5, "policy_loss.eps_high": 0.24, "kl.beta": 0.001}),
        ("reinforce-pp", {"advantage.kl_in_reward": 0.001, "kl.beta": 0, "policy_loss.eps_high": 0.24}),
        ("reinforce-pp+reweight", {"shaping.reweight.alpha": 0.1}),
        ("reinforce-pp+reweight+lopti", {"shaping.reweight.alpha": 0.1, "passes.kind": "lopti"}),
        (
            "gtpo",
            {"policy_loss.kind": "no_is", "shaping.conflict.positive": 2.0, "shaping.entropy_filter.threshold": log(2)},
        ),
        ("gtpo", {"shaping.entropy_penalty.gamma": 0.1, "aggregation.kind": "sequence_mean", "kl.beta": 0}),
        ("pl", {"advantage.side": "positive", "policy_loss.kind": "is", "aggregation.sequences": "trained"}),
        ("tnnl", {"advantage.side": "negative", "aggregation.kind": "constant_length"}),
        ("raft-pp", {"advantage.side": "positive", "policy_loss.kind": "ppo_clip"}),
        ("ppo", {"advantage.kind": "gae", "advantage.lam": 1.0, "critic.clip": 0.5}),
        ("dgpo+lopti", {"policy_loss.n": 1.0, "passes.eta": 0.5, "kl.beta": 0}),
        ("grpo+low-only", {"passes.order": "low_only"}),
        ("grpo+high-entropy", {"shaping.high_entropy.share": 0.2}),
        ("dapo+entropy-min", {"reward.source": "entropy_min"}),
        ("cl+noise", {"reward.noise": 0.25}),
    ]:
        resolved = flatten(load_config(method=name).method.model_dump())
        assert {key: resolved[key] for key in expected} == expected, (name, expected)


@pytest.mark.parametrize("base", BASES)
def test_every_composition_is_a_configuration_or_refused_with_a_reason(base: str, tmp_path: Path) -> None:
    """And what loads reads back equal from its own YAML."""
    from rlvr_cli.core.errors import UserError

    for modifier in ("", *MODIFIERS):
        name = f"{base}+{modifier}" if modifier else base
        try:
            config = load_config(method=name)
        except UserError as error:
            assert modifier, f"{base}: {error}"
            assert all(problem.startswith(f"--method {name}") for problem in error.problems), error
            continue
        assert config.method.name == name
        file = tmp_path / "config.yaml"
        file.write_text(dump_yaml(config), encoding="utf-8")
        assert load_config([file]) == config
        assert METHOD.validate_python(config.method.model_dump()) == config.method


def test_a_preset_inherits_all_but_the_keys_of_another_kind() -> None:
    """Not the clip of GSPO below CISPO, whose keys are other ones; and nothing of a part whose kind stays is lost."""
    paper = Paper("none", "nobody")
    other = MethodPreset("x", "X", "X.", paper, {"policy_loss.kind": ("cispo", "ours")}, inherits="gspo")
    resolved = other.with_inherited(METHODS)
    assert resolved.sets["policy_loss.kind"] == ("cispo", "ours")
    kept = {key: value for key, value in METHODS["gspo"].sets.items() if not key.startswith("policy_loss.")}
    assert {key: value for key, value in resolved.sets.items() if not key.startswith("policy_loss.")} == kept
    assert [key for key in resolved.sets if key.startswith("policy_loss.")] == ["policy_loss.kind"]
    same = MethodPreset("x", "X", "X.", paper, {"policy_loss.kind": ("gspo", "ours")}, inherits="gspo")
    assert same.with_inherited(METHODS).sets == {**METHODS["gspo"].sets, "policy_loss.kind": ("gspo", "ours")}
