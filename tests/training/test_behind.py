"""rollout.behind: which weights sample which rollout, what is compared with them, and resuming."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.seal import file_digest
from rlvr_cli.training import run as running
from rlvr_cli.training.past_weights import PastWeights
from rlvr_cli.training.policy_run import PolicyRunTrainer
from rlvr_cli.training.prepare import PreparedRun
from tests.training.processes import interrupted_after

SMALL = (
    "train.rollouts=5",
    "rollout.prompts=4",
    "rollout.max_new_tokens=32",
    "task.train_size=32",
    "run.threads=1",
    "update.mini_batches=2",
    "optimizer.lr=1e-3",
)
ADAPTER = ("model.adapter=lora", "model.adapter.rank=4")


def start(folder: Path, name: str, *overrides: str) -> RunDir:
    settings = [*SMALL, *overrides, f"run.dir={folder}", f"run.name={name}"]
    config = load_config(method="grpo", overrides=settings)
    return running.start_training(config, overwrite=False, console=Console(quiet=True)).run


def steps(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics_path.read_text().splitlines()]


def digest(model: Any) -> str:
    return text_digest(str([weight.double().sum().item() for weight in model.parameters()]))


@pytest.mark.parametrize(
    "overrides", [(), ("rollout.engine=transformers",), ADAPTER], ids=["local", "transformers", "lora"]
)
def test_a_rollout_is_sampled_by_the_weights_of_k_rollouts_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...]
) -> None:
    sampled: list[str] = []
    current: list[str] = []
    prepare, begin = running.prepare_run, PolicyRunTrainer.on_updates_begin

    def with_record(*arguments: Any) -> PreparedRun:
        prepared = prepare(*arguments)
        assert prepared.engine is not None
        engine = prepared.engine

        def recording(model: Any, *rest: Any, **named: Any) -> Any:
            sampled.append(digest(model))
            return engine(model, *rest, **named)

        return dataclasses.replace(prepared, engine=recording)

    def beginning(trainer: PolicyRunTrainer, rollout: int) -> None:
        current.append(digest(trainer.model))
        begin(trainer, rollout)

    monkeypatch.setattr(running, "prepare_run", with_record)
    monkeypatch.setattr(PolicyRunTrainer, "on_updates_begin", beginning)
    run = start(tmp_path, "run", "rollout.behind=2", *overrides)
    assert len(set(current)) == 5
    assert sampled == [current[max(0, rollout - 2)] for rollout in range(5)]
    # An intended staleness is no fault of the sampler, and every step shows it.
    assert "WARNING" not in run.log_path.read_text() and run.read_manifest()["sampler_check"]["matches"]
    mismatch = [row["mismatch/log_prob"] for row in steps(run)]
    assert max(mismatch[:2]) < 1e-5 < 1e-3 < min(mismatch[2:])
    assert all(row["mismatch/kl"] > 0 for row in steps(run)[2:])


@pytest.mark.parametrize("overrides", [(), ADAPTER], ids=["whole", "lora"])
def test_resume_is_exact(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    """Stopped between the four updates on a rollout whose sampler is two rollouts behind."""
    settings = (
        "update.mini_batches=4",
        "checkpoint.every=3",
        "rollout.behind=2",
        "rollout.correction=token",
        *overrides,
    )
    whole = start(tmp_path, "whole", *settings)
    for steps_before in (6, 15):
        with interrupted_after(steps_before):
            broken = start(tmp_path, f"broken-{steps_before}", *settings)
        assert broken.read_manifest()["step"] == steps_before + 1
        checkpoint = valid_checkpoints(broken.checkpoints_dir)[0].path
        kept = sorted(path.name for path in (checkpoint / "trainer").glob("behind-*"))
        newest = steps_before // 4
        assert kept == [f"behind-{number}.safetensors" for number in (newest - 1, newest)]
        assert running.resume_training(broken, console=Console(quiet=True)).status == "finished"
        assert steps(broken) == steps(whole)
        for name in ("*model.safetensors", "trainer/behind-*.safetensors"):
            ours, other = (sorted(valid_checkpoints(run.checkpoints_dir)[0].path.glob(name)) for run in (broken, whole))
            assert list(map(file_digest, ours)) == list(map(file_digest, other)) and ours


def test_the_weights_are_those_of_before_after_sampling() -> None:
    """Also of a frozen parameter, which is not kept, and after an error."""
    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    past = PastWeights(model, behind=1)
    expected: list[float] = []
    for rollout in range(4):
        expected.append(model.weight[0, 0].item())
        before = model.weight.clone()
        with pytest.raises(RuntimeError, match="engine"), past.loaded(rollout):
            assert model.weight[0, 0].item() == expected[max(0, rollout - 1)]
            raise RuntimeError("engine")
        assert torch.equal(model.weight, before)
        assert set(past.history) == set(range(max(0, rollout - 1), rollout + 1)) and "bias" not in past.history[rollout]
        with torch.no_grad():
            model.weight.mul_(2).add_(1)


def test_sharded_weights_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"rollout.behind=2 keeps earlier weights .* launch.deepspeed=zero3 shards them"
    ):
        load_config(overrides=["rollout.behind=2", "launch.processes=2", "launch.deepspeed=zero3"])
