"""Log-probs of chosen tokens under a causal model, without storing the logits of a whole batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

# Logits of a chunk: 256 MiB in float32 on a CPU, 2 GiB on a GPU, where small chunks are slow.
MAX_LOGITS, MAX_GPU_LOGITS = 2**26, 2**29
# Relative tolerance for two computations of a tiny batch: above rounding, below the effect of another formula. At least
# this many epsilons of the number format.
_TOLERANCE, _EPSILONS = 1e-3, 8
# Logits beyond any model's soft cap (Gemma's are 30 and 50).
_LARGE_LOGIT = 1e3


def causal_model(model: Any) -> Any:
    """Return ``model`` without PEFT's wrapper; adapters stay in its layers."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


def completion_states(
    model: Any,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    completion_ids: Tensor,
    completion_mask: Tensor,
    prompts: Tensor | None = None,
) -> Tensor:
    """Return (B, T, H), the hidden state before each token of the completions.

    Positions count from each row's first token, whatever its padding.

    Args:
        model: a causal model of transformers. prompt_ids, prompt_mask: (B, P) or (D, P), left-padded.
        completion_ids, completion_mask: (B, T), right-padded.
        prompts: (B,) the index of each row's prompt among D. Each is computed once, all of its completions attend to
            its keys and values, and gradients add up in it. None: row i continues prompt i.
    """
    layers = getattr(model, model.base_model_prefix)
    if prompts is None:
        mask = torch.cat([prompt_mask, completion_mask], dim=1)
        outputs = layers(
            input_ids=torch.cat([prompt_ids, completion_ids], dim=1),
            attention_mask=mask,
            position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
            use_cache=False,
        )
        states: Tensor = outputs.last_hidden_state[:, prompt_ids.shape[1] - 1 : -1]
        return states
    positions = (prompt_mask.cumsum(dim=1) - 1).clamp(min=0)
    outputs = layers(input_ids=prompt_ids, attention_mask=prompt_mask, position_ids=positions, use_cache=True)
    first: Tensor = outputs.last_hidden_state[:, -1:].index_select(0, prompts)
    if completion_ids.shape[1] == 1:
        return first
    cache = outputs.past_key_values
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys.index_select(0, prompts), layer.values.index_select(0, prompts)
    before = completion_mask[:, :-1]
    outputs = layers(
        input_ids=completion_ids[:, :-1],
        attention_mask=torch.cat([prompt_mask.index_select(0, prompts), before], dim=1),
        position_ids=(positions[:, -1:].index_select(0, prompts) + before.cumsum(dim=1)),
        past_key_values=cache,
        use_cache=True,
    )
    return torch.cat([first, outputs.last_hidden_state], dim=1)


class _LogProbs(torch.autograd.Function):
    """Log-softmax of (n, V) logits at (n,) targets, and entropies (n,) if requested; one n x V buffer, the gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, entropies: bool) -> tuple[Tensor, Tensor | None]:
        normalisers = logits.logsumexp(dim=-1)
        ctx.set_materialize_grads(False)
        values = torch.empty_like(normalisers) if entropies else None
        if values is not None:
            for rows in _slices(len(targets)):
                log_softmax = logits[rows] - normalisers[rows].unsqueeze(-1)
                values[rows] = -log_softmax.exp().mul_(log_softmax).sum(dim=-1)
        ctx.save_for_backward(logits, targets, normalisers, values)
        return logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - normalisers, values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, of_entropies: Tensor | None) -> tuple[Tensor, None, None]:
        logits, targets, normalisers, entropies = ctx.saved_tensors
        # d log p(target) / dz = 1[target] - p;  dH / dz = -p (log p + H)
        gradient = torch.zeros_like(normalisers) if gradient is None else gradient
        logit_gradient = torch.sub(logits, normalisers.unsqueeze(-1))
        if of_entropies is None:
            logit_gradient.exp_().mul_(-gradient.unsqueeze(-1))
        else:
            for rows in _slices(len(targets)):
                weights = logit_gradient[rows] + entropies[rows].unsqueeze(-1)
                weights.mul_(of_entropies[rows].unsqueeze(-1)).add_(gradient[rows].unsqueeze(-1))
                logit_gradient[rows].exp_().mul_(weights.neg_())
        logit_gradient.scatter_add_(-1, targets.unsqueeze(-1), gradient.unsqueeze(-1))
        return logit_gradient, None, None


def _slices(count: int) -> Iterator[slice]:
    """Yield at most 16 slices that cover ``count`` rows, for small temporaries."""
    size = max(1, -(-count // 16))
    return (slice(start, start + size) for start in range(0, count, size))


def token_log_probs(
    head: Callable[[Tensor], Tensor],
    states: Tensor,
    targets: Tensor,
    *,
    vocabulary: int,
    temperature: float,
    entropies: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return (n,) log-probs of ``targets`` and, if requested, (n,) entropies (nats) at their positions.

    Both are of the softmax of logits / ``temperature``. The head is applied to chunks of at most :data:`MAX_LOGITS`
    logits (:data:`MAX_GPU_LOGITS`); with several chunks, the backward pass recomputes each.

    Args:
        head: from states to logits. states: (n, H), before each target. targets: (n,) token ids.
        vocabulary: number of logits of a state.
    """

    def compute_chunk(states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        logits = head(states)
        # As in TRL's head, so that both have the same precision.
        logits = logits if logits.dtype == torch.float64 else logits.float()
        logits = logits if temperature == 1 else logits / temperature
        result: tuple[Tensor, Tensor | None] = _LogProbs.apply(logits, targets, entropies)  # type: ignore[no-untyped-call]
        return result

    size = max(1, (MAX_GPU_LOGITS if states.is_cuda else MAX_LOGITS) // vocabulary)
    if len(targets) <= size:
        return compute_chunk(states, targets)
    results = []
    for chunk in zip(states.split(size), targets.split(size), strict=True):
        if torch.is_grad_enabled():
            results.append(checkpoint(compute_chunk, *chunk, use_reentrant=False))
        else:
            results.append(compute_chunk(*chunk))
    log_probs = torch.cat([log_prob for log_prob, _ in results])
    return log_probs, torch.cat([entropy for _, entropy in results]) if entropies else None


def chosen_log_probs(
    model: Any,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    completion_ids: Tensor,
    completion_mask: Tensor,
    chosen: Tensor,
    prompts: Tensor | None,
    temperature: float,
    *,
    entropies: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return (B, T) log-probs of the ``chosen`` tokens (B, T), 0 elsewhere, their entropies, and the states (B, T, H).

    The head is applied only to the states before these tokens. Arguments as for :func:`completion_states` and
    :func:`token_log_probs`.
    """
    model = causal_model(model)
    states = completion_states(model, prompt_ids, prompt_mask, completion_ids, completion_mask, prompts)
    indices = chosen.nonzero(as_tuple=True)
    head = model.get_output_embeddings()
    # One call of the head for all chunks: ZeRO-3 gathers its weights in each call, and processes have different numbers
    # of chunks.
    function = partial(
        token_log_probs, head.forward, vocabulary=head.out_features, temperature=temperature, entropies=entropies
    )
    log_probs, chosen_entropies = run_in_forward(head, head, function, states[indices], completion_ids[indices])

    def scatter(values: Tensor) -> Tensor:
        return values.new_zeros(chosen.shape).index_put(indices, values)

    return scatter(log_probs), None if chosen_entropies is None else scatter(chosen_entropies), states


def run_in_forward(wrapped: Any, model: Any, function: Callable[..., Any], *tensors: Tensor | None) -> Any:
    """Return ``function(*tensors)``, run as the forward pass of ``wrapped``, which wraps ``model``.

    DDP and DeepSpeed prepare the backward pass in their forward pass, so all computation must happen in it.
    """
    original = vars(model).get("forward")
    model.forward = function
    try:
        return wrapped(*tensors)
    finally:
        if original is None:
            del model.forward
        else:
            model.forward = original


def has_linear_head(model: Any) -> bool:
    """Return whether the logits are exactly the head of the last hidden states, without cap or scale.

    Tested on a few tokens, with states so large that a cap would act; never raises for other architectures.
    """
    model = causal_model(model)
    head, layers = model.get_output_embeddings(), getattr(model, model.base_model_prefix, None)
    if not hasattr(head, "out_features") or not isinstance(layers, nn.Module):
        return False
    expected = []

    def enlarge(layers: Any, inputs: Any, outputs: Any) -> Any:
        states = outputs.last_hidden_state
        outputs.last_hidden_state = states * (_LARGE_LOGIT / head(states).abs().max().clamp(min=1e-6))
        expected.append(head(outputs.last_hidden_state))
        return outputs

    hook = layers.register_forward_hook(enlarge)
    try:
        with _probe_mode(model):
            logits = model(input_ids=_probe_ids(head)).logits
    finally:
        hook.remove()
    # Some models call their layers' submodules directly.
    return bool(expected) and _is_close(logits, expected[0])


def can_share_prompts(model: Any) -> bool:
    """Return whether completions have the same states if computed from their prompt's cached keys and values.

    Tested on a few tokens. False for other caches, and for position encodings that depend on the sequence length.
    Requires ``has_linear_head``.
    """
    model = causal_model(model)
    if _encoding_depends_on_length(model.config.get_text_config()):
        return False
    with _probe_mode(model):
        ids = _probe_ids(model.get_output_embeddings()).expand(2, -1)
        prompt, completion = ids[:, :4], ids[:, 4:]
        ones = torch.ones_like(ids)
        both = torch.zeros(2, dtype=torch.long, device=ids.device)
        unshared = completion_states(model, prompt, ones[:, :4], completion, ones[:, 4:])
        try:
            shared = completion_states(model, prompt[:1], ones[:1, :4], completion, ones[:, 4:], both)
        except (AttributeError, TypeError, RuntimeError):
            return False  # a cache without keys and values in layers, or with other state
        return _is_close(shared, unshared)


def _encoding_depends_on_length(config: Any) -> bool:
    rope = getattr(config, "rope_parameters", None) or {}
    encodings = [rope, *rope.values()]  # of all layers, or of each type of layer
    return any(isinstance(rope, dict) and rope.get("rope_type") in ("dynamic", "longrope") for rope in encodings)


@contextmanager
def _probe_mode(model: Any) -> Iterator[None]:
    """Disable gradients and dropout, and use eager attention: flash attention supports no float32 and no CPU."""
    training = model.training
    configs: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    kernels = {
        id(config): (config, config._attn_implementation)
        for config in configs
        if getattr(config, "_attn_implementation", None) not in (None, "eager", "sdpa")
    }
    model.eval()
    try:
        for config, _ in kernels.values():
            config._attn_implementation_internal = "eager"
        with torch.no_grad():
            yield
    finally:
        for config, kernel in kernels.values():
            config._attn_implementation_internal = kernel
        model.train(training)


def _probe_ids(head: Any) -> Tensor:
    """Return (1, 8) token ids."""
    ids = torch.arange(8, device=head.weight.device) % int(head.out_features)
    return ids.unsqueeze(0)


def _is_close(first: Tensor, other: Tensor) -> bool:
    scale = max(float(other.float().abs().max()), 1e-6)
    limit = max(_TOLERANCE, _EPSILONS * torch.finfo(first.dtype).eps)
    return first.shape == other.shape and float((first - other).float().abs().max()) <= limit * scale
