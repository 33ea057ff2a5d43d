"""Trainings from Python: the page's example, the same bytes as the command's, and bad input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import rlvr_cli
from rlvr_cli import store
from rlvr_cli.cli.app import run
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.launch.slurm import write_initial_files
from rlvr_cli.runs.folder import create_run

PAGE = Path(rlvr_cli.__file__).parents[1] / "docs" / "python.md"
SMALL = {
    "rollout.prompts": 2,
    "rollout.group_size": 2,
    "rollout.max_new_tokens": 24,
    "train.rollouts": 1,
    "run.seed": 3,
    "run.name": "one",
}


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    little = '"train.rollouts": 1, "rollout.prompts": 2, "rollout.max_new_tokens": 16'
    first = first.replace('"train.rollouts": 20', little).replace(
        '"validation.every": 10, "validation.problems": 64', '"validation.every": 0'
    )
    assert len(first.splitlines()) <= 12
    exec(first + second.replace("30", "2"), {})  # noqa: S102
    assert list(store.steps(store.runs("grpo"))["rollout"]) == [0, 1]


def test_it_is_the_run_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = rlvr_cli.train(method="dgpo", settings={**SMALL, "run.dir": "python"}, quiet=True)
    assert found == Path("python/one")
    words = [f"{key}={value}" for key, value in SMALL.items()]
    assert run(["train", "--method", "dgpo", *words]) == 0
    assert (found / "metrics.jsonl").read_bytes() == Path("runs/one/metrics.jsonl").read_bytes()
    manifest = json.loads((found / "manifest.json").read_text())
    assert manifest["command"].startswith("rlvr train --method dgpo rollout.prompts=2")
    with pytest.raises(UserError, match="finished"):
        rlvr_cli.resume(found)
    assert run(["runs", "show", "python/one"]) == 0


def test_the_first_start_of_a_submitted_run_goes_by_its_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `rlvr train --submit slurm` leaves the run, and its job resumes it; the file was edited in the queue."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text("def worth(completions, **k):\n    return [0.25] * len(completions)\n")
    Path("rows.jsonl").write_text("".join(json.dumps({"prompt": f"Say {number}."}) + "\n" for number in range(20)))
    task = ["task.name=own", "task.data=rows.jsonl", "task.reward=mine.py:worth", "train.on_no_signal=off"]
    settings = [*task, *(f"{key}={value}" for key, value in SMALL.items())]
    config = load_config(overrides=settings, import_files=True)
    submitted = create_run(
        Path("runs"), "one", overwrite=False, fill=lambda aside: write_initial_files(config, aside, ["rlvr", "train"])
    )
    before = submitted.read_manifest()["user_files"]
    file.write_text(file.read_text().replace("0.25", "0.75"))
    assert rlvr_cli.resume("one", quiet=True) == submitted.path
    assert [row["reward"] for row in read_jsonl(submitted.metrics_path)] == [0.25]
    assert submitted.read_manifest()["user_files"] == before and before[0]["file"] == str(file)
