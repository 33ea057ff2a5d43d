"""What rlvr_cli/training/trl_adapter.py relies on inside TRL and transformers.

When a release changes one of these, the first test fails and names it: read the change, check the adapter against it,
run tests/training, and only then record the new hash.
"""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer
from trl import GRPOTrainer

from rlvr_cli.training.trl_adapter import MethodTrainer
from tests.training.harness import grpo, tiny_model, train

SOURCES = {
    "GRPOTrainer._prepare_inputs": "f824e7fb07147956",
    "GRPOTrainer._generate_and_score_completions": "1fa48922792dcd5c",
    "GRPOTrainer._generate": "2a27fdf8f5e6f356",
    "GRPOTrainer._calculate_rewards": "736ae29b083840b5",
    "GRPOTrainer._get_per_token_logps_and_entropies": "ea73c3909275851d",
    "GRPOTrainer._compute_loss": "80295546bbdbf6f7",
    "GRPOTrainer.training_step": "9e18632f7dd8e8d8",
    "Trainer._run_epoch": "31aff00f34c302a2",
    "Trainer._maybe_log_save_evaluate": "af101534f0f7b2d7",
    "Trainer._prepare_for_training": "f55950593d7e10c0",
    "Trainer._init_training_state": "8fbd17ebb7d3793d",
    "Trainer._load_from_checkpoint": "a2804e8d93a297e3",
    "Trainer._get_grad_norm": "913ba6f52f074d10",
    "Trainer.create_scheduler": "a9edec70a59bffa5",
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_source_we_were_written_against_is_unchanged(name: str) -> None:
    owner, method = name.split(".")
    source = inspect.getsource(getattr({"GRPOTrainer": GRPOTrainer, "Trainer": Trainer}[owner], method))
    found = hashlib.sha256(source.encode()).hexdigest()[:16]
    assert found == SOURCES[name], f"{name} changed: check rlvr_cli/training/trl_adapter.py against it"


def test_every_override_overrides_something() -> None:
    """A private method that TRL renames would silently never be called."""
    ours = {name for name, value in vars(MethodTrainer).items() if inspect.isfunction(value)}
    private = {name for name in ours if name.startswith("_") and not name.startswith("__")}
    own = {"_sample", "_rewards", "_sorted_within_steps", "_trimmed_forward", "_apply_method", "_normalizer_tokens"}
    assert {name for name in private - own if not hasattr(GRPOTrainer, name)} == set()
    assert own <= private and not any(hasattr(GRPOTrainer, name) for name in own)


def watch(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The micro-batch counter and the keys of every micro-batch that a loss is computed for."""
    seen: list[dict[str, Any]] = []
    compute = MethodTrainer._compute_loss

    def spy(self: MethodTrainer, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        slot = self._step % self.args.steps_per_generation
        assert self._buffered_inputs is not None and inputs is self._buffered_inputs[slot]
        seen.append({"step": self._step, "keys": set(inputs), "rollout": self.rollout_index})
        return compute(self, model, inputs)

    monkeypatch.setattr(MethodTrainer, "_compute_loss", spy)
    return seen


def test_the_counter_counts_micro_batches_and_names_the_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watch(monkeypatch)
    train(tmp_path, grpo(), tiny_model(), micro_batch=4, updates=2, epochs=2)
    assert [call["step"] for call in seen] == list(range(16))
    assert [call["rollout"] for call in seen] == [0] * 8 + [1] * 8


@pytest.mark.parametrize(("updates", "epochs"), [(1, 1), (2, 1), (1, 2)])
def test_old_log_probs_are_there_exactly_when_the_policy_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, updates: int, epochs: int
) -> None:
    """With a single update the ratio is 1 and TRL leaves the old log-probs out; else it must not."""
    seen = watch(monkeypatch)
    train(tmp_path, grpo(), tiny_model(), micro_batch=4, updates=updates, epochs=epochs)
    assert {"old_per_token_logps" in call["keys"] for call in seen} == {updates * epochs > 1}
