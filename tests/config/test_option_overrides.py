"""Options that stand for keys: overrides with the type and bounds of the key, blamed by the name of the option."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rlvr_cli.config.keys import option_override
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import ConfigError


@pytest.mark.parametrize("name", ["rows #2.jsonl", "a: b.jsonl", "2", "null", "[1", "true", 'quote".jsonl'])
def test_text_is_text(name: str) -> None:
    """An option is no YAML, which would read a comment, a mapping, a number or nothing."""
    asked = option_override("--model-name", "eval.model_name", [name])
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
    fewer = [] if name == "pass_at" else ["eval.pass_at=[1]"]
    config = load_config(overrides=[*fewer, option_override("--option", key, values)])
    assert getattr(getattr(config, section), name) == value


def test_every_bad_one_is_reported_by_the_option_that_was_typed() -> None:
    bad = {
        "--problems -1": option_override("--problems", "eval.problems", ["-1"]),
        "--samples many": option_override("--samples", "eval.samples", ["many"]),
        "--temperature nan": option_override("--temperature", "eval.temperature", ["nan"]),
        "--pass-at 1,,8": option_override("--pass-at", "eval.pass_at", ["1,,8"]),
        "--engine vlm": option_override("--engine", "eval.engine", ["vlm"]),
        "--top-p 1": option_override("--top-p", "eval.top_p", ["1"], "and eval.top_p=2 set the same thing"),
    }
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=[*bad.values()])
    assert {place for place, _ in caught.value.by_origin} == set(bad)


def test_the_key_of_a_server_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=[option_override("--base-url", "eval.base_url", ["http://me:hunter2@host/v1"])])
    assert "hunter2" not in str(caught.value)


def test_a_copy_is_the_same() -> None:
    asked = option_override("--samples", "eval.samples", ["4"])
    again = copy.deepcopy(asked)
    assert (again, again.typed) == ("eval.samples=4", "--samples 4")
