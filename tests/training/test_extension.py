"""A run that gets more rollouts than it was begun with."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.cli.app import run as rlvr
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.seal import file_digest
from rlvr_cli.training import extension
from rlvr_cli.training import run as running
from rlvr_cli.training.extension import extend
from tests.matrix import metrics, resume
from tests.training.test_run import start


def contents(run: RunDir) -> dict[str, Any]:
    """What a run has made: the numbers of each step, its rollouts and every file of its newest checkpoint."""
    newest = valid_checkpoints(run.checkpoints_dir)[0].path
    return {
        "metrics": run.metrics_path.read_bytes(),
        "rollouts": {path.name: path.read_bytes() for path in sorted(run.rollouts_dir.iterdir())},
        "checkpoint": {
            str(path.relative_to(newest)): file_digest(path) for path in sorted(newest.rglob("*")) if path.is_file()
        },
        "checkpoints": [checkpoint.step for checkpoint in valid_checkpoints(run.checkpoints_dir)][:1],
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return start(tmp_path_factory.mktemp("finished"), "short", train__rollouts=2, validation__every=1, **EVAL).run


EVAL: dict[str, Any] = {
    "validation__problems": 4,
    "validation__samples": 2,
    "validation__pass_at": [1],
    "optimizer__warmup_rollouts": 0,
    "optimizer__lr_schedule": "constant",
}


@pytest.fixture
def short(finished: RunDir, tmp_path: Path) -> RunDir:
    return RunDir(Path(shutil.copytree(finished.path, tmp_path / "short")))


def test_an_extended_run_is_the_run_that_had_as_many_rollouts_from_the_start(short: RunDir, tmp_path: Path) -> None:
    whole = start(tmp_path, "whole", train__rollouts=3, validation__every=1, **EVAL).run
    assert rlvr(["train", "--resume", str(short.path), "train.rollouts=3"]) == 0
    assert contents(short) == contents(whole)
    manifest = short.read_manifest()
    assert (manifest["status"], manifest["rollouts_total"], manifest["step"]) == ("finished", 3, 12)
    assert [(entry["from"], entry["to"], entry["step"]) for entry in manifest["extended"]] == [(2, 3, 8)]
    # Again, as often as one likes.
    extend(short, ["train.rollouts=4"])
    assert resume(short).status == "finished"
    assert len(metrics(short)) == 16


def test_only_the_number_of_rollouts_can_change_and_only_upwards(short: RunDir) -> None:
    before = short.config_path.read_bytes(), short.manifest_path.read_bytes()
    for overrides, said in (
        (["optimizer.lr=0.1"], "optimizer.lr=0.1"),
        (["train.rollouts=3", "run.seed=1"], "run.seed=1"),
        (["train.rollouts=1"], "must be at least 2"),
        (["train.rollouts=2"], "is finished"),
        (["train.rollouts=x"], "train.rollouts"),
    ):
        with pytest.raises(UserError, match=said):
            extend(short, overrides)
    with short.lock():
        assert rlvr(["train", "--resume", str(short.path), "train.rollouts=3"]) == 2
    assert (short.config_path.read_bytes(), short.manifest_path.read_bytes()) == before
    shutil.rmtree(short.checkpoints_dir)
    with pytest.raises(UserError, match="holds no checkpoint"):
        extend(short, ["train.rollouts=3"])
    assert (short.config_path.read_bytes(), short.manifest_path.read_bytes()) == before


@pytest.mark.parametrize("writes", [0, 1])
def test_an_extension_that_is_cut_off_is_carried_out_later(
    short: RunDir, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """Killed before the configuration is written, and between it and the manifest."""

    def cut(path: Path, text: str) -> None:
        if writes:
            path.write_text(text, encoding="utf-8")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(extension, "write_text", cut)
        extend(short, ["train.rollouts=3"])
    assert resume(short).status == "finished"
    assert load_config([short.config_path]).train.rollouts == 3
    assert (len(metrics(short)), len(short.read_manifest()["extended"])) == (12, 1)


def contents_of(folder: Path) -> dict[str, bytes]:
    """Every file of a folder but for locks, which name their last holder."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_refused_resume_changes_nothing(
    short: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the configuration, nor the status: `--resume` without a name would else take up the run that was refused."""
    monkeypatch.chdir(short.path.parent)
    run, before = short, contents_of(short.path)
    monkeypatch.setattr(running, "prepare_run", refused)
    assert rlvr(["train", "--resume", str(short.path), "train.rollouts=9"]) == 2
    output = capsys.readouterr()
    assert "Nothing was started." in output.err and "extended" not in output.err + output.out
    assert contents_of(run.path) == before


def refused(*given: Any) -> None:
    raise UserError("this version of a library cannot train.")
