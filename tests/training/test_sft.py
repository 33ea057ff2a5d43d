"""Runs of supervised fine-tuning: repeatable, stoppable, resumable to the bit, evaluated; with adapters too."""

from __future__ import annotations

from pathlib import Path

from rlvr_cli.runs.folder import RunDir
from tests.matrix import metrics
from tests.training.sft_runs import STEPS


def test_a_second_epoch_knows_the_tokens_of_the_first_better(matrix: Path) -> None:
    run = RunDir(matrix / "sft")
    assert run.read_manifest()["executed"].keys() == {"nll"}
    recorded = metrics(run)
    assert [row["step"] for row in recorded] == list(range(1, STEPS + 1))
    assert [(row["rollout"], row["update"]) for row in recorded[3:6]] == [(0, 3), (1, 0), (1, 1)]
    for row in recorded:
        assert row["loss"] > 0 and 0 < row["token_accuracy"] <= 1 and row["grad_norm"] > 0
        assert ("eval" in row) == (row["update"] == 3)
    for first, again in ((0, 2), (1, 3)):
        assert recorded[first]["update_tokens"] == recorded[again]["update_tokens"]
        assert recorded[again]["loss"] < recorded[first]["loss"]
