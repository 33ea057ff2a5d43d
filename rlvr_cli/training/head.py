"""Log-probs and entropies of sampled tokens from a model's logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Beyond this many logits in one forward pass (256 MiB in float32) TRL's tiled head takes over.
MOST_LOGITS = 2**26


def plain_head_fits(model: Any, input_ids: Tensor, completion_length: int) -> bool:
    """Whether a forward pass is small enough, and on the CPU, to build all its logits.

    There it is several times faster than TRL's head, which projects the prompt and the padding too, and it keeps the
    model's own precision, where TRL's head is float32.
    """
    vocabulary = int(model.config.vocab_size)
    return input_ids.device.type == "cpu" and len(input_ids) * (completion_length + 1) * vocabulary <= MOST_LOGITS


def log_probs_and_entropies(
    model: Any, input_ids: Tensor, attention_mask: Tensor, completion_length: int, temperature: float
) -> tuple[Tensor, Tensor]:
    """(B, T) log-probs of the last ``completion_length`` = T tokens, and entropies (nats, no gradient) before them.

    Both under the distribution that was sampled from: logits divided by ``temperature``.
    """
    log_softmax = log_distributions(model, input_ids, attention_mask, completion_length, temperature)
    log_probs = log_softmax.gather(-1, input_ids[:, -completion_length:].unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        entropies = -(log_softmax.exp() * log_softmax).sum(dim=-1)
    return log_probs, entropies


def log_distributions(
    model: Any, input_ids: Tensor, attention_mask: Tensor, completion_length: int, temperature: float
) -> Tensor:
    """(B, T, V) log-probs of every token of the vocabulary in place of the last ``completion_length`` = T tokens.

    Positions count from each row's first token, however it is padded on the left.
    """
    outputs = model(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=(attention_mask.cumsum(dim=1) - 1).clamp(min=0),
        logits_to_keep=completion_length + 1,
    )
    logits = outputs.logits[:, -completion_length - 1 : -1]
    # As TRL's head has it: which of the two is used must not decide the precision.
    logits = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    log_softmax: Tensor = logits.log_softmax(dim=-1)
    return log_softmax
