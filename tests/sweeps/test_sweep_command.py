"""`rlvr sweep` without a training: what it would do, what it says of sweeps, and what it refuses."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run
from tests.sweeps.test_prepare import begun

TEXT = "name: pair\nmethods: [grpo, cispo]\nseeds: 2\nset: {train.rollouts: 5}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pair.yaml"
    path.write_text(TEXT)
    return path


def test_arms_that_cannot_differ_are_not_trained(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = file.parent / "runs"
    for options in ([], ["--submit", "slurm"]):
        assert run(["sweep", str(file), f"run.dir={root}", *options]) == 2
        shown = " ".join(capsys.readouterr().err.split())
        assert (
            f"{file}: With one update per rollout the ratio is 1: grpo and cispo are the same gradient. Remove all but "
            "one, set update.mini_batches above 1, or train them all with `identical_arms: true` in this "
            "file." in shown
        )
        assert "1 problem" in shown and not root.exists()


def test_the_status_of_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, place, plan = begun(tmp_path)
    place.record(plan.trials[1], "start", worker=0, step=0)
    place.record(plan.trials[1], "end", outcome="bad_input", reason="the data are bad")
    (place.path / "grpo-s0" / "metrics.jsonl").write_text('{"step": 30, "reward": 0.5, "accuracy": 0.25}\n{"ste')
    assert run(["sweep", "status", str(place.path)]) == 0
    shown = capsys.readouterr().out
    assert "grpo-s0   waiting  30/60    0.500   0.250" in shown
    assert "1 failed, 3 waiting" in shown and "grpo-s1 failed: the data are bad" in shown
    assert run(["sweep", "status", str(place.path), "--format=json"]) == 0
    trials = json.loads(capsys.readouterr().out)["trials"]
    assert [one["state"] for one in trials] == ["waiting", "failed", "waiting", "waiting"]
    assert (trials[0]["rollout"], trials[1]["reason"]) == (30, "the data are bad")


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("trials.json", '"steps": 60', '"steps": 0', "grpo-s0: rollouts and steps must be whole numbers above 0"),
        ("state/grpo-s0/attempts.jsonl", "", "[]\n", "attempts.jsonl:1: not a JSON object ([]). The file was altered."),
        ("state/grpo-s0/attempts.jsonl", "", '{"event": "end"}\n', "attempts.jsonl:1: has no outcome, reason."),
    ],
)
def test_altered_records_are_named(
    file: str, old: str, new: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, place, _ = begun(tmp_path)
    path = place.path / file
    before = path.read_text() if path.exists() else ""
    assert old in before
    path.write_text(before.replace(old, new, 1))
    assert run(["sweep", "status", str(place.path)]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("host", ["elsewhere", socket.gethostname()])
def test_only_a_sweep_of_this_machine_is_signalled(
    tmp_path: Path, host: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its process has ended since."""
    _, place, _ = begun(tmp_path)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    with place.lock():
        lock = place.path / ".lock"
        assert lock.read_text() == f"{os.getpid()}@{socket.gethostname()}\n"
        lock.write_text(f"{child}@{host}\n")
        monkeypatch.setattr("rlvr_cli.cli.sweep.STOP_TIMEOUT", 0.0)
        assert run(["sweep", "stop", str(place.path)]) == (2 if host == "elsewhere" else 1)
    said = f"{place.path}: runs on elsewhere. Stop it there." if host == "elsewhere" else "not all trials have saved"
    assert said in " ".join(capsys.readouterr().err.split())


def test_what_is_refused(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, place, _ = begun(tmp_path)
    cases = {
        ("status", "nowhere"): "nowhere: no such sweep, folder or file.",
        ("stop", str(place.path)): "is not running",
        ("retry", str(place.path)): "no trial has failed",
        ("retry", str(place.path), "grpo-s0", "grpo-s9"): "grpo-s9: unknown trial",
        ("missing.yaml",): "missing.yaml  no such file",
        (str(file), "--speed", "x"): "--speed needs --dry-run",
        (str(file), "--workers", "9999", "--dry-run", "optimizer.lrr=1"): "optimizer.lrr: unknown key",
    }
    for line, said in cases.items():
        assert run(["sweep", *line]) == 2, line
        assert said in capsys.readouterr().err
    assert run(["sweep", "status", str(file)]) == 2
    assert f"rlvr sweep {file}" in capsys.readouterr().err
