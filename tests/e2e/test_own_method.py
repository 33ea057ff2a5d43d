"""Files of the user's own: a method trains as a built-in one, a run keeps and uses copies, sweeps tell them apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rlvr_cli.methods
from rlvr_cli.cli.templates import files_of
from tests.commands import run_all, run_in

METHODS = Path(rlvr_cli.methods.__file__).parent
POWER = files_of("method", "power")["power.py"]
SMALL = (
    *("rollout.prompts=4", "rollout.group_size=4", "rollout.max_new_tokens=24", "train.rollouts=2"),
    *("update.mini_batches=2", "optimizer.lr=0.01", "train.on_no_signal=off", "run.seed=3"),
    *("eval.problems=4", "eval.samples=2", "eval.pass_at=[1, 2]"),
)
SWEEP = """
methods: [grpo, power.py, power.py+lopti]
seeds: 1
set:
  {rollout.prompts: 2, rollout.group_size: 2, rollout.max_new_tokens: 8, train.rollouts: 1, train.on_no_signal: "off",
  update.mini_batches: 2}
eval: {problems: 4, samples: 2, pass_at: [1, 2]}
"""


def done(folder: Path, *commands: tuple[str, ...]) -> str:
    """What commands that succeed say, in this process."""
    found = run_in(folder, *commands)
    assert [one for one in found if one.code] == [], found
    return "".join(one.out + one.err for one in found)


@pytest.mark.parametrize("name", ["dgpo"])
def test_a_copy_of_a_method_trains_as_the_method_to_the_byte(name: str, tmp_path: Path) -> None:
    text = (METHODS / f"{name}.py").read_text(encoding="utf-8")
    (tmp_path / "copy_of.py").write_text(text.replace(f'"{name}"', '"mine"'), encoding="utf-8")
    built_in = ("train", "--method", name, *SMALL, "run.name=builtin")
    done(tmp_path, built_in, ("train", "--method", "copy_of.py", *SMALL, "run.name=own"))
    for file in ("metrics.jsonl", "checkpoints/step-4/model.safetensors"):
        assert (tmp_path / "runs/builtin" / file).read_bytes() == (tmp_path / "runs/own" / file).read_bytes(), file
    executed = json.loads((tmp_path / "runs/own/checkpoints/step-4/trainer_state.json").read_text())
    assert executed["global_step"] == 4


# A reward and a method that import a package next to them.
REWARD = "from helpers.worth import WORTH\ndef worth(completions, **k):\n    return [WORTH for _ in completions]\n"
IMPORTING = POWER.replace("from typing import", "from helpers.worth import WORTH\nfrom typing import")
IMPORTING = IMPORTING.replace("** self.power", "** (self.power * WORTH)")


def test_a_run_goes_by_its_copies_of_the_users_files(tmp_path: Path) -> None:
    """After a file that they import was edited, and in a process that never imported them after all are gone."""
    folder = tmp_path / "own"
    (folder / "helpers").mkdir(parents=True)
    (folder / "helpers" / "worth.py").write_text("WORTH = 0.25\n")
    (folder / "rewards.py").write_text(REWARD)
    (folder / "power.py").write_text(IMPORTING)
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "Say {number}."}}\n' for number in range(40)))
    own = ("--data", "rows.jsonl", "--reward", "own/rewards.py:worth", "--method", "own/power.py+lopti")
    done(tmp_path, ("train", *own, *SMALL, "run.name=one"))
    run = tmp_path / "runs" / "one"
    kept = json.loads((run / "manifest.json").read_text())["user_files"]
    assert sorted(about["file"] for about in kept) == [str(folder / name) for name in ("power.py", "rewards.py")]
    for about in kept:
        copies = {path.name for path in (run / "code" / about["sha256"][:12]).rglob("*.py")}
        assert copies == {Path(about["file"]).name, "worth.py"}
    (folder / "helpers" / "worth.py").write_text("WORTH = 0.75\n")
    edited = done(tmp_path, ("train", "--resume", "one", "train.rollouts=3"))
    assert "own/power.py or a module that it imports was edited since" in " ".join(edited.split())
    for path in folder.rglob("*.py"):
        path.unlink()
    found = run_all(
        tmp_path, ("train", "--resume", "one", "train.rollouts=4"), ("eval", "one"), ("export", "one", "-o", "out")
    )
    assert [one for one in found if one.code] == [] and len(found) == 3, found
    rewards = [json.loads(line)["reward"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert set(rewards) == {0.25} and len(rewards) == 16, "the run's own copy rewards"


def test_methods_of_a_sweep_that_cannot_be_told_apart_are_named_before_it_trains(tmp_path: Path) -> None:
    (tmp_path / "power.py").write_text(POWER)
    (tmp_path / "other.py").write_text(POWER.replace("Field(0.5", "Field(0.6"))
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    planned = done(tmp_path, ("sweep", "sweep.yaml", "--dry-run"))
    assert "grpo and power are the same gradient" in " ".join(planned.split())
    (tmp_path / "both.yaml").write_text("methods: [power.py, other.py]\nseeds: 1\n")
    both, override = run_in(
        tmp_path,
        ("sweep", "both.yaml", "--dry-run"),
        ("sweep", "sweep.yaml", "--dry-run", "method.name=power.py"),
    )
    assert both.code == 2 and "both define the method power" in both.err, both
    assert override.code == 2, override
