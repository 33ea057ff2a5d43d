"""The commands of the README, the tutorials and the pages on files of your own run from an empty folder."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.commands import ROOT, run_in

DOCS = ROOT / "docs"
LINE = re.compile(r"^    (rlvr (?:.*\\\n)*.*)", re.MULTILINE)
# Added to commands and files that would take minutes: they end with the least that there can be of the same.
EVALUATED = {"problems": 4, "samples": 2, "pass_at": [1, 2]}
TRAINED = {
    "rollout.prompts": 2,
    "rollout.group_size": 2,
    "rollout.max_new_tokens": 24,
    "train.rollouts": 1,
    "train.on_no_signal": "off",
}
EVALUATION = {f"eval.{key}": value for key, value in EVALUATED.items()}
VALIDATION = {f"validation.{key}": value for key, value in EVALUATED.items()}
SHORT = {"train": {**TRAINED, **VALIDATION}, "eval": EVALUATION}
# Models of the hub are the lab's here.
HUB = re.compile(r"Qwen/[\w.-]+|qwen2.5-7b|\bMODEL\b")
# Trainings on files of rows, or of a configuration; all others make only a few of their problems.
GIVEN = re.compile(r"--data|--reward|task\.data|-c ")
# What only a cluster, a GPU or hours can do is checked and planned.
PLANNED = re.compile(r"--submit|--processes|vllm_colocate|sweep sweeps/")
# What shows or evaluates runs: of those of a sweep there are none where it is planned.
OF_RUNS = ("compare", "report", "analyze", "runs", "export", "eval", "score")
PAGES = [
    *("from-trl.md", "tasks/own-reward.md", "tasks/own.md", "methods/own.md", "tasks/reasoning-gym.md"),
    *sorted(f"tutorials/{path.name}" for path in (DOCS / "tutorials").glob("*.md")),
]
SWEPT = pytest.mark.parametrize("swept", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["planned", "swept"])


def commands(page: str) -> list[tuple[str, ...]]:
    return [
        short(shlex.split(HUB.sub("lab", line.replace("\\\n", " ")), comments=True)[1:])
        for line in re.findall(LINE, page)
    ]


def short(words: list[str]) -> tuple[str, ...]:
    """The command as it is printed, and less of it."""
    if "--dry-run" in words or words[0] == "plan":
        return tuple(words)
    if PLANNED.search(" ".join(words)):
        return (*words, "--dry-run")
    if "--resume" in words:
        return tuple(re.sub(r"rollouts=\d+", "rollouts=2", word) for word in words)
    if words[0] == "eval" and "--pass-at" in words:
        words[words.index("--pass-at") :] = []
    if words[0] == "train" and not GIVEN.search(" ".join(words)):
        words.append("task.train_size=64")
    return (*words, *(f"{key}={json.dumps(value)}" for key, value in SHORT.get(words[0], {}).items()))


def written(page: str, folder: Path) -> list[str]:
    """The page's files: blocks whose first line is their name, as `# base.yaml`. A sweep that is run is small."""
    run = any(line[0] == "sweep" and "--dry-run" not in line and "status" not in line for line in commands(page))
    files = re.findall(r"^```\w+\n# (\S+\.(?:yaml|py|jsonl))\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    for name, text in files:
        (folder / name).write_text(small(text) if run and "base:" in text else HUB.sub("lab", text), encoding="utf-8")
    return [name for name, _ in files]


def small(text: str) -> str:
    """A sweep with the methods and keys of ``text`` and little of each run, as JSON, which is YAML."""
    sweep = yaml.safe_load(text)
    sweep["set"] = {**sweep.get("set", {}), **TRAINED, **VALIDATION, "train.rollouts": 2, "validation.every": 1}
    sweep["seeds"] = 1
    return json.dumps(sweep | ({"eval": {**sweep["eval"], **EVALUATED}} if "eval" in sweep else {}))


def carried_out(page: str, folder: Path, *, swept: bool) -> None:
    """Run the commands of a page in their order; what shows the runs of a sweep that is only planned is left out."""
    planned = set[str]()
    for line in commands(page):
        if line[0] == "sweep" and line[1] not in ("status", "stop", "retry"):
            line = line if swept or "--dry-run" in line else (*line, "--dry-run")
            sweep = Path(line[1]).stem
            planned = planned | {sweep} if "--dry-run" in line else planned - {sweep}
        shows = line[0] in OF_RUNS or line[:2] == ("sweep", "status")
        if shows and (planned & {word.split("/")[0] for word in line} if swept else planned):
            continue
        (done,) = run_in(folder, line)
        assert done.code == 0, (line, done)


@SWEPT
@pytest.mark.parametrize("name", PAGES)
def test_a_page_runs_as_it_is_printed(name: str, swept: bool, tmp_path: Path) -> None:
    if "reasoning-gym" in name:
        pytest.importorskip("reasoning_gym")
    page = (DOCS / name).read_text(encoding="utf-8")
    written(page, tmp_path)
    assert len(commands(page)) >= 4
    carried_out(page, tmp_path, swept=swept)


@SWEPT
def test_the_readme_runs_as_it_is_printed(swept: bool, tmp_path: Path) -> None:
    """In the order of a reader, with files of the reader's own in place of those that the page only names."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    code = re.search(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert code is not None
    (tmp_path / "my_rewards.py").write_text(code[1], encoding="utf-8")
    rows = [{"question": f"{a} + 2 = ?", "answer": str(a + 2)} for a in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "mine.yaml").write_text("method: dgpo\n", encoding="utf-8")
    (tmp_path / "sweep.yaml").write_text(small("base: mine.yaml"), encoding="utf-8")
    assert len(commands(page)) >= 15
    carried_out(page, tmp_path, swept=swept)
