"""What an update may leave out, in real runs: the same steps, and how much was computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr_cli.config.load import load_config
from rlvr_cli.training.forward import PolicyForward
from rlvr_cli.training.policy_run import _sampler_exact
from rlvr_cli.training.trainer import PolicyTrainer
from tests.models.tiny import rounding
from tests.training.harness import ScriptedRollouts, load_base, method_of, tiny_model, train
from tests.training.plain_forward import PlainForward
from tests.training.test_run import metrics, start


@pytest.mark.parametrize(
    "method",
    [
        "lopti",
        "gtpo",
    ],
)
def test_the_first_rollout_s_steps_are_the_same(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler's log-probs and entropies among what is reused; later rollouts may differ by a token."""
    changes = {"method__name": method, "train__rollouts": 1, "update__mini_batches": 2}
    quick = metrics(start(tmp_path, "quick", **changes).run)
    monkeypatch.setattr("rlvr_cli.training.trainer.PolicyForward", PlainForward)
    monkeypatch.setattr("rlvr_cli.training.policy_run._sampler_exact", lambda *given, **named: False)
    plain = metrics(start(tmp_path, "plain", **changes).run)
    # What would be looked at if nothing was learned from.
    assert max(row["grad_norm"] for row in plain) > 0.01
    # Log-probs go down to about -10, and the first update measures nothing but their rounding.
    noise = rounding(torch.tensor(-10.0))["atol"]
    for mine, other in zip(quick, plain, strict=True):
        assert mine["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)
        for key in ("ratio_mean", "ratio_std", "kl_old", "kl_reference", "prob_distance", "policy_loss", "trained"):
            assert mine[key] == pytest.approx(other[key], rel=1e-3, abs=noise), key
        for key in ("entropy", "length", "update_tokens", "clip_frac/low", "clip_frac/high", "pass", "accuracy"):
            assert mine[key] == other[key], key


def test_no_forward_pass_takes_log_probs_that_the_sampler_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the check of the sampler at the start of a run."""
    calls = []
    whole = PolicyForward.without_gradient
    monkeypatch.setattr(
        PolicyForward, "without_gradient", lambda *given, **named: calls.append(1) or whole(*given, **named)
    )
    for method in ("lopti", "gtpo"):
        changes = {"method__name": method, "method__kl__beta": 0.0, "update__mini_batches": 2}
        start(tmp_path, method, **changes)
    assert calls == [1, 1], "one check each, at the first rollout"


def test_a_model_that_is_updated_with_dropout_is_not_the_one_that_sampled() -> None:
    model = tiny_model().float()
    assert _sampler_exact(load_config(), model, bf16=False)
    assert not _sampler_exact(load_config(overrides=["update.dropout=true"]), model, bf16=False)


class EqualRewards(ScriptedRollouts):
    """Every completion is as good as every other."""

    def script(self, rollout: int) -> Any:
        prompts, completions, rewards = super().script(rollout)
        return prompts, completions, [1.0] * len(rewards)


def test_a_step_without_any_gradient_is_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradient is 0 everywhere, and not absent: momentum decays, and processes meet in the backward pass."""
    monkeypatch.setattr("tests.training.harness.ScriptedRollouts", EqualRewards)
    trainer = train(tmp_path, method_of("grpo"), load_base(tmp_path), micro_batch=4, updates=2)
    assert len(trainer.gradients) == 4
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in trainer.gradients)


def test_rows_end_at_the_last_token_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lopti's passes make logits for their own tokens alone, and the two together for each token once."""
    seen: dict[str, int] = {"low": 0, "high": 0}
    outputs = PolicyTrainer._outputs

    def counting(self: PolicyTrainer, model: Any, rows: Any, grad_mask: torch.Tensor, **named: Any) -> Any:
        seen[self.current_pass] += int(grad_mask.sum())
        return outputs(self, model, rows, grad_mask, **named)

    monkeypatch.setattr(PolicyTrainer, "_outputs", counting)
    rows = metrics(start(tmp_path, "lopti", method__name="lopti", method__kl__beta=0.0, train__rollouts=1).run)
    learned = sum(row["trained"] * row["update_tokens"] for row in rows)
    assert sum(seen.values()) == pytest.approx(learned, abs=1e-6)
    assert 0 < seen["low"] < seen["high"]
