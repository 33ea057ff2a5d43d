"""`rlvr analyze weights` and `directions` on a run of the lab, from the command line to numbers and figure."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run
from tests.analyses.conftest import SETTINGS
from tests.analyses.lab_runs import analyzed
from tests.runs.made_seals import reseal


def refused(capsys: pytest.CaptureFixture[str], root: Path, *arguments: str) -> str:
    capsys.readouterr()
    assert run(["analyze", *arguments, "--run", "lab", "--runs", str(root)]) == 2
    return capsys.readouterr().err


def test_a_rollout_without_advantages_has_neither_weights_nor_directions(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(root / "lab", tmp_path / "lab")
    file = copy / "rollouts" / "rollout-000000.jsonl"
    rows = [{**json.loads(line), "clean_reward": 1.0} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reseal(copy)
    for name in ("weights", "directions"):
        found = analyzed(capsys, copy.parent, name, "--rollout", "0", "--step", "4")
        assert found["headline"].startswith(("No token", "The update of grpo"))
        assert "has an advantage" in found["headline"]
        assert Path(found["figure"]).exists()


def test_a_run_with_an_adapter_is_looked_at_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [*SETTINGS, "train.rollouts=1", "update.mini_batches=1", "checkpoint.every=1"]
    assert run(["train", f"run.dir={tmp_path}", "run.name=lab", "model.adapter={kind: lora, rank: 4}", *settings]) == 0
    found = analyzed(capsys, tmp_path, "directions", "matrices=1")
    assert found["summary"]["norm_old"] > 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("weights", "methods=[grpo, dgqo, grpo+noise]"), "Did you mean `dgpo`"),
        (("weights", "methods=[grpo, dgqo, grpo+noise]"), "reward noise acts when a rollout is collected"),
        (("weights", "--step", "3"), "no usable checkpoint of step 3"),
        (("weights", "--rollout", "7"), "precedes the updates on rollout 7"),
        (("directions", "side=up"), "right"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: tuple[str, ...], reason: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reason in refused(capsys, root, *arguments)
