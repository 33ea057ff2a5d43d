"""The task `vf`: environments of verifiers 0.3 and 0.4 in a Python of the user's own.

A package of verifiers' form stands in a Python that a test makes, so that these run everywhere. RLVR_TEST_VERIFIERS
names Pythons (separated as those of PATH) that have the library itself, for the last test.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run as rlvr
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.describe.task import NoTemplate
from rlvr_cli.tasks.problem import Verdict
from rlvr_cli.tasks.vf import Verifiers
from rlvr_cli.tasks.vf import task as vf
from tests.commands import run_all, run_here

FAKE = Path(__file__).parent / "fake_verifiers" / "verifiers"
REAL = [one for one in os.environ.get("RLVR_TEST_VERIFIERS", "").split(os.pathsep) if one]

CLASSIC = """
import os, time
import verifiers as vf
PAIRS = [(a, b) for a in range(9) for b in range(9)]
ROWS = [{{"question": f"{{a}} + {{b}} =", "answer": str(a + b), "info": {{"a": a}}}} for a, b in PAIRS]
def right(completion, answer):
    said = completion[0]["content"]
    {inside}
    return float(said == answer)
def brief(completion):
    return float(len(completion[0]["content"]) < 9)
def watched():
    return 7.0
def load_environment({arguments}):
    {first}
    return vf.{kind}(dataset={rows}, rubric=vf.{rubric}, {more})
"""
PARTS = {
    "inside": "pass",
    "arguments": "",
    "first": "print('on the standard output')",
    "kind": "SingleTurnEnv",
    "rows": "ROWS",
    "rubric": "Rubric([right, brief, watched], [1.0, 0.2, 0.0])",
    "more": "",
}
TASKSET = """
import verifiers.v1 as vf
class Config(vf.TasksetConfig):
    most = 9
class Times(vf.Task):
    @vf.reward(weight=2.0)
    async def right(self, trace{reward}):
        return trace.last_reply == str(self.data.answer)
    @vf.metric
    async def length(self, trace):
        return float(len(trace.last_reply))
    {inside}
class Tables(vf.Taskset):
    config_type = Config
    {outside}
    def load(self):
        for a in range(self.config.most):
            for b in range(9):
                yield Times(vf.TaskData(prompt={prompt}, system_prompt="A number.", answer=a * b), self.config.task)
{after}
__all__ = {exported}
"""
TASKSET_PARTS = {
    "reward": "",
    "inside": "",
    "outside": "",
    "prompt": "f'{a} times {b}'",
    "after": "",
    "exported": "['Tables']",
}


def classic(**parts: str) -> str:
    return CLASSIC.format(**(PARTS | parts))


def taskset(**parts: str) -> str:
    return TASKSET.format(**(TASKSET_PARTS | parts))


WORDS = classic(
    more="eval_dataset=[{'question': f'{n}?', 'answer': 'x'} for n in range(5)], system_prompt='Be brief.', "
    "parser=vf.XMLParser()"
)


class Python:
    """A Python with the fake package, and with environments that are written into it."""

    def __init__(self, folder: Path, version: str | None) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.folder = folder
        (self.packages,) = folder.glob("lib/python3*/site-packages")
        if version is not None:
            shutil.copytree(FAKE, self.packages / "verifiers")
            self.install("verifiers", version)

    def install(self, name: str, version: str, requires: str = "") -> None:
        for old in self.packages.glob(f"{name}-*.dist-info"):
            shutil.rmtree(old)
        place = self.packages / f"{name}-{version}.dist-info"
        place.mkdir()
        needs = f"Requires-Dist: {requires}\n" if requires else ""
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")

    def task(self, source: str = "", *overrides: str, env: str = "sums") -> Verifiers:
        if source:
            (self.packages / f"{env}.py").write_text(source)
            self.install(env, "0.1.0", "verifiers>=0.3")
        vf._asked.cache_clear()
        given = [f"task.python={self.folder}", *overrides]
        task = load_config(task=f"vf:{env}", overrides=given).task
        assert isinstance(task, Verifiers)
        return task


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Python:
    return Python(tmp_path_factory.mktemp("old") / "venv", "0.3.1")


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Python:
    return Python(tmp_path_factory.mktemp("new") / "venv", "0.4.0")


@pytest.fixture(autouse=True)
def end_processes() -> object:
    yield
    vf._POOL.close()


def judged(task: Verifiers, *responses: str) -> list[Verdict]:
    (problem,) = task.problems("train", 1, 0)
    return task.judge_many([problem] * len(responses), responses, [False] * len(responses))


def test_an_environment_of_0_3(old: Python, capfd: pytest.CaptureFixture[str]) -> None:
    task = old.task(classic())
    task.check_before()
    (problem,) = task.problems("train", 1, 0)
    right = problem.data["row"]["answer"]
    assert task.prompt(problem, NoTemplate()) == f"{problem.question}\n\n"
    found = task.judge_many([problem] * 3, [right, "no", "much too long"], [False] * 3)
    assert [(one.reward, one.correct, one.reason) for one in found] == [
        (1.2, True, "correct"),
        (0.2, False, "partial"),
        (0.0, False, "wrong"),
    ]
    assert found[0].parts == {"right": 1.0, "brief": 0.2, "watched": 7.0}
    assert task.reward_range == (0.0, 1.2)
    assert old.task("", "task.correct_from=0.1").judge(problem, "no").correct
    # What user code prints is not for who reads the output of a command.
    assert "on the standard output" not in capfd.readouterr().out
    assert task.settings["installed"]["verifiers"] == "0.3.1" and "python" not in task.settings


def test_a_taskset_of_0_4(new: Python) -> None:
    task = new.task(taskset(), "task.options={most: 5}", env="tables")
    task.check_before()
    parts = {split: task.problems(split, 100, 0) for split in ("train", "dev", "test")}  # type: ignore[arg-type]
    assert sum(map(len, parts.values())) == 45
    problem = parts["train"][0]
    row = problem.data["row"]
    assert task.prompt(problem, NoTemplate()) == f"A number.\n\n{row['prompt']}\n\n"
    found = task.judge_many([problem] * 2, [str(row["answer"]), "Nö \ud800"], [False] * 2)
    assert [(one.reward, one.reason, one.answer) for one in found] == [
        (2.0, "correct", str(row["answer"])),
        (0.0, "wrong", "Nö \ud800"),
    ]
    assert found[0].parts == {"length": float(len(str(row["answer"]))), "right": 2.0}
    assert task.problem_from(json.loads(json.dumps(problem.fields)), "row") == problem


def test_splits_and_draws(old: Python) -> None:
    plain, own = old.task(classic(), env="plain"), old.task(WORDS, env="words")
    of_plain = {split: plain.problems(split, 500, 3) for split in ("train", "dev", "test")}  # type: ignore[arg-type]
    assert sum(map(len, of_plain.values())) == 81 and len(of_plain["train"]) > 45
    assert len(own.problems("test", 500, 0)) == 5 and len(own.problems("dev", 500, 0)) == len(of_plain["dev"])
    first, again, other = (plain.problems("train", 8, seed) for seed in (0, 0, 1))
    assert first == again != other
    assert "own evaluation rows are for test" in own.about_data() and "81" not in own.about_data()
    (problem,) = own.problems("train", 1, 0)
    (verdict,) = own.judge_many([problem], ["<answer> 3 </answer>"], [False])
    assert verdict.answer == "3"
    assert own.prompt(problem, NoTemplate()).startswith("Be brief.\n\n")


def test_a_process_that_hangs_or_dies_costs_one_response(old: Python) -> None:
    inside = """if said == 'hang': time.sleep(600)
    if said == 'leave': os._exit(3)
    if said == 'raise': raise KeyError(said)
    if said == 'print': os.write(1, b'["ok", 5]\\n')
    if said == 'fill': bytearray(2**33)
    if said == 'fork': os.fork()"""
    limits = ["task.reward_timeout=3", "task.reward_memory=512", "task.reward_failures=1"]
    task = old.task(classic(inside=inside), *limits, env="evil")
    (problem,) = task.problems("train", 1, 0)
    found = judged(task, "hang", "leave", "raise", "print", "fill", "fork", problem.data["row"]["answer"])
    reasons = [one.reason for one in found]
    assert reasons == ["timeout", "died", "partial", "partial", "partial", "partial", "correct"]
    assert [one.scorable for one in found] == [False, False, True, True, True, True, True]
    strict = old.task("", "task.reward_timeout=3", env="evil")
    with pytest.raises(RunError, match=r"more than 3 s and was ended .*response 'hang'.*more than 10% end the run"):
        judged(strict, "hang", "x")


# Source, and what is said of it before anything starts.
BROKEN = {
    "raises on load": (classic(first="raise KeyError('a key')"), r"sums\.py:\d+: KeyError: 'a key'"),
    "leaves on load": (classic(first="os._exit(4)"), "ended its process with exit code 4"),
    "syntax": ("def load_environment(:\n", "SyntaxError: invalid syntax"),
    "import": ("import nowhere\n", "No module named 'nowhere'"),
    "nothing in it": ("# nothing\n", "neither load_environment nor a Taskset in __all__"),
    "several turns": (classic(kind="MultiTurnEnv"), "its MultiTurnEnv takes several turns or calls tools"),
    "tools": (classic(kind="ToolEnv"), "its ToolEnv takes several turns or calls tools"),
    "a judge": (classic(rubric="JudgeRubric([right])"), "asks a model to judge"),
    "a group": (classic(rubric="Rubric([lambda completions: [0.0]])"), "compares the completions of a group"),
    "no reward": (classic(rubric="Rubric([watched], [0.0])"), "no reward function of a weight above 0"),
    "no rows": (classic(rows="[]"), "has no rows"),
    "no prompt": (classic(rows="[{'question': 'x', 'prompt': None}]"), "train row 1: has no prompt"),
    "an image": (
        classic(rows="[{'question': 'x', 'prompt': [{'role': 'user', 'content': [{'type': 'image_url'}]}]}]"),
        "a message that is not text",
    ),
    "an answer last": (
        classic(rows="[{'question': 'x', 'prompt': [{'role': 'assistant', 'content': 'y'}]}]"),
        "has the turns assistant",
    ),
    "no JSON": (classic(rows="[{'question': 'x', 'when': {1, 2}}]"), r"a row's when is not a JSON value \(set\)"),
    "other rows": (
        classic(rows="[{'question': str(os.getpid() + n), 'answer': ''} for n in range(99)]"),
        "returns different rows in every process",
    ),
    "every reward raises": (
        classic(inside="nowhere"),
        "on every response that was tried verifiers says: .*right: name 'nowhere' is not defined",
    ),
    "an option": (classic(arguments="most"), "missing 1 required positional argument: 'most'"),
}
BROKEN_TASKSETS = {
    "an environment of 0.3": (classic(), "install verifiers==0.3.1"),
    "no tasks": (taskset(outside="def __iter__(self): return iter(())"), "has no tasks"),
    "no prompt": (taskset(prompt="None"), "has no prompt"),
    "tools": (taskset(inside="toolsets = classmethod(lambda cls, config: [1])"), "gives the model tools"),
    "a container": (taskset(inside="NEEDS_CONTAINER = True"), r"works in a runtime \(a container\)"),
    "a runtime": (taskset(reward=", runtime"), r"works in a runtime \(right\)"),
    "set up": (taskset(inside="async def setup(self, trace, runtime): ..."), r"works in a runtime \(setup\)"),
    "several agents": (
        taskset(after="class Duel: ...", exported="['Tables', 'Duel']"),
        "it brings Duel, for several agents or turns",
    ),
    "a reward raises": (
        taskset(inside="@vf.reward()\n    async def bad(self, trace): return 1 / 0"),
        "ZeroDivisionError",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_environment(what: str, old: Python) -> None:
    source, said = BROKEN[what]
    with pytest.raises(UserError, match=f"^task vf: sums.*{said}"):
        old.task(source).check_before()


@pytest.mark.parametrize("what", BROKEN_TASKSETS)
def test_a_broken_taskset(what: str, new: Python) -> None:
    source, said = BROKEN_TASKSETS[what]
    with pytest.raises(UserError, match=f"^task vf: sums.*{said}"):
        new.task(source).check_before()


def test_an_environment_that_hangs_on_load(old: Python) -> None:
    task = old.task(classic(first="time.sleep(600)"), "task.load_timeout=2", "task.reward_timeout=1")
    with pytest.raises(UserError, match=r"task vf: sums: took more than 2 s to load \(task.load_timeout\)"):
        task.check_before()


def test_what_cannot_be_found(old: Python, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old.task(classic())
    bare, other = Python(tmp_path / "bare", None), Python(tmp_path / "other", "0.1.9")
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho no python >&2; exit 7\n")
    silent.chmod(0o755)
    for words, said in {
        ("vf:",): "name an environment that is installed",
        ("vf",): "names no environment",
        ("vf:sums",): "task.python is not set",
        ("vf:sums", f"task.python={tmp_path / 'nowhere'}"): "no such Python",
        ("vf:sums", f"task.python={silent}"): "cannot be inspected: no python",
        ("vf:sums", f"task.python={bare.folder}"): "has no package verifiers",
        ("vf:sums", f"task.python={other.folder}"): "has verifiers 0.1.9, and 0.3 and 0.4 are supported",
        ("vf:smus", f"task.python={old.folder}"): "has no environment smus. Did you mean `sums`? It has",
    }.items():
        done = run_here(capsys, "tasks", "show", *words)
        assert done.code == 2 and said in done.err and "Traceback" not in done.err, (words, done.err)


def test_a_run_keeps_versions_and_problems(tmp_path: Path) -> None:
    python = Python(tmp_path / "venv", "0.3.1")
    python.task(classic())
    small = ["rollout.prompts=2", "rollout.group_size=2", "rollout.max_new_tokens=4", "train.on_no_signal=off"]
    keys = ["task.train_size=6", "eval.every=1", "eval.problems=2", f"task.python={python.folder}", *small]
    start = ("train", "--model", "lab", "--task", "vf:sums", "train.rollouts=1", *keys)
    evaluate = ("-n", "1", "--problems", "2", "--max-new-tokens", "4")
    begun = run_all(tmp_path, (*start, "run.name=one"), (*start, "run.name=two", "--method", "rloo"))
    assert [done.code for done in begun] == [0, 0], begun
    assert "sums 0.1.0 (verifiers 0.3.1, Python 3." in begun[0].out
    kept = [json.loads(line) for line in (tmp_path / "runs/one/problems-train.jsonl").read_text().splitlines()]
    assert kept == [vars(one) for one in python.task().problems("train", 6, 0)]
    # A file that a run began with is what it goes on with.
    (tmp_path / "runs/one/problems-train.jsonl").write_text("".join(json.dumps(one) + "\n" for one in kept[:1] * 6))
    more = run_all(
        tmp_path,
        ("train", "--resume", "runs/one", "train.rollouts=2"),
        *(("eval", f"runs/{n}", *evaluate) for n in ("one", "two")),
    )
    assert [done.code for done in more] == [0, 0, 0], more
    rows = [json.loads(line) for path in sorted((tmp_path / "runs/one/rollouts").iterdir()) for line in read(path)]
    assert kept[0]["id"] in json.dumps(rows[-1])
    python.install("sums", "0.2.0", "verifiers")
    changed = run_all(tmp_path, ("train", "--resume", "runs/one", "train.rollouts=3"), ("eval", "runs/two", *evaluate))
    for done in changed:
        assert done.code == 2 and "sums 0.1.0 is 0.2.0 now" in done.err, done.err
    # Who only reads needs neither the environment nor its Python.
    shutil.rmtree(python.folder)
    reading = (
        ("compare", "runs/one", "runs/two"),
        ("report", "runs/one", "runs/two", "-o", "r.html"),
        ("runs", "list"),
    )
    for done in run_all(tmp_path, *reading, ("runs", "show", "one")):
        assert done.code == 0, done.err


def read(path: Path) -> list[str]:
    import gzip

    raw = path.read_bytes()
    return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode().splitlines()


def test_the_commands_of_the_page(old: Python, monkeypatch: pytest.MonkeyPatch) -> None:
    old.task(classic(arguments="most=9"), env="my_env")
    text = (Path(__file__).parents[2] / "docs" / "tasks" / "environments.md").read_text(encoding="utf-8")
    commands = [one for one in re.findall(r"^    rlvr (.*?)(?:\s+#.*)?$", text, re.MULTILINE) if "vf:" in one]
    assert len(commands) == 5
    monkeypatch.chdir(old.folder.parent)
    old.folder.rename("vfenv")
    try:
        for command in commands[:-1]:
            words = [one[0] or one[1] for one in re.findall(r'"([^"]*)"|(\S+)', command)]
            assert rlvr(words) == 0, command
    finally:
        Path("vfenv").rename(old.folder)


@pytest.mark.skipif(not REAL, reason="RLVR_TEST_VERIFIERS names no Python that has verifiers")
@pytest.mark.parametrize("python", REAL)
def test_verifiers_itself(python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = {
        "0.3": "import verifiers as vf\nfrom datasets import Dataset\n"
        "def right(completion, answer): return float(completion[-1]['content'] == answer)\n"
        "def load_environment():\n"
        "    rows = [{'question': f'{n}?', 'answer': str(n)} for n in range(40)]\n"
        "    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric([right], [2.0]))\n",
        "0.4": "import verifiers.v1 as vf\nclass Data(vf.TaskData):\n    answer: str\nclass One(vf.Task[Data]):\n"
        "    @vf.reward(weight=2.0)\n"
        "    async def right(self, trace) -> float: return float(trace.last_reply == self.data.answer)\n"
        "class Many(vf.Taskset[One, vf.TasksetConfig]):\n    def load(self):\n"
        "        return [One(Data(prompt=f'{n}?', answer=str(n)), self.config.task) for n in range(40)]\n"
        "__all__ = ['Many']\n",
    }
    told = subprocess.run([python, str(vf.SCRIPT), "about", "x"], capture_output=True, text=True, check=True)
    version = json.loads(told.stdout)["verifiers"]
    place = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    module = Path(place.stdout.strip()) / "rlvr_test_environment.py"
    module.write_text(source[version[:3]])
    try:
        task = load_config(task="vf:rlvr-test-environment", overrides=[f"task.python={python}"]).task
        task.check_before()
        (problem,) = task.problems("test", 1, 0)
        found = task.judge_many([problem] * 2, [problem.data["row"]["answer"], "?"], [False] * 2)
        assert [(one.reward, one.reason, one.parts) for one in found] == [
            (2.0, "correct", {"right": 2.0}),
            (0.0, "wrong", {"right": 0.0}),
        ]
    finally:
        module.unlink()
