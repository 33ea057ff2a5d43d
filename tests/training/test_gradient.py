"""The trainer's gradient: equal to plain PyTorch, to TRL's own, and to itself however a batch is split."""

from __future__ import annotations

import copy
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback
from trl import GRPOTrainer

from rlvr_cli.lab.tokenizer import make_tokenizer
from tests.training.harness import (
    LEARNING_RATE,
    ScriptedRollouts,
    arguments,
    completion_log_probs,
    dataset,
    flat_gradient,
    grpo,
    plain_gradient,
    tiny_model,
    train,
)

AGGREGATIONS = ["token_mean", "sequence_mean", "constant_length"]
ROWS, GROUP = 16, 4
TOLERANCE = 1e-5  # TRL computes the head in float32; the drift between two runs adds up over the steps.


def relative_error(ours: torch.Tensor, other: torch.Tensor) -> float:
    return float((ours - other).norm() / other.norm())


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_equals_the_formula_in_plain_pytorch(tmp_path: Path, aggregation: str, beta: float) -> None:
    """Two rollouts, two updates on each: the second of each is off-policy, so clipping acts."""
    method, model = grpo(aggregation, divide_by_std=True), tiny_model()
    model.save_pretrained(tmp_path / "base")
    trained = type(model).from_pretrained(tmp_path / "base")
    reference = copy.deepcopy(model)
    trainer = train(tmp_path, method, trained, micro_batch=4, epochs=2, beta=beta)
    assert len(trainer.gradients) == 4
    for step, gradient in enumerate(trainer.gradients):
        rollout, epoch = divmod(step, 2)
        if epoch == 0:
            prompts, completions, _ = ScriptedRollouts(ROWS).script(rollout)
            with torch.no_grad():
                old = completion_log_probs(model, prompts, completions)
        expected, clipped = plain_gradient(model, reference, old, rollout, method, rows=ROWS, group=GROUP, beta=beta)
        assert relative_error(gradient, expected) < TOLERANCE
        assert (clipped > 0) == (epoch > 0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= LEARNING_RATE * parameter.grad


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_does_not_depend_on_micro_batches(tmp_path: Path, aggregation: str) -> None:
    """Two updates on each rollout, of 8 rows each, in forward passes of 1, 2, 4 and 8 rows."""
    runs = {
        size: train(tmp_path / str(size), grpo(aggregation), tiny_model(), micro_batch=size, updates=2).gradients
        for size in (1, 2, 4, 8)
    }
    for size in (1, 2, 4):
        for ours, whole in zip(runs[size], runs[8], strict=True):
            assert relative_error(ours, whole) < TOLERANCE, size


class _Gradients(TrainerCallback):
    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
        self.seen.append(flat_gradient(model))


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_equals_trl(tmp_path: Path, aggregation: str, beta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's own clipped loss on the same rollouts: the contract that handing over F * A rests on."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    tiny_model().save_pretrained(tmp_path / "base")
    model_class, method = type(tiny_model()), grpo(aggregation)
    ours = train(
        tmp_path, method, model_class.from_pretrained(tmp_path / "base"), micro_batch=4, epochs=2, beta=beta
    ).gradients

    script, calls = ScriptedRollouts(ROWS), iter(range(10))

    def rollout_func(prompts: list[str], trainer: Any) -> dict[str, Any]:
        torch.manual_seed(0)
        prompt_ids, completion_ids = script.sample(next(calls), range(len(prompts)), 0)
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}

    config = arguments(tmp_path, method, rows=ROWS, group=GROUP, micro_batch=4, epochs=2, beta=beta)
    config.epsilon, config.epsilon_high, config.scale_rewards = 0.2, 0.28, "none"
    gradients = _Gradients()
    GRPOTrainer(
        model=model_class.from_pretrained(tmp_path / "base"),
        processing_class=make_tokenizer(),
        reward_funcs=[lambda prompts, **kwargs: script.rewards],
        rollout_func=rollout_func,
        args=config,
        train_dataset=dataset(ROWS, GROUP),
        callbacks=[gradients],
    ).train()
    assert len(gradients.seen) == len(ours) == 4
    for step, (mine, native) in enumerate(zip(ours, gradients.seen, strict=True)):
        assert relative_error(mine, native) < TOLERANCE, step


def test_two_processes_make_the_gradient_of_one(tmp_path: Path) -> None:
    """Real gloo processes, started as torchrun starts them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = Path(__file__).with_name("gradient_of_processes.py")
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path)],
            cwd=script.parents[2],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "ACCELERATE_USE_CPU": "true",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": ".",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    for process in processes:
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output.decode()
    for aggregation in AGGREGATIONS:
        together = torch.load(tmp_path / f"{aggregation}.pt", weights_only=True)
        alone = train(tmp_path / "alone", grpo(aggregation, divide_by_std=True), tiny_model(), micro_batch=4, epochs=2)
        assert len(together) == len(alone.gradients) == 4
        for ours, single in zip(together, alone.gradients, strict=True):
            assert relative_error(ours, single) < TOLERANCE
