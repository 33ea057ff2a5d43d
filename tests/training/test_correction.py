"""Corrections for another sampler in the trainer: gradients against plain PyTorch, micro-batches, resumed."""

from __future__ import annotations

import copy
import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from experiments.lab.model import make_tokenizer
from rlvr_cli.config.load import load_config
from rlvr_cli.methods.base import Tokens
from rlvr_cli.methods.correction import Correction, OffPolicySequenceMask, TokenCorrection, log_ratios
from rlvr_cli.methods.grpo import group_advantage
from rlvr_cli.methods.kl import k3
from rlvr_cli.methods.method import Method
from rlvr_cli.models.sampling.engine import Completions, SamplingParams
from rlvr_cli.models.sampling.local import sample
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.seal import file_digest
from rlvr_cli.tasks import kk_compact as compact
from rlvr_cli.training import run as running
from rlvr_cli.training.metrics import StepMeter
from rlvr_cli.training.packing import pad_values
from rlvr_cli.training.prepare import PreparedRun
from rlvr_cli.training.rollouts import RolloutBatch
from tests.methods.surrogates import aggregated, surrogate
from tests.training.harness import (
    LEARNING_RATE,
    UPDATES,
    GradientTrainer,
    ScriptedRollouts,
    arguments,
    completion_log_probs,
    dataset,
    flat_gradient,
    load_base,
    method_of,
)
from tests.training.processes import interrupted_after

ROWS, GROUP, CAP = 16, 4, 2.0


class OtherSampler(ScriptedRollouts):
    """Says log-probs of its own for the tokens of the script."""

    def all_log_probs(self, rollout: int) -> list[list[float]]:
        generator = torch.Generator().manual_seed(1000 + rollout)
        _, completions, _ = self.script(rollout)
        return [(-1.0 - 5.0 * torch.rand(len(ids), generator=generator)).tolist() for ids in completions]

    def collect(self, rollout: int, problems: Any, first_row: int) -> RolloutBatch:
        said = self.all_log_probs(rollout)[first_row : first_row + len(problems)]
        return replace(super().collect(rollout, problems, first_row), log_probs=said)


def weighed(
    folder: Path,
    method: Method,
    model: Any,
    *,
    rollouts: ScriptedRollouts | None = None,
    correction: Correction | None,
    **settings: Any,
) -> GradientTrainer:
    trainer = GradientTrainer(
        method=method,
        rollouts=rollouts or OtherSampler(ROWS),
        meter=StepMeter(method, importance=correction is not None, mismatch=correction is not None),
        model=model,
        processing_class=make_tokenizer(compact.vocabulary()),
        args=arguments(folder, method, rows=ROWS, group=GROUP, **settings),
        train_dataset=dataset(ROWS, GROUP),
        correction=correction,
    )
    trainer.train()
    return trainer


def relative_error(ours: Tensor, other: Tensor) -> float:
    return float((ours - other).norm() / (other.norm() or 1.0))


def test_the_gradient_is_that_of_the_formula(tmp_path: Path) -> None:
    """Two rollouts, two updates on each. The weight is that of the policy before the first, and no part of the KL."""
    beta, temperature = 0.1, 0.7
    method = method_of("grpo", f"kl.beta={beta}")
    model = load_base(tmp_path)
    trained, reference = load_base(tmp_path), copy.deepcopy(model)
    trainer = weighed(tmp_path, method, trained, correction=TokenCorrection(), micro_batch=4, epochs=2, temperature=temperature)
    assert len(trainer.gradients) == 4
    script = OtherSampler(ROWS)
    for step, gradient in enumerate(trainer.gradients):
        rollout, epoch = divmod(step, 2)
        prompts, completions, rewards = script.script(rollout)
        log_probs = completion_log_probs(model, prompts, completions, temperature)
        if epoch == 0:
            old = log_probs.detach()
        mask = torch.zeros_like(old)
        sampler = torch.zeros_like(old)
        for row, said in enumerate(script.all_log_probs(rollout)):
            mask[row, : len(said)] = 1
            sampler[row, : len(said)] = torch.tensor(said)
        weights = torch.minimum((old - sampler).exp(), torch.tensor(CAP)) * mask
        capped = (weights == CAP).sum() / mask.sum()
        assert 0.05 < capped < 0.95 and weights[mask.bool()].min() < 0.5
        advantages = group_advantage(torch.tensor(rewards, dtype=torch.float32), GROUP, divide_by_std=True).unsqueeze(1)
        tokens = Tokens(log_probs, old, advantages, mask)
        loss = surrogate(method.policy_loss, tokens) * weights
        with torch.no_grad():
            other = completion_log_probs(reference, prompts, completions, temperature)
        loss = loss + beta * k3(log_probs, other)
        model.zero_grad()
        aggregated(method.aggregation, loss, mask, advantages).backward()
        assert relative_error(gradient, flat_gradient(model)) < 1e-5
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= LEARNING_RATE * parameter.grad
    numbers = trainer.state.log_history[-1]
    assert 0 < numbers["importance/weight"] < CAP and 0.05 < numbers["importance/capped"] < 0.95


@pytest.mark.parametrize(
    ("chosen", "correction"),
    [
        ((), None),
        (("rollout.engine=local",), None),
        (("rollout.engine=transformers", "rollout.behind=2"), None),
        (("rollout.engine=vllm_colocate",), TokenCorrection(cap=2.0)),
        (("rollout.engine=vllm_colocate", "rollout.correction=none"), None),
        (("rollout.correction=token", "rollout.correction.cap=5"), TokenCorrection(cap=5.0)),
        (("rollout.correction=opsm",), OffPolicySequenceMask(delta=0.5)),
    ],
)
def test_auto_follows_the_engine(chosen: tuple[str, ...], correction: Correction | None) -> None:
    assert load_config(method="grpo", overrides=chosen).rollout.active_correction == correction


def test_micro_batches_change_nothing_and_the_weights_do(tmp_path: Path) -> None:
    method = method_of("gspo")
    settings: dict[str, Any] = {"correction": TokenCorrection(), "updates": UPDATES}
    whole, split = (
        weighed(tmp_path, method, load_base(tmp_path), micro_batch=size, **settings).gradients for size in (8, 2)
    )
    for ours, other in zip(whole, split, strict=True):
        assert relative_error(ours, other) < 1e-9
    # Without a correction nobody asks what the sampler said: this script could not answer.
    plain = weighed(
        tmp_path, method, load_base(tmp_path), rollouts=ScriptedRollouts(ROWS), correction=None, micro_batch=8, updates=UPDATES
    )
    assert relative_error(whole[0], plain.gradients[0]) > 0.01
    assert not any("importance" in name or "mismatch" in name for name in plain.state.log_history[-1])


def warmer(model: Any, prompts: Any, params: SamplingParams, **named: Any) -> Completions:
    return sample(model, prompts, replace(params, temperature=1.2), **named)


def test_resume_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped between the four updates on a rollout, whose sampler's log-probs are in the checkpoint then."""
    prepare = running.prepare_run

    def with_warmer(*given: Any) -> PreparedRun:
        return dataclasses.replace(prepare(*given), engine=warmer)

    monkeypatch.setattr(running, "prepare_run", with_warmer)
    small = (
        "train.rollouts=3",
        "rollout.prompts=2",
        "rollout.max_new_tokens=32",
        "task.train_size=32",
        "run.threads=1",
    )
    updates = ("update.mini_batches=4", "checkpoint.every=3", "optimizer.lr=1e-3", "rollout.correction=token", "rollout.correction.cap=1.05")

    def start(name: str) -> RunDir:
        config = load_config(method="grpo", overrides=[*small, *updates, f"run.dir={tmp_path}", f"run.name={name}"])
        return running.start_training(config, overwrite=False, console=Console(quiet=True)).run

    def numbers(run: RunDir) -> list[Any]:
        return [json.loads(line) for line in run.metrics_path.read_text().splitlines()]

    whole = start("whole")
    with interrupted_after(5):
        broken = start("broken")
    assert broken.read_manifest()["step"] % 4
    assert running.resume_training(broken, console=Console(quiet=True)).status == "finished"
    assert numbers(broken) == numbers(whole)
    assert all(0 < row["importance/capped"] < 1 and 0.5 < row["importance/weight"] < 1.05 for row in numbers(whole))
    first, second = (
        file_digest(valid_checkpoints(run.checkpoints_dir)[0].path / "model.safetensors") for run in (whole, broken)
    )
    assert first == second


def test_what_the_sampler_could_not_say_is_not_weighed() -> None:
    old, said = torch.tensor([[-1.0, -2.0, 0.0]]), torch.tensor([[-2.0, torch.nan, 0.0]])
    torch.testing.assert_close(log_ratios(old, said), torch.tensor([[1.0, 0.0, 0.0]]))


def test_values_take_the_places_of_their_tokens() -> None:
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 1, 1]])
    rows = pad_values([[-1.0, -2.0], [-9.0], [-3.0, -4.0, -5.0]], mask)
    assert rows.tolist() == [[-1.0, -2.0, 0.0], [0.0, 0.0, 0.0], [-3.0, -4.0, -5.0]]
    with pytest.raises(ValueError, match="row 0: 1 values from the sampler for 2 tokens"):
        pad_values([[-1.0], [], [-3.0, -4.0, -5.0]], mask)
