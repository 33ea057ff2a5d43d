"""Two methods and two seeds, really trained and evaluated on the lab, and compared in every way."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.store.training import BUDGETS
from tests.launch.launches import NARROW

EVALUATION = ["eval.every=1", "eval.problems=20", "eval.samples=4", "eval.pass_at=[1,2,4]", "eval.greedy=false"]


@pytest.mark.slow
def test_trained_evaluated_and_compared(
    root: Path, told: Callable[..., str], compared: Callable[..., dict[str, Any]], refused: Callable[..., str]
) -> None:
    for method in ("grpo", "lopti"):
        for seed in (0, 1):
            name = [f"run.dir={root}/sweep", f"run.name={method}-s{seed}", f"run.seed={seed}"]
            assert run(["train", "--method", method, *name, *NARROW, *EVALUATION]) == 0
    said = refused("sweep")
    assert said.count("has no evaluation of kk-gen. Make it with `rlvr eval") == 0
    assert said.count("has no evaluation. Make it with `rlvr eval") == 4
    for folder in sorted((root / "sweep").iterdir()):
        assert run(["eval", str(folder)]) == 0
    found = compared("sweep")
    assert (found["baseline"], found["metric"], found["problems"], found["samples"]) == ("grpo", "avg@4", 20, 4)
    lopti = next(arm for arm in found["arms"] if arm["arm"] == "lopti")
    assert lopti["cost"]["updates"] == 2 and lopti["cost"]["update_seconds"] > 0
    assert lopti["difference"]["seeds"] == 2 and lopti["sentence"] in told("sweep")
    assert compared("sweep/grpo-s*", "sweep/lopti-s1", str(root / "sweep" / "lopti-s0"))["arms"] == found["arms"]
    # Seconds are the machine's: runs as short as these need have none in common.
    for budget in BUDGETS[:-1]:
        matched = compared("sweep", "--match", budget)
        assert matched["split"] == "dev" and matched["match"]["budget"] == budget
        ends = {run["spent"][budget] for arm in matched["arms"] for run in arm["runs"]}
        assert all(end == pytest.approx(matched["match"]["end"]) for end in ends)
    rows = list(csv.DictReader(io.StringIO(told("sweep", "--format=csv", "--metric", "pass@3"))))
    assert {row["metric"] for row in rows} == {"pass@3"} and {row["arm"] for row in rows} == {"grpo", "lopti"}
