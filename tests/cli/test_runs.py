"""`rlvr runs`: what is on disk, damaged runs included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.runs.checkpoints import write_checkpoint
from tests.runs.folders import make_run


def listed(root: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert run(["runs", "list", "--runs", str(root), "--format=json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


def test_runs_are_listed_by_age_with_their_last_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path, "a-new", created="2025-01-02T00:00:00+00:00", last_metrics={"reward": 2.5, "accuracy": 0.75})
    make_run(tmp_path, "b-old", status="interrupted", rollout=12, created="2025-01-01T00:00:00+00:00")
    rows = listed(tmp_path, capsys)
    assert [row["name"] for row in rows] == ["b-old", "a-new"]
    assert rows[1]["last_metrics"]["accuracy"] == 0.75
    assert run(["runs", "list", "--runs", str(tmp_path)]) == 0
    old, new = capsys.readouterr().out.splitlines()[1:]
    assert "interrupted" in old and "12/60" in old
    assert "finished" in new and "2.500" in new and "0.750" in new


def test_a_damaged_run_is_named_and_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path, "good")
    make_run(tmp_path, "torn").manifest_path.write_text('{"name": "to')
    make_run(tmp_path, "gone").manifest_path.unlink()
    (tmp_path / "not-a-run").mkdir()
    rows = {row["name"]: row for row in listed(tmp_path, capsys)}
    assert set(rows) == {"good", "torn", "gone"}
    assert rows["good"]["damage"] is None
    assert "manifest.json" in rows["torn"]["damage"]
    assert "manifest.json" in rows["gone"]["damage"]
    assert run(["runs", "list", "--runs", str(tmp_path)]) == 0
    *table, gone, torn = capsys.readouterr().out.splitlines()
    assert gone.startswith("gone is damaged: ") and torn.startswith("torn is damaged: ")
    assert [line.split()[0] for line in table] == ["run", "good"]


def test_a_manifest_with_other_things_than_a_run_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody edited it, or another program wrote it."""
    odd = {"status": ["x"], "created": 5, "method": {}, "rollout": "many", "step": 1e300, "model": "\ud800 x"}
    numbers = {"reward": "high", "accuracy": [], "loss": True}
    make_run(tmp_path, "odd").manifest_path.write_text(json.dumps({**odd, "task": "kk", "last_metrics": numbers}))
    make_run(tmp_path, "empty").manifest_path.write_text("{}")
    make_run(tmp_path, "list").manifest_path.write_text("[]")
    assert run(["runs", "list", "--runs", str(tmp_path), "task=*"]) == 0
    assert "odd" in capsys.readouterr().out
    rows = {row["name"]: row for row in listed(tmp_path, capsys)}
    assert (rows["odd"]["status"], rows["empty"]["status"], rows["list"]["status"]) == (None, None, "damaged")
    assert rows["odd"]["model"] == "\\ud800 x"
    for command in (["list"], ["show", "odd"], ["show", "list"], ["watch", "--once", "--all"]):
        assert run(["runs", *command, "--runs", str(tmp_path)]) == 0


def test_a_run_whose_process_is_gone_was_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A manifest that says running is believed only while a process holds the lock."""
    made = make_run(tmp_path, "r", status="running", step=7)
    assert listed(tmp_path, capsys)[0]["status"] == "killed"
    with made.lock():
        assert listed(tmp_path, capsys)[0]["status"] == "running"
    assert listed(tmp_path, capsys)[0]["status"] == "killed"


def test_runs_inside_sweeps_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_run(tmp_path, "sweep/grpo-s0", created="2025-01-02T00:00:00+00:00")
    make_run(tmp_path, "alone")
    (tmp_path / "sweep" / "sweep.yaml").write_text("")
    (tmp_path / "sweep" / "base").mkdir()
    (tmp_path / "sweep" / "base" / "config.yaml").write_text("")
    # What lies in a run, in a hidden folder, or deeper, is none.
    for other in ("alone/checkpoints/step-1", ".trash/run", "a/b/c"):
        (tmp_path / other).mkdir(parents=True)
        (tmp_path / other / "manifest.json").write_text("{}")
    assert [row["name"] for row in listed(tmp_path, capsys)] == ["alone", "sweep/grpo-s0"]
    assert run(["runs", "show", "sweep/grpo-s0", "--runs", str(tmp_path), "--format=json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(made.path)


def test_show_looks_at_the_sizes_of_checkpoints_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hashing all of a large model's checkpoints would take minutes."""
    made = make_run(tmp_path, "r")
    shown = []
    for text in ("weights", "WEIGHTS", "weight"):
        saved = write_checkpoint(made.checkpoints_dir, 5, lambda folder: (folder / "w").write_text("weights"))
        (saved.path / "w").write_text(text)
        assert run(["runs", "show", "r", "--runs", str(tmp_path), "--format=json"]) == 0
        shown += json.loads(capsys.readouterr().out)["checkpoints"]
    reason = "w was altered after it was written (it has 6 bytes, not 7)"
    assert shown == [str(saved.path), str(saved.path), f"{saved.path} (damaged: {reason})"]


def test_show_says_when_an_alert_was_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_run(tmp_path, "r")
    states = [0, 1, 1, 0, 1]
    rows = [{"rollout": number, "alert/accuracy_drop": state} for number, state in enumerate(states)]
    made.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = ["accuracy drop, rollouts 2-3", "accuracy drop, rollouts 5-5 (the newest)"]
    assert run(["runs", "show", "r", "--runs", str(tmp_path), "--format=json"]) == 0
    assert json.loads(capsys.readouterr().out)["alerts"] == expected
    assert run(["runs", "show", "r", "--runs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1)[1].strip() for line in lines if line.startswith("alert")] == expected
    made.metrics_path.write_text("{torn\n{}\n")
    assert run(["runs", "show", "r", "--runs", str(tmp_path), "--format=json"]) == 0
    damaged = json.loads(capsys.readouterr().out)
    assert damaged["alerts"] == [] and "metrics.jsonl:1" in damaged["damage"]
    made.metrics_path.write_text("{}\n5\n")
    assert run(["runs", "show", "r", "--runs", str(tmp_path), "--format=json"]) == 0
    assert "metrics.jsonl:2: not a JSON object (5)" in json.loads(capsys.readouterr().out)["damage"]
    made.metrics_path.write_text('{"rollout": -1}\n{}\n{"rollout": 0, "reward": 0.5}\n')
    assert run(["runs", "show", "r", "--runs", str(tmp_path), "--format=json"]) == 0
    damaged = json.loads(capsys.readouterr().out)
    assert "2 lines are not optimizer steps" in damaged["damage"] and "reward" in damaged["curves"]


def test_a_terminal_gets_colours_and_no_escape_of_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path, "red\x1b[31m-and-a-name-that-takes-most-of-the-line")
    monkeypatch.setattr("rlvr_cli.cli.output.is_terminal", lambda stream: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for columns in ("60", "80", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        assert run(["runs", "list", "--runs", str(tmp_path)]) == 0
        text = capsys.readouterr().out
        assert "\x1b[32mfinished\x1b[0m" in text
        assert "red\\x1b[31m-and" in text and text.count("\x1b") == 2


def test_resume_without_a_name_takes_the_newest_unfinished_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    refused = {
        (): "no run in runs",
        (("done", "finished", 3), ("queued", "submitted", 4)): "rlvr train --resume runs/done train.rollouts=N",
        (("early", "failed", 1), ("later", "interrupted", 2)): None,
    }
    for found, says in refused.items():
        for name, status, day in found:
            make_run(runs, name, status=status, created=f"2025-01-0{day}T00:00:00+00:00")
        for words in ((), ("--json",), ("train.rollouts=70",)):
            code, said = run(["train", "--resume", *words, *([] if says else ["--dry-run"])]), capsys.readouterr().err
            if says:
                assert code == 2 and says in said and "Nothing was started" in said
            elif "train.rollouts=70" not in words:
                assert "--resume: runs/later is the newest unfinished run" in said
    newest = make_run(runs, "newest", status="running", created="2025-01-09T00:00:00+00:00")
    with newest.lock():
        assert run(["train", "--resume"]) == 2
    assert "runs/newest, the newest unfinished run, is being trained" in capsys.readouterr().err
    assert run(["train", "--resume", "early", "--dry-run"]) in (0, 2)
    assert "newest" not in capsys.readouterr().err
