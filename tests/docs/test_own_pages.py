"""Every command of the pages on rewards, tasks, methods and environments runs from an empty folder, as printed."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from tests.commands import ROOT, run_all

DOCS = ROOT / "docs"
# Added to commands that would take minutes: they end with the least that there can be of the same.
SHORT = {
    "train": (
        *("rollout.prompts=2", "rollout.group_size=2", "rollout.max_new_tokens=24", "train.rollouts=1"),
        *("train.on_no_signal=off", "eval.problems=4", "eval.samples=2", "eval.pass_at=[1,2]"),
    ),
    "eval": ("eval.problems=4", "eval.samples=2", "eval.pass_at=[1,2]"),
    "sweep": ("rollout.prompts=2", "rollout.group_size=2", "rollout.max_new_tokens=24", "train.rollouts=1"),
}
# Models of the hub are the lab's here.
HUB = re.compile(r"Qwen/[\w.-]+")


def commands(page: str) -> list[tuple[str, ...]]:
    found = []
    for line in re.findall(r"^    (rlvr .*)", page, flags=re.MULTILINE):
        words = shlex.split(HUB.sub("lab", line), comments=True)[1:]
        if words[0] == "eval" and "--pass-at" in words:
            words[words.index("--pass-at") :] = []
        found.append((*words, *SHORT.get(words[0], ())))
    return found


def written(page: str, folder: Path) -> list[str]:
    """The page's files: blocks whose first line is their name, as `# base.yaml`."""
    files = re.findall(r"^```\w+\n# (\S+\.(?:yaml|py|jsonl))\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    for name, text in files:
        (folder / name).write_text(
            text.replace("seeds: 3", "seeds: 1").replace("problems: 100", "problems: 4"), encoding="utf-8"
        )
    return [name for name, _ in files]


@pytest.mark.parametrize("name", ["tasks/own-reward.md", "tasks/own.md", "methods/own.md"])
def test_a_page_runs_as_it_is_printed(name: str, tmp_path: Path) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    assert {"base.yaml", "sweep.yaml"} <= {*written(page, tmp_path)}
    lines = commands(page)
    assert {"new", "train", "eval", "sweep", "compare", "report"} <= {line[0] for line in lines}, lines
    for line, done in zip(lines, run_all(tmp_path, *lines), strict=True):
        assert done.code == 0, (line, done)


@pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="needs reasoning-gym")
def test_the_page_on_environments_runs_as_it_is_printed(tmp_path: Path) -> None:
    """Environments of verifiers have a Python of their own (tests/tasks/test_vf.py)."""
    page = (DOCS / "tasks" / "environments.md").read_text(encoding="utf-8")
    lines = [line for line in commands(page) if not any(word.startswith("vf:") for word in line)]
    assert len(lines) >= 6
    for line, done in zip(lines, run_all(tmp_path, *lines), strict=True):
        assert done.code == 0, (line, done)
