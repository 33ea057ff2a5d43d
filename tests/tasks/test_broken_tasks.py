"""Task files whose methods fail, hang, die or return what they must not, and what is said of each."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.tasks import guarded
from rlvr_cli.tasks.base import Task
from rlvr_cli.tasks.problem import Problem

PAGE = (Path(__file__).parents[2] / "docs" / "tasks" / "own.md").read_text(encoding="utf-8")
FILE = PAGE.split("```python\n")[2].split("```")[0]
GENERATED, ASKED, JUDGED = "        rng = random", "        return f", "        answer = response"
# Lines that stand before a line of the documentation's task -> what is said.
BROKEN = {
    ("import random", "while True: pass\n"): r":5: took more than 1 s to load",
    (GENERATED, "        raise KeyError('x')\n"): r":\d+: generate raised KeyError: 'x' \(2 problems of train",
    (GENERATED, "        import os; os._exit(3)\n"): r"generate: it ended its process with exit code 3",
    (GENERATED, "        import time; time.sleep(600)\n"): r"generate took more than 1 s",
    (GENERATED, "        return [1] * count\n"): r"generate returned 1 \(int\); a Problem is wanted",
    (GENERATED, "        return None\n"): r"generate raised TypeError",
    (GENERATED, "        return []\n"): r"generate returned 0 problems",
    (GENERATED, "        return [Problem('a', 'b', {}, 'c')] * count\n"): r"1 of them with the id of another",
    (
        GENERATED,
        "        return [Problem(str(n), 'b', {'n': {n}}, 'c') for n in (1, 2)]\n",
    ): r"field 'n' of problem 1",
    (
        GENERATED,
        "        return [Problem(str(n), 'b', {'n': (1,)}, 'c') for n in range(count)]\n",
    ): r"not a JSON value \(tuple\)",
    (
        GENERATED,
        "        return [Problem(str(n), 'b \\ud800', {}, 'c') for n in range(count)]\n",
    ): r"generate: problem '0': .*half of a surrogate pair",
    (
        GENERATED,
        "        return [Problem(str(n), 'b', {'a': ['\\ud800']}, 'c') for n in range(count)]\n",
    ): r"generate: problem '0': .*half of a surrogate pair",
    (ASKED, "        return 'What \\ud800'\n"): r"prompt of problem 'rev-.*half of a surrogate pair",
    (JUDGED, "        return Verdict(1.0, {}, True, '\\ud800', 'correct')\n"): r"judge gave text .*half of a surrogate",
    (
        JUDGED,
        "        return Verdict(1.0, {'\\ud800': 1.0}, True, 'a', 'correct')\n",
    ): r"judge gave text .*half of a surr",
    (GENERATED, "        x = bytearray(10**10)\n"): r"generate raised MemoryError.*task.reward_memory=512 MiB",
    (ASKED, "        while True: pass\n"): r":\d+: prompt took more than 1 s \(task.reward_timeout\)",
    (ASKED, "        import os; os._exit(3)\n"): r":\d+: prompt raised EndedProcess: os._exit\(3\)",
    (ASKED, "        raise SystemExit(3)\n"): r":\d+: prompt raised SystemExit: 3",
    (ASKED, "        return b'bytes'\n"): r"prompt returned b'bytes' \(bytes\); a str is wanted",
    (ASKED, "        return tokenizer.nothing\n"): r":\d+: prompt raised AttributeError",
    (JUDGED, "        1 / 0\n"): r":\d+: judge raised ZeroDivisionError: .*problem rev-.*response 'said'",
    (JUDGED, "        while True: pass\n"): r"judge took more than 1 s and was ended",
    (JUDGED, "        import os; os._exit(3)\n"): r"judge: it ended its process with exit code 3",
    (JUDGED, "        import sys; sys.exit()\n"): r"judge raised SystemExit",
    (JUDGED, "        x = bytearray(10**10)\n"): r"judge raised MemoryError.*reward_memory=512",
    (JUDGED, "        return 1.0\n"): r"judge returned 1.0 \(float\); a Verdict is wanted",
    (JUDGED, "        return Verdict('1', {}, True, None, 'correct')\n"): r"judge gave the reward '1' \(str\)",
    (JUDGED, "        return Verdict(1.0, {'a': None}, True, None, 'correct')\n"): r"gave the part a None \(NoneType\)",
    (
        JUDGED,
        "        return Verdict(1.0, {'a': float('nan')}, True, None, 'correct')\n",
    ): r"the part a nan of a reward of 1",
    (JUDGED, "        return Verdict(1.0, [1.0], True, None, 'correct')\n"): r"gave the parts \[1.0\]; expected a dict",
    (JUDGED, "        return Verdict(1.0, {}, True, 7, 'correct')\n"): r"gave the answer 7",
    (JUDGED, "        return Verdict(1.0, {}, True, None, 'good')\n"): r"reason 'good'; reasons has correct, wrong",
}
FINE = {
    "        print('x' * 10**6)\n": 0.0,
    "        import sys; sys.stdout.close()\n": 0.0,
    "        import os; os.fork()\n": 0.0,
    "        import numpy; return Verdict(numpy.float32(1), {'a': numpy.int64(1)}, numpy.True_, 'x', 'correct')\n": 1.0,
    "        return Verdict(float('nan'), {}, False, None, 'wrong')\n": float("nan"),
}


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr_cli.core.own_code._LOADING", 1.0)
    monkeypatch.setattr(guarded, "_PROBLEMS", 1)


def task_of(folder: Path, before: str = "", code: str = "", *keys: str) -> Task:
    assert before in FILE
    (folder / "my_task.py").write_text(FILE.replace(before, code + before, 1) if before else FILE)
    limits = ("task.reward_timeout=1", "task.reward_memory=512", *keys)
    return load_config(task=str(folder / "my_task.py"), overrides=limits).task


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: BROKEN[broken][:40])
def test_a_broken_task_is_said_with_its_file(broken: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises((RunError, UserError), match=re.escape(str(tmp_path / "my_task.py")) + ".*" + BROKEN[broken]):
        task = task_of(tmp_path, *broken)
        (problem, _) = task.problems("train", 2, 0)
        task.judge_many([problem], ["said" if task.prompt(problem, None) else ""], [False])


@pytest.mark.parametrize("code", FINE)
def test_what_a_judge_may_do(code: str, tmp_path: Path) -> None:
    task = task_of(tmp_path, JUDGED, code)
    found = [one.reward for one in task.judge_many(task.problems("train", 2, 0), ["a", "b"], [False] * 2)]
    assert found == [pytest.approx(FINE[code], nan_ok=True)] * 2


def test_some_verdicts_may_fail_and_the_others_stay(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        "        import os, time\n        if response == 'die': os._exit(3)\n"
        "        if response == 'hang': time.sleep(600)\n        if response == 'raise': raise KeyError('x')\n"
    )
    task = task_of(tmp_path, JUDGED, code, "task.reward_failures=0.5")
    (problem, _) = task.problems("train", 2, 0)
    responses = ["die", problem.question[::-1], "hang", "no", "raise", problem.question[::-1]]
    found = task.judge_many([problem] * 6, responses, [False] * 6)
    assert [one.reason for one in found] == ["died", "correct", "timeout", "wrong", "error", "correct"]
    assert {tuple(one.parts) for one in found} == {("answer",)} and [one.scorable for one in found] == [
        0,
        1,
        0,
        1,
        0,
        1,
    ]
    assert capfd.readouterr().err.count("up to 50% are left out") == 3
    with pytest.raises(RunError, match=r"4 of 6 completions .* more than 50%"):
        task.judge_many([problem] * 6, ["raise"] * 4 + ["no"] * 2, [False] * 6)


def test_the_judge_runs_elsewhere_and_several_work_at_once(tmp_path: Path) -> None:
    code = "        import os; return Verdict(os.getpid(), {}, False, None, 'wrong')\n"
    task = task_of(tmp_path, JUDGED, code, "task.reward_workers=3")
    (problem, _) = task.problems("train", 2, 0)
    found = {one.reward for one in task.judge_many([problem] * 60, ["a"] * 60, [False] * 60)}
    assert os.getpid() not in found and 1 <= len(found) <= 3


def test_limits_are_no_part_of_what_decides_a_verdict(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    assert "code" in task.settings and not set(guarded.LIMITS) & set(task.settings)
    assert isinstance(task.problems("train", 2, 0)[0], Problem)
