"""A method of the user's own from the command line to a comparison: the numbers, resuming, processes, sweeps."""

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


@pytest.mark.parametrize("name", ["cispo", "dgpo"])
def test_a_copy_of_a_method_trains_as_the_method_to_the_byte(name: str, tmp_path: Path) -> None:
    text = (METHODS / f"{name}.py").read_text(encoding="utf-8")
    (tmp_path / "copy_of.py").write_text(text.replace(f'"{name}"', '"mine"'), encoding="utf-8")
    built_in = ("train", "--method", name, *SMALL, "run.name=builtin")
    done(tmp_path, built_in, ("train", "--method", "copy_of.py", *SMALL, "run.name=own"))
    for file in ("metrics.jsonl", "checkpoints/step-4/model.safetensors"):
        assert (tmp_path / "runs/builtin" / file).read_bytes() == (tmp_path / "runs/own" / file).read_bytes(), file
    executed = json.loads((tmp_path / "runs/own/checkpoints/step-4/trainer_state.json").read_text())
    assert executed["global_step"] == 4


def test_a_run_keeps_its_method(tmp_path: Path) -> None:
    """After the file was edited, and in two processes after it is gone."""
    file = tmp_path / "power.py"
    file.write_text(POWER)
    train = ("train", "--method", "power.py+lopti", *SMALL)
    done(tmp_path, (*train, "launch.processes=2", "run.name=one"), (*train, "run.name=two"))
    (about,) = json.loads((tmp_path / "runs/one/manifest.json").read_text())["user_files"]
    assert about["file"] == str(file)
    file.write_text(POWER.replace("Field(0.5", "Field(0.6"))
    edited = done(tmp_path, ("train", "--resume", "two", "train.rollouts=3"))
    assert "power.py was changed since" in " ".join(edited.split()), edited
    done(tmp_path, (*train, "run.name=three"))
    file.unlink()
    # A process of its own, which has not imported the file before.
    found = run_all(
        tmp_path,
        ("train", "--resume", "one", "train.rollouts=3"),
        *(("eval", "one"), ("eval", "three"), ("runs", "show", "one"), ("export", "one", "-o", "out")),
        *(("compare", "one", "three"), ("report", "one")),
    )
    assert [one for one in found if one.code] == [] and len(found) == 7, found
    assert "files" in found[5].out + found[5].err, found[5]


def test_a_sweep_keeps_the_methods_that_it_names(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "power.py").write_text(POWER)
    (folder / "sweep.yaml").write_text(SWEEP)
    planned = done(tmp_path, ("sweep", "own/sweep.yaml", "--dry-run"))
    assert "grpo and power are the same gradient" in " ".join(planned.split())
    done(tmp_path, ("sweep", "own/sweep.yaml", "--workers", "2"))
    assert "power+lopti" in done(tmp_path, ("compare", "runs/sweep"))
    assert "files" not in (tmp_path / "runs/sweep/grpo/config.yaml").read_text()
    done(tmp_path, ("sweep", "own/sweep.yaml"))
    (folder / "other.py").write_text(POWER.replace("Field(0.5", "Field(0.6"))
    (folder / "both.yaml").write_text("methods: [power.py, other.py]\nseeds: 1\n")
    both, override = run_in(
        tmp_path,
        ("sweep", "own/both.yaml", "--dry-run"),
        ("sweep", "own/sweep.yaml", "--dry-run", "method.name=own/power.py"),
    )
    assert both.code == 2 and "are both called power" in both.err, both
    assert override.code == 2, override
