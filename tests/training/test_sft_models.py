"""Supervised fine-tuning of other models than the lab's: dropout, other layers, English solutions, a chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import get_peft_model

from rlvr_cli.config.model import LoRAConfig
from rlvr_cli.evaluation.sampling import weights_hash
from rlvr_cli.models.adapter import merged, peft_config
from rlvr_cli.models.load import load_model
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.training.prepare import prepare_run
from tests.e2e.test_other_models import CHAT_TEMPLATE, byte_tokenizer, gpt2, qwen2
from tests.models.tiny import MODELS, VOCABULARY, make
from tests.training.processes import interrupted_after
from tests.training.sft_runs import configure, contents, newest, resume, rows, start

ENGLISH: dict[str, Any] = {
    "rollout__max_new_tokens": 2000,
    "rollout__group_size": 2,
    "update__epochs": 1,
    "task__people": "{2: 1.0}",
    "method__demonstrations": 4,
    "checkpoint__every": 2,
    "eval__every": 0,
}


def saved(folder: Path, architecture: Any, template: str | None) -> str:
    torch.manual_seed(0)
    tokenizer = byte_tokenizer(template)
    model = architecture(len(tokenizer))
    model.config.max_position_embeddings = 8192
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def gpt2_with_room(vocabulary: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, n_embd=32, n_layer=2, n_head=2, n_positions=8192))


@pytest.mark.parametrize(
    ("architecture", "template", "rank"),
    [
        pytest.param(qwen2, CHAT_TEMPLATE, 4, id="qwen2-lora", marks=pytest.mark.slow),
        pytest.param(gpt2_with_room, None, None, id="gpt2-full"),
    ],
)
def test_training_and_resume(tmp_path: Path, architecture: Any, template: str | None, rank: int | None) -> None:
    """GPT-2 has dropout: what is dropped after a resume must be what would have been dropped."""
    model = saved(tmp_path / "model", architecture, template)
    settings = {
        **ENGLISH,
        "model__name": model,
        "update__dropout": template is None,
        **({"model__adapter": f"{{kind: lora, rank: {rank}}}"} if rank else {}),
    }
    demonstrations = prepare_run(configure(tmp_path, "run", **settings)).method.demonstrations
    _, tokenizer = load_model(model, dtype="float32")
    texts = [tokenizer.decode(row.completion) for row in demonstrations]
    assert all("</think><answer> (1) " in text and text.endswith("</answer><|im_end|>") for text in texts)
    prompt = tokenizer.decode(demonstrations[0].prompt)
    assert prompt.endswith("<|im_start|>assistant\n<think>" if template else "Assistant: <think>")
    whole = start(tmp_path, "whole", **settings).run
    with interrupted_after(3):
        broken: RunDir = start(tmp_path, "broken", **settings).run
    assert len(rows(broken)) < len(rows(whole))
    resume(broken)
    assert contents(broken) == contents(whole)
    assert type(load_model(str(newest(whole)), dtype="float32")[0]) is type(load_model(model, dtype="float32")[0])


@pytest.mark.parametrize("name", [*MODELS, "gpt2"])
def test_merged_is_the_adapted_model(name: str) -> None:
    """Biases, tied heads and GPT-2's transposed layers among them; in float64, as large adapters amplify rounding."""
    base = (gpt2(VOCABULARY).eval() if name == "gpt2" else make(name)).double()
    before, untouched = weights_hash(base), {id(weight) for weight in base.parameters()}
    config = peft_config(LoRAConfig(rank=3, alpha=16.0))
    adapted = get_peft_model(base, config).double()
    trained = [weight for weight in adapted.parameters() if weight.requires_grad]
    for weight in trained:
        torch.nn.init.normal_(weight, 0.0, 0.3)
    ids = torch.randint(0, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = adapted(ids).logits
        with merged(adapted) as plain:
            assert not any("lora" in key or "base_layer" in key for key in plain.state_dict())
            assert weights_hash(plain) != before
            torch.testing.assert_close(plain(ids).logits, expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(adapted(ids).logits, expected)
        assert weights_hash(adapted.unload()) == before
    assert {id(weight) for weight in base.parameters()} == untouched
