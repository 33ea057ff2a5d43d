"""The full scale: the papers' recipes in place of arms, and no start where something is lacking."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.config.load import load_config
from rlvr_cli.ledger import full
from rlvr_cli.ledger.trainings import ArmSeed, Folders, make_sweep
from rlvr_cli.sweeps.naming import config_differences
from rlvr_cli.sweeps.rows import config_source
from tests.ledger.files import CONTRAST, EXACT, LENGTH, claim_set, write_book
from tests.recipes import recipes

FOLDER = "ar_lopti/figure-4.yaml"
RECIPES = {"of": f"{FOLDER}:qwen2.5-3b-lopti", "against": f"{FOLDER}:qwen2.5-3b-grpo"}


def test_a_training_is_its_recipe(tmp_path: Path) -> None:
    """What is flattened to overrides means what the file means."""
    read = claim_set(tmp_path, [{**CONTRAST, "full": RECIPES}])
    changed, (claim,) = full.at_full_scale(read, list(read.claims.values()), full.recipes_folder())
    names = ["ar-lopti-figure-4-qwen2-5-3b-lopti", "ar-lopti-figure-4-qwen2-5-3b-grpo"]
    assert claim.arms == names
    sweep = make_sweep([ArmSeed(name, 0) for name in names], changed, Folders(tmp_path, "full"), {}, ())
    assert sweep.folder == tmp_path / "ledger-full" and sweep.file.spec.slots.cores is None
    for trial, file in zip(sweep.trials, RECIPES.values(), strict=True):
        recipe = load_config([config_source(full.recipes_folder() / file)], overrides=["run.seed=0"])
        assert config_differences(recipe, trial.config) == []


def test_every_shipped_claim_has_its_recipes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["reproduce", "--all", "--scale", "full", "--dry-run", "--format=json", "--runs", str(tmp_path)]) == 0
    plan = json.loads(capsys.readouterr().out)
    arms = [full.arm_name(f"{table}.yaml:{row}") for table, _, row in (name.rpartition("/") for name in recipes())]
    assert {arm["arm"] for arm in plan["arms"]} <= set(arms) and len(set(arms)) == len(arms)


def test_nothing_is_started_where_something_is_lacking(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full, "visible_gpus", lambda: 0)
    monkeypatch.setattr(full, "_models", lambda configs: iter(()))
    data = write_book(tmp_path / "data", [{**CONTRAST, "full": RECIPES}, LENGTH, EXACT])
    place = ["--scale", "full", "--claims", str(data), "--runs", str(tmp_path / "runs")]
    assert run(["reproduce", "landscape/length", *place]) == 2
    assert "landscape/length: names no recipe for the full scale" in capsys.readouterr().err
    assert run(["reproduce", "landscape/updates", *place]) == 2
    assert "this machine has 0" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert run(["reproduce", "landscape/updates", "--dry-run", "--format=json", *place]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["trainings_to_do"] == 4 and "this machine has 0" in plan["lacking"][0]
    assert [arm["rollouts"] for arm in plan["arms"]] == [350, 350]


def test_recipes_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claim = {**LENGTH, "full": {"of": f"{FOLDER}:no-such"}}
    data = write_book(tmp_path / "data", [claim])
    assert run(["reproduce", "--all", "--scale", "full", "--claims", str(data)]) == 2
    assert "figure-4.yaml: has no row 'no-such'" in capsys.readouterr().err
