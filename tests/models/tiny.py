"""Tiny random models of each architecture, with weights large enough that mistakes show in the log-probs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

VOCABULARY = 50
# How many roundings of the largest value two orders of the same sums may part by; a small model shows about five.
ROUNDINGS = 64
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_SIZE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}

MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "qwen2-gqa-untied": (Qwen2ForCausalLM, Qwen2Config, {"num_key_value_heads": 2}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"num_key_value_heads": 4, "head_dim": 8}),
    "qwen3-gqa-wide-heads-tied": (
        Qwen3ForCausalLM,
        Qwen3Config,
        {"num_key_value_heads": 1, "head_dim": 20, "tie_word_embeddings": True, "attention_bias": True},
    ),
    "llama": (LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 4}),
    "llama3-rope-gqa-biases": (
        LlamaForCausalLM,
        LlamaConfig,
        {
            "num_key_value_heads": 2,
            "rope_parameters": LLAMA3_ROPE,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
}

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LINEAR_ATTENTION = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
# Mixtures of experts. PEFT adapts the experts of the first three, by parameter.
MIXTURES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "qwen3-moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig, {**_EXPERTS, "num_key_value_heads": 2, "head_dim": 8}),
    "mixtral": (MixtralForCausalLM, MixtralConfig, {"num_local_experts": 4, "num_key_value_heads": 2}),
    "qwen3-next": (
        Qwen3NextForCausalLM,
        Qwen3NextConfig,
        {
            **_EXPERTS,
            **_LINEAR_ATTENTION,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "shared_expert_intermediate_size": 16,
        },
    ),
    "qwen2-moe": (
        Qwen2MoeForCausalLM,
        Qwen2MoeConfig,
        {**_EXPERTS, "num_key_value_heads": 2, "shared_expert_intermediate_size": 16},
    ),
    "phi-moe": (PhimoeForCausalLM, PhimoeConfig, {"num_local_experts": 4, "num_key_value_heads": 2}),
}


def make(name: str, **changes: Any) -> Any:
    """A model of MODELS or MIXTURES in eval mode; its norms' weights and its biases are random too."""
    cls, config, options = {**MODELS, **MIXTURES}[name]
    torch.manual_seed(7)
    model = cls(config(**{**_SIZE, "initializer_range": 0.15, **options, **changes})).eval()
    for key, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in key else 0.0, 0.2)
    return model


def rounding(*values: torch.Tensor) -> dict[str, float]:
    """The tolerance between two float32 computations of a model's numbers, which add in different orders.

    ``values`` are whole distributions of log-probs, or logits: what they are made of decides how much is rounded,
    and a likely token's log-prob is small although it is the difference of large logits.
    """
    largest = max(float(value.abs().max()) for value in values)
    return {"atol": ROUNDINGS * torch.finfo(torch.float32).eps * max(1.0, largest), "rtol": 0.0}


def full_log_probs(model: Any, prompt: Sequence[int], completion: Sequence[int], temperature: float) -> torch.Tensor:
    """Log-probs [tokens, vocabulary] at the positions of a completion, by one forward over the whole text."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1].float()
    return (logits / temperature).log_softmax(-1)


def full_entropies(model: Any, prompt: Sequence[int], completion: Sequence[int], temperature: float) -> torch.Tensor:
    """Entropies [tokens] at the positions of a completion, in float64."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1].double()
    return torch.distributions.Categorical(logits=logits / temperature).entropy()
