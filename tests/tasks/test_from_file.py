"""A task of the user's own, by the path of its file: every command, and what is said of a file that is no task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr_cli.config.load import dump_yaml, leaves, load_config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.tasks.base import Task
from rlvr_cli.tasks.sets import problems_name
from tests.commands import run_all, run_here

PAGE = (Path(__file__).parents[2] / "docs" / "tasks" / "own.md").read_text(encoding="utf-8")
FILE = PAGE.split("```python\n")[2].split("```")[0]
NAME = 'Field("rev", description="rev = words to write backwards.")'
BASE = """
task: {name: own/my_task.py, train_size: 16}
rollout: {prompts: 2, group_size: 2, max_new_tokens: 8}
train: {rollouts: 1, on_no_signal: "off"}
eval: {problems: 4, samples: 2, pass_at: [1, 2]}
"""
SWEEP = """
base: base.yaml
methods: [grpo]
grid: {task.letters: [5]}
seeds: 1
eval: {problems: 4, samples: 2, pass_at: [1, 2]}
"""


def written(folder: Path, text: str = FILE, name: str = "my_task.py") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_every_command_takes_it_and_a_run_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The processes of a training and of a sweep know the file too, and a new process needs it no more."""
    own = tmp_path / "own"
    own.mkdir()
    file = written(own)
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    (tmp_path / "r.jsonl").write_text('{"problem": {"question": "abc"}, "response": "cba"}\n')
    monkeypatch.chdir(tmp_path)
    shown = run_here(capsys, "tasks", "show", "own/my_task.py")
    assert shown.code == 0 and "backwards." in shown.out, shown
    for words in (
        ("score", "--task", "own/my_task.py", "--input", "r.jsonl", "--output", "v.jsonl"),
        ("train", "-c", "base.yaml", "run.name=one", "launch.processes=2"),
        ("train", "-c", "base.yaml", "--method", "dgpo", "run.name=two"),
        ("eval", "one"),
        ("eval", "two"),
        ("compare", "one", "two"),
        ("sweep", "sweep.yaml", "--workers", "1"),
    ):
        done = run_here(capsys, *words)
        assert done.code == 0, (words, done)
    assert json.loads((tmp_path / "v.jsonl").read_text())["correct"]
    about = json.loads((tmp_path / "runs" / "one" / "manifest.json").read_text())["own_files"][0]
    assert about["file"] == str(file)

    written(own, FILE.replace("abcdefghij", "abcdefgh"))
    edited = run_here(capsys, "train", "--resume", "one", "train.rollouts=2")
    assert edited.code == 0 and f"{file.relative_to(tmp_path)} was changed since" in " ".join(edited.err.split())
    file.unlink()
    gone = run_all(tmp_path, ("train", "--resume", "two", "train.rollouts=2"), ("eval", "two"), ("runs", "show", "two"))
    assert len(gone) == 3 and [done for done in gone if done.code] == []


KNIGHTS = """
from typing import ClassVar, Literal
from pydantic import Field
from rlvr_cli.tasks.base import Data
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.tasks.problem import made_here

class Mine(KnightsAndKnaves):
    sets: ClassVar = {"mine-gen": made_here("Puzzles.")}
    name: Literal["mine"] = Field("mine", description="mine = puzzles.")
    data: Data = "mine-gen"

    def generate(self, split, count, seed):
        # Problems stand in an order that the name of the task decides.
        return KnightsAndKnaves(style=self.style, people=self.people).generate(split, count, seed)
"""


def test_a_built_in_task_as_a_file_gives_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, KNIGHTS, "mine.py")
    keys = (
        "task.people={2: 0.5, 3: 0.5}",
        "task.train_size=32",
        "rollout.prompts=4",
        "rollout.max_new_tokens=24",
        "train.rollouts=1",
    )
    for task, name in (("kk", "built-in"), ("mine.py", "file")):
        done = run_here(
            capsys, "train", "--task", task, "task.data=null", *keys, "train.rollouts=1", f"run.name={name}"
        )
        assert done.code == 0, done
    for record in ("metrics.jsonl", "rollouts/rollout-000000.jsonl"):
        assert Path("runs/built-in", record).read_bytes() == Path("runs/file", record).read_bytes()


@pytest.mark.parametrize("odd", ["", "\t# a tab", "# \u2028 \x85 \x0c ☃ #  ", "# ends in blanks   ", "\n\n"])
def test_a_configuration_holds_the_file_to_the_letter(tmp_path: Path, odd: str) -> None:
    file = tmp_path / "my_task.py"
    file.write_bytes((FILE + odd).replace("\n", "\r\n").encode())
    config = load_config(task=str(file))
    again = tmp_path / "config.yaml"
    again.write_text(dump_yaml(config), encoding="utf-8")
    file.unlink()
    assert load_config([again]) == config
    assert dump_yaml(load_config([again])) == dump_yaml(config)


def test_two_versions_are_two_tasks(tmp_path: Path) -> None:
    first = load_config(task=str(written(tmp_path)), overrides=["task.letters=4"])
    second = load_config(task=str(written(tmp_path, FILE + "# edited\n")), overrides=["task.letters=4"])
    assert first.task.name == second.task.name == "rev"
    assert first.task.settings != second.task.settings
    (tmp_path / "config.yaml").write_text(dump_yaml(first))
    assert load_config([tmp_path / "config.yaml"]) == first


def test_reading_a_run_executes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(
        task=str(written(tmp_path, FILE + "\nopen('ran', 'a').close()\n")), overrides=["task.letters=4"]
    )
    (tmp_path / "config.yaml").write_text(dump_yaml(config))
    (tmp_path / "ran").unlink()
    monkeypatch.setattr("rlvr_cli.tasks.from_file._LOADED", {})
    for _ in range(2):
        read = load_config([tmp_path / "config.yaml"], run_code=False)
        assert dict(leaves(read)) == dict(leaves(config)) and dump_yaml(read) == dump_yaml(config)
        assert read.task.settings == config.task.settings and problems_name("rev", read.task.data) == "rev-gen"
    assert not (tmp_path / "ran").exists()
    assert dump_yaml(load_config([tmp_path / "config.yaml"])) == dump_yaml(config) and (tmp_path / "ran").exists()


def test_a_file_that_ends_the_process_is_named(tmp_path: Path) -> None:
    """Whatever the signal, and of a method too."""
    for option, name in (("--task", "my_task.py"), ("--method", "my_method.py")):
        file = written(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", name)
        command = [sys.executable, "-m", "rlvr_cli", "config", "show", option, str(file)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == -9 and f"{file}: this process ended while the file was loaded" in done.stderr


def test_a_path_is_relative_to_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    written(tmp_path / "a")
    written(tmp_path / "b", FILE.replace("] = Field(6", "] = Field(7"))
    (tmp_path / "a" / "base.yaml").write_text("task: my_task.py\n")
    monkeypatch.chdir(tmp_path / "b")
    assert load_config([Path("../a/base.yaml")]).task.letters == 6  # type: ignore[attr-defined]
    assert load_config(task="my_task.py").task.letters == 7  # type: ignore[attr-defined]
    (tmp_path / "a" / "my_task.py").unlink()
    assert load_config([Path("../a/base.yaml")]).task.letters == 7  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("def prompt(self", "def prompt(self:", 37, "invalid syntax"),
        ("class Reverse", "1 / 0\nclass Reverse", 15, "ZeroDivisionError"),
        ("import random", "import no_such_module", 5, "no_such_module"),
        ("class Reverse", "raise SystemExit\nclass Reverse", 15, "SystemExit"),
        ("class Reverse", "import os; os._exit(0)\nclass Reverse", 15, "os._exit(0) would end"),
        (f'name: Literal["rev"] = {NAME}', "x: int = 1", 15, "has no name"),
        (NAME, 'Field(description="none")', 15, "no default"),
        ('"rev"', '"kk"', 15, "taken"),
        ('"rev"', '"my task"', 15, "letters, digits"),
        ("def judge", "def jugde", 15, "lacks the method judge"),
        ('    data: Data = "rev-gen"\n', "", 15, "data has no default"),
        ('"rev-gen": ', '"kk-gen": ', 15, "kk-gen is taken"),
        ("class Reverse(Task)", "class Reverse", None, "has no task"),
    ],
)
def test_a_file_that_is_no_task_is_refused(tmp_path: Path, old: str, new: str, line: int | None, said: str) -> None:
    assert old in FILE
    file = written(tmp_path, FILE.replace(old, new))
    kinds = Task.kinds
    with pytest.raises(UserError) as caught:
        load_config(task=str(file))
    place = f"{file}:{line}: " if line else f"{file}: "
    assert caught.value.problems[0].startswith(place) and said in caught.value.problems[0], caught.value.problems
    assert Task.kinds == kinds


def test_a_file_that_is_missing_or_has_several_tasks_is_refused(tmp_path: Path) -> None:
    other = FILE[FILE.index("class Reverse") :].replace('"rev"', '"forth"').replace("Reverse", "Other")
    file = written(tmp_path, FILE + other)
    with pytest.raises(UserError, match=r"several tasks, Reverse .*, Other"):
        load_config(task=str(file))
    with pytest.raises(UserError, match=r"no such file. Did you mean .*my_task.py"):
        load_config(task=str(tmp_path / "my_tsk.py"))


@pytest.mark.parametrize("line", ["from . import helpers", "from .helpers import x", "from .. import helpers"])
def test_a_relative_import_of_a_file_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "helpers.py").write_text("x = 1\n")
    file = written(tmp_path, FILE.replace("import random", f"import random\n{line}", 1))
    with pytest.raises(UserError, match=rf"{file}:6: .* is relative.*Write `"):
        load_config(task=str(file))


def test_plans_and_faults_need_no_torch(tmp_path: Path) -> None:
    file = written(tmp_path)
    code = (
        "import sys\nfrom rlvr_cli.cli.app import run\n"
        f"run(['config', 'show', '--task', {str(file)!r}, 'task.leters=3'])\nassert 'torch' not in sys.modules\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Did you mean `task.letters`" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("right = answer", "right = 1 // 0 #", "judge raised ZeroDivisionError"),
        ("return Verdict(float(right), {", "return 1.0\n        ({", "judge returned 1.0 \\(float\\)"),
        ('else "wrong"', 'else "bad"', "'bad'"),
        ("return f", "f", "prompt returned None"),
        ("rng = random", "rng = radnom", "generate raised NameError"),
        ("for word in words]", "for word in list(words)[:1]]", "1 problems"),
    ],
)
def test_what_its_methods_do_wrong_is_said_with_the_file(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in FILE
    file = written(tmp_path, FILE.replace(old, new))
    task = load_config(task=str(file)).task
    with pytest.raises(RunError, match=f"{file}.*{said}"):
        problems = task.problems("train", 2, 0)
        task.judge(problems[0], task.prompt(problems[0], None))


def test_a_sweep_takes_it_from_its_base_configuration_alone(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "sweep.yaml").write_text("methods: [grpo]\nseeds: 1\nset: {task.name: my_task.py}\n")
    (done,) = run_all(tmp_path, ("sweep", "sweep.yaml", "--dry-run"))
    assert done.code == 2 and "sweep.yaml:3" in done.err and "base configuration" in done.err, done
