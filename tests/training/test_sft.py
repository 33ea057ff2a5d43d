"""Runs of supervised fine-tuning: repeatable, stoppable, resumable to the bit, evaluated; with adapters too."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from rlvr_cli.evaluation.sampling import weights_hash
from rlvr_cli.models.load import load_model
from rlvr_cli.models.source import PRESETS
from rlvr_cli.runs.folder import RunDir
from tests.matrix import metrics, newest
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


def test_the_checkpoint_is_a_model_and_is_what_was_evaluated(matrix: Path) -> None:
    run = RunDir(matrix / "sft")
    model, _ = load_model(str(newest(run)), dtype="float32")
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.config.rlvr_prompt_style == "compact"
    evaluated = json.loads((run.held_out_dir / "rollout-000003" / "meta.json").read_text())
    assert evaluated["weights"] == weights_hash(model)
    base = load_file(PRESETS["lab"] / "model.safetensors")
    trained = model.state_dict()
    assert {*trained} - {*base} <= {"lm_head.weight"}
    trained = {name: trained[name] for name in base}
    same = {name for name, weight in trained.items() if torch.equal(weight, base[name])}
    assert any("_proj" in name for name in base.keys() - same)
