"""Reward functions of installed packages by import path: TRL's own, on rows of messages and of text."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from trl.rewards import accuracy_reward, reasoning_accuracy_reward, think_format_reward

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.yaml import parse
from rlvr_cli.tasks.user_rows import UserRows
from tests.commands import run_here
from tests.tasks.test_own import SMALL

VERSION = f"trl=={metadata.version('trl')}"
RESPONSES = [r"<think>so</think>\boxed{\frac{1}{3}}", r"<think>so</think> $\frac{2}{6}$", r"\boxed{4}", "no", ""]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for form in ("text", "messages"):
        rows = [{"prompt": f"What is {n}/{3 * n}?", "solution": r"$\frac{1}{3}$"} for n in range(1, 41)]
        turns = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
        written = turns if form == "messages" else rows
        (tmp_path / f"{form}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def own(form: str, *overrides: str) -> UserRows:
    task = load_config(task="own", overrides=[f"task.data={form}.jsonl", *overrides], import_files=True).task
    assert isinstance(task, UserRows)
    return task


@pytest.mark.parametrize(("form", "keys"), [("messages", ()), ("text", ("task.messages=true",))])
@pytest.mark.parametrize("function", [accuracy_reward, reasoning_accuracy_reward, think_format_reward])
def test_rewards_are_those_of_trls_function(folder: Path, form: str, keys: tuple[str, ...], function: Any) -> None:
    task = own(form, f"task.reward=trl.rewards:{function.__name__}", *keys)
    problems = task.problems("train", len(RESPONSES), 0)
    verdicts = task.judge_many(problems, RESPONSES, [False] * len(RESPONSES))
    completions = [[{"role": "assistant", "content": text}] for text in RESPONSES]
    expected = function(completions, solution=[r"$\frac{1}{3}$"] * len(RESPONSES))
    assert [verdict.reward for verdict in verdicts] == expected and len(set(expected)) > 1
    assert [verdict.correct for verdict in verdicts] == [reward > 0.5 for reward in expected]
    assert set(verdicts[0].parts) == {function.__name__}
    if function is accuracy_reward:
        assert verdicts[0].logged["solution"] == r"$\frac{1}{3}$"


def test_text_rows_are_text_unless_messages_are_asked_for(folder: Path) -> None:
    with pytest.raises(UserError, match=r"trl\.rewards:accuracy_reward: TypeError"):
        own("text", "task.reward=trl.rewards:accuracy_reward").problems("train", 3, 0)
    assert "messages" not in own("text", "task.reward=trl.rewards:accuracy_reward").settings
    assert own("text", "task.reward=trl.rewards:accuracy_reward", "task.messages=true").settings["messages"] is True


def test_the_version_of_the_package_is_recorded_and_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference = f"trl.rewards:accuracy_reward@{VERSION}"
    for written in ("trl.rewards:accuracy_reward", "trl.rewards.accuracy_reward", reference):
        assert own("messages", f"task.reward={written}").reward == (reference,)
    task = own("messages", "task.reward=[trl.rewards:accuracy_reward, trl.rewards.think_format_reward]")
    assert task.labels == ["accuracy_reward", "think_format_reward"]
    assert task.settings["reward"][1] == f"trl.rewards:think_format_reward@{VERSION}"
    with pytest.raises(UserError, match=rf"@trl==0.1: the installed package is {VERSION}"):
        own("messages", "task.reward=trl.rewards:accuracy_reward@trl==0.1")
    options = ("--data", "messages.jsonl", "--reward", "trl.rewards:accuracy_reward", "task.chat_template=false")
    template = "task.prompt_template={{ solution }}"
    trained = run_here(capsys, "train", *options, "task.messages=true", template, *SMALL, "run.name=one")
    assert trained.code == 0, trained
    assert parse((folder / "runs/one/config.yaml").read_text()).data["task"]["reward"] == [reference]
    assert not (folder / "runs/one/code").exists()


def test_what_does_not_exist_or_is_no_reward_is_named(folder: Path) -> None:
    for written, reason in (
        ("trl.rewards:acuracy_reward", r"trl\.rewards: has no acuracy_reward\. Did you mean `accuracy_reward`\?"),
        ("trl.rewards:get_soft_overlong_punishment", "needs max_completion_len"),
        ("trl.rewads:accuracy_reward", r"trl\.rewads: cannot be imported: ModuleNotFoundError"),
        ("trll.rewards:accuracy_reward", r"trll\.rewards: cannot be imported: ModuleNotFoundError"),
        ("trl.rewards:_os", r"trl\.rewards: has no _os"),
        ("rewards", r"must be FILE\.py:FUNCTION or MODULE:FUNCTION"),
    ):
        with pytest.raises(UserError, match=reason):
            own("messages", f"task.reward={written}").problems("train", 3, 0)
