"""A model divided by ZeRO-2 and ZeRO-3 among two CPU processes: the run is the one that DDP makes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlvr_cli.config.load import load_config
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.runs.seal import file_digest
from rlvr_cli.training.zero import propagate_nonfinite
from tests.commands import run_here
from tests.launch.launches import NARROW, SHIM, SMALL, assert_same_run, finish, kill_tree, rows, sharded, start

WAYS = {
    "zero2": ("launch.deepspeed=zero2",),
    "zero3": ("launch.deepspeed=zero3",),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        "--method lopti",
        "method.kl.beta=0.1 rollout.engine=transformers update.micro_batch=1",
        "method.kl.beta=0.1 model.adapter.kind=lora "
        "validation.every=2 validation.problems=4 validation.samples=2 validation.pass_at=[1,2]",
        "--method opd method.advantage.teacher=lab method.advantage.reward_weight=1 method.kl.beta=0.1",
        "--method sft rollout.max_new_tokens=60 method.demonstrations=16 update.micro_batch=2",
    ],
)
def test_every_way_to_divide_makes_the_run_of_ddp(tmp_path: Path, settings: str) -> None:
    """Also what reads the weights: a reference policy and a teacher, divided too; `generate`, with completions of other
    lengths; adapters, with the reference that they are without; evaluations; micro-batches, whose gradients are summed.
    """
    arguments = (f"run.dir={tmp_path}", *NARROW, *SMALL, *settings.split())
    finish(start("--processes", "2", "run.name=ddp", *arguments))
    for name, way in WAYS.items():
        output = finish(sharded(*way, f"run.name={name}", *arguments))
        assert_same_run(tmp_path / "ddp", tmp_path / name)
        assert "mismatch" not in output


@pytest.mark.slow
@pytest.mark.parametrize("way", ["zero2", "zero3"])
def test_resume_is_exact_in_the_middle_of_a_rollout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """kill -9 of everything once the first step of Lopti's high pass is saved; and the checkpoint is a whole model.

    In bfloat16, as on GPUs: what comes out of the model keeps float32's digits.
    """
    monkeypatch.setenv("RLVR_TEST_BF16", "1")
    settings = ("--method", "lopti", *WAYS[way], f"run.dir={tmp_path}", *NARROW, "checkpoint.every=1")
    whole, run = tmp_path / "whole", tmp_path / "broken"
    finish(sharded("run.name=whole", *settings))
    process = sharded("run.name=broken", *settings, "checkpoint.keep=8")
    while not (run / "checkpoints" / "step-3").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.0005)
    kill_tree(process)
    saved = valid_checkpoints(run / "checkpoints")[0]
    assert rows(whole)[saved.step]["pass"] == "high", "the kill came too late to show anything"
    names = {path.name for path in (saved.path / "trainer").iterdir()}
    assert {f"optimizer-{rank}.{kind}" for rank in (0, 1) for kind in ("json", "safetensors")} <= names
    log_probs = load_file(saved.path / "trainer" / "process-0.safetensors")["buffer.0.old_log_probs"]
    assert log_probs.dtype == torch.float32 and not torch.equal(log_probs, log_probs.bfloat16().float())
    output = finish(start("--resume", str(run), environment={"PYTHONPATH": str(SHIM)}))
    assert f"at step {saved.step} of 8" in output
    assert (run / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    newest = [path / "checkpoints" / "step-8" for path in (run, whole)]
    for name in ("model.safetensors", "trainer/optimizer-0.safetensors", "trainer/optimizer-1.safetensors"):
        assert file_digest(newest[0] / name) == file_digest(newest[1] / name), name
    evaluated = subprocess.run(
        [
            *(sys.executable, "-m", "rlvr_cli", "eval", str(run), "--format=json"),
            *("eval.problems=4", "eval.samples=2", "eval.pass_at=[1]", "rollout.max_new_tokens=24"),
        ],
        capture_output=True,
        text=True,
    )
    assert evaluated.returncode == 0, evaluated.stderr
    assert "metrics" in json.loads(evaluated.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "half"), [("zero2", True), ("zero3", False)])
def test_a_step_that_is_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, half: bool) -> None:
    """A loss of NaN with a gradient that is finite: DeepSpeed refuses the step, and the schedule goes on."""
    if half:
        monkeypatch.setenv("RLVR_TEST_BF16", "1")
    monkeypatch.setenv("RLVR_TEST_NAN", "2")
    settings = (*WAYS[way], f"run.dir={tmp_path}", *NARROW, "checkpoint.every=1", "optimizer.lr_schedule=linear")
    finish(sharded(*settings, "run.name=run", "checkpoint.keep=4", "train.on_nonfinite=skip"))
    found: list[dict[str, Any]] = rows(tmp_path / "run")
    assert [row["skips"] for row in found] == [0, 1, 1, 1]
    assert [row["grad_norm"] is None for row in found] == [False, True, False, False]
    rates = [row["learning_rate"] for row in found]
    assert [rate / rates[0] for rate in rates] == pytest.approx([1, 0.775, 0.55, 0.325])
    saved = tmp_path / "run" / "checkpoints"
    first, second, third = (load_file(saved / f"step-{step}" / "model.safetensors") for step in (1, 2, 3))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(second[name], third[name]) for name in first)
    assert all(value.isfinite().all() for value in third.values())
    if half:
        return
    output = finish(sharded(*settings, "run.name=stopped", "train.on_nonfinite=stop"), 1)
    assert "step 2: loss nan" in output and "The weights are unchanged" in output
    assert valid_checkpoints(tmp_path / "stopped" / "checkpoints")[0].step == 1


def test_a_loss_that_is_not_finite_has_no_finite_gradient() -> None:
    for constant, finite in ((0.25, True), (math.nan, False), (math.inf, False), (-math.inf, False)):
        weight = torch.tensor(0.3, requires_grad=True)
        loss = propagate_nonfinite(weight * 0.1 + constant)
        loss.backward()
        assert weight.grad is not None and (weight.grad == 0.1 if finite else weight.grad.isnan())
        assert not finite or loss == weight * 0.1 + constant


def test_a_launcher_that_asks_for_fsdp_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    done = run_here(capsys, "train", f"run.dir={tmp_path}")
    assert done.code == 2 and "requests FSDP" in done.err and "launch.deepspeed=zero3" in done.err
    assert not list(tmp_path.iterdir())


def test_the_reference_is_not_spread_over_every_processs_gpus() -> None:
    from rlvr_cli.training.policy_run import _reference_options

    with_kl = ["method.kl.beta=0.1"]
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 1)
    divided = load_config(overrides=["launch.processes=2", "launch.deepspeed=zero3", *with_kl])
    assert _reference_options(divided, gpu) == {"device_map": None}
    assert _reference_options(divided, cpu) is None
    # One process, whose server has other GPUs.
    assert _reference_options(load_config(overrides=with_kl), gpu) == {"device_map": {"": "cuda:1"}}
    # The reference of an adapter is the model without it.
    assert _reference_options(load_config(overrides=[*with_kl, "model.adapter=lora"]), gpu) is None
    assert _reference_options(load_config(), gpu) is _reference_options(load_config(overrides=with_kl), cpu) is None
