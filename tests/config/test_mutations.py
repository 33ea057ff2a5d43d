"""A damaged configuration file is a message or a configuration, never a crash."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rlvr_cli.config.load import as_plain, dump_yaml, leaves, load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.yaml import dump
from rlvr_cli.methods.names import ALIASES, BASES, MODIFIERS

PIECES = [*"[]{}:,&*!|>'\"%@`\t\n-?#\x00~", "true", "1e-6", ": ", "\n  ", "é", "10000000000000000000000000000"]


# Values of every type, some of which are choices.
VALUES = [
    None,
    True,
    0,
    3,
    0.5,
    1e300,
    "",
    "ppo_clip",
    "lopti",
    [],
    [1],
    {},
    {"kind": "dgpo"},
    {"kind": [3]},
    {"n": 2},
    {3: 4},
]
NAMES = [*BASES, *MODIFIERS, *ALIASES, "+", "dgop", "REINFORCE++"]


@pytest.mark.parametrize("method", ["grpo", "gtpo+lopti", "sft"])
def test_random_damage_to_a_configuration(method: str, tmp_path: Path) -> None:
    rng = random.Random(0)
    good = dump_yaml(load_config(method=method))
    file = tmp_path / "a.yaml"
    refused = 0
    for _ in range(60):
        text = good
        for _ in range(rng.randint(1, 3)):
            place, length = rng.randrange(len(text)), rng.choice((0, 1, 4))
            text = text[:place] + rng.choice(PIECES) + text[place + length :]
        file.write_text(text, encoding="utf-8", newline="")
        try:
            load_config([file])
        except UserError as error:
            refused += 1
            # Every message names the file and stays on one line.
            assert all(problem.startswith(str(file)) and "\n" not in problem for problem in error.problems)
    assert refused > 30


def test_random_values_in_a_method(tmp_path: Path) -> None:
    """Whole values of the wrong kind at any depth, and names put together at random."""
    rng = random.Random(1)
    file = tmp_path / "a.yaml"
    refused = loaded = 0
    for number in range(60):
        config = load_config(method=rng.choice(["grpo", "gtpo+lopti", "sft", "reinforce-pp+reweight"]))
        plain = as_plain(config)
        *section, key = rng.choice([path for path, _ in leaves(config) if path[0] == "method"])
        mapping = plain
        for part in section[: rng.randint(1, len(section))]:
            mapping = mapping[part]
        mapping[rng.choice([key, "kind", "zz", 3, None])] = rng.choice(VALUES)
        file.write_text(dump(plain), encoding="utf-8")
        name = "+".join(rng.choices(NAMES, k=rng.randint(1, 2))) if number % 4 == 0 else None
        try:
            again = load_config([file], method=name)
        except UserError as error:
            refused += 1
            assert all("\n" not in problem for problem in error.problems)
        else:
            loaded += 1
            file.write_text(dump_yaml(again), encoding="utf-8")
            assert load_config([file]) == again
    assert refused > 30
    assert loaded > 2
