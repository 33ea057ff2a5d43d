"""What sampling computes, counted: the same on every machine, however busy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from torch import Tensor

from rlvr_cli.models.sampling.decoder import Decoder


@dataclass
class Work:
    """Of one call.

    Attributes:
        prompt_tokens: tokens of prompts that were read, padding among them.
        steps: forward passes that decode one token a row. rows: rows in them, over all steps.
        head_rows: positions whose logits over the vocabulary were computed.
    """

    prompt_tokens: int = 0
    steps: int = 0
    rows: int = 0
    head_rows: int = 0


@contextmanager
def work_of_the_sampler() -> Iterator[Work]:
    """Counts what the local sampler does inside."""
    work = Work()
    prefill, step, logits = Decoder.prefill, Decoder.step, Decoder.logits

    def counted_prefill(decoder: Decoder, ids: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
        work.prompt_tokens += ids.numel()
        return prefill(decoder, ids, turn)

    def counted_step(decoder: Decoder, tokens: Tensor, *others: Any) -> Tensor:
        work.steps += 1
        work.rows += len(tokens)
        return step(decoder, tokens, *others)

    def counted_logits(decoder: Decoder, x: Tensor) -> Tensor:
        work.head_rows += len(x)
        return logits(decoder, x)

    with (
        patch.object(Decoder, "prefill", counted_prefill),
        patch.object(Decoder, "step", counted_step),
        patch.object(Decoder, "logits", counted_logits),
    ):
        yield work


@contextmanager
def work_of_generate(model: Any) -> Iterator[Work]:
    """Counts what `model.generate` does inside."""
    work = Work()

    def forward(module: Any, positional: Any, named: dict[str, Any]) -> None:
        ids = named["input_ids"]
        if ids.shape[1] > 1:
            work.prompt_tokens += ids.numel()
        else:
            work.steps += 1
            work.rows += len(ids)

    def head(module: Any, positional: tuple[Tensor]) -> None:
        work.head_rows += positional[0].shape[:-1].numel()

    hooks = [
        model.register_forward_pre_hook(forward, with_kwargs=True),
        model.lm_head.register_forward_pre_hook(head),
    ]
    try:
        yield work
    finally:
        for hook in hooks:
            hook.remove()
