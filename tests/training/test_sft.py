"""Runs of supervised fine-tuning: repeatable, stoppable, resumable to the bit, evaluated; with adapters too."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from peft import get_peft_model
from safetensors.torch import load_file

from rlvr_cli.core.errors import UserError
from rlvr_cli.evaluation.sampling import weights_hash
from rlvr_cli.models.adapter import load_trained, merged, peft_config, trained_tensors
from rlvr_cli.models.load import load_model
from rlvr_cli.models.source import PRESETS
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.runs.folder import RunDir
from tests.models.tiny import rounding
from tests.training.processes import interrupted_after
from tests.training.sft_runs import (
    KINDS,
    LORA,
    STEPS,
    configure,
    contents,
    newest,
    resume,
    rows,
    start,
)


@pytest.fixture(
    scope="module", params=[kind if kind == "full" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, RunDir]:
    return request.param, start(tmp_path_factory.mktemp("runs"), "whole", **KINDS[request.param]).run


def test_a_run_leaves_what_every_run_leaves(whole: tuple[str, RunDir]) -> None:
    _, run = whole
    manifest = run.read_manifest()
    assert (manifest["status"], manifest["step"], manifest["rollout"], manifest["method"]) == (
        "finished",
        STEPS,
        3,
        "sft",
    )
    choices = manifest["method_fingerprint"]["choices"]
    assert (choices["name"], choices["demonstrations"]["count"]) == ("sft", 20)
    # 4 rows a step, 2 in a micro-batch.
    assert manifest["executed"] == {"nll": 2 * STEPS}
    recorded = rows(run)
    assert [row["step"] for row in recorded] == list(range(1, STEPS + 1))
    assert [(row["rollout"], row["update"]) for row in recorded[3:6]] == [(0, 3), (1, 0), (1, 1)]
    for row in recorded:
        assert row["loss"] > 0 and 0 < row["token_accuracy"] <= 1 and row["grad_norm"] > 0 and row["update_tokens"] > 0
        assert ("eval" in row) == (row["update"] == 3)
    # The second epoch sees the same tokens again and knows them better.
    for first, again in ((0, 2), (1, 3)):
        assert recorded[first]["update_tokens"] == recorded[again]["update_tokens"]
        assert recorded[again]["loss"] < recorded[first]["loss"]
    assert len(run.timings_path.read_text().splitlines()) == STEPS
    assert "20 (the task's worked solutions)" in run.log_path.read_text()
    assert not [path for path in run.path.rglob("*") if path.suffix in (".pt", ".bin", ".pkl", ".pth")]


def test_same_seed_same_bytes(whole: tuple[str, RunDir], tmp_path: Path) -> None:
    kind, run = whole
    assert contents(start(tmp_path, "again", **KINDS[kind]).run) == contents(run)
    assert contents(start(tmp_path, "other", run__seed=1, **KINDS[kind]).run) != contents(run)


def test_the_gradient_does_not_depend_on_the_micro_batch(whole: tuple[str, RunDir], tmp_path: Path) -> None:
    kind, run = whole
    other = rows(start(tmp_path, "other", update__micro_batch=4, eval__every=0, **KINDS[kind]).run)
    for mine, theirs in zip(rows(run), other, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)


def test_sigterm_saves_and_resume_is_exact(whole: tuple[str, RunDir], tmp_path: Path) -> None:
    """Stopped within a batch of demonstrations; then again after the rest was damaged."""
    kind, run = whole
    with interrupted_after(6):
        outcome = start(tmp_path, "broken", **KINDS[kind])
    assert (outcome.status, outcome.exit_code) == ("interrupted", 128 + signal.SIGTERM)
    broken = outcome.run
    assert 6 <= valid_checkpoints(broken.checkpoints_dir)[0].step < STEPS
    killed = RunDir(Path(shutil.copytree(broken.path, tmp_path / "killed")))
    assert resume(broken).status == "finished"
    assert contents(broken) == contents(run)
    # As after kill -9: metrics are ahead of the newest whole checkpoint.
    (newest(killed) / ("adapter_model.safetensors" if kind == "lora" else "model.safetensors")).write_bytes(b"")
    resume(killed)
    assert contents(killed) == contents(run)
    assert rows(killed)[-1]["eval"] == rows(run)[-1]["eval"]


def test_the_checkpoint_is_a_model_and_is_what_was_evaluated(whole: tuple[str, RunDir]) -> None:
    kind, run = whole
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
    if kind == "lora":
        assert same == {name for name in base if "_proj" not in name}, "adapters are on the linear layers alone"


@pytest.mark.slow
def test_the_merged_model_says_what_the_adapted_one_says(whole: tuple[str, RunDir]) -> None:
    kind, run = whole
    if kind == "full":
        pytest.skip("nothing to merge")
    plain, _ = load_model(str(newest(run)), dtype="float32")
    base, tokenizer = load_model("lab", dtype="float32")
    before = {name: weight.clone() for name, weight in base.state_dict().items()}
    config = peft_config(configure(run.path, "x", **LORA).model.adapter)
    adapted = get_peft_model(base, config)
    load_trained(adapted, load_file(newest(run) / "adapter_model.safetensors"))
    ids = torch.tensor([tokenizer("A: BN B: AK or BN ? <think> KN A: BN t")["input_ids"]])
    with torch.no_grad():
        expected = adapted(ids).logits
        torch.testing.assert_close(plain(ids).logits, expected, **rounding(expected))
        assert not torch.allclose(load_model("lab", dtype="float32")[0](ids).logits, expected, atol=0.1)
        with merged(adapted) as inside:
            assert inside.state_dict().keys() == before.keys()
            assert weights_hash(inside) == weights_hash(plain)
        assert torch.equal(adapted(ids).logits, expected)
    after = {name.replace("base_layer.", ""): weight for name, weight in base.state_dict().items()}
    assert all(torch.equal(after[name], weight) for name, weight in before.items()), "the base must stay as it was"
    with pytest.raises(ValueError, match="other layers"):
        load_trained(adapted, dict(list(trained_tensors(adapted).items())[1:]))


def test_names_and_overwrite(whole: tuple[str, RunDir]) -> None:
    _, run = whole
    with pytest.raises(UserError, match="this run exists"):
        start(run.path.parent, "whole")
    with pytest.raises(UserError, match="is finished"):
        resume(run)


def test_imitation_helps(tmp_path: Path) -> None:
    """A few steps on the lab: the loss falls, and greedy accuracy on held-out problems rises."""
    settings = {
        "train__rollouts": 8,
        "rollout__prompts": 8,
        "rollout__group_size": 8,
        "update__micro_batch": 16,
        "update__mini_batches": 1,
        "update__epochs": 1,
        "method__demonstrations": 256,
        "eval__every": 8,
        "eval__problems": 40,
        "eval__samples": 4,
    }
    recorded = rows(start(tmp_path, "sft", **settings).run)
    assert recorded[-1]["loss"] < 0.5 * recorded[0]["loss"]
    assert recorded[-1]["eval"]["avg@4"] > 0.5  # the base has 0.28 on the whole split
