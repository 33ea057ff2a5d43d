"""Rows and reward functions of the user's own: from the command line to a comparison, and what is wrong with them."""

from __future__ import annotations

import datetime
import json
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlvr_cli.cli.app import run as rlvr
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.store import runs, steps
from rlvr_cli.tasks.problem import Problem
from rlvr_cli.tasks.user_rows import UserRows
from tests.commands import run_here
from tests.tasks.tokenizers import Chat

REWARDS = """
def exact(completions, answer, **kwargs):
    return [float(text.strip() == right) for text, right in zip(completions, answer)]

async def brief(prompts, completions, **kwargs):
    return [None if prompt.endswith("1?") else float(len(text) < 5) for prompt, text in zip(prompts, completions)]
"""
LOGGED = """
def exact(completions, answer, log_extra, log_metric, **kwargs):
    log_extra('words', [len(text.split()) for text in completions])
    log_extra('first', [text[:1] for text in completions])
    log_metric('calls', 2)
    return [float(text.strip() == right) for text, right in zip(completions, answer)]
"""
SMALL = (
    *("rollout.prompts=2", "rollout.group_size=2", "rollout.max_new_tokens=8", "train.rollouts=1"),
    *("train.on_no_signal=off", "eval.problems=4", "eval.samples=2", "eval.pass_at=[1, 2]"),
)


def rows(count: int = 40) -> list[dict[str, object]]:
    return [{"question": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(count)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "rewards.py").write_text(REWARDS)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def own(*overrides: str) -> UserRows:
    given = {text.split("=")[0] for text in overrides}
    defaults = ("task.data=rows.jsonl", "task.reward=rewards.py:exact", "task.columns={prompt: question}")
    asked = [*(text for text in defaults if text.split("=")[0] not in given), *overrides]
    task = load_config(task="own", overrides=asked, import_files=True).task
    assert isinstance(task, UserRows)
    return task


def problem(**fields: object) -> Problem:
    return Problem("p", str(fields["question"]), dict(fields), "all")


def test_what_a_reward_logs_is_in_the_rows_and_in_the_steps(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/tasks/own-reward.md and `rlvr new` run the other commands on rows and rewards."""
    named = ("--data", "rows.jsonl", "--reward", "rewards.py:exact", "task.columns={prompt: question}")
    (folder / "rewards.py").write_text(LOGGED)
    trained = run_here(capsys, "train", *named, *SMALL, "run.name=one")
    assert trained.code == 0 and "held out" in trained.out, trained
    rollout = read_jsonl(folder / "runs" / "one" / "rollouts" / "rollout-000000.jsonl")
    assert all(row["logged"]["words"] == len(row["completion"].split()) for row in rollout)
    (step,) = steps(runs("one")).to_dict("records")
    assert step["logged/calls"] == 2.0 and "logged/first" not in step
    assert step["logged/words"] == pytest.approx(sum(row["logged"]["words"] for row in rollout) / len(rollout))


def test_rewards_are_weighted_and_none_has_no_part(folder: Path) -> None:
    task = own("task.reward=[rewards.py:exact, rewards.py:brief]", "task.reward_weights=[1, 0.5]")
    asked = [problem(question="1 + 1?", answer="2"), problem(question="1 + 2?", answer="3")]
    first, second = task.judge_many(asked, ["2", "3"], [False, False])
    assert (first.reward, first.parts, first.correct) == (1.0, {"exact": 1.0}, True)
    assert (second.reward, second.parts) == (1.5, {"exact": 1.0, "brief": 0.5})
    assert task.reward_range == (0.0, 1.5) and task.threshold == 0.5
    alone = own("task.reward=rewards.py:brief").judge(asked[0], "2")
    assert (alone.scorable, alone.correct, alone.reason) == (False, False, "unscored")
    votes = [own().judge(asked[0], text).answer for text in ("a\n b  c ", "<answer> 7 </answer> so", " ")]
    assert votes == ["b c", "7", None]
    boxes = [r"So \boxed{8}. Or \boxed{9} apples, I think.", r"\boxed{8}\n<answer>7</answer>", "\\boxed{8\nno"]
    assert [own().judge(asked[0], text).answer for text in boxes] == ["9", "7", "no"]
    assert not own("task.correct_above=1").judge(asked[0], "2").correct


def test_correct_is_the_word_of_one_function(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A penalty beside it takes nothing from the accuracy; another function can be named."""
    (folder / "penalties.py").write_text(
        "from trl.rewards import get_soft_overlong_punishment\n"
        "overlong = get_soft_overlong_punishment(max_completion_len=8, soft_punish_cache=4)\n"
    )
    both = "task.reward=[rewards.py:exact, penalties.py:overlong]"
    task = own(both, "task.reward_timeout=600")
    asked = [problem(question="1 + 1?", answer="2")] * 4
    found = task.judge_many(asked, ["2", "2", "3", "3"], [False] * 4, [[1] * 2, [1] * 8, [1] * 2, [1] * 8])
    assert [verdict.reward for verdict in found] == [1.0, 0.0, 0.0, -1.0]
    assert [verdict.correct for verdict in found] == [True, True, False, False]
    assert "correct = exact above 0.5 (task.correct, " in task.describe_data()
    # What it is multiplied by takes nothing from it either.
    light = own(both, "task.reward_weights=[0.1, 1]", "task.reward_timeout=600")
    assert light.judge_many(asked[:1], ["2"], [False], [[1] * 8])[0].correct
    named = own(both, "task.correct=overlong", "task.correct_above=-0.5", "task.reward_timeout=600")
    found = named.judge_many(asked, ["2", "2", "3", "3"], [False] * 4, [[1] * 2, [1] * 8, [1] * 2, [1] * 8])
    assert [verdict.correct for verdict in found] == [True, False, True, False]
    assert "correct = overlong above -0.5 (task.correct, task.correct_above)" in named.describe_data()


def test_a_chat_prompt_is_judged_as_messages(folder: Path) -> None:
    (folder / "chat.py").write_text(
        "def said(prompts, completions, **k):\n"
        "    return [float(p[-1]['content'] in c[0]['content'] and c[0]['role'] == 'assistant')\n"
        "            for p, c in zip(prompts, completions)]\n"
    )
    chat = [{"prompt": [{"role": "user", "content": f"Say {number}"}]} for number in range(30)]
    (folder / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chat))
    task = own("task.data=chat.jsonl", "task.reward=chat.py:said", "task.columns={}")
    found = task.problems("train", 2, 0)
    assert [one.correct for one in task.judge_many(found, [found[0].question, "no"], [False] * 2)] == [True, False]
    with pytest.raises(UserError, match="messages"):
        task.prompt(found[0], SimpleNamespace(chat_template=None))


def test_the_prompt_is_a_template_with_a_system_turn(folder: Path) -> None:
    class Tokenizer:
        chat_template = "{% if enable_thinking %}{% endif %}"
        bos_token_id = None

        def apply_chat_template(self, messages, **options):
            return json.dumps([messages, options.get("enable_thinking")])

        def __call__(self, text, **_):
            return {"input_ids": []}

    keys = {
        "task": {
            "prompt_template": "{{ question }}\nA number:",
            "system_prompt": "Be short.",
            "chat_template_kwargs": {"enable_thinking": False},
            "columns": {},
        }
    }
    (folder / "keys.yaml").write_text(json.dumps(keys))
    base = ("task.name=own", "task.data=rows.jsonl", "task.reward=rewards.py:exact")
    task = load_config([folder / "keys.yaml"], task="own", overrides=base[1:], import_files=True).task
    asked = task.problem_from({"question": "1 + 1?", "answer": "2"}, "here")
    messages, thinking = json.loads(task.prompt(asked, Tokenizer()))
    assert [one["content"] for one in messages] == ["Be short.", "1 + 1?\nA number:"] and thinking is False
    plain = own("task.columns={}", 'task.prompt_template="{{ question }}!"', "task.chat_template=false")
    assert plain.prompt(plain.problem_from({"question": "1?"}, "here"), Tokenizer()) == "1?!"
    with pytest.raises(UserError, match=r"'gold' is undefined.*question"):
        own("task.columns={}", 'task.prompt_template="{{ gold }}"').problems("train", 1, 0)


def test_a_template_is_checked_without_being_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever reads a configuration computes nothing of what its template says."""
    monkeypatch.setattr("rlvr_cli.tasks.prompts._compile_template", None)
    line = ["-c", "heavy.yaml", "--task", "own", "task.data=rows.jsonl", "task.reward=rewards.py:exact"]
    for template in ('{{ "%200000000d" % 1 }}', "{% for a in range(99999) %}{{ lipsum(n=1000000) }}{% endfor %}"):
        (folder / "heavy.yaml").write_text(json.dumps({"task": {"columns": {}, "prompt_template": template}}))
        tracemalloc.start()
        try:
            assert rlvr(["config", "show", *line]) == 0 and "prompt_template" in capsys.readouterr().out
            assert tracemalloc.get_traced_memory()[1] < 2**26
        finally:
            tracemalloc.stop()


def test_a_template_is_sandboxed(folder: Path) -> None:
    with pytest.raises(UserError, match=r"rows\.jsonl:1: task\.prompt_template: .*is unsafe"):
        own("task.columns={}", 'task.prompt_template="{{ question.__class__ }}"').problems("train", 4, 0)


def test_splits_are_held_out_by_the_prompt_alone(folder: Path) -> None:
    task = own("task.held_out=0.25")
    parts = {split: {one.id for one in task.problems(split, 99, 0)} for split in ("train", "dev", "test")}
    assert sum(map(len, parts.values())) == 40 == len(set.union(*parts.values())) and all(parts.values())
    shuffled = [{**row, "note": "new"} for row in reversed(rows())]
    (folder / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in shuffled))
    before = {one.question for one in task.problems("test", 99, 0)}
    other = own("task.held_out=0.25", "task.data=other.jsonl")
    assert {one.question for one in other.problems("test", 99, 0)} == before


def test_a_system_turn_of_the_rows_stands_before_the_question_where_a_template_has_none(folder: Path) -> None:
    """As `task.system_prompt` does, and behind it."""
    turns = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "1 + 1?"}]
    more = [{"role": "assistant", "content": "2"}, {"role": "user", "content": "2 + 2?"}]
    task = own("task.columns={}", "task.system_prompt=Think first.")
    for asked in (turns, [*turns, *more]):
        found = task.problem_from({"prompt": asked, "answer": "2"}, "rows.jsonl:1")
        joined = [{"role": "user", "content": "Think first.\n\nBe short.\n\n1 + 1?"}, *asked[2:]]
        assert task.prompt(found, Chat("system")) == written(joined)
        assert task.prompt(found, Chat()).endswith(written(asked))
    with pytest.raises(
        UserError, match=r"convert the messages to text with task.prompt_template and set task.chat_temp"
    ):
        task.prompt(found, Chat("system", "user"))
    # An answer in front of the question is nobody's question.
    found = task.problem_from({"prompt": [turns[0], *more], "answer": "4"}, "rows.jsonl:1")
    with pytest.raises(UserError, match="no system turns here"):
        task.prompt(found, Chat("system"))


def written(turns: list[dict[str, str]]) -> str:
    return Chat().apply_chat_template(turns, tokenize=False, add_generation_prompt=True)


def test_a_column_without_json_values_is_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A timestamp or bytes that nobody needs refuse no row; who needs them is told."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    when, image = datetime.datetime(2026, 1, 1), {"bytes": b"x", "path": None}
    table = [{**row, "when": when, "image": image} for row in rows()]
    parquet.write_table(pyarrow.Table.from_pylist(table), folder / "rows.parquet")
    task = own("task.data=rows.parquet")
    assert {name for one in task.problems("train", 99, 0) for name in one.data} == {"question", "answer"}
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("column when is dropped: its type datetime is not a JSON type") == 1
    assert said.count("column image is dropped") == 1
    for override in ('task.prompt_template="{{ when }}"', "task.columns={prompt: when}"):
        with pytest.raises(UserError, match=r"rows.parquet, row 1: .*when"):
            load_config(
                task="own", overrides=["task.data=rows.parquet", "task.reward=rewards.py:exact", override]
            ).task.problems("train", 9, 0)
    (folder / "wants.py").write_text("def wants(completions, when): return [0.0 for _ in completions]\n")
    with pytest.raises(UserError, match=r"wants needs when; available are .*answer"):
        own("task.data=rows.parquet", "task.reward=wants.py:wants").problems("train", 9, 0)
    with pytest.raises(UserError, match=r"column score is not a JSON value .*Write a number or null"):
        own().problem_from({"question": "1?", "score": float("nan")}, "here")


def test_keys_that_cannot_stand_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for overrides, reason in (
        (("task.reward=rewards.py",), "FILE.py:FUNCTION"),
        (("task.reward=[]",), "no reward function"),
        (("task.reward=[rewards.py:exact, rewards.py:exact]",), "Rename one"),
        (("task.reward_weights=[1, 2]",), "2 numbers and task.reward 1"),
        (("task.reward_values=[1, 0]",), "must be .lowest, highest."),
        (("task.correct=exat",), r"unknown reward function\. Did you mean `exact`\? Allowed: exact"),
        (("task.chat_template=false", "task.chat_template_kwargs={enable_thinking: true}"), "leaves it out"),
        (("task.held_out=0.5",), "less than 0.5|below 0.5"),
    ):
        with pytest.raises(UserError, match=reason):
            own(*overrides)
    done = run_here(capsys, "plan", "--task", "gsm8k", "--reward", "rewards.py:exact")
    assert done.code == 2 and "defines its reward" in done.err
