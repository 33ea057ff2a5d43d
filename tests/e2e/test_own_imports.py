"""A reward, a task and a method that import a package next to them: a run keeps and uses a copy of that file too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from rlvr_cli.cli.templates import files_of
from rlvr_cli.sweeps.expand import expand
from rlvr_cli.sweeps.spec import read_sweep
from tests.commands import run_all

SMALL = {
    "rollout": {"prompts": 2, "group_size": 2, "max_new_tokens": 8},
    "train": {"rollouts": 1, "on_no_signal": "off"},
    "eval": {"problems": 4, "samples": 2, "pass_at": [1, 2]},
}
ROWS = "".join(f'{{"prompt": "Say {number}."}}\n' for number in range(40))
# The key, the file, what the helper has, and what it has after it was edited.
OWN = {
    "reward": (
        "rewards.py",
        "from helpers.worth import WORTH\ndef worth(completions, **k):\n    return [WORTH for _ in completions]\n",
    ),
    "task": (
        "riddle.py",
        files_of("task", "riddle")["riddle.py"]
        .replace("import itertools\n", "import itertools\nfrom helpers.worth import WORTH\n")
        .replace('1.0 if found[-1] == problem["answer"] else 0.1', "WORTH")
        .replace("if found else 0.0", "if found else WORTH"),
    ),
    "method": (
        "power.py",
        files_of("method", "power")["power.py"]
        .replace("from typing import", "from helpers.worth import WORTH\nfrom typing import")
        .replace("** self.power", "** (self.power * WORTH)"),
    ),
}


@pytest.mark.parametrize("of", list(OWN))
def test_a_run_goes_by_its_copies(of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, text = OWN[of]
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / name).write_text(text)
    (folder / "helpers").mkdir()
    (folder / "helpers" / "worth.py").write_text("WORTH = 0.25\n")
    (tmp_path / "rows.jsonl").write_text(ROWS)
    chosen = {
        "reward": {"task": {"name": "own", "data": "rows.jsonl", "reward": "rewards.py:worth"}},
        "task": {"task": "riddle.py"},
        "method": {"method": "power.py"},
    }[of]
    (folder / "base.yaml").write_text(yaml.safe_dump({**SMALL, **chosen}))
    methods = ["power.py"] if of == "method" else ["grpo"]
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"base": "base.yaml", "methods": methods, "seeds": 1}))
    monkeypatch.chdir(tmp_path)
    trials = [trial.id for trial in expand(read_sweep(Path("own/sweep.yaml"))).trials]
    (began,) = run_all(tmp_path, ("train", "-c", "own/base.yaml", "run.name=one"))
    assert began.code == 0, began
    run = tmp_path / "runs" / "one"
    (about,) = json.loads((run / "manifest.json").read_text())["user_files"]
    copies = {path.name for path in (run / "code" / about["sha256"][:12]).rglob("*.py")}
    assert about["file"] == str(folder / name) and copies == {name, "worth.py"}

    (folder / "helpers" / "worth.py").write_text("WORTH = 0.75\n")
    # Another version of the helper makes other trials.
    assert trials != [trial.id for trial in expand(read_sweep(Path("own/sweep.yaml"))).trials]
    resumed, evaluated = run_all(tmp_path, ("train", "--resume", "one", "train.rollouts=2"), ("eval", "one"))
    assert (resumed.code, evaluated.code) == (0, 0), (resumed, evaluated)
    said = f"own/{name} was changed since, or what it imports from its folder"
    assert said in " ".join(resumed.err.split())
    if of != "method":
        rewards = [json.loads(line)["reward"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert rewards == [0.25, 0.25], "the run's own copy rewards"

    for path in folder.rglob("*.py"):
        path.unlink()
    (gone,) = run_all(tmp_path, ("train", "--resume", "one", "train.rollouts=3"))
    assert gone.code == 0, gone
