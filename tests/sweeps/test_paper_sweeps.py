"""The sweeps of the papers' tables: with its first seed, each arm is the recipe of its row, to the last key."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr_cli.config.load import load_config
from rlvr_cli.sweeps.expand import expand
from rlvr_cli.sweeps.naming import identity
from rlvr_cli.sweeps.spec import read_sweep

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize(
    ("sweep", "rows"),
    [
        ("acpo_table_1", "acpo/table-1/countdown-*"),
        ("ar_lopti_figure_4", "ar_lopti/figure-4/qwen2.5-3b-*"),
        ("dgpo_figure_3", "dgpo/*/qwen-1.5b-dgpo*"),
    ],
)
def test_the_first_seed_is_the_recipe(sweep: str, rows: str) -> None:
    trials = expand(read_sweep(CONFIGS / "sweeps" / f"{sweep}.yaml")).trials
    first = {identity(trial.config) for trial in trials if trial.config.run.seed == trials[0].config.run.seed}
    recipes = {identity(load_config([file])) for file in (CONFIGS / "papers").glob(f"{rows}.yaml")}
    assert first == recipes
