"""Sample with `model.generate`, and choose between it and the faster local sampler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.models.sampling.decoder import unsupported_reason
from rlvr_cli.models.sampling.engine import (
    Completions,
    Engine,
    OnDone,
    SamplingParams,
    check_rows,
    concatenate,
)
from rlvr_cli.models.sampling.local import sample
from rlvr_cli.models.sampling.memory import explain_out_of_memory
from rlvr_cli.models.sampling.rng import stream_start

# Logits computed at once to score log-probs (1 GiB of float32).
_LOGITS_AT_ONCE = 2**28


def choose_engine(name: str, model: Any, key: str) -> tuple[Engine, str]:
    """Return the engine for a model and the reason; "auto" = local if it is exact for the model, else transformers.

    ``key``: of the configuration, for messages. Raises UserError if "local" does not support the model.
    """
    if name == "transformers":
        return generate_with_transformers, "transformers' generate, as configured"
    reason = unsupported_reason(model)
    if reason is None:
        return sample, "the local key-value-cache sampler"
    if name == "local":
        raise UserError(f"{key}: local cannot run this model: {reason}. Use {key}=transformers.")
    return generate_with_transformers, f"transformers' generate, because {reason}"


def check_generation_config(arguments: Mapping[str, Any]) -> None:
    """Raise UserError for arguments (``rollout.generation_kwargs``) that transformers' GenerationConfig refuses."""
    from transformers import GenerationConfig

    keys = [key for key in GenerationConfig().to_dict() if not key.startswith("_")]
    for key in arguments:
        if key not in keys:
            hint = did_you_mean(key, keys)
            raise UserError(f"rollout.generation_kwargs: transformers' GenerationConfig has no {key}.{hint}")
    try:
        GenerationConfig(do_sample=True, **arguments).validate(strict=True)
    except (TypeError, ValueError) as error:
        raise UserError(f"rollout.generation_kwargs: {' '.join(str(error).split())[:400]}") from error


def generate_with_transformers(
    model: Any,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    keys: Sequence[int],
    on_progress: Callable[[int], None] | None = None,
    on_done: OnDone | None = None,
) -> Completions:
    """Sample a completion for every prompt with `generate`, as :class:`Engine`; one more forward pass gives log-probs.

    Each batch of max_rows rows (default 64) is seeded by (seed, the first row's key): the same call returns the same
    completions, but unlike the local sampler's they depend on the batches.
    Raises SamplingMemoryError if a batch exceeds the memory.
    """
    check_rows(prompts, keys)
    from transformers import GenerationConfig

    stops = sorted(params.eos_token_ids)
    sampling = {"do_sample": True, "temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k}
    sampling |= {"min_p": params.min_p} if params.min_p else {}
    config = GenerationConfig(
        max_new_tokens=params.max_new_tokens,
        eos_token_id=stops or None,
        pad_token_id=stops[0] if stops else 0,
        repetition_penalty=params.repetition_penalty,
        **params.extra,
        **(sampling if params.temperature > 0 else {"do_sample": False}),
    )
    groups = [Completions([], [], [], [])]
    size = params.max_rows or 64
    devices = [model.device] if model.device.type == "cuda" else []
    was_training, defaults = model.training, model.generation_config
    model.eval()
    # `generate` fills unset values from the model's generation config, which may have penalties or a top_k.
    model.generation_config = GenerationConfig()
    try:
        with torch.random.fork_rng(devices), torch.no_grad(), _half_for_flash_attention(model):
            for first in range(0, len(prompts), size):
                torch.manual_seed(stream_start(params.seed, keys[first]))
                chunk = prompts[first : first + size]
                with explain_out_of_memory(len(chunk), max(map(len, chunk)) + params.max_new_tokens):
                    ids, ended = _generate(model, chunk, config, params)
                    log_probs, entropies = _score(model, chunk, ids, params.temperature or 1.0)
                truncated = [not end for end in ended]
                groups.append(Completions(ids, log_probs, truncated, entropies))
                if on_progress is not None:
                    on_progress(sum(map(len, ids)))
                if on_done is not None:
                    on_done(range(first, first + len(chunk)), groups[-1])
    finally:
        model.train(was_training)
        model.generation_config = defaults
    return concatenate(groups)


def _half_for_flash_attention(model: Any) -> AbstractContextManager[Any]:
    """Autocast float32 weights, as in training, for flash attention, which supports only half precision."""
    flash = "flash" in (getattr(model.config, "_attn_implementation", None) or "")
    return torch.autocast(model.device.type, torch.bfloat16, enabled=flash and model.dtype == torch.float32)


def _generate(
    model: Any, prompts: Sequence[Sequence[int]], config: Any, params: SamplingParams
) -> tuple[list[list[int]], list[bool]]:
    """Return the completions, and whether each has ended. Raises UserError if `generate` fails on ``params.extra``."""
    stop, stops = params.stop, frozenset(params.eos_token_ids)
    width = max(map(len, prompts))
    # Padded by a token of the prompt: the repetition penalty of `generate` reads the padding too.
    ids = torch.tensor([[*[p[0]] * (width - len(p)), *p] for p in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    lengths: dict[int, int] = {}

    def end_at_strings(input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        assert stop is not None
        ended = stop.end(input_ids[:, width:].tolist())
        for row in (row for row, end in enumerate(ended) if end):
            lengths.setdefault(row, input_ids.shape[1] - width)
        return torch.tensor(ended, device=input_ids.device)

    criteria = {} if stop is None else {"stopping_criteria": [end_at_strings]}
    # Sharded weights are gathered here, so processes need not synchronize; some may have fewer rows, or none.
    try:
        rows = model.generate(ids, attention_mask=mask, generation_config=config, synced_gpus=False, **criteria)
    except (TypeError, ValueError, AttributeError) as error:
        if not params.extra:
            raise
        raise UserError(f"rollout.generation_kwargs={params.extra}: {' '.join(str(error).split())[:400]}") from error
    completions = rows[:, width:].tolist()
    for row, token_ids in enumerate(completions):
        if (end := next((i + 1 for i, token in enumerate(token_ids) if token in stops), None)) is not None:
            lengths[row] = min(end, lengths.get(row, end))
    ended = [row in lengths for row in range(len(completions))]
    return [token_ids[: lengths.get(row)] for row, token_ids in enumerate(completions)], ended


def _score(
    model: Any, prompts: Sequence[Sequence[int]], completions: list[list[int]], temperature: float
) -> tuple[list[list[float]], list[list[float]]]:
    """Return the log-probs of the completions' tokens and the entropies at their positions, one list per row.

    Sequences are right-padded, which causal attention ignores, so positions need no correction.
    """
    sequences = [[*p, *c] for p, c in zip(prompts, completions, strict=True)]
    width = max(map(len, sequences))
    at_once = max(1, _LOGITS_AT_ONCE // (width * model.config.get_text_config().vocab_size))
    log_probs: list[list[float]] = []
    entropies: list[list[float]] = []
    for first in range(0, len(sequences), at_once):
        chunk = sequences[first : first + at_once]
        ids = torch.tensor([[*s, *[0] * (width - len(s))] for s in chunk], device=model.device)
        mask = torch.tensor([[1] * len(s) + [0] * (width - len(s)) for s in chunk], device=model.device)
        logits: Tensor = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1].float()
        logits = logits / temperature
        total = logits.logsumexp(-1, keepdim=True)
        chosen = (logits.gather(2, ids[:, 1:, None]) - total).squeeze(2)
        log_softmax = logits.sub_(total)
        # A probability of 0 times its logarithm is NaN and must contribute 0.
        entropy = -log_softmax.exp().mul_(log_softmax).nansum(-1)
        for row, (values, nats) in enumerate(zip(chosen.tolist(), entropy.tolist(), strict=True), start=first):
            positions = slice(len(prompts[row]) - 1, len(prompts[row]) - 1 + len(completions[row]))
            log_probs.append(values[positions])
            entropies.append(nats[positions])
    return log_probs, entropies
