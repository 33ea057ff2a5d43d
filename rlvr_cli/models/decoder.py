"""A lean functional forward of Qwen2, Qwen3 and Llama models with a preallocated key-value cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SUPPORTED = ("Qwen2ForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM")
# Rotary types whose frequencies do not change with the length of the sequence.
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")
# Below this many parameters a copy of the weights per call costs less than the separate matrix products it saves.
_FUSE_BELOW = 50_000_000


def supports(model: nn.Module) -> str | None:
    """None when the sampler computes exactly what this model computes, else the reason why it does not."""
    name = type(model).__name__
    if name not in SUPPORTED:
        return f"its architecture is {name}; the local sampler knows {', '.join(SUPPORTED)}"
    config: Any = model.config
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act!r}, not 'silu'"
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return "it uses sliding-window attention"
    decoder: Any = model.model
    if decoder.rotary_emb.rope_type not in _STATIC_ROPE:
        return (
            f"its rotary embedding is of type {decoder.rotary_emb.rope_type!r}, which depends on the length"
        )
    for path, module in model.named_modules():
        if path.endswith(("_proj", "lm_head")) and type(module) is not nn.Linear:
            return f"its layer {path} is a {type(module).__name__}, not a plain linear layer"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return "its weights lie on more than one device"
    return None


@dataclass(frozen=True)
class _Projection:
    """One or several linear layers applied to the same input; weights [out, in], biases [out] or None."""

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]

    def __call__(self, x: Tensor) -> Tensor:
        if len(self.weights) == 1:
            return F.linear(x, self.weights[0], self.biases[0])
        return torch.cat([F.linear(x, w, b) for w, b in zip(self.weights, self.biases, strict=True)], dim=-1)


@dataclass(frozen=True)
class _Layer:
    norm_in: Tensor | None
    qkv: _Projection
    norm_qk: Tensor | None  # [query heads + key heads, head_dim]; None where the model has no such norm
    out: _Projection
    norm_mlp: Tensor | None
    gate_up: _Projection
    down: _Projection


class Decoder:
    """The weights of one model, arranged for decoding; build a new one whenever the weights have changed.

    In float32 and for small models the weight of a normalisation is multiplied into the projection that follows
    it, and projections of the same input are stacked, so that a decoding step is few, large operations.
    """

    def __init__(self, model: Any) -> None:
        config = model.config
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.hidden: int = config.hidden_size
        self.eps: float = config.rms_norm_eps
        self.scale = self.head_dim**-0.5
        self.embedding: Tensor = model.model.embed_tokens.weight.detach()
        self.device, self.dtype = self.embedding.device, self.embedding.dtype
        self._rotary = model.model.rotary_emb
        self._fold = self.dtype == torch.float32 and model.num_parameters() < _FUSE_BELOW
        self.layers = [self._layer(layer) for layer in model.model.layers]
        self.norm_out, (self.head,) = self._after_norm(model.model.norm, (model.lm_head,))

    def _after_norm(self, norm: Any, linears: tuple[Any, ...]) -> tuple[Tensor | None, list[_Projection]]:
        """The norm's weight (None when folded away) and the projections of its output, stacked if folded."""
        weights = [linear.weight.detach() for linear in linears]
        biases = [None if linear.bias is None else linear.bias.detach() for linear in linears]
        if not self._fold:
            return norm.weight.detach(), [_Projection(tuple(weights), tuple(biases))]
        stacked = torch.cat(weights) * (norm.weight.detach() * math.sqrt(self.hidden))
        bias = torch.cat([b for b in biases if b is not None]) if biases[0] is not None else None
        return None, [_Projection((stacked,), (bias,))]

    def _layer(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        norm_in, (qkv,) = self._after_norm(
            layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        norm_mlp, (gate_up,) = self._after_norm(layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj))
        norm_qk = None
        if hasattr(attention, "q_norm"):
            q, k = attention.q_norm.weight.detach(), attention.k_norm.weight.detach()
            norm_qk = torch.cat([q.expand(self.heads, -1), k.expand(self.kv_heads, -1)])
        return _Layer(
            norm_in, qkv, norm_qk, _plain(attention.o_proj), norm_mlp, gate_up, _plain(mlp.down_proj)
        )

    def rotary_tables(self, length: int) -> tuple[Tensor, Tensor]:
        """cos and signed sin of positions 0 .. length - 1, each [length, head_dim].

        rope(x) = x * cos + swap_halves(x) * sin, the sign of rotate_half being in sin's first half.
        """
        positions = torch.arange(length, device=self.device).unsqueeze(0)
        cos, sin = self._rotary(torch.empty(0, device=self.device, dtype=torch.float32), positions)
        sin = sin[0].clone()
        sin[:, : self.head_dim // 2].neg_()
        return cos[0].to(self.dtype), sin.to(self.dtype)

    def _norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        if weight is not None:
            return F.rms_norm(x, x.shape[-1:], weight, self.eps)
        # x / sqrt(sum(x^2) + n eps); the factor sqrt(n) is in the folded weight.
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / torch.hypot(length, length.new_tensor(math.sqrt(x.shape[-1] * self.eps)))

    def _project_qkv(
        self, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x [n, hidden]; cos, sin broadcast to [n, heads, head_dim]. Returns q, k, v as [n, heads, head_dim]."""
        n, rotated = x.shape[0], self.heads + self.kv_heads
        qkv = layer.qkv(self._norm(x, layer.norm_in)).view(n, rotated + self.kv_heads, self.head_dim)
        qk = qkv[:, :rotated]
        if layer.norm_qk is not None:
            qk = F.rms_norm(qk, (self.head_dim,), None, self.eps).mul_(layer.norm_qk)
        swapped = qk.unflatten(-1, (2, -1)).flip(2).view(n, rotated, self.head_dim)
        qk = (qk * cos).addcmul_(swapped, sin)
        return qk[:, : self.heads], qk[:, self.heads :], qkv[:, rotated:]

    def _finish_layer(self, layer: _Layer, x: Tensor, attended: Tensor) -> Tensor:
        """Output projection, residual and feed-forward; x [n, hidden] is updated in place and returned."""
        x += layer.out(attended)
        gate_up = layer.gate_up(self._norm(x, layer.norm_mlp))
        gate, up = gate_up.chunk(2, dim=-1)
        x += layer.down(F.silu(gate).mul_(up))
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Final hidden states [n, hidden] to float32 logits [n, vocabulary]."""
        return self.head(self._norm(x, self.norm_out)).float()

    def prefill(self, ids: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Left-aligned prompts ids [prompts, length], padded on the right with any token.

        Causality keeps the padding from touching the tokens before it, so no mask is needed. Returns the hidden
        states [prompts, length, hidden] and the keys and values [layers, 2, prompts, kv heads, length, head_dim].
        """
        prompts, length = ids.shape
        tokens = prompts * length
        x = F.embedding(ids, self.embedding).view(tokens, self.hidden).clone()
        cos = cos[:length].repeat(prompts, 1).unsqueeze(1)
        sin = sin[:length].repeat(prompts, 1).unsqueeze(1)
        cache = x.new_empty(len(self.layers), 2, prompts, self.kv_heads, length, self.head_dim)
        for layer, kv in zip(self.layers, cache, strict=True):
            q, k, v = (
                part.view(prompts, length, -1, self.head_dim).transpose(1, 2)
                for part in self._project_qkv(layer, x, cos, sin)
            )
            kv[0], kv[1] = k, v
            attended = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=self.scale, enable_gqa=self.heads != self.kv_heads
            )
            x = self._finish_layer(layer, x, attended.transpose(1, 2).reshape(tokens, -1))
        return x.view(prompts, length, self.hidden), cache

    def step(
        self, tokens: Tensor, cache: Tensor, column: int, cos: Tensor, sin: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Decode one token a row, writing its keys and values to `column` of the cache.

        tokens [n] int64; cache [layers, 2, rows >= n, kv heads, capacity, head_dim], of which rows 0 .. n - 1 are
        used; cos and sin [n or 1, 1, head_dim]; bias [n, 1, columns] is added to the attention scores of the
        first columns (minus infinity where a row has no prompt token). Returns float32 logits [n, vocabulary].
        """
        n, groups, filled = tokens.shape[0], self.heads // self.kv_heads, column + 1
        x = F.embedding(tokens, self.embedding)
        for layer, kv in zip(self.layers, cache, strict=True):
            q, k, v = self._project_qkv(layer, x, cos, sin)
            keys, values = kv[0, :n], kv[1, :n]
            keys[:, :, column] = k
            values[:, :, column] = v
            keys = keys.flatten(0, 1)[:, :filled]
            values = values.flatten(0, 1)[:, :filled]
            q = q.reshape(n * self.kv_heads, groups, self.head_dim)
            scores = torch.baddbmm(q.new_zeros(()), q, keys.transpose(1, 2), beta=0, alpha=self.scale)
            if bias is not None:
                scores.view(n, self.heads, filled)[:, :, : bias.shape[-1]] += bias
            weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(self.dtype)
            x = self._finish_layer(layer, x, torch.bmm(weights, values).view(n, -1))
        return self.logits(x)


def _plain(linear: Any) -> _Projection:
    return _Projection((linear.weight.detach(),), (None if linear.bias is None else linear.bias.detach(),))
