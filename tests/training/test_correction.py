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

from rlvr_cli.config.load import load_config
from rlvr_cli.methods.base import Tokens
from rlvr_cli.methods.correction import (
    Correction,
    GeometricRejection,
    IcePop,
    MaskedSequence,
    OffPolicySequenceMask,
    SequenceCorrection,
    TokenCorrection,
    log_ratios,
)
from rlvr_cli.methods.grpo import group_advantage
from rlvr_cli.methods.kl import k3
from rlvr_cli.models.sampling.engine import Completions, SamplingParams
from rlvr_cli.models.sampling.local import sample
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.seal import file_digest
from rlvr_cli.training import run as running
from rlvr_cli.training.packing import pad_values
from rlvr_cli.training.prepare import PreparedRun
from tests.methods.surrogates import aggregated, surrogate
from tests.training.harness import (
    UPDATES,
    NoisyRollouts,
    ScriptedRollouts,
    completion_log_probs,
    divided,
    flat_gradient,
    load_base,
    method_of,
    train_corrected,
)
from tests.training.processes import interrupted_after, run_as_two

ROWS, GROUP = 16, 4
ACTIVE: list[Any] = [
    TokenCorrection(cap=1.2),
    IcePop(low=0.8, high=1.3),
    SequenceCorrection(),
    MaskedSequence(),
    GeometricRejection(low=0.9, high=1.1),
    OffPolicySequenceMask(delta=0.02),
]


def relative_error(ours: Tensor, other: Tensor) -> float:
    return float((ours - other).norm() / (other.norm() or 1.0))


@pytest.mark.parametrize("correction", ACTIVE, ids=lambda correction: correction.kind)
@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_the_gradient_is_that_of_the_formula(tmp_path: Path, name: str, correction: Correction) -> None:
    """Two rollouts, two updates on each; the KL term is not weighted, and the divisor counts every row."""
    beta, rate = 0.1, 0.05
    method = method_of(name, f"kl.beta={beta}")
    model = load_base(tmp_path)
    trained, reference = load_base(tmp_path), copy.deepcopy(model)
    rollouts = NoisyRollouts(ROWS, trained)
    trainer = train_corrected(
        tmp_path, method, trained, correction, rollouts=rollouts, micro_batch=4, epochs=2, learning_rate=rate
    )
    assert len(trainer.gradients) == 4
    shares = []
    for step, gradient in enumerate(trainer.gradients):
        rollout, epoch = divmod(step, 2)
        prompts, completions, rewards = rollouts.script(rollout)
        log_probs = completion_log_probs(model, prompts, completions)
        if epoch == 0:
            old = log_probs.detach()
        lengths = torch.tensor([len(completion) for completion in completions])
        mask = (torch.arange(old.shape[1]) < lengths.unsqueeze(1)).to(old.dtype)
        sampler = pad_values(rollouts.recorded[rollout], mask).to(old.dtype)
        advantages = group_advantage(torch.tensor(rewards, dtype=torch.float32), GROUP, divide_by_std=True).unsqueeze(1)
        tokens = Tokens(log_probs, old, advantages, mask)
        # Against plain Python in tests/methods/test_correction.py.
        weights, cut = correction.weights(tokens, sampler)
        shares.append(float((cut * mask).sum() / mask.sum()))
        if method.policy_loss.per_sequence:
            weights = (weights * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)
        loss = surrogate(method.policy_loss, tokens) * weights
        with torch.no_grad():
            other = completion_log_probs(reference, prompts, completions)
        loss = loss + beta * k3(log_probs, other)
        model.zero_grad()
        aggregated(method.aggregation, loss, mask, advantages).backward()
        assert relative_error(gradient, flat_gradient(model)) < 1e-5
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= rate * parameter.grad
    assert 0 < max(shares) < 1
    numbers = trainer.meter_rows[-1]
    # The KL term trains every token, so the forward passes have all.
    assert numbers["importance/capped"] + numbers["importance/dropped"] == pytest.approx(shares[-1], abs=1e-6)


@pytest.mark.parametrize("correction", ACTIVE, ids=lambda correction: correction.kind)
@pytest.mark.parametrize("name", ["grpo", "lopti", "gtpo"])
def test_what_forward_passes_leave_out_changes_no_weight(tmp_path: Path, name: str, correction: Correction) -> None:
    """Rows and tokens without a gradient are skipped; a weight of whole rows reads their other tokens all the same."""
    method = divided(method_of(name))
    fast, plain = (
        train_corrected(tmp_path, method, load_base(tmp_path), correction, plain=each, micro_batch=4, updates=UPDATES)
        for each in (False, True)
    )
    assert len(fast.gradients) == len(plain.gradients)
    for ours, other in zip(fast.gradients, plain.gradients, strict=True):
        assert relative_error(ours, other) < 1e-6


@pytest.mark.parametrize("correction", [MaskedSequence(), OffPolicySequenceMask(delta=0.02)], ids=["mis", "opsm"])
def test_two_processes_make_the_gradient_of_one(tmp_path: Path, correction: Any) -> None:
    """The divisor counts the rejected rows of both, and so do the metrics."""
    alone = train_corrected(
        tmp_path, method_of("grpo"), load_base(tmp_path), correction, micro_batch=4, updates=UPDATES
    )
    run_as_two(Path(__file__).with_name("correction_of_processes.py"), str(tmp_path), correction.kind)
    together = torch.load(tmp_path / "together.pt", weights_only=True)
    for ours, single in zip(together["gradients"], alone.gradients, strict=True):
        assert relative_error(ours, single) < 1e-6
    rows = [
        {name: row[name] for name in row if name.startswith(("mismatch/", "importance/"))} for row in alone.meter_rows
    ]
    assert [len(row) for row in rows] == [14] * len(rows) and any(row["importance/rows_dropped"] for row in rows)
    for ours, single in zip(together["rows"], rows, strict=True):
        assert ours.keys() == single.keys()
        for name, value in single.items():
            assert ours[name] == (None if value is None else pytest.approx(value, rel=1e-6)), name


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
    method, correction = method_of("gspo"), TokenCorrection()
    whole, split = (
        train_corrected(tmp_path, method, load_base(tmp_path), correction, micro_batch=size, updates=UPDATES).gradients
        for size in (8, 2)
    )
    for ours, other in zip(whole, split, strict=True):
        assert relative_error(ours, other) < 1e-9
    # Without a correction the sampler's log-probs are not read: this script has none.
    script = ScriptedRollouts(ROWS)
    plain = train_corrected(
        tmp_path, method, load_base(tmp_path), None, rollouts=script, micro_batch=8, updates=UPDATES
    )
    assert relative_error(whole[0], plain.gradients[0]) > 0.01
    assert not any("importance" in name or "mismatch" in name for row in plain.meter_rows for name in row)


def warmer(model: Any, prompts: Any, params: SamplingParams, **named: Any) -> Completions:
    return sample(model, prompts, replace(params, temperature=1.2), **named)


@pytest.mark.parametrize("kind", ["token", "geometric"])
def test_resume_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
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
    limits = {"token": ("rollout.correction.cap=1.05",), "geometric": ("rollout.correction.low=0.98",)}[kind]
    updates = (
        "update.mini_batches=4",
        "checkpoint.every=3",
        "optimizer.lr=1e-3",
        f"rollout.correction={kind}",
        *limits,
    )

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
    cut = "importance/capped" if kind == "token" else "importance/rows_dropped"
    assert any(0 < row[cut] < 1 and 0 < row["importance/weight"] < 1.05 for row in numbers(whole))
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
