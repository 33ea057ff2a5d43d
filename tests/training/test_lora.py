"""Adapters under every method: their gradient, the reference without them, and runs that stop and go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor

from experiments.lab.model import make_tokenizer
from rlvr_cli.config.model import LoRAConfig
from rlvr_cli.evaluation.sampling import weights_hash
from rlvr_cli.models.adapter import merge_adapters, peft_config
from rlvr_cli.models.load import load_model
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.tasks import kk_compact as compact
from tests.matrix import metrics, newest
from tests.models.tiny import rounding
from tests.training import harness
from tests.training.harness import (
    GradientTrainer,
    ScriptedRollouts,
    arguments,
    completion_log_probs,
    dataset,
    load_base,
    method_of,
    plain_gradient,
)

ROWS, GROUP = 16, 4
ADAPTER = LoRAConfig(rank=3, alpha=6.0)


class AdapterTrainer(GradientTrainer):
    """Keeps the adapters' gradients by name, and the merged weights before each update."""

    def __init__(self, **named: Any) -> None:
        self.by_name: list[dict[str, Tensor]] = []
        self.weights: list[dict[str, Tensor]] = []
        super().__init__(**named)

    def on_updates_begin(self, rollout: int) -> None:
        with merge_adapters(self.model) as plain:
            self.weights.append({name: value.clone() for name, value in plain.state_dict().items()})

    def see_gradient(self) -> None:
        trained = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        self.by_name.append({name: weight.grad.clone() for name, weight in trained.items()})


def train(folder: Path, name: str, *overrides: str, **settings: Any) -> AdapterTrainer:
    method = method_of(name, *overrides)
    torch.manual_seed(0)
    trainer = AdapterTrainer(
        method=method,
        rollouts=ScriptedRollouts(ROWS),
        model=load_base(folder),
        peft_config=peft_config(ADAPTER),
        processing_class=make_tokenizer(compact.vocabulary()),
        args=arguments(folder, method, rows=ROWS, group=GROUP, micro_batch=4, **settings),
        train_dataset=dataset(ROWS, GROUP),
    )
    for parameter in trainer.model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.double()
    trainer.train()
    return trainer


@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
def test_the_gradient_is_that_of_the_merged_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpointing: bool
) -> None:
    """dL/dB = scale dL/dW A^T and dL/dA = scale B^T dL/dW, with dL/dW of plain PyTorch on the merged model."""
    load_base(tmp_path)
    method = method_of("grpo", "kl.beta=0.1")
    original = harness.trl_config
    monkeypatch.setattr(
        harness, "trl_config", lambda **named: original(**{**named, "gradient_checkpointing": checkpointing})
    )
    trainer = train(tmp_path, "grpo", "kl.beta=0.1")
    assert trainer.ref_model is None, "the reference is the base without the adapter"
    scale = ADAPTER.alpha / ADAPTER.rank
    checked = 0
    for rollout, weights in enumerate(trainer.weights):
        plain, reference = load_base(tmp_path), load_base(tmp_path)
        plain.load_state_dict(weights)
        prompts, completions, _ = ScriptedRollouts(ROWS).script(rollout)
        with torch.no_grad():
            old = completion_log_probs(plain, prompts, completions)
        plain_gradient(plain, reference, old, rollout, method, rows=ROWS, group=GROUP, temperature=1.0)
        ours = trainer.by_name[rollout]
        adapters = _adapters_before(trainer, rollout)
        for name, gradient in ours.items():
            layer = name.removeprefix("base_model.model.").split(".lora_")[0]
            whole = plain.get_submodule(layer).weight.grad
            a, b = adapters[f"{layer}.A"], adapters[f"{layer}.B"]
            expected = scale * whole @ a.T if ".lora_B." in name else scale * b.T @ whole
            torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-9)
            checked += 1
    assert checked == 2 * 2 * 7 * 2
    assert trainer.by_name[1]["base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight"].norm() > 0


def _adapters_before(trainer: AdapterTrainer, rollout: int) -> dict[str, Tensor]:
    """A and B of every layer before the update on ``rollout``: plain SGD is taken back from the end."""
    found = {}
    rate = trainer.args.learning_rate
    for name, weight in trainer.model.named_parameters():
        if not weight.requires_grad:
            continue
        value = weight.detach() + rate * sum(step[name] for step in trainer.by_name[rollout:])
        layer, kind = name.removeprefix("base_model.model.").split(".lora_")
        found[f"{layer}.{kind[0]}"] = value
    return found


def test_the_checkpoint_holds_adapters_alone_and_is_what_was_evaluated(matrix: Path) -> None:
    run = RunDir(matrix / "lora")
    step = newest(run)
    assert not (step / "model.safetensors").exists()
    adapter = load_file(step / "adapter_model.safetensors")
    assert adapter and all(".lora_A." in name or ".lora_B." in name for name in adapter)
    optimizer = load_file(step / "trainer" / "optimizer.safetensors")
    moments = [value for name, value in optimizer.items() if name.endswith(".exp_avg")]
    head = 2 if (step / "trainer" / "value_head.safetensors").exists() else 0
    assert len(moments) == len(adapter) + head
    model, _ = load_model(str(step), dtype="float32")
    evaluated = json.loads(sorted(run.held_out_dir.glob("*/meta.json"))[-1].read_text())
    assert evaluated["weights"] == weights_hash(model)
    base, _ = load_model("lab", dtype="float32")
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        expected = PeftModel.from_pretrained(base, step)(ids).logits
        torch.testing.assert_close(model(ids).logits, expected, **rounding(expected))
    kl = [row["kl_reference"] for row in metrics(run)]
    assert abs(kl[0]) < 1e-9, "nothing was learned yet"
    assert max(kl) > 1e-6
