"""A task of plain functions: problems, prompt and reward of a file, and what is said of files that have them wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.config.own_files import of_files, own_files
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.tasks import guarded
from rlvr_cli.tasks.base import Task
from tests.commands import run_here

PAGE = (Path(__file__).parents[2] / "docs" / "tasks" / "own.md").read_text(encoding="utf-8")
FILE = PAGE.split("```python\n")[1].split("```")[0]


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "_PROBLEMS", 2)


def task_of(folder: Path, text: str = FILE, *keys: str) -> Any:
    (folder / "my_task.py").write_text(text)
    return load_config(task=str(folder / "my_task.py"), overrides=["task.reward_timeout=1", *keys]).task


def replaced(function: str, by: str) -> str:
    """The page's file with another function in place of one."""
    found = re.search(rf"^def {function}\(.*?(?=^def |\Z)", FILE, flags=re.MULTILINE | re.DOTALL)
    assert found
    return FILE.replace(found[0], f"{by}\n\n\n")


def test_every_command_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "my_task.py"
    file.write_text(FILE + "\n\ndef solution(problem):\n    return str(problem['answer'])\n")
    Path("r.jsonl").write_text('{"problem": {"question": "1 + 1?", "answer": 2}, "response": "2."}\n')
    Path("sweep.yaml").write_text(
        "base: base.yaml\nmethods: [grpo]\ngrid: {task.most: [40]}\nseeds: 1\n"
        "eval: {problems: 4, samples: 2, pass_at: [1, 2]}\n"
    )
    Path("base.yaml").write_text(
        "task: {name: my_task.py, train_size: 16}\nrollout: {prompts: 2, group_size: 2, max_new_tokens: 8}\n"
        'train: {rollouts: 1, on_no_signal: "off"}\neval: {problems: 4, samples: 2, pass_at: [1, 2]}\n'
    )
    # The lab's model knows hardly a word of the prompts.
    text = file.read_text().replace("    return [\n", "    return 'A: CN B: AN C: AK ?' + problem['question'] or [\n")
    file.write_text(text)
    shown = run_here(capsys, "tasks", "show", "my_task.py", "task.most=7")
    assert shown.code == 0 and "Sums of two numbers." in shown.out and "verdict: correct, reward 1" in shown.out, shown
    for words in (
        ("score", "--task", "my_task.py", "--input", "r.jsonl", "--output", "v.jsonl"),
        ("plan", "-c", "base.yaml"),
        ("train", "-c", "base.yaml", "run.name=one", "task.most=30"),
        ("train", "-c", "base.yaml", "--method", "dgpo", "run.name=two", "task.most=30"),
        ("train", "--resume", "one", "train.rollouts=2"),
        ("eval", "one"),
        ("eval", "two"),
        ("compare", "one", "two"),
        ("sweep", "sweep.yaml", "--workers", "1"),
    ):
        done = run_here(capsys, *words)
        assert done.code == 0, (words, done)
    assert json.loads(Path("v.jsonl").read_text())["correct"]


def test_keys_are_parameters_and_a_configuration_keeps_all(tmp_path: Path) -> None:
    task = task_of(tmp_path, FILE, "task.most=12")
    assert (task.name, task.most, task.data) == ("my_task", 12, "my_task-gen") and task.settings["most"] == 12
    assert all(sum(map(int, re.findall(r"\d+", one.question))) < 23 for one in task.problems("train", 20, 0))
    (tmp_path / "config.yaml").write_text(dump_yaml(load_config(task=str(tmp_path / "my_task.py"))))
    (tmp_path / "my_task.py").unlink()
    assert load_config([tmp_path / "config.yaml"]).task.most == 100  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="most"):
        task_of(tmp_path, FILE, "task.most=many")


def test_a_key_has_the_bounds_of_its_annotation_and_may_be_none(tmp_path: Path) -> None:
    text = (
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING, Annotated\nfrom pydantic import Field\n"
        "if TYPE_CHECKING:\n    from collections.abc import Iterator\n"
    )
    keys = "low: Annotated[int, Field(ge=2)] = 4, high: int = None"
    text += replaced(
        "problems",
        f"def problems(split, count, seed, {keys}) -> Iterator[dict]:\n"
        "    return ({'question': f'{split} {n} {low} {high}', 'answer': 1} for n in range(count))",
    )
    assert task_of(tmp_path, text, "task.high=9").problems("train", 1, 0)[0].question.endswith(" 4 9")
    assert task_of(tmp_path, text).problems("train", 1, 0)[0].question.endswith(" 4 None")
    with pytest.raises(UserError, match="low: must be a whole number, at least 2; got 1"):
        task_of(tmp_path, text, "task.low=1")


def test_equal_files_of_two_names_are_two_tasks(tmp_path: Path) -> None:
    files = [tmp_path / "one.py", tmp_path / "two.py"]
    for file in files:
        file.write_text(FILE)
    for first, second in (files, files[::-1]):
        configs = [load_config(task=str(first)), load_config(task=str(second))]
        assert [one.task.name for one in configs] == [first.stem, second.stem]
        assert [one.file for config in configs for one in own_files(config)] == [str(first), str(second)]
        assert [one.task.problems("train", 1, 0)[0].id for one in configs] == [
            configs[0].task.problems("train", 1, 0)[0].id
        ] * 2
    kept = of_files([one for config in configs for one in own_files(config)])
    assert kept.count("file: one.py") == kept.count("file: two.py") == 1


def test_slow_problems_say_what_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(guarded, "_SOON", 0.3)
    monkeypatch.setattr(guarded, "_AGAIN", 0.2)
    slow = (
        "def problems(split, count, seed):\n    import time\n    for n in range(count):\n        time.sleep(0.02)\n"
        "        yield {'question': f'{split} {n}?', 'answer': n}"
    )
    task_of(tmp_path, replaced("problems", slow), "task.held_out=10", "task.reward_timeout=30").problems("train", 20, 0)
    said = [line for line in capfd.readouterr().err.splitlines() if "my_task.py: problems" in line]
    assert "is making 20 train problems, and first up to 10 of each split, to keep them apart" in said[0]
    assert all("is at work for" in line for line in said[1:]) and len(said) > 2
    monkeypatch.setattr(guarded, "_SOON", 60)
    task_of(tmp_path).problems("train", 20, 0)
    assert "is making" not in capfd.readouterr().err


FEW = replaced(
    "problems", 'def problems(split, count, seed):\n    return [{"question": f"{n}?", "answer": n} for n in range(400)]'
)
LISTS = replaced(
    "problems",
    "def problems(split, count, seed):\n    start = {'train': 0, 'dev': 90, 'test': 80}[split]\n"
    "    for n in range(start, start + {'train': 100, 'dev': 20, 'test': 20}[split]):\n"
    "        yield {'question': f'{n}?', 'answer': n}",
)


@pytest.mark.parametrize(
    ("text", "keys", "sizes"),
    [
        (FILE, [], (60, 60, 60)),
        (FILE, ["task.most=20"], (100, 20, 20)),
        (FEW, [], (200, 30, 30)),
        (LISTS, [], (80, 10, 20)),
    ],
)
def test_no_problem_is_in_two_splits_or_twice(
    text: str, keys: list[str], sizes: tuple[int, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    task = task_of(tmp_path, text, *keys)
    found: dict[str, set[str]] = {}
    for split, size in zip(("train", "dev", "test"), sizes, strict=True):
        for seed in (0, 7) if split == "train" else (0,):
            problems = task.problems(split, size, seed)
            assert len({one.question for one in problems}) == len({one.id for one in problems}) == size
            found.setdefault(split, set()).update(one.question for one in problems)
    assert not found["train"] & (found["dev"] | found["test"]) and not found["dev"] & found["test"]
    # Fewer are the first of more: an evaluation of 10 problems has none that train may have.
    assert task.problems("test", 10, 0) == task.problems("test", sizes[2], 0)[:10]
    assert "left out" in capfd.readouterr().err


def test_what_a_reward_may_be(tmp_path: Path) -> None:
    text = replaced(
        "reward",
        "import numpy\nreward_range = (-1, 2)\n"
        "SAID = {'number': 2, 'bool': True, 'none': None, 'numpy': numpy.float32(2), 'more': {'reward': 0, "
        "'correct': 1, 'answer': 7, 'said': 'x'}, 'parts': {'parts': {'a': 1.5, 'b': .5}}, 'no': {'reward': None}}\n"
        "async def reward(problem, response):\n    return SAID[response]",
    )
    task = task_of(tmp_path, text)
    (problem,) = task.problems("train", 1, 0)
    said = ["number", "bool", "none", "numpy", "more", "parts", "no"]
    found = task.judge_many([problem] * 7, said, [False] * 7)
    assert [one.reward for one in found] == [2.0, 1.0, 0.0, 2.0, 0.0, 2.0, 0.0]
    assert [one.reason for one in found] == [
        "correct",
        "wrong",
        "unscored",
        "correct",
        "correct",
        "correct",
        "unscored",
    ]
    assert [one.scorable for one in found] == [True, True, False, True, True, True, False]
    assert found[0].answer == "number" and found[4].answer == "7" and found[4].logged == {"said": "x"}
    assert found[5].parts == {"a": 1.5, "b": 0.5} and task.reward_range == (-1.0, 2.0)


def test_solutions(tmp_path: Path) -> None:
    answers = ("str(problem['answer'])", "(str(problem['answer']) + end for end in ('', '.'))", "7", "1 / 0")
    said = ("", "", r"TypeError: 'int' object is not iterable", "solution raised ZeroDivisionError")
    for number, (answer, wrong) in enumerate(zip(answers, said, strict=True), 1):
        task = task_of(tmp_path, f"{FILE}\n\ndef solution(problem):\n    return {answer}\n")
        (problem,) = task.problems("train", 1, 0)
        if wrong:
            with pytest.raises(RunError, match=wrong):
                task.solutions(problem)
        else:
            found = list(task.solutions(problem))
            assert len(found) == number and all(
                one.correct for one in task.judge_many([problem] * number, found, [False] * number)
            )
    assert task_of(tmp_path).solutions(problem) is None


class Template:
    chat_template = "x"

    def apply_chat_template(self, messages: Any, **_: Any) -> str:
        return json.dumps(messages)


def test_prompts_of_text_and_messages(tmp_path: Path) -> None:
    from rlvr_cli.describe.task import NoTemplate

    task = task_of(tmp_path)
    (problem,) = task.problems("train", 1, 0)
    assert task.prompt(problem, NoTemplate()).startswith("Answer with a number.\n\n")
    assert [one["role"] for one in json.loads(task.prompt(problem, Template()))] == ["system", "user"]
    task = task_of(tmp_path, replaced("prompt", "def prompt(problem):\n    return problem['question'] + ' ='"))
    (problem,) = task.problems("train", 1, 0)
    assert task.prompt(problem, NoTemplate()) == problem.question + " ="
    assert json.loads(task.prompt(problem, Template())) == [{"role": "user", "content": problem.question + " ="}]


# Functions in place of the page's -> what is said.
BROKEN_FILES = {
    ("reward", ""): r"has no function reward\(problem, response\)",
    ("reward", "def rewards(problem, response): pass"): r"has no function reward.*Did you mean `rewards`",
    ("reward", "def reward(problem): pass"): r":20: reward\(problem\): rlvr calls reward\(problem, response\)",
    ("reward", "reward = 1"): r"has no function reward",
    ("problems", "def problems(split, count): pass"): r":6: problems\(split, count\): rlvr calls problems",
    ("problems", "def problems(split, count, seed, size): pass"): r":6: problems\(.*size\): rlvr calls",
    ("problems", "def problems(split, count, seed, data=1): pass"): r":6: data is a key of every task",
    ("problems", "def problems(split, count, seed, size: int = 'x'): pass"): r":6: size: must be a whole number; got",
    ("problems", "def problems(split, count, seed, size: Sise = 1): pass"): r"NameError: name 'Sise' is not defined",
    ("problems", "def problems(split, count, seed, size: 'Sise' = 1): pass"): r":6: size: 'Sise' = 1 cannot be a key",
    ("problems", "def problems(split, count, seed, size: object() = 1): pass"): r":6: size: .* cannot be a key",
    ("problems", "def problems(split, count, seed, size=print): pass"): r":6: size=.* no type of JSON values",
    ("problems", "def problems(split, count, seed, size=float('nan')): pass"): r":6: size=nan cannot be a key",
    ("problems", "async def problems(split, count, seed): pass"): r"problems is async; only reward may be",
    ("prompt", "reward_range = (1, 0)\ndef prompt(problem): pass"): r"reward_range is \(1, 0\)",
    ("prompt", "def prompt(problem, *, tokenizer): pass"): r"rlvr calls prompt\(problem\)",
    ("prompt", "class solution: pass\n\ndef prompt(problem): return 'x'"): r"rlvr calls solution\(problem\)",
}
BROKEN_CALLS = {
    ("problems", "def problems(split, count, seed): return None"): r":6: problems returned None .*wanted: dicts",
    ("problems", "def problems(split, count, seed): return 'abc'"): r"problems returned 'abc' \(str\)",
    ("problems", "def problems(split, count, seed): return [1, 2]"): r"problems returned 1 \(int\); wanted: a dict",
    ("problems", "def problems(split, count, seed): return []"): r"problems gave 0 different train problems, and 2 are",
    (
        "problems",
        "def problems(split, count, seed):\n    yield {'question': split, 'answer': 1}",
    ): r"problems gave 1 different train problems.*task.train_size",
    (
        "problems",
        "def problems(split, count, seed):\n    while True: yield {'question': split, 'answer': 1}",
    ): r"problems gave 1 different train problems.*came twice",
    ("problems", "def problems(split, count, seed):\n    while True: pass"): r"problems took more than 2 s",
    (
        "problems",
        "def problems(split, count, seed): return [{'question': 'x', 'when': {1}}]",
    ): r"'when'.*not a JSON value",
    (
        "problems",
        "def problems(split, count, seed): return [{'id': 1, 'question': split + str(n)} for n in range(count)]",
    ): r"1 of them with the id of another",
    ("problems", "def problems(split, count, seed): raise KeyError('x')"): r":6: problems raised KeyError",
    ("prompt", "def prompt(problem): return None"): r":\d+: prompt returned None .*wanted: text, or messages",
    ("prompt", "def prompt(problem): return '  '"): r"prompt returned '  '",
    ("prompt", "def prompt(problem): return [{'role': 'assistant', 'content': 'x'}]"): r"of which the last is the user",
    ("prompt", "def prompt(problem): return [{'role': 'system', 'content': 'x'}]"): r"of which the last is the user",
    ("prompt", "def prompt(problem): return 'What \\ud800'"): r"prompt of problem .*half of a surrogate pair",
    (
        "problems",
        "def problems(split, count, seed): return [{'question': f'\\ud800 {split} {n}'} for n in range(count)]",
    ): r"problems: problem .*half of a surrogate pair",
    ("reward", "def reward(problem, response): return {'reward': 1, 'why': '\\ud800'}"): r"gave text .*half of a surr",
    ("prompt", "def prompt(problem): return problem['task']"): r"prompt|KeyError: 'task'",
    ("reward", "def reward(problem, response): return '1.0'"): r":20: reward returned '1.0' \(str\)",
    ("reward", "def reward(problem, response): return float('nan')"): r"reward returned nan \(float\)",
    ("reward", "def reward(problem, response): return 1e300"): r"reward returned 1e\+300 .*from -1e\+30 to 1e\+30",
    ("reward", "def reward(problem, response): return {'parts': {'a': 9e29, 'b': 9e29}}"): r"returned 1.8e\+30",
    (
        "reward",
        "def reward(problem, response): return {'reward': 1, 'x': float('inf')}",
    ): r"a finite number or None for x",
    ("reward", "def reward(problem, response): return [1.0]"): r"reward returned \[1.0\] \(list\)",
    ("reward", "def reward(problem, response): return {'score': 1}"): r"wanted: a dict with reward",
    ("reward", "def reward(problem, response): return {'reward': 1, 'parts': {'a': 2}}"): r"the sum of its parts, 2",
    ("reward", "def reward(problem, response): return {'parts': 1}"): r"wanted: a dict of numbers for parts",
    ("reward", "def reward(problem, response): return {'reward': 1, 'why': {}}"): r"number or None for why",
    ("reward", "def reward(problem, response): return {'reward': 1, 'answer': []}"): r"reward gave the answer \[\]",
    ("reward", "def reward(problem, response): return 1 / 0"): r":20: reward raised ZeroDivisionError.*response 'said'",
    ("reward", "def reward(problem, response):\n    while True: pass"): r"reward took more than 1 s and was ended",
    (
        "reward",
        "def reward(problem, response): import os; os._exit(3)",
    ): r"reward: it ended its process with exit code 3",
}


@pytest.mark.parametrize("broken", BROKEN_FILES, ids=lambda one: one[1][:40] or "none")
def test_a_file_that_cannot_be_a_task(broken: tuple[str, str], tmp_path: Path) -> None:
    kinds = Task.kinds
    with pytest.raises(UserError, match="my_task.py.*" + BROKEN_FILES[broken]):
        task_of(tmp_path, replaced(*broken))
    assert Task.kinds == kinds


@pytest.mark.parametrize("broken", BROKEN_CALLS, ids=lambda one: one[1][:60])
def test_what_functions_do_wrong_is_said(broken: tuple[str, str], tmp_path: Path) -> None:
    task = task_of(tmp_path, replaced(*broken))
    with pytest.raises((RunError, UserError), match="(?s)my_task.py.*" + BROKEN_CALLS[broken]):
        problem = task.problems("train", 2, 0)[0]
        task.prompt(problem, Template())
        task.judge(problem, "said")


def test_names_of_files_that_are_taken_are_refused(tmp_path: Path) -> None:
    (tmp_path / "kk.py").write_text(FILE + "# kk\n")
    with pytest.raises(UserError, match="kk is a built-in task"):
        load_config(task=str(tmp_path / "kk.py"))
    (tmp_path / "my task.py").write_text(FILE + "# my task\n")
    with pytest.raises(UserError, match="letters, digits"):
        load_config(task=str(tmp_path / "my task.py"))


def test_more_held_out_problems_than_are_left_out_of_train_are_refused(tmp_path: Path) -> None:
    task = task_of(tmp_path, FILE, "task.held_out=10")
    with pytest.raises(
        RunError, match=r"task.held_out=10: test is limited to that many problems, and 11 are asked for"
    ):
        task.problems("test", 11, 0)
