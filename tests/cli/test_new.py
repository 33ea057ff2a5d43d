"""`rlvr new`, and every command that it prints, as pasted."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run

SMALL = (
    *("rollout.prompts=2", "rollout.group_size=2", "rollout.max_new_tokens=24", "train.rollouts=1"),
    *("train.on_no_signal=off", "eval.problems=4", "eval.samples=2", "eval.pass_at=[1,2]"),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder; those of other tests' files are on no path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def pasted(command: str) -> None:
    """Run a command as it stands, but as little of it as there can be."""
    words = shlex.split(command)
    assert words[0] == "rlvr"
    if words[1] == "train":
        words += [*SMALL, *(["task.train_size=64"] if "--task" in words else [])]
    if words[1] == "eval":
        words = [*words[:3], "eval.problems=4", "--samples", "2", "--pass-at", "2"]
    assert run(words[1:]) == 0, command


@pytest.mark.parametrize("kind", ["task", "reward", "method"])
def test_the_beginning_runs_as_it_is(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["new", kind, "my-own"]) == 0
    printed = re.findall(r"^  (rlvr .*)", capsys.readouterr().out, flags=re.MULTILINE)
    assert len(printed) >= 4
    for command in printed:
        pasted(command)
    assert run(["new", kind, "my_own"]) == 2 and "exists. Choose another name" in capsys.readouterr().err
