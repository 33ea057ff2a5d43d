"""A functional forward pass of Qwen2, Qwen3 and Llama models with a preallocated key-value cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlvr_cli.models.sampling.memory import PREFILL_TOKENS, RowMemory, activation_bytes, kv_bytes

SUPPORTED = ("Qwen2ForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM")
# Rotary types whose frequencies do not change with the length of the sequence.
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")
# Below this number of parameters, copying the weights per call is cheaper than separate matrix products.
_FUSE_BELOW = 50_000_000


def unsupported_reason(model: nn.Module) -> str | None:
    """Return why the sampler cannot compute this model exactly, or None if it can."""
    name = type(model).__name__
    if name not in SUPPORTED:
        return f"its architecture is {name}; the local sampler supports {', '.join(SUPPORTED)}"
    config: Any = model.config
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act!r}, not 'silu'"
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return "it uses sliding-window attention"
    decoder: Any = model.model
    if decoder.rotary_emb.rope_type not in _STATIC_ROPE:
        return f"its rotary embedding is of type {decoder.rotary_emb.rope_type!r}, which depends on the length"
    for path, module in model.named_modules():
        if path.endswith(("_proj", "lm_head")) and type(module) is not nn.Linear:
            return f"its layer {path} is a {type(module).__name__}, not a plain linear layer"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return "its weights are on more than one device"
    return None


def row_memory(model: Any) -> RowMemory:
    config, weight = model.config, model.model.embed_tokens.weight
    heads, kv_heads, element = config.num_attention_heads, config.num_key_value_heads, weight.dtype.itemsize
    dim = _head_dim(config)
    return RowMemory(
        kv_token=kv_bytes(len(model.model.layers), kv_heads, dim, element),
        activation_token=activation_bytes(config.hidden_size, config.intermediate_size, heads, kv_heads, dim, element),
        vocabulary=config.vocab_size,
        scores=heads if element == 4 and weight.device.type != "cpu" else 0,
    )


def _head_dim(config: Any) -> int:
    dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return dim


@dataclass(frozen=True)
class _Projection:
    """Linear layers of the same input; weights [in, out], biases [out] or None."""

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]

    def __call__(self, x: Tensor) -> Tensor:
        outputs = self.each(x)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)

    def each(self, x: Tensor) -> list[Tensor]:
        return [
            torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)
            for weight, bias in zip(self.weights, self.biases, strict=True)
        ]

    def add_to(self, x: Tensor, h: Tensor) -> None:
        """Add the projection of ``h`` to ``x`` in place; only for a single linear layer."""
        x.addmm_(h, self.weights[0])
        if self.biases[0] is not None:
            x.add_(self.biases[0])


@dataclass(frozen=True)
class _Layer:
    norm_in: Tensor | None
    qkv: _Projection
    norm_qk: Tensor | None  # [query heads + key heads, head_dim], or None
    out: _Projection
    norm_mlp: Tensor | None
    gate_up: _Projection
    down: _Projection


class Decoder:
    """A model's weights, arranged for decoding; build a new decoder when the weights have changed.

    For small float32 models, the weight of a norm is multiplied into the projection that follows it, and projections of
    the same input are stacked, so that a step consists of few, large operations.
    """

    def __init__(self, model: Any) -> None:
        config = model.config
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim = _head_dim(config)
        self.hidden: int = config.hidden_size
        self.eps: float = config.rms_norm_eps
        self.scale = self.head_dim**-0.5
        self.embedding: Tensor = model.model.embed_tokens.weight.detach()
        self.device, self.dtype = self.embedding.device, self.embedding.dtype
        self.score_dtype = torch.promote_types(self.dtype, torch.float32)
        self._rotary = model.model.rotary_emb
        self._fold = self.dtype == torch.float32 and model.num_parameters() < _FUSE_BELOW
        self.weight_bytes: int = model.num_parameters() * self.dtype.itemsize
        self.memory = row_memory(model)
        self.prefill_tokens = PREFILL_TOKENS
        self._floors = {n: self._floor(n) for n in (self.hidden, self.head_dim)}
        self._zero = torch.zeros((), dtype=self.dtype, device=self.device)
        self.layers = [self._layer(layer) for layer in model.model.layers]
        self.norm_out, self.head = self._after_norm(model.model.norm, model.lm_head)

    def _floor(self, n: int) -> Tensor:
        return torch.tensor(math.sqrt(n * self.eps), device=self.device)

    def _after_norm(self, norm: Any, *linears: Any) -> tuple[Tensor | None, _Projection]:
        """Return the norm's weight (None when folded) and the projection of its output, stacked if folded."""
        if not self._fold:
            return norm.weight.detach(), _projection(*linears)
        stacked = torch.cat([linear.weight.detach() for linear in linears])
        stacked *= norm.weight.detach() * math.sqrt(self.hidden)
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        return None, _Projection((stacked.t(),), (torch.cat(biases) if biases else None,))

    def _layer(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        norm_in, qkv = self._after_norm(layer.input_layernorm, attention.q_proj, attention.k_proj, attention.v_proj)
        if self._fold:
            rotated = (self.heads + self.kv_heads) * self.head_dim
            for stacked in (*qkv.weights, *(bias for bias in qkv.biases if bias is not None)):
                heads = stacked[..., :rotated].reshape(*stacked.shape[:-1], -1, self.head_dim)
                stacked[..., :rotated] = _pair(heads).flatten(-2)
        norm_mlp, gate_up = self._after_norm(layer.post_attention_layernorm, mlp.gate_proj, mlp.up_proj)
        norm_qk = None
        if hasattr(attention, "q_norm"):
            q, k = attention.q_norm.weight.detach(), attention.k_norm.weight.detach()
            norm_qk = torch.cat([q.expand(self.heads, -1), k.expand(self.kv_heads, -1)])
            if self._fold:
                norm_qk = _pair(norm_qk * math.sqrt(self.head_dim))
        out, down = _projection(attention.o_proj), _projection(mlp.down_proj)
        return _Layer(norm_in, qkv, norm_qk, out, norm_mlp, gate_up, down)

    def rotary_table(self, length: int) -> Tensor:
        """Return cos + i sin of the angles of positions 0 .. length - 1, complex64 [length, head_dim / 2]."""
        positions = torch.arange(length, device=self.device).unsqueeze(0)
        cos, sin = self._rotary(torch.empty(0, device=self.device, dtype=torch.float32), positions)
        half = self.head_dim // 2
        return torch.complex(cos[0, :, :half], sin[0, :, :half])

    def _unit(self, x: Tensor) -> Tensor:
        """Return x / sqrt(sum(x^2) + n eps) over the last dimension: RMSNorm without weight and factor sqrt(n)."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / torch.hypot(length, self._floors[x.shape[-1]])

    def _norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return self._unit(x) if weight is None else F.rms_norm(x, x.shape[-1:], weight, self.eps)

    def _project_qkv(self, layer: _Layer, x: Tensor, turn: Tensor) -> Tensor:
        """Return the rotated queries and keys, and the values: [n, heads + 2 kv heads, head_dim].

        x [n, hidden]; turn [n or 1, 1, head_dim / 2] from `rotary_table`. The rotary embedding multiplies a + ib by
        `turn`, a and b being the halves of a head. Folded weights are arranged so that a and b are neighbours;
        attention scores do not depend on the order inside a head.
        """
        qkv = layer.qkv(self._norm(x, layer.norm_in)).view(len(x), -1, self.head_dim)
        qk = qkv[:, : self.heads + self.kv_heads]
        if self._fold:
            if layer.norm_qk is not None:
                length = torch.linalg.vector_norm(qk, dim=-1, keepdim=True)
                qk.div_(torch.hypot(length, self._floors[self.head_dim])).mul_(layer.norm_qk)
            torch.view_as_complex(qk.view(*qk.shape[:2], -1, 2)).mul_(turn)
            return qkv
        if layer.norm_qk is not None:
            qk.copy_(F.rms_norm(qk, (self.head_dim,), None, self.eps) * layer.norm_qk)
        pairs = torch.view_as_complex(_pair(qk.float()).view(*qk.shape[:2], -1, 2))
        qk.copy_(torch.view_as_real(pairs * turn).flatten(-2))
        return qkv

    def _finish_layer(self, layer: _Layer, x: Tensor, attended: Tensor) -> None:
        """Apply output projection, residual and feed-forward network to x [n, hidden] in place."""
        layer.out.add_to(x, attended)
        outputs = layer.gate_up.each(self._norm(x, layer.norm_mlp))
        # Not concatenated: these are the largest tensors of the prefill.
        gate, up = outputs if len(outputs) == 2 else outputs[0].view(len(x), 2, -1).unbind(1)
        layer.down.add_to(x, F.silu(gate).mul_(up))

    def logits(self, x: Tensor) -> Tensor:
        """Return the float32 logits [n, vocabulary] of final hidden states [n, hidden]."""
        return self.head(self._norm(x, self.norm_out)).float()

    def empty_cache(self, rows: int, columns: int) -> Tensor:
        """Allocate keys and values, uninitialised: [layers, 2, rows, kv heads, columns, head_dim]."""
        shape = (len(self.layers), 2, rows, self.kv_heads, columns, self.head_dim)
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def prefill(self, ids: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden states [prompts, length, hidden] of prompts, and their keys and values
        [layers, 2, prompts, kv heads, length, head_dim].

        ids [prompts, length], right-padded with any token, which causal attention ignores; turn [>= length,
        head_dim / 2] from `rotary_table`.
        """
        prompts, length = ids.shape
        x = F.embedding(ids.flatten(), self.embedding)
        turn = turn[:length].repeat(prompts, 1).unsqueeze(1)
        cache = self.empty_cache(prompts, length)
        sizes = (self.heads, self.kv_heads, self.kv_heads)
        for layer, kv in zip(self.layers, cache, strict=True):
            qkv = self._project_qkv(layer, x, turn).view(prompts, length, -1, self.head_dim)
            q, k, v = qkv.transpose(1, 2).split(sizes, dim=1)
            kv[0], kv[1] = k, v
            attended = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=self.scale, enable_gqa=self.heads != self.kv_heads
            )
            self._finish_layer(layer, x, attended.transpose(1, 2).reshape(prompts * length, -1))
        return x.view(prompts, length, self.hidden), cache

    def _scores(self, q: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
        """Return the attention scores of queries [n, groups, head_dim] and transposed keys [n, head_dim, columns].

        Never in half precision: Qwen2.5 has scores in the hundreds, where bfloat16 has a spacing of 1.
        """
        if self.dtype == self.score_dtype:
            if bias is None:
                return torch.baddbmm(self._zero, q, keys, beta=0, alpha=self.scale)
            return torch.baddbmm(bias, q, keys, alpha=self.scale)
        if self.device.type == "cuda":
            scores = torch.bmm(q, keys, out_dtype=torch.float32)
        else:
            scores = torch.bmm(q.float(), keys.float())
        return scores.mul_(self.scale) if bias is None else torch.add(bias, scores, alpha=self.scale)

    def step(self, tokens: Tensor, cache: Cache, column: int, turn: Tensor, bias: Tensor | None) -> Tensor:
        """Decode a token per row, writing its keys and values to `column`; return float32 logits [n, vocabulary].

        tokens [n] int64 of the n used rows of the cache; turn [n or 1, 1, head_dim / 2]; bias [n * kv heads, 1,
        capacity] is added to the attention scores, minus infinity before a row's prompt.
        """
        n, groups = len(tokens), self.heads // self.kv_heads
        targets, keys, values = cache.at(column)
        so_far = None if bias is None else bias.narrow(2, 0, column + 1)
        x = self.embedding.index_select(0, tokens)
        for index, layer in enumerate(self.layers):
            qkv = self._project_qkv(layer, x, turn)
            targets[index].copy_(qkv[:, self.heads :].view(n, 2, self.kv_heads, self.head_dim))
            q = qkv[:, : self.heads].reshape(n * self.kv_heads, groups, self.head_dim)
            weights = torch.softmax(self._scores(q, keys[index], so_far), dim=-1, dtype=torch.float32).to(self.dtype)
            self._finish_layer(layer, x, torch.bmm(weights, values[index]).view(n, -1))
        return self.logits(x)


class Cache:
    """Keys and values [layers, 2, rows, kv heads, capacity, head_dim], of which the first rows are in use."""

    def __init__(self, data: Tensor) -> None:
        self.data = data
        self.use(data.shape[2])

    def use(self, rows: int) -> None:
        used = self.data[:, :, :rows]
        self._targets = used.transpose(1, 2)
        self._keys = used[:, 0].flatten(1, 2).transpose(2, 3)
        self._values = used[:, 1].flatten(1, 2)

    def at(self, column: int) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
        """Return each layer's views for `column`: its keys and values to write [rows, 2, kv heads, head_dim]; up to it,
        the transposed keys [rows * kv heads, head_dim, column + 1] and values [rows * kv heads, column + 1, head_dim].
        """
        targets = self._targets.select(4, column).unbind(0)
        keys = self._keys.narrow(3, 0, column + 1).unbind(0)
        return targets, keys, self._values.narrow(2, 0, column + 1).unbind(0)


def _pair(x: Tensor) -> Tensor:
    """Interleave the two halves of the last dimension: a0 a1 .. b0 b1 .. becomes a0 b0 a1 b1 .."""
    return x.view(*x.shape[:-1], 2, -1).transpose(-1, -2).flatten(-2)


def _projection(*linears: Any) -> _Projection:
    weights = tuple(linear.weight.detach().t() for linear in linears)
    return _Projection(weights, tuple(None if x.bias is None else x.bias.detach() for x in linears))
