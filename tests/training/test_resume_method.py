"""A run goes on with the method and the problems that it was begun with, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.training.prepare import prepare_run
from tests.matrix import resume
from tests.training.processes import interrupted_after
from tests.training.sft_runs import configure, start

TINY = {"validation__every": 0, "train__rollouts": 2, "update__epochs": 1, "rollout__max_new_tokens": 24}


def test_a_run_does_not_go_on_with_another_method(tmp_path: Path) -> None:
    with interrupted_after(1):
        run = start(tmp_path, "grpo", "grpo", **TINY).run
    fingerprint = run.read_manifest()["method_fingerprint"]
    other = prepare_run(configure(tmp_path, "other", "dgpo")).method.fingerprint()
    ours, theirs = fingerprint["choices_sha256"][:8], other["choices_sha256"][:8]
    run.update_manifest(method_fingerprint=other)
    with pytest.raises(UserError, match=rf"started with method dgpo \({theirs}\).* grpo \({ours}\)"):
        resume(run)
    run.update_manifest(method_fingerprint={**fingerprint, "code_sha256": "0"})
    assert resume(run).status == "finished"
    assert "the code of the method was changed after the run began" in run.log_path.read_text()


def test_a_run_does_not_go_on_with_other_problems(tmp_path: Path) -> None:
    """A row of the file is edited; the file as it was is taken again."""
    data = tmp_path / "rows.jsonl"
    lines = [problem.fields for problem in KnightsAndKnaves().problems("train", 12, 0)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    data.write_text(text)
    settings = {**TINY, "task__data": str(data)}
    with interrupted_after(1):
        run = start(tmp_path, "grpo", "grpo", **settings).run
    before = run.manifest_path.read_bytes()
    data.write_text(text.replace(json.dumps(lines[-1]), json.dumps({**lines[-1], "question": "Who is a knave?"})))
    with pytest.raises(UserError, match=r"training problems \(task.data=.*rows.jsonl\) are not those"):
        resume(run)
    assert run.manifest_path.read_bytes() == before
    data.write_text(text)
    assert resume(run).status == "finished"
