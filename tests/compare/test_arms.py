"""Runs that differ in nothing but the seed are an arm, which is named by what varies."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from rlvr_cli.compare.evaluations import choose_evaluations
from rlvr_cli.core.errors import UserError
from rlvr_cli.store.arm import Arm, group_arms
from rlvr_cli.store.find import load_runs
from tests.compare.made_runs import make_run

TRIALS = ("grpo-s0", "grpo-s1")


def arms_of(root: Path, *names: str, by: tuple[str, ...] = ()) -> tuple[Arm, ...]:
    selected = load_runs(names, root)
    assert selected.problems == ()
    return group_arms(selected.runs, by)


def shown(arms: tuple[Arm, ...]) -> dict[str, list[str]]:
    return {arm.name: [str(one) for one in arm.runs] for arm in arms}


def test_arms_are_named_by_method_and_by_what_else_varies(root: Path) -> None:
    make_run(root, "a0", seed=0)
    make_run(root, "a1", seed=1, overrides=["run.threads=2", "eval.problems=7", "update.micro_batch=4"])
    make_run(root, "b0", method="lopti")
    make_run(root, "c0", overrides=["optimizer.lr=1e-5"])
    make_run(root, "d0", method="lopti", overrides=["method.passes.order=high_first"])
    assert shown(arms_of(root, "a0", "a1", "b0")) == {"grpo": ["seed 0", "seed 1"], "lopti": ["seed 0"]}
    assert set(shown(arms_of(root, "a0", "c0"))) == {"lr=0.0005", "lr=1e-05"}
    assert set(shown(arms_of(root, "a0", "b0", "d0"))) == {
        "grpo",
        "lopti order=low_first",
        "lopti order=high_first",
    }
    assert "grpo lr=1e-05" in shown(arms_of(root, "a0", "b0", "c0"))


def test_what_by_does_not_name_is_pooled_and_paired(root: Path) -> None:
    for method in ("grpo", "dapo"):
        for lr in ("1e-5", "1e-6"):
            make_run(root, f"{method}-{lr}", method=method, overrides=[f"optimizer.lr={lr}"])
    by_method = shown(arms_of(root, "*-1e-*", by=("method.name",)))
    assert by_method == {name: ["seed 0 lr=1e-05", "seed 0 lr=1e-06"] for name in ("dapo", "grpo")}
    by_lr = shown(arms_of(root, "*-1e-*", by=("optimizer.lr",)))
    assert by_lr == {f"lr={lr}": ["seed 0 dapo", "seed 0 grpo"] for lr in ("1e-05", "1e-06")}
    assert set(shown(arms_of(root, "*-1e-*", by=("optimizer.lr", "method.name")))) == {
        f"{method} lr={lr}" for method in ("grpo", "dapo") for lr in ("1e-05", "1e-06")
    }


def test_a_glob_leaves_out_a_run_whose_creation_was_killed(root: Path) -> None:
    make_run(root, "a-s0")
    shutil.copytree(root / "a-s0", root / ".a-s1.new-7@host").joinpath("manifest.json").unlink()
    selection = load_runs(["*-s*"], root)
    assert [run.dir.name for run in selection.runs] == ["a-s0"] and not selection.problems


def test_folders_globs_and_repetitions(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(2):
        make_run(root / "sweep", f"g{seed}", seed=seed)
        make_run(root / "sweep" / "trials", f"l{seed}", method="lopti", seed=seed)
    names = [run.dir.name for run in load_runs(["sweep", "sweep/g*", str(root / "sweep" / "g0")], root).runs]
    assert names == ["g0", "g1"]
    assert [run.dir.name for run in load_runs(["sweep/trials", "sweep"], root).runs] == ["l0", "l1", "g0", "g1"]
    monkeypatch.chdir(root)
    assert [run.dir.name for run in load_runs(["sweep/*/l?"], tmp_path / "elsewhere").runs] == ["l0", "l1"]
    for pattern in ("sweep/x*", "sweep/g**"):
        none = load_runs([pattern], root)
        assert none.runs == () and "matches no run" in none.problems[0]
    (root / "sweep" / "g1" / "manifest.json").unlink()
    (problem,) = load_runs(["sweep"], root).problems
    assert "g1: " in problem and "manifest.json" in problem


def test_a_sweep_tells_of_trials_without_a_run(root: Path) -> None:
    make_run(root / "sweep", "grpo-s0")
    trials = [{"name": name, "method": name[:4]} for name in TRIALS]
    (root / "sweep" / "trials.json").write_text(json.dumps({"trials": trials}))
    selected = load_runs(["sweep", "sweep/grpo-s0"], root)
    assert len(selected.runs) == 1
    problem = selected.problems[0]
    assert "1 of its 2 trials" in problem and "grpo-s1" in problem and "--unfinished" in problem
    assert len(load_runs(["sweep"], root, unfinished=True).notes) == 1


def test_a_sweep_is_what_its_file_names(root: Path) -> None:
    """What the file no longer names is left out; what is missing is reported with the command that makes it, options "
    "and all."""
    make_run(root / "sweep", "grpo-s0", status="interrupted")
    make_run(root / "sweep", "lopti-s0")
    make_run(root / "sweep", "dapo-s0", method="dapo")
    trials = [
        {"name": f"{method}-s0", "method": method, "named": method != "dapo"} for method in ("grpo", "lopti", "dapo")
    ]
    content = {
        "file": "/a b/s.yaml",
        "given": ["run.dir=x"],
        "eval": ["--pass-at", "1,4"],
        "trials": trials,
    }
    (root / "sweep" / "trials.json").write_text(json.dumps(content))
    selected = load_runs(["sweep"], root)
    assert [run.dir.name for run in selected.runs] == ["grpo-s0", "lopti-s0"]
    (note,) = selected.notes
    assert note.startswith(f"{root}/sweep: ") and "dapo-s0" in note
    assert "`rlvr sweep '/a b/s.yaml' run.dir=x`" in selected.problems[0]
    with pytest.raises(UserError, match=re.escape(f"`rlvr eval {root}/sweep/lopti-s0 --pass-at 1,4`.")):
        choose_evaluations(selected.runs)
    (root / "sweep" / "trials.json").write_text(json.dumps({**content, "eval": None}))
    with pytest.raises(UserError) as caught:
        choose_evaluations(selected.runs)
    (line,) = caught.value.problems
    assert line.startswith("2 runs without an evaluation: ") and line.endswith(
        r"`printf '\neval: {}\n' >> '/a b/s.yaml' && rlvr sweep '/a b/s.yaml' run.dir=x` evaluates them."
    )
    (root / "sweep" / "trials.json").write_text(json.dumps(content))
    every = load_runs(["sweep", "sweep/dapo-s0"], root, unfinished=True).runs
    assert [run.dir.name for run in every][2:] == ["dapo-s0"]
