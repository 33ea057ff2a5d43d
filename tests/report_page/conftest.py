"""Runs with known numbers and completions, and the page that the command makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.core.files import append_jsonl
from rlvr_cli.runs.folder import RunDir
from tests.compare.made_runs import make_run
from tests.report_page.page_reader import Page

BASE = [0, 1, 1, 2, 2, 3, 0, 1, 2, 3, 1, 2]
BETTER = [1, 2, 2, 3, 3, 4, 1, 2, 3, 4, 2, 3]


def add_completions(made: RunDir, texts: tuple[str, str] = ("A: AK t </think>", "no")) -> None:
    """A right and a wrong completion in the first and the last rollout."""
    for rollout in (0, 3):
        rows: list[dict[str, Any]] = []
        for text, right in zip(texts, (True, False), strict=True):
            judged = {"correct": right, "scorable": True, "reason": "correct" if right else "wrong", "answer": "KN"}
            place = {"problem": f"kk-{rollout}", "subgroup": "2 people", "prompt": "who?", "truncated": False}
            value = {"reward": 3.0 if right else -1.0, "clean_reward": 0.0, "parts": {}, "advantage": 1.0}
            rows.append(
                {**place, "completion": text, "token_ids": [1, 2], "tokens": 2, "log_prob": -1.0, **judged, **value}
            )
        path = made.rollouts_dir / f"rollout-{rollout:06d}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def add_measures(made: RunDir, **more: Any) -> None:
    """Reward, accuracy and the rest in every line of metrics.jsonl."""
    rows = [json.loads(line) for line in made.metrics_path.read_text().splitlines()]
    made.metrics_path.unlink()
    reasons = {"reason/correct": 0.5, "reason/wrong": 0.5}
    measures = {"reward": 0.5, "accuracy": 0.5, "entropy": 0.2, "grad_norm": 1.0, "diversity": 0.9, "truncated": 0.0}
    append_jsonl(made.metrics_path, [{**row, **measures, **reasons, **more} for row in rows])


@pytest.fixture(scope="module")
def two_arms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with grpo and lopti, three seeds each; lopti has one right sample of four more, but on some problems."""
    root = tmp_path_factory.mktemp("two-arms") / "runs"
    for seed in range(3):
        base, better = BASE.copy(), BETTER.copy()
        for place in range(seed + 1):
            base[place] += 1
        better[seed + 3] -= 1
        held_out = {2: base, 4: better}
        for made in (
            make_run(root, f"grpo-s{seed}", seed=seed, right=base, held_out=held_out),
            make_run(root, f"lopti-s{seed}", method="lopti", seed=seed, right=better, seconds=1.5, held_out=held_out),
        ):
            add_measures(made)
            add_completions(made)
    return root


@pytest.fixture
def report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Page]:
    """The page that `rlvr report` makes."""

    def call(*arguments: object) -> Page:
        path = tmp_path / "page.html"
        assert run(["report", *map(str, arguments), "--output", str(path)]) == 0, capsys.readouterr().err
        return Page(path)

    return call


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What it says when it refuses; no page is there then."""

    def call(*arguments: object) -> str:
        capsys.readouterr()
        path = tmp_path / "refused.html"
        assert run(["report", *map(str, arguments), "--output", str(path)]) == 2
        assert not path.exists()
        return capsys.readouterr().err

    return call
