"""Rows and reward functions of the user's own: from the command line to a comparison, and what is wrong with them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.results import steps
from rlvr_cli.tasks.own import Own
from rlvr_cli.tasks.problem import Problem
from tests.commands import run_all, run_here

REWARDS = """
def exact(completions, answer, **kwargs):
    return [float(text.strip() == right) for text, right in zip(completions, answer)]

async def brief(prompts, completions, **kwargs):
    return [None if prompt.endswith("1?") else float(len(text) < 5) for prompt, text in zip(prompts, completions)]
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


def own(*overrides: str) -> Own:
    given = {text.split("=")[0] for text in overrides}
    defaults = ("task.data=rows.jsonl", "task.reward=rewards.py:exact", "task.columns={prompt: question}")
    asked = [*(text for text in defaults if text.split("=")[0] not in given), *overrides]
    task = load_config(task="own", overrides=asked).task
    assert isinstance(task, Own)
    return task


def problem(**fields: object) -> Problem:
    return Problem("p", str(fields["question"]), dict(fields), "all")


def test_one_command_trains_and_the_others_go_on_from_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = ("--data", "rows.jsonl", "--reward", "rewards.py:exact", "task.columns={prompt: question}")
    planned = run_here(capsys, "plan", *named, *SMALL)
    assert planned.code == 0 and "held out" in planned.out, planned
    assert re.search(r"\b[1-9]\d? test rows; .*; ([1-9]\d?) test rows make wide intervals\.", planned.out), planned
    shown = run_here(capsys, "tasks", "show", "own", *named)
    assert shown.code == 0 and "+ 1?" in shown.out, shown
    trained = run_here(capsys, "train", *named, *SMALL, "run.name=one")
    assert trained.code == 0 and "held out" in trained.out, trained
    evaluated = run_here(capsys, "eval", "one")
    assert evaluated.code == 0 and "exact part" in evaluated.out, evaluated
    scored = json.dumps({"problem": {"prompt": "1 + 1?", "question": "1 + 1?", "answer": "2"}, "response": " 2"})
    (folder / "responses.jsonl").write_text(scored + "\n")
    files = ("--input", "responses.jsonl", "-o", "out.jsonl")
    judged = run_here(capsys, "score", "--task", "own", *files, "task.reward=rewards.py:exact")
    assert judged.code == 0 and json.loads((folder / "out.jsonl").read_text())["correct"] is True, judged
    assert run_here(capsys, "train", *named, *SMALL, "--method", "dgpo", "run.name=two").code == 0
    assert run_here(capsys, "eval", "two").code == 0
    (folder / "rewards.py").write_text(REWARDS + "\n# edited\n")
    resumed, evaluated, shown, again = run_all(
        folder,
        ("train", "--resume", "one", "train.rollouts=2"),
        ("eval", "one", "--seed", "1"),
        ("runs", "show", "one"),
        ("eval", "one", "--seed", "1", "--reward", "rewards.py:exact"),
    )
    assert [one.code for one in (resumed, evaluated, shown, again)] == [0, 0, 0, 0], (resumed, evaluated, shown, again)
    assert "rewards.py was changed since" in " ".join(resumed.err.split()), resumed
    assert "rewards.py was changed since" in " ".join(evaluated.err.split()), evaluated
    (folder / "rewards.py").unlink()
    compared = run_here(capsys, "compare", "one", "two")
    assert compared.code == 0 and "rows.jsonl" in compared.out, compared


def test_the_trials_of_a_sweep_take_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "base.yaml").write_text(
        "task: {name: own, data: rows.jsonl, reward: rewards.py:exact, columns: {prompt: question}}\n"
        "rollout: {prompts: 2, group_size: 2, max_new_tokens: 8}\ntrain: {rollouts: 1, on_no_signal: 'off'}\n"
        "eval: {problems: 4, samples: 2, pass_at: [1, 2]}\n"
    )
    (folder / "sweep.yaml").write_text("base: base.yaml\nmethods: [grpo]\nseeds: 1\neval: {problems: 4}\n")
    done = run_here(capsys, "sweep", "sweep.yaml", "--workers", "1")
    assert done.code == 0, done


def test_rewards_are_weighted_and_none_has_no_part(folder: Path) -> None:
    task = own("task.reward=[rewards.py:exact, rewards.py:brief]", "task.reward_weights=[1, 0.5]")
    asked = [problem(question="1 + 1?", answer="2"), problem(question="1 + 2?", answer="3")]
    first, second = task.judge_many(asked, ["2", "3"], [False, False])
    assert (first.reward, first.parts, first.correct) == (1.0, {"exact": 1.0, "brief": 0.0}, True)
    assert (second.reward, second.parts) == (1.5, {"exact": 1.0, "brief": 0.5})
    assert task.reward_range == (0.0, 1.5) and task.threshold == 0.75
    alone = own("task.reward=rewards.py:brief").judge(asked[0], "2")
    assert (alone.scorable, alone.correct, alone.reason) == (False, False, "unscored")
    votes = [own().judge(asked[0], text).answer for text in ("a\n b  c ", "<answer> 7 </answer> so", " ")]
    assert votes == ["b c", "7", None]
    boxes = [r"So \boxed{8}. Or \boxed{9} apples, I think.", r"\boxed{8}\n<answer>7</answer>", "\\boxed{8\nno"]
    assert [own().judge(asked[0], text).answer for text in boxes] == ["9", "7", "no"]
    assert not own("task.correct_above=1").judge(asked[0], "2").correct


def test_what_functions_record_stands_in_rollouts_steps_and_samples(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "logs.py").write_text(
        "def logs(completions, log_extra, log_metric, **kwargs):\n"
        "    log_extra('words', [len(text.split()) for text in completions])\n"
        "    log_extra('first', [text[:1] for text in completions])\n"
        "    log_metric('calls', 2)\n"
        "    return [1.0 * (len(text) % 2) for text in completions]\n"
        "def quiet(completions, **kwargs):\n"
        "    kwargs['log_metric']('other', 0.5)\n"
        "    return [None for _ in completions]\n"
    )
    named = ("--data", "rows.jsonl", "--reward", "logs.py:logs", "--reward", "logs.py:quiet")
    trained = run_here(capsys, "train", *named, "task.columns={prompt: question}", *SMALL, "run.name=one")
    assert trained.code == 0, trained
    rows = read_jsonl(folder / "runs" / "one" / "rollouts" / "rollout-000000.jsonl")
    assert all(row["logged"]["words"] == len(row["completion"].split()) for row in rows)
    assert {row["logged"]["first"] for row in rows} == {row["completion"][:1] for row in rows}
    (step,) = steps("one").to_dict("records")
    assert step["logged/calls"] == 2.0 and step["logged/other"] == 0.5 and "logged/first" not in step
    assert step["logged/words"] == pytest.approx(sum(row["logged"]["words"] for row in rows) / len(rows))
    (folder / "twice.py").write_text((folder / "logs.py").read_text().replace("'other'", "'calls'"))
    with pytest.raises(UserError, match="several functions record calls"):
        own("task.reward=[twice.py:logs, twice.py:quiet]").problems("train", 1, 0)


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
    task = load_config([folder / "keys.yaml"], task="own", overrides=base[1:]).task
    asked = task.problem_from({"question": "1 + 1?", "answer": "2"}, "here")
    messages, thinking = json.loads(task.prompt(asked, Tokenizer()))
    assert [one["content"] for one in messages] == ["Be short.", "1 + 1?\nA number:"] and thinking is False
    plain = own("task.columns={}", 'task.prompt_template="{{ question }}!"', "task.chat_template=false")
    assert plain.prompt(plain.problem_from({"question": "1?"}, "here"), Tokenizer()) == "1?!"
    with pytest.raises(UserError, match=r"'gold' is undefined.*question"):
        own("task.columns={}", 'task.prompt_template="{{ gold }}"').problems("train", 1, 0)


def test_splits_are_held_out_by_the_prompt_alone(folder: Path) -> None:
    task = own("task.held_out=0.25")
    parts = {split: {one.id for one in task.problems(split, 99, 0)} for split in ("train", "dev", "test")}
    assert sum(map(len, parts.values())) == 40 == len(set.union(*parts.values())) and all(parts.values())
    shuffled = [{**row, "note": "new"} for row in reversed(rows())]
    (folder / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in shuffled))
    before = {one.question for one in task.problems("test", 99, 0)}
    other = own("task.held_out=0.25", "task.data=other.jsonl")
    assert {one.question for one in other.problems("test", 99, 0)} == before


def test_train_rows_alone_are_divided_too(folder: Path) -> None:
    expected = {split: {one.question for one in own().problems(split, 99, 0)} for split in ("train", "dev", "test")}
    for name in ("rows-train.jsonl", "some/train.jsonl"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text((folder / "rows.jsonl").read_text())
    for data in ("rows-train.jsonl", "some"):
        found = own(f"task.data={data}")
        assert {split: {one.question for one in found.problems(split, 99, 0)} for split in expected} == expected
    (folder / "some" / "test.jsonl").write_text((folder / "rows.jsonl").read_text())
    assert len(own("task.data=some").problems("test", 99, 0)) == 40


def test_a_hub_data_set_without_test_rows_is_divided(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list(rows(60))
    monkeypatch.setattr(datasets, "load_dataset", lambda name, **options: table)
    monkeypatch.setattr(datasets, "get_dataset_split_names", lambda *name, **options: ["train", "validation"])
    task = own("task.data=somebody/train-only")
    train, dev, test = (len(task.problems(split, 99, 0)) for split in ("train", "dev", "test"))
    assert train + test == 60 and dev == 60 and test > 0
    with pytest.raises(UserError, match="has no test: exam; it has train, validation"):
        own("task.data=somebody/train-only", "task.splits={test: exam}").problems("test", 1, 0)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("task.reward=rewards.py",), "FILE.py:FUNCTION"),
        (("task.reward=[]",), "no reward function"),
        (("task.reward=[rewards.py:exact, rewards.py:exact]",), "Rename one"),
        (("task.reward_weights=[1, 2]",), "2 numbers and task.reward 1"),
        (("task.reward_values=[1, 0]",), "lowest value first"),
        (('task.prompt_template="{% if"',), "task.prompt_template: line 1"),
        (("task.chat_template=false", "task.chat_template_kwargs={enable_thinking: true}"), "leaves it out"),
        (("task.held_out=0.5",), "less than 0.5|below 0.5"),
    ],
)
def test_keys_that_cannot_stand_are_refused(overrides: tuple[str, ...], said: str, folder: Path) -> None:
    with pytest.raises(UserError, match=said):
        own(*overrides)


def test_a_column_that_all_rows_lack_is_said_once(folder: Path) -> None:
    with pytest.raises(UserError, match=r"no field prompt.*It has question, answer") as raised:
        own("task.columns={}").problems("train", 4, 0)
    assert len(raised.value.problems) == 1
    with pytest.raises(UserError, match="no such file or folder"):
        own("task.data=none.jsonl").problems("train", 4, 0)
    with pytest.raises(UserError, match=r"rewards.py: no such file"):
        (folder / "rewards.py").unlink()
        own().check_before()


def test_a_reward_and_a_task_with_its_own_do_not_go_together(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_here(capsys, "plan", "--task", "gsm8k", "--reward", "rewards.py:exact")
    assert done.code == 2 and "has a reward of its own" in done.err


def test_enough_test_rows_need_no_remark(folder: Path) -> None:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(400)))
    assert "test rows; " in own().about_data() and "wide" not in own().about_data()
