"""Runs and sweeps of which not everything is there: a page all the same, which says so and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from rlvr_cli.store.evaluation import add_hashes
from tests.compare.made_runs import evaluate, make_run
from tests.report_page.conftest import BASE, BETTER
from tests.report_page.page_reader import Page


def test_what_is_not_done_is_said_at_the_top(tmp_path: Path, report: Callable[..., Page]) -> None:
    root = tmp_path / "runs"
    for seed in range(2):
        make_run(root, f"grpo-s{seed}", seed=seed, right=BASE)
        make_run(root, f"lopti-s{seed}", method="lopti", seed=seed, right=BETTER if seed == 0 else None)
    make_run(root, "dapo-s0", method="dapo", status="interrupted")
    page = report(root)
    top = page.sections["answer"]
    assert f"{root}/dapo-s0" in top and "rollout 4 of 4" in top
    assert "How does this run of lopti differ from this run of grpo?" in top, "what is there is compared"
    assert f"rlvr train --resume {root}/dapo-s0" in page.commands
    assert f"rlvr eval {root}/lopti-s1" in page.commands
    assert f"{root}/lopti-s1" in page.sections["notes"]
    assert f"{root}/dapo-s0" in page.sections["notes"]
    assert "dapo" in page.sections["cost"]


def test_trials_of_a_sweep_that_were_not_begun(tmp_path: Path, report: Callable[..., Page]) -> None:
    root = tmp_path / "runs" / "small"
    make_run(root, "grpo-s0", right=BASE)
    trials = [
        {
            "id": name,
            "name": name,
            "method": "grpo",
            "seed": seed,
            "varies": {},
            "base": [],
            "option": "grpo",
        }
        | {"overrides": [], "rollouts": 4, "completions": 16, "steps": 4}
        for seed, name in enumerate(["grpo-s0", "grpo-s1"])
    ]
    plan = {"name": "small", "file": "small.yaml", "retries": 2, "eval": None, "slots": {}, "trials": trials}
    (root / "trials.json").write_text(json.dumps(plan))
    page = report(root)
    assert f"{root}: 1 of its 2 trials" in page.sections["answer"]
    assert "rlvr sweep small.yaml" in page.commands


def test_before_is_the_untrained_model_where_it_was_evaluated(tmp_path: Path, report: Callable[..., Page]) -> None:
    root = tmp_path / "runs"
    made = make_run(root, "grpo-s0", right=BETTER, held_out={2: BASE, 4: BETTER})
    base = evaluate(made, BASE, step=0, folder=root / "evals" / "lab-test")
    result, problems = json.loads((base / "metrics.json").read_text()), (base / "problems.jsonl").read_text()
    (base / "metrics.json").write_text(json.dumps(add_hashes({**result, "label": "lab"}, problems)))
    page = report(made.path)
    answer = page.sections["answer"]
    assert "avg@4" in answer and answer.index("0.375") < answer.index("0.625") and "4 rollouts" in answer
