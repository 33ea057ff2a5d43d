"""Supervised fine-tuning of other models than the lab's: dropout, other layers, English solutions, a chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr_cli.core.errors import UserError
from rlvr_cli.models.load import load_model
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.training.prepare import prepare_run
from tests.e2e.test_other_models import byte_tokenizer
from tests.matrix import contents, metrics, newest, resume
from tests.training.processes import interrupted_after
from tests.training.sft_runs import configure, start

ENGLISH: dict[str, Any] = {
    "rollout__max_new_tokens": 800,
    "rollout__group_size": 2,
    "update__epochs": 1,
    "task__name": "countdown",
    "method__demonstrations": 4,
    "checkpoint__every": 2,
    "validation__every": 0,
}


def saved(folder: Path) -> str:
    torch.manual_seed(0)
    tokenizer = byte_tokenizer(None)
    model = gpt2_with_room(len(tokenizer))
    model.config.max_position_embeddings = 8192
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def gpt2_with_room(vocabulary: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, n_embd=32, n_layer=2, n_head=2, n_positions=8192))


def test_held_out_problems_need_a_sampler_of_the_model(tmp_path: Path) -> None:
    settings = {**ENGLISH, "model__name": saved(tmp_path / "model"), "validation__every": 1}
    with pytest.raises(UserError, match=r"validation\.engine: local cannot .* Use validation\.engine=trans"):
        prepare_run(configure(tmp_path, "run", **settings, validation__engine="local"))


def test_training_and_resume(tmp_path: Path) -> None:
    """GPT-2 has dropout: what is dropped after a resume must be what would have been dropped."""
    model = saved(tmp_path / "model")
    settings = {**ENGLISH, "model__name": model, "update__dropout": True}
    demonstrations = prepare_run(configure(tmp_path, "run", **settings)).method.demonstrations
    _, tokenizer = load_model(model, dtype="float32")
    texts = [tokenizer.decode(row.completion) for row in demonstrations]
    assert all("</think>" in text and text.endswith("</answer><|im_end|>") for text in texts)
    prompt = tokenizer.decode(demonstrations[0].prompt)
    assert prompt.endswith("<think>")
    whole = start(tmp_path, "whole", **settings).run
    with interrupted_after(3):
        broken: RunDir = start(tmp_path, "broken", **settings).run
    assert len(metrics(broken)) < len(metrics(whole))
    resume(broken)
    assert contents(broken) == contents(whole)
    assert type(load_model(str(newest(whole)), dtype="float32")[0]) is type(load_model(model, dtype="float32")[0])
