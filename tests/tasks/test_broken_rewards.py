"""Reward functions that fail in every way that we thought of, and what is said of each."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.tasks import rewards
from rlvr_cli.tasks.problem import Problem, Verdict
from rlvr_cli.tasks.user_rows import UserRows

LIMITS = ("task.reward_timeout=1.5", "task.reward_memory=512")
# What is wrong -> what is said before anything starts.
AT_ONCE = {
    "def f(:\n": r"bad.py:1: syntax error",
    "while True: pass": r"bad.py:1: the file took more than 1.5 s",
    "def f(completions, gold): return [0.0]": r"f needs gold; available are .*answer.*task.columns=.*default",
    "def f(completions, log_metric, **k): log_metric('x', float('nan'))": r"log_metric\('x'\): must be .*got nan",
    "def f(completions, **k): return [1.0]": r"bad.py: f must return 3 values, one per completion; got 1",
    "def f(completions, **k): return [-3.5e38 for _ in completions]": r"f returned -3.5e\+38 .*from -1e\+30 to",
    "def f(completions, **k):\n    return [1 / 0]": r"bad.py:2: ZeroDivisionError: .*problem rows.jsonl.*I do not know",
    "import time\ndef f(completions, **k): time.sleep(600)": r"f took more than 1(.5)? s and was killed.*timeout",
    "def f(completions, **k):\n    x = bytearray(10**10)": r"bad.py:2: MemoryError \(task.reward_memory=512 MiB\)",
    "import os\ndef f(completions, **k): os._exit(5)": r"f: it ended its process with exit code 5",
}
# What only looks wrong -> the reward of a completion.
FINE = {
    "f = lambda completions, **k: [0.5 for _ in completions]": 0.5,
    "import os\ndef f(completions, **k):\n    os.close(1); os.close(2)\n    return [1.0 for _ in completions]": 1.0,
    "def f(completions, answer, **k):\n    completions.clear(); n = len(answer); answer.clear(); return [1.0] * n": 1.0,
    "import os\ndef f(completions, **k):\n    os.fork()\n    return [1.0 for _ in completions]": 1.0,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [{"question": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlvr_cli.core.user_code.IMPORT_TIMEOUT", 1.5)
    return tmp_path


def own(code: str, *overrides: str) -> UserRows:
    Path("bad.py").write_text(code)
    keys = ("task.data=rows.jsonl", "task.reward=bad.py:f", "task.columns={prompt: question}", *LIMITS, *overrides)
    task = load_config(task="own", overrides=keys, import_files=True).task
    assert isinstance(task, UserRows)
    return task


def judged(task: UserRows, *responses: str) -> list[Verdict]:
    asked = [
        Problem(f"p{row}", "1 + 1?", {"question": "1 + 1?", "answer": "2"}, "all") for row in range(len(responses))
    ]
    return task.judge_many(asked, responses, [False] * len(responses), [[1, 2, 3]] * len(responses))


@pytest.mark.parametrize("code", AT_ONCE)
def test_a_broken_reward_is_said_before_anything_starts(code: str) -> None:
    with pytest.raises(UserError, match=f"^task.reward: .*{AT_ONCE[code]}"):
        own(code).check_requirements()


@pytest.mark.parametrize("code", FINE)
def test_what_a_reward_may_be(code: str) -> None:
    assert [one.reward for one in judged(own(code), "a", "b")] == [FINE[code]] * 2


def test_some_completions_may_fail_and_are_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    code = "def f(completions, **k):\n    return [len(c) / (c != 'bad') for c in completions]"
    responses = ["good"] * 19 + ["bad"]
    task = own(code)
    *good, bad = judged(task, *responses)
    assert {one.reward for one in good} == {4.0}
    assert (bad.scorable, bad.reason, bad.parts) == (False, "error", {})
    judged(task, *responses)
    said = capfd.readouterr().err
    assert said.count("bad.py:2: ZeroDivisionError") == 1 and "problem p19, '1 + 1?'; response 'bad'" in said
    with pytest.raises(RunError, match=r"bad.py:2: Zero.*3 of 20 completions .* more than 10% .*task.reward_failures"):
        judged(own(code), *["good"] * 17, *["bad"] * 3)
    assert [one.scorable for one in judged(own(code, "task.reward_failures=1"), "bad", "good")] == [False, True]
    # A few rows of a rollout that is being completed: the share is of its largest call, and one row is always left out.
    assert [one.scorable for one in judged(task, "bad", "good", "bad", "good")] == [False, True, False, True]
    assert [one.scorable for one in judged(own(code), "bad", "good")] == [False, True]
    with pytest.raises(RunError, match="3 of 4 completions"):
        judged(task, "bad", "bad", "bad", "good")


def test_one_that_hangs_or_dies_costs_its_completion_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import os, time\ndef f(completions, **k):\n"
        "    for c in completions:\n"
        "        if c == 'hang': time.sleep(600)\n"
        "        if c == 'die': os._exit(3)\n"
        "    return [1.0 for c in completions]"
    )
    task = own(code, "task.reward_failures=0.2")
    assert [one.reason for one in judged(task, *["a"] * 8, "die", "b")] == [*["correct"] * 8, "died", "correct"]
    assert [one.reason for one in judged(task, *["a"] * 8, "hang", "b")] == [*["correct"] * 8, "timeout", "correct"]
    calls, submit = [], rewards.RewardFunction.submit

    def noting(function: rewards.RewardFunction, columns: Any, count: int, seconds: float | None = None) -> Any:
        calls.append(count)
        return submit(function, columns, count, seconds)

    monkeypatch.setattr(rewards.RewardFunction, "submit", noting)
    with pytest.raises(RunError, match="took more than"):
        judged(task, *["hang"] * 200)
    # All together; then alone, until that has taken as long as one call may.
    assert calls[:2] == [200, 1] and len(calls) <= 7


def test_rewards_that_are_all_none_are_unscored() -> None:
    task = own("def f(completions, **k): return [None for _ in completions]")
    assert {one.reason for one in judged(task, *"abcdefgh")} == {"unscored"}


def test_a_worker_keeps_the_file_as_it_was_read() -> None:
    task = own(
        "import os\nn = 0\ndef f(completions, **k):\n    global n\n    n += 1\n    return [n for _ in completions]"
    )
    assert [judged(task, "a")[0].reward for _ in range(3)] == [1.0, 2.0, 3.0]
    function = rewards.reward_function(task.reward[0], task.reward_timeout, task.reward_memory)
    (pid,) = function.pool.pids
    Path("bad.py").write_text("def f(completions, **k): return [9 for _ in completions]")
    assert judged(task, "a")[0].reward == 4.0
    os.kill(pid, 9)
    assert judged(task, "a")[0].reward == 1.0, "the worker after it has the same text"


def test_no_user_code_runs_in_this_process() -> None:
    task = own("import os\ndef f(completions, **k): return [os.getpid() for _ in completions]", "task.correct_above=0")
    pid = int(judged(task, "a")[0].reward)
    assert pid != os.getpid() and psutil.Process(pid).ppid() in {one.pid for one in psutil.Process().children()}
