"""Every task, trained on the lab for two rollouts and evaluated: finite metrics that add up, from end to end.

On tasks that no model of the lab reads no answer is right: there the pipeline runs, and nothing is learned.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.hostile_texts import problems_of
from rlvr_cli.cli.app import run
from rlvr_cli.config.load import choose_task
from rlvr_cli.core.files import read_jsonl

# Task, method, reward; None for the task's own.
CASES = (
    ("kk", "grpo", None),
    ("kk", "grpo", "strict"),
    ("countdown", "grpo", None),
    ("math", "grpo", None),
    ("gsm8k", "grpo", None),
    ("hitab", "grpo", None),
    ("gsm8k", "gtpo", "gtpo"),
    ("math", "gtpo", "gtpo"),
    ("math", "dgpo", "plus_minus"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "method", "reward"), CASES)
def test_a_task_is_trained_and_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str, method: str, reward: str | None
) -> None:
    data = f"{task}-gen"
    if task == "hitab":  # none of its rows are generated
        rows = [json.dumps(problem.fields) + "\n" for problem in problems_of(choose_task("hitab"), "train", 200, 0)]
        (tmp_path / "tables.jsonl").write_text("".join(rows))
        data = str(tmp_path / "tables.jsonl")
    settings = [f"run.dir={tmp_path}", "run.name=run", "train.rollouts=2", "task.train_size=64", f"task.data={data}"]
    settings += [] if reward is None else [f"task.reward={reward}"]
    settings += [] if task == "kk" else ["train.on_no_signal=off"]
    assert run(["train", "--method", method, "--task", task, *settings]) == 0
    steps = list(read_jsonl(tmp_path / "run" / "metrics.jsonl"))
    assert {step["rollout"] for step in steps} == {0, 1}
    for step in steps:
        assert {"reward", "accuracy", "length", "grad_norm", "entropy", "unscorable"} <= set(step)
        missing = {name for name, value in step.items() if value is None}
        assert all(name.startswith("reward") for name in missing) and (not missing or step["unscorable"] == 1.0)
        assert all(math.isfinite(value) for value in step.values() if isinstance(value, float))
        shares = [value or 0.0 for name, value in step.items() if name.startswith("reason/")]
        assert sum(shares) == pytest.approx(1.0)
    capsys.readouterr()
    evaluated = ["eval", str(tmp_path / "run"), "--problems", "4", "--samples", "2", "--pass-at", "2", "--format=json"]
    assert run(evaluated) == 0
    shown = json.loads(capsys.readouterr().out)
    result = shown[0] if isinstance(shown, list) else shown
    assert (result["problems"], result["samples"]) == (4, 2)
    assert {"greedy", "avg@2", "pass@2", "reward"} <= set(result["metrics"])
    assert all(math.isfinite(metric["value"]) for metric in result["metrics"].values())
