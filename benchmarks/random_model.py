"""Models of random weights in shapes that train on a CPU within seconds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from rlvr_cli.models.source import PRESETS

SHAPES: dict[str, dict[str, Any]] = {
    "qwen2-29M": {
        "model_type": "qwen2",
        "hidden_size": 384,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "vocab_size": 32000,
        "tie_word_embeddings": True,
    },
    "qwen3-125M": {
        "model_type": "qwen3",
        "hidden_size": 768,
        "intermediate_size": 2304,
        "num_hidden_layers": 14,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 32000,
        "tie_word_embeddings": True,
    },
    "llama-315M": {
        "model_type": "llama",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "tie_word_embeddings": False,
    },
}


def random_model(shape: str, folder: Path) -> None:
    """Write a model of random weights with the lab's tokenizer, whose words are the first of its vocabulary."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**SHAPES[shape], max_position_embeddings=2048, eos_token_id=1, pad_token_id=0)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(PRESETS["lab"] / name, folder)
