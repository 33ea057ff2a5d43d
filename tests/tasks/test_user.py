"""A task in a file of the user's: what every command does with it, and what is said of files that have it wrong."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.config.load import dump_yaml, leaves, load_config
from rlvr_cli.config.user_files import user_files
from rlvr_cli.core import user_code
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.user_code import save_copies
from rlvr_cli.tasks import user_task
from rlvr_cli.tasks.rewards import LIMIT_KEYS
from tests.commands import run_here

PROBLEMS = "def problems(self, split, count, seed)"
PAGE = (Path(__file__).parents[2] / "docs" / "tasks" / "own.md").read_text(encoding="utf-8")
FILE, BRIEF = (PAGE.split("```python\n")[number].split("```")[0] for number in (1, 2))


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_task, "_GENERATION_DEADLINES", 5)


def task_of(folder: Path, text: str = FILE, *keys: str) -> Any:
    (folder / "my_task.py").write_text(text)
    # Only what hangs is to meet the deadline, on a busy machine too.
    seconds = 1 if "sleep" in text else 30
    limits = (f"task.reward_timeout={seconds}", "task.reward_memory=512", "task.reward_workers=1")
    return load_config(task=str(folder / "my_task.py"), overrides=[*limits, *keys], import_files=True).task


def replaced(method: str, by: str, head: str = "") -> str:
    """The page's file with another method in place of one; ``head`` stands above the class."""
    found = re.search(rf"^    def {method}\(.*?(?=^    def |\Z)", FILE, flags=re.MULTILINE | re.DOTALL)
    assert found
    lines = "".join(f"    {line}\n" for line in by.split("\n"))
    return FILE.replace(found[0], f"{lines}\n").replace("import random", f"import random\n{head}".strip(), 1)


def test_a_run_of_it_goes_on_from_its_copy_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trained, resumed with an edited file, evaluated without it; docs/tasks/own.md and `rlvr new` run the others."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "my_task.py"
    # The lab's model knows hardly a word of the prompts.
    file.write_text(
        FILE.replace("        return [\n", "        return 'A: CN B: AN C: AK ?' + problem['question'] or [\n")
    )
    Path("base.yaml").write_text(
        "task: {name: my_task.py, train_size: 16}\nrollout: {prompts: 2, group_size: 2, max_new_tokens: 8}\n"
        'train: {rollouts: 1, on_no_signal: "off"}\neval: {problems: 4, samples: 2, pass_at: [1, 2]}\n'
    )
    assert run_here(capsys, "train", "-c", "base.yaml", "run.name=one", "task.most=30").code == 0
    (entry,) = json.loads(Path("runs/one/manifest.json").read_text())["user_files"]
    assert entry["file"] == str(file)
    Path("sweep.yaml").write_text("methods: [grpo]\nseeds: 1\nset: {task.name: my_task.py}\n")
    refused = run_here(capsys, "sweep", "sweep.yaml", "--dry-run")
    assert refused.code == 2 and "sweep.yaml:3" in refused.err and "`methods` or `base`" in refused.err, refused
    file.write_text(FILE)
    edited = run_here(capsys, "train", "--resume", "one", "train.rollouts=2")
    assert edited.code == 0 and "my_task.py or a module that it imports was edited" in " ".join(edited.err.split())
    file.unlink()
    assert [run_here(capsys, *words).code for words in (("eval", "one"), ("runs", "show", "one"))] == [0, 0]


def test_keys_are_fields_and_a_configuration_keeps_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(tmp_path, FILE, "task.most=12")
    assert (task.name, task.most, task.data) == ("my_task", 12, "my_task-gen") and task.settings["most"] == 12
    assert not set(LIMIT_KEYS) & set(task.settings) and "/" not in task.settings["file"]
    assert all(sum(map(int, re.findall(r"\d+", one.question))) < 23 for one in task.problems("train", 20, 0))
    config = load_config(task=str(tmp_path / "my_task.py"), import_files=True)
    (tmp_path / "config.yaml").write_text(dump_yaml(config))
    save_copies(user_files(config), tmp_path)
    (tmp_path / "my_task.py").unlink()
    again = load_config([tmp_path / "config.yaml"], import_files=True)
    assert dict(leaves(again)) == dict(leaves(config)) and "code" in again.task.file  # type: ignore[attr-defined]
    monkeypatch.setattr("rlvr_cli.core.user_code.load_module", None)
    read = load_config([tmp_path / "config.yaml"])
    assert dict(leaves(read)) == dict(leaves(config)) and dump_yaml(read) == dump_yaml(config)
    assert read.task.settings == config.task.settings
    monkeypatch.undo()
    with pytest.raises(UserError, match="most"):
        task_of(tmp_path, FILE, "task.most=many")


FEW = replaced(
    "problems",
    'def problems(self, split, count, seed):\n    return [{"question": f"{n}?", "answer": n} for n in range(400)]',
)
LISTS = replaced(
    "problems",
    "def problems(self, split, count, seed):\n    start = {'train': 0, 'dev': 90, 'test': 80}[split]\n"
    "    for n in range(start, start + {'train': 100, 'dev': 20, 'test': 20}[split]):\n"
    "        yield {'question': f'{n}?', 'answer': n}",
)
# Some test problems come twice, so that more rows are read than are held out.
DRAWN = replaced(
    "problems",
    "def problems(self, split, count, seed):\n    rng = random.Random(f'{split} {seed}')\n"
    "    for n in (rng.randrange(600) for _ in range(count)):\n        yield {'question': f'{n}?', 'answer': n}",
    "import random",
)


@pytest.mark.parametrize(
    ("text", "keys", "sizes"),
    [
        (FILE, ["task.most=20"], (100, 20, 20)),
        (FEW, [], (200, 30, 30)),
        (LISTS, [], (80, 10, 20)),
        (DRAWN, ["task.held_out=60"], (250, 60, 60)),
    ],
)
def test_no_problem_is_in_two_splits_or_twice(
    text: str, keys: list[str], sizes: tuple[int, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    task = task_of(tmp_path, text, "task.reward_timeout=20", *keys)
    found: dict[str, set[str]] = {}
    for split, size in zip(("train", "dev", "test"), sizes, strict=True):
        for seed in (0, 7) if split == "train" else (0,):
            problems = task.problems(split, size, seed)
            assert len({one.question for one in problems}) == len({one.id for one in problems}) == size
            found.setdefault(split, set()).update(one.question for one in problems)
    assert not found["train"] & (found["dev"] | found["test"]) and not found["dev"] & found["test"]
    # Fewer are the first of more: an evaluation of 10 problems has none that train may have.
    assert task.problems("test", 10, 0) == task.problems("test", sizes[2], 0)[:10]
    assert ": dropped." in capfd.readouterr().err


def test_what_a_judgement_may_be(tmp_path: Path) -> None:
    head = (
        "import numpy\nfrom typing import ClassVar\n"
        "SAID = {'number': 2, 'bool': True, 'none': None, 'numpy': numpy.float32(2), 'more': {'reward': 0, "
        "'correct': 1, 'answer': 7, 'said': 'x'}, 'parts': {'parts': {'a': 1.5, 'b': .5}}, 'no': {'reward': None}}"
    )
    judge = "reward_range: ClassVar = (-1, 2)\nasync def judge(self, problem, response):\n    return SAID[response]"
    task = task_of(tmp_path, replaced("judge", judge, head))
    (problem,) = task.problems("train", 1, 0)
    said = ["number", "bool", "none", "numpy", "more", "parts", "no"]
    found = task.judge_many([problem] * 7, said, [False] * 7)
    assert [one.reward for one in found] == [2.0, 1.0, 0.0, 2.0, 0.0, 2.0, 0.0]
    reasons = ["correct", "wrong", "unscored", "correct", "correct", "correct", "unscored"]
    assert [one.reason for one in found] == reasons
    assert [one.scorable for one in found] == [True, True, False, True, True, True, False]
    assert found[0].answer == "number" and found[4].answer == "7" and found[4].logged == {"said": "x"}
    assert found[5].parts == {"a": 1.5, "b": 0.5} and task.reward_range == (-1.0, 2.0)


def test_solutions_are_judged_right_and_a_problem_may_have_none(tmp_path: Path) -> None:
    for number, answer in enumerate(
        ("str(problem['answer'])", "(str(problem['answer']) + end for end in ('', '.'))"), 1
    ):
        task = task_of(tmp_path, f"{FILE}\n    def solution(self, problem):\n        return {answer}\n")
        (problem,) = task.problems("train", 1, 0)
        found = list(task.solutions(problem))
        verdicts = task.judge_many([problem] * number, found, [False] * number)
        assert len(found) == number and all(one.correct for one in verdicts)
    for answer, wrong in (("7", r"TypeError: 'int' object is not iterable"), ("1 / 0", "solution raised ZeroDivision")):
        task = task_of(tmp_path, f"{FILE}\n    def solution(self, problem):\n        return {answer}\n")
        with pytest.raises(RunError, match=wrong):
            task.solutions(problem)
    for text in ("", "\n    def solution(self, problem):\n        return (x for x in ())\n"):
        assert task_of(tmp_path, f"{FILE}{text}").solutions(problem) is None


def test_a_built_in_task_lends_its_problems_and_its_judge(tmp_path: Path) -> None:
    (tmp_path / "brief.py").write_text(BRIEF)
    task = load_config(task=str(tmp_path / "brief.py"), import_files=True).task
    (problem,) = task.problems("test", 1, 0)
    response = f"\\boxed{{{problem.data['answer']}}}"
    right, wrong = task.judge_many([problem] * 2, [response, "no"], [False] * 2)
    assert right.correct and right.reward == 1.5 and right.parts["bonus"] == 0.5 and not wrong.correct
    # Mathematics that the judge cannot read: nobody knows whether the response is right.
    unreadable = replace(problem, data={"id": "x", "question": "?", "answer": "\\frac{"})
    (unknown,) = task.judge_many([unreadable], [response], [False])
    assert wrong.scorable and not unknown.scorable


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
    task = task_of(tmp_path, replaced("prompt", "def prompt(self, problem):\n    return problem['question'] + ' ='"))
    (problem,) = task.problems("train", 1, 0)
    assert task.prompt(problem, NoTemplate()) == problem.question + " ="
    assert json.loads(task.prompt(problem, Template())) == [{"role": "user", "content": problem.question + " ="}]


# Methods in place of the page's -> the line that refuses the file.
BROKEN_FILES = {
    ("judge", ""): r":8: Sums has no method judge\(self, problem, response\)",
    ("judge", "def jugde(self, problem, response): pass"): r"has no method judge.*Did you mean `jugde`",
    ("judge", "def judge(self, problem): pass"): r":25: judge\(self, problem\): rlvr calls judge\(self, problem, resp",
    ("problems", f"data: int = 1\n{PROBLEMS}: pass"): r":8: Sums: data is reserved",
    ("problems", f"size: int = 'x'\n{PROBLEMS}: pass"): r":8: Sums: size: must be a whole number; got",
    ("problems", f"size: int\n{PROBLEMS}: pass"): r":8: Sums: size has no default",
    ("problems", "async def problems(self, split, count, seed): pass"): r"problems is async; only judge may be",
    (
        "prompt",
        "reward_range = (1, 0)\ndef prompt(self, problem): pass",
    ): r":8: Sums: reward_range must be .*got \(1, 0\)",
}
JUDGE = "def judge(self, problem, response): "
BROKEN_CALLS = {
    ("problems", f"{PROBLEMS}: return None"): r":13: problems must return dicts.*got None",
    (
        "problems",
        f"{PROBLEMS}:\n    while True: yield {{'question': split}}",
    ): r"returned 1 different train.*39 are duplicates",
    ("problems", f"{PROBLEMS}:\n    import time\n    time.sleep(600)"): r"problems took more than 5 s",
    ("problems", f"{PROBLEMS}: return [{{'question': 'x', 'when': {{1}}}}]"): r"JSON values.*'when': \{1\}",
    ("problems", f"{PROBLEMS}: return bytearray(10**10)"): r"problems raised MemoryError.*task.reward_memory=512 MiB",
    ("prompt", "def prompt(self, problem): return [{'role': 'assistant', 'content': 'x'}]"): r"a last turn of the user",
    ("judge", f"{JUDGE}return {{'reward': 1, 'parts': {{'a': 2}}}}"): r"the sum of its parts, 2",
    ("judge", f"{JUDGE}return 1 / 0"): r":25: judge raised ZeroDivisionError.*'said'",
    ("judge", f"{JUDGE}\n    import time\n    time.sleep(600)"): r"judge took more than 1 s and was killed",
}


def test_a_file_that_cannot_be_a_task_is_refused_with_its_line(tmp_path: Path) -> None:
    for broken, line in BROKEN_FILES.items():
        with pytest.raises(UserError, match="my_task.py.*" + line):
            task_of(tmp_path, replaced(*broken))


@pytest.mark.parametrize("broken", BROKEN_CALLS, ids=lambda one: one[1][:60])
def test_what_a_method_does_wrong_is_named_with_its_line(broken: tuple[str, str], tmp_path: Path) -> None:
    task = task_of(tmp_path, replaced(*broken))
    with pytest.raises((RunError, UserError), match="(?s)my_task.py.*" + BROKEN_CALLS[broken]):
        problem = task.problems("train", 2, 0)[0]
        task.prompt(problem, Template())
        task.judge(problem, "said")


def test_files_that_are_no_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_code, "IMPORT_TIMEOUT", 1.0)
    cases = (
        ("kk.py", FILE, r"kk.py:8: Sums: .*kk is built in"),
        ("my task.py", FILE, "letters, digits"),
        ("none.py", "x = 1\n", r"none.py:1: has no task"),
        ("two.py", FILE + FILE.replace("class Sums", "class Other"), r"several tasks, Sums \(.*two.py:8\), Other"),
        (
            "old.py",
            "from rlvr_cli.tasks import Task\nclass Old(Task):\n    x: int = 1\n",
            r"old.py:1: has no task.*not a built-in task",
        ),
        ("hangs.py", "while True: pass\n", r"hangs.py:1: the file took more than 1 s"),
        ("ends.py", "import os; os._exit(0)\n", r"ends.py: it ended its process with exit code 0"),
        ("interrupts.py", "raise KeyboardInterrupt\n", r"interrupts.py:1: the file raised KeyboardInterrupt"),
    )
    for name, text, line in cases:
        (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match=line):
            load_config(task=str(tmp_path / name), import_files=True)
    with pytest.raises(UserError, match=r"no such file. Did you mean .*none.py"):
        load_config(task=str(tmp_path / "nune.py"), import_files=True)


def test_problems_that_differ_for_the_same_arguments_are_refused(tmp_path: Path) -> None:
    draw = "    return [{'question': f'{rng.random()}?', 'answer': n} for n in range(count)]"
    for rows, split in (
        ("rng = random", "test"),
        ("rng = random if split == 'train' else random.Random(split)", "train"),
    ):
        task = task_of(tmp_path, replaced("problems", f"{PROBLEMS}:\n    {rows}\n{draw}"))
        with pytest.raises(
            UserError, match=rf"my_task\.py:\d+: problems must be deterministic; got other {split} problems"
        ):
            task.check_requirements()
        with pytest.raises(
            RunError, match=rf"my_task\.py:\d+: problems must be deterministic; got other {split} problems"
        ):
            task.problems("dev", 2, 0)
    # The order of a set is another in every process.
    draw = "return ({'question': word, 'answer': 1} for word in {f'{split} {seed} {n}' for n in range(count)})"
    for text in (FEW, replaced("problems", f"{PROBLEMS}:\n    {draw}")):
        task_of(tmp_path, text).check_requirements()


def test_rows_of_a_file_are_judged_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1?"}\n{"question": "1 + 2?"}\n')
    task = task_of(tmp_path, replaced("judge", 'def judge(self, problem, response):\n    return problem["answer"]'))
    with pytest.raises(UserError, match=r"my_task\.py:\d+: judge raised KeyError: 'answer'"):
        task.model_copy(update={"data": str(tmp_path / "rows.jsonl")}).check_requirements()


def test_some_verdicts_may_fail_and_the_others_stay(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    judge = (
        "def judge(self, problem, response):\n    import os, time\n    if response == 'die': os._exit(3)\n"
        "    if response == 'hang': time.sleep(600)\n    if response == 'raise': raise KeyError('x')\n"
        "    return {'parts': {'right': float(response == 'yes')}}"
    )
    task = task_of(tmp_path, replaced("judge", judge), "task.reward_failures=0.5")
    (problem, _) = task.problems("train", 2, 0)
    responses = ["die", "yes", "hang", "no", "raise", "yes"]
    found = task.judge_many([problem] * 6, responses, [False] * 6)
    assert [one.reason for one in found] == ["died", "correct", "timeout", "wrong", "error", "correct"]
    assert {tuple(one.parts) for one in found} == {("right",)}
    assert [one.scorable for one in found] == [False, True, False, True, False, True]
    assert capfd.readouterr().err.count("up to 50% are left out") == 3
    with pytest.raises(RunError, match=r"4 of 6 completions .* more than 50%"):
        task.judge_many([problem] * 6, ["raise"] * 4 + ["no"] * 2, [False] * 6)
