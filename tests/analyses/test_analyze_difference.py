"""`rlvr analyze difference` on a run of the lab, from the command line to the numbers."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.analyses.saved_rollout import find_saved_rollout
from rlvr_cli.cli.app import run
from rlvr_cli.core.errors import UserError


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """The run, to be damaged."""
    return shutil.copytree(root / "lab", tmp_path / "lab")


def line(first: str, second: str, *arguments: str) -> list[str]:
    return ["analyze", "difference", f"methods=[{first},{second}]", *arguments]


def compared(capsys: pytest.CaptureFixture[str], root: Path, *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run([*line(*arguments), "--run", "lab", "--runs", str(root), "--format=json"]) == 0
    found = json.loads(capsys.readouterr().out)
    frames = found["frames"]
    groups = {group["name"]: group for group in frames["groups"]}
    return {**frames["summary"][0], "groups": groups, "largest": frames["largest"], "notes": found["notes"]}


def refused(capsys: pytest.CaptureFixture[str], root: Path, *arguments: str) -> str:
    capsys.readouterr()
    assert run([*line(*arguments), "--run", "lab", "--runs", str(root)]) == 2
    return capsys.readouterr().err


def test_dgpo_and_grpo_differ_where_grpo_clips(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = compared(capsys, root, "dgpo", "grpo")
    assert (found["rollout"], found["old_policy"], found["current_policy"]) == (2, 8, 12)
    outside = [found["groups"][name] for name in ("LN", "HP") if name in found["groups"]]
    assert sum(group["tokens"] for group in outside) > 0 < sum(group["sum_difference"] for group in outside)
    for name in ("LP", "HN", "M"):
        assert name not in found["groups"] or found["groups"][name]["sum_difference"] == 0
    token = found["largest"][0]
    assert token["weight_b"] == 0 < token["weight_a"]
    assert token["token"] and token["problem"]
    assert found["notes"] == []


def test_the_old_policy_is_the_one_that_sampled(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The log-probs of the checkpoint are those that the sampler recorded, in the base model's rollout too."""
    for rollout in ("0", "2"):
        assert compared(capsys, root, "grpo", "grpo", "--rollout", rollout)["sampling_gap"] < 1e-5


def test_a_policy_that_was_not_kept_has_a_stand_in_and_a_note(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(copy / "checkpoints" / "step-8")
    found = compared(capsys, copy.parent, "dgpo", "grpo", "--rollout", "2")
    assert (found["sampled_after_step"], found["old_policy"]) == (8, 4)
    assert found["sampling_gap"] > 1e-3
    assert any("was not kept" in note for note in found["notes"])
    # Without being told, it takes a rollout whose policy is there.
    assert compared(capsys, copy.parent, "dgpo", "grpo")["rollout"] == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["dgpo", "grop"], "Did you mean `grpo`?"),
        (["dgpo", "ppo"], "value head"),
        (["dgpo", "grpo", "--step", "5"], "Allowed: 4, 8, 12"),
        (["dgpo", "grpo", "--rollout", "2", "--step", "4"], "steps 9 to 12"),
        (["dgpo", "grpo", "--output", "x.pdf"], ".png or .svg"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    arguments: list[str], expected: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in refused(capsys, root, *arguments)


@pytest.mark.parametrize(("damaged", "refused"), [("step-4", False), ("step-8", True), ("step-12", True)])
def test_the_checkpoints_that_are_loaded_are_verified(copy: Path, damaged: str, *, refused: bool) -> None:
    weights = copy / "checkpoints" / damaged / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=rf"{damaged}: .* model.safetensors .*hash") if refused else nullcontext():
        find_saved_rollout("lab", copy.parent)


def test_a_run_without_checkpoints_or_rollouts_is_refused(copy: Path) -> None:
    for file in (copy / "rollouts").iterdir():
        file.unlink()
    with pytest.raises(UserError, match="no rollout was saved"):
        find_saved_rollout("lab", copy.parent)
    with pytest.raises(UserError, match="None was saved"):
        find_saved_rollout("lab", copy.parent, rollout=0)
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(UserError, match="no checkpoint"):
        find_saved_rollout("lab", copy.parent)
    with pytest.raises(UserError, match="no such run"):
        find_saved_rollout("other", copy.parent)
