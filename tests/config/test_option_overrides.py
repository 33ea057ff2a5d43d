"""Options that stand for keys: overrides with the type and bounds of the key, blamed by the name of the option."""

from __future__ import annotations

from typing import Any

import pytest

from rlvr_cli.config.keys import make_override
from rlvr_cli.config.load import load_config


@pytest.mark.parametrize("name", ["rows #2.jsonl", "a: b.jsonl", "2", "null", "[1", "true", 'quote".jsonl'])
def test_text_is_text(name: str) -> None:
    """An option is no YAML, which would read a comment, a mapping, a number or nothing."""
    asked = make_override("--model-name", "eval.model_name", [name])
    assert load_config(overrides=[asked]).eval.model_name == name


@pytest.mark.parametrize(
    ("key", "values", "value"),
    [
        ("eval.samples", ["4"], 4),
        ("eval.temperature", ["1e-1"], 0.1),
        ("eval.temperature", ["2"], 2.0),
        ("eval.pass_at", ["1, 8", "32"], (1, 8, 32)),
        ("eval.engine", ["vllm"], "vllm"),
        ("eval.samples", ["4", "8"], 8),
    ],
)
def test_values(key: str, values: list[str], value: Any) -> None:
    section, _, name = key.partition(".")
    config = load_config(overrides=[make_override("--option", key, values)])
    assert getattr(getattr(config, section), name) == value
