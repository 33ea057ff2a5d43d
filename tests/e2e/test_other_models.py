"""Models that are not the lab's: another architecture and tokenizer, a chat template, English prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rlvr_cli.cli.app import run
from rlvr_cli.runs.folder import RunDir

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer(chat_template: str | None) -> PreTrainedTokenizerFast:
    """Every byte is a token, as in byte-level BPE before any merge."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    fast.chat_template = chat_template
    return fast


def qwen2(vocabulary: int) -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=vocabulary, num_key_value_heads=2, **sizes))


def gpt2(vocabulary: int) -> Any:
    return GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, n_embd=32, n_layer=2, n_head=2, n_positions=4096))


@pytest.mark.parametrize(
    ("architecture", "template", "sampler"),
    [(qwen2, CHAT_TEMPLATE, "local key-value-cache"), (gpt2, None, "transformers' generate")],
)
def test_train_and_evaluate(tmp_path: Path, architecture: Any, template: str | None, sampler: str) -> None:
    torch.manual_seed(0)
    tokenizer = byte_tokenizer(template)
    model = architecture(len(tokenizer))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    # As published models have it: transformers would not save it again once the padding token is set.
    generation = tmp_path / "model" / "generation_config.json"
    generation.write_text(json.dumps({**json.loads(generation.read_text()), "do_sample": False, "temperature": 0.9}))
    sizes = ["rollout.prompts=2", "rollout.group_size=2", "rollout.max_new_tokens=8", "task.train_size=4"]
    settings = [*sizes, "train.rollouts=2", "update.mini_batches=2", "run.threads=1", "method=grpo+random-reward"]
    place = [f"run.dir={tmp_path / 'runs'}", "run.name=it"]
    assert run(["train", "--model", str(tmp_path / "model"), *place, *settings]) == 0

    it = RunDir(tmp_path / "runs" / "it")
    assert sampler in it.read_manifest()["sampler"]
    row = json.loads((it.rollouts_dir / "rollout-000000.jsonl").read_text().splitlines()[0])
    assert row["prompt"].endswith("<|im_start|>assistant\n<think>" if template else "Assistant: <think>")
    assert "inhabitants" in row["prompt"]
    rows = [json.loads(line) for line in it.metrics_path.read_text().splitlines()]
    assert any(row["grad_norm"] > 0 for row in rows)

    out = tmp_path / "eval"
    options = ["--problems", "3", "--samples", "2", "--pass-at", "2", "--output", str(out)]
    assert run(["eval", str(it.path), *options]) == 0
    assert json.loads((out / "metrics.json").read_text())["problems"] == 3

    assert run(["export", str(it.path), "--output", str(tmp_path / "exported")]) == 0
    for folder in (tmp_path / "exported", it.checkpoints_dir / "step-4"):
        assert json.loads((folder / "generation_config.json").read_text())["temperature"] == 0.9
