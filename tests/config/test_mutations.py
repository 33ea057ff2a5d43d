"""A damaged configuration file is a message or a configuration, never a crash."""

from __future__ import annotations

import random
from pathlib import Path

from rlvr_cli.config.errors import UserError
from rlvr_cli.config.load import dump_yaml, load_config

PIECES = [*"[]{}:,&*!|>'\"%@`\t\n-?#\x00~", "true", "1e-6", ": ", "\n  ", "é", "10000000000000000000000000000"]


def test_random_damage_to_a_configuration(tmp_path: Path) -> None:
    rng = random.Random(0)
    good = dump_yaml(load_config())
    file = tmp_path / "a.yaml"
    refused = 0
    for _ in range(400):
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
    assert refused > 200
