"""`rlvr config`: the resolved configuration and the list of keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.config.keys import KEYS
from rlvr_cli.config.load import load_config


def test_show_prints_a_file_that_can_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "optimizer.lr=2e-5"]) == 0
    file = tmp_path / "config.yaml"
    file.write_text(capsys.readouterr().out)
    assert load_config([file]) == load_config(overrides=["optimizer.lr=2e-5"])


def test_origins_say_what_set_each_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--origins", "--format=json", "--method", "grpo", "run.seed=3"]) == 0
    origins = {row["key"]: row["origin"] for row in json.loads(capsys.readouterr().out)}
    assert origins["run.seed"] == "override run.seed=3"
    assert origins["method.name"] == "--method grpo"
    assert origins["optimizer.lr"].startswith("preset models/lab.yaml:")
    assert origins["checkpoint.keep"] == "default"
    assert origins["method.policy_loss.kind"] == "preset grpo"


def test_origins_of_a_composition_name_the_preset_of_each_part(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--method", "REINFORCE++ + AR-Lopti", "method.passes.eta=0.4"]
    assert run(["config", "show", "--origins", "--format=json", *arguments]) == 0
    rows = {row["key"]: (row["value"], row["origin"].split(":")[0]) for row in json.loads(capsys.readouterr().out)}
    assert rows["method.name"] == ("reinforce-pp+reweight+lopti", "--method REINFORCE++ + AR-Lopti")
    assert rows["method.advantage.kl_in_reward"] == (0.001, "preset reinforce-pp")
    assert rows["method.shaping.reweight.alpha"] == (0.1, "preset reweight")
    assert rows["method.passes.order"] == ("low_first", "preset lopti")
    assert rows["method.passes.eta"] == (0.4, "override method.passes.eta=0.4")
    assert rows["method.shaping.conflict.ends"] == ("off", "default")


def test_keys_lists_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "keys"]) == 0
    shown = capsys.readouterr().out
    for key in KEYS.keys:
        assert key.name in shown
    assert run(["config", "keys", "--format=json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["key"] for row in listed] == [key.name for key in KEYS.keys]
    assert set(listed[0]) == {"key", "kinds", "type", "default", "meaning"}
    assert [row["kinds"] for row in listed if row["key"] == "method.policy_loss.n"] == [["dgpo"]]
