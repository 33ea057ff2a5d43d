"""A task is one file: it has a name, keys, a plan and trainings by lying in the package of tasks."""

from __future__ import annotations

import json
from pathlib import Path

from tests.commands import run_all

FILE = '''
"""Words to write backwards."""

from __future__ import annotations

import random
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.streams import stream_seed
from rlvr_cli.tasks.base import Data, Task
from rlvr_cli.tasks.problem import Problem, Split, Verdict, made_here


class Reverse(Task):
    """Words to write backwards."""

    sets: ClassVar = {"rev-gen": made_here("Words of random letters, drawn here.")}
    reasons: ClassVar = ("correct", "wrong")
    problem_keys: ClassVar = ("letters",)

    name: Literal["rev"] = Field("rev", description="rev = words to write backwards.")
    letters: Annotated[int, Field(ge=2, le=20)] = Field(6, description="Letters of a word.")
    data: Data = "rev-gen"

    def generate(self, split: Split, count: int, seed: int) -> list[Problem]:
        rng = random.Random(stream_seed(seed, "rev", split))
        words: dict[str, None] = {}
        while len(words) < count:
            words["".join(rng.choices("abcdefghij", k=self.letters))] = None
        return [self.problem_from({"question": word}, split) for word in words]

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        word = fields["question"]
        return Problem(f"rev-{where}-{word}", word, {}, f"{len(word)} letters")

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        return f"Write {problem.question} backwards."

    def judge(self, problem: Problem, response: str, *, truncated: bool = False) -> Verdict:
        answer = response.strip().rstrip(".")
        right = answer == problem.question[::-1]
        return Verdict(float(right), {"answer": float(right)}, right, answer or None, "correct" if right else "wrong")
'''
# In every process.
EVERYWHERE = "import rlvr_cli.tasks\nrlvr_cli.tasks.__path__.append({folder!r})\n"
BASE = """
task: {name: rev, train_size: 16}
rollout: {prompts: 2, group_size: 2, max_new_tokens: 8}
train: {rollouts: 1, on_no_signal: "off"}
"""


def test_it_is_listed_described_planned_and_trained(tmp_path: Path) -> None:
    for folder in ("site", "own"):
        (tmp_path / folder).mkdir()
    (tmp_path / "own" / "rev.py").write_text(FILE.lstrip())
    (tmp_path / "site" / "sitecustomize.py").write_text(EVERYWHERE.format(folder=str(tmp_path / "own")))
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "words.csv").write_text("question,note\nabc,x\n" + "".join(f"word{n},\n" for n in range(30)))
    shown, sets, of_file, keys, wrong, *others = run_all(
        tmp_path,
        ("tasks", "show", "rev"),
        ("tasks", "sets"),
        ("tasks", "show", "rev", "task.data=words.csv"),
        ("config", "show", "--format=json", "--origins", "--task", "rev"),
        ("plan", "--task", "rev", "task.letters=1", "task.leters=3"),
        ("plan", "-c", "base.yaml"),
        ("train", "-c", "base.yaml", "run.name=own"),
        environment={"PYTHONPATH": str(tmp_path / "site")},
    )
    for done in (shown, of_file):
        assert done.code == 0 and "backwards." in done.out, done
    assert "rev-gen" in sets.out
    assert {row["key"]: row["value"] for row in json.loads(keys.out)}["task.letters"] == 6
    assert wrong.code == 2 and "at least 2" in wrong.err and "Did you mean `task.letters`" in wrong.err
    assert [done for done in others if done.code] == []
