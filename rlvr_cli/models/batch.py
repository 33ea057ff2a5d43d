"""Decode a batch of rows together until every one has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rlvr_cli.models.completions import Completions
from rlvr_cli.models.decoder import Cache, Decoder
from rlvr_cli.models.draws import draw, nucleus, uniforms

_POSITIONS_AT_ONCE = 64
# Finished rows are dropped from the batch once they are this share of it.
_DROP_SHARE = 0.1


def _runs(prompts: Sequence[Sequence[int]]) -> tuple[list[Sequence[int]], list[int]]:
    """Distinct consecutive prompts and how many rows each has."""
    distinct: list[Sequence[int]] = []
    counts: list[int] = []
    for prompt in prompts:
        if distinct and list(prompt) == list(distinct[-1]):
            counts[-1] += 1
        else:
            distinct.append(prompt)
            counts.append(1)
    return distinct, counts


class Batch:
    """Rows decoded together. Prompts end in the same column of the cache, so that every row writes its next
    token's keys and values to the same column; shorter prompts have empty columns on the left."""

    def __init__(self, decoder: Decoder, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
        device = decoder.device
        distinct, counts = _runs(prompts)
        lengths = [len(prompt) for prompt in distinct]
        self.decoder, self.rows, self.width = decoder, len(prompts), max(lengths)
        self.max_new_tokens = max_new_tokens
        self.cos, self.sin = decoder.rotary_tables(self.width + max_new_tokens)

        ids = torch.tensor([[*p, *[0] * (self.width - len(p))] for p in distinct], device=device)
        hidden, prompt_cache = decoder.prefill(ids, self.cos, self.sin)
        last = torch.tensor(lengths, device=device) - 1
        repeats = torch.tensor(counts, device=device)
        row_prompt = torch.repeat_interleave(torch.arange(len(distinct), device=device), repeats)
        self.first_logits = decoder.logits(hidden[torch.arange(len(distinct), device=device), last])[row_prompt]

        shape = list(prompt_cache.shape)
        shape[2], shape[4] = self.rows, self.width + max_new_tokens
        cache = prompt_cache.new_empty(shape)
        # Empty columns are masked, but a stray NaN there would survive a multiplication by zero.
        cache[:, :, :, :, : self.width] = 0
        row = 0
        for index, (length, count) in enumerate(zip(lengths, counts, strict=True)):
            cache[:, :, row : row + count, :, self.width - length : self.width] = prompt_cache[
                :, :, index : index + 1, :, :length
            ]
            row += count
        self.cache = Cache(cache)

        self.positions: Tensor | None = None
        self.bias: Tensor | None = None
        shortest = min(lengths)
        if shortest < self.width:
            empty = (self.width - torch.tensor(lengths, device=device))[row_prompt].view(-1, 1, 1)
            columns = torch.arange(self.width - shortest, device=device)
            self.bias = torch.zeros(self.rows, 1, len(columns), dtype=cache.dtype, device=device)
            self.bias.masked_fill_(columns < empty, -torch.inf)
            self.positions = last[row_prompt] + 1

    def run(
        self,
        keys: Sequence[int],
        seed: int,
        eos: frozenset[int],
        temperature: float,
        top_p: float,
        on_progress: Callable[[int], None],
    ) -> Completions:
        device, steps = self.decoder.device, self.max_new_tokens
        ids = torch.zeros(steps, self.rows, dtype=torch.int64, device=device)
        log_probs = torch.zeros(steps, self.rows, dtype=torch.float32, device=device)
        lengths = torch.full((self.rows,), steps, dtype=torch.int64, device=device)
        finished_rows = torch.zeros(self.rows, dtype=torch.bool, device=device)
        stops = torch.tensor(sorted(eos), dtype=torch.int64, device=device)
        rows = torch.arange(self.rows, device=device)  # the row of the request that each slot decodes
        active = torch.ones(self.rows, dtype=torch.bool, device=device)
        remaining, logits = self.rows, self.first_logits
        u = torch.empty(0)
        for t in range(steps):
            if temperature > 0 and t % _POSITIONS_AT_ONCE == 0:
                count = min(_POSITIONS_AT_ONCE, steps - t)
                u = torch.from_numpy(uniforms(seed, keys, t, count)).to(device)
            if temperature > 0:
                probabilities = torch.softmax(logits if temperature == 1 else logits / temperature, dim=-1)
                kept = probabilities if top_p == 1 else nucleus(probabilities, top_p)
                tokens = draw(kept, u[t % _POSITIONS_AT_ONCE].index_select(0, rows))
            else:
                probabilities = torch.softmax(logits, dim=-1)
                tokens = logits.argmax(-1, keepdim=True)
            chosen = probabilities.gather(1, tokens).squeeze(1)
            tokens = tokens.squeeze(1)
            ids[t].index_copy_(0, rows, tokens)
            log_probs[t].index_copy_(0, rows, chosen)
            ended = torch.isin(tokens, stops).logical_and_(active)
            on_progress(remaining)
            if bool(ended.any()):
                lengths[rows[ended]] = t + 1
                finished_rows[rows[ended]] = True
                active.logical_and_(~ended)
                remaining = int(active.sum())
                if remaining == 0:
                    break
                if len(rows) - remaining >= max(1, _DROP_SHARE * len(rows)):
                    rows, tokens, active = self._drop(rows, tokens, active, remaining, t)
            if t + 1 < steps:
                logits = self._step(tokens, t)
        return _collect(ids, log_probs.log_(), lengths, finished_rows)

    def _step(self, tokens: Tensor, t: int) -> Tensor:
        if self.positions is None:
            at = self.width + t
            cos, sin = self.cos[at : at + 1], self.sin[at : at + 1]
        else:
            at_rows = self.positions + t
            cos, sin = self.cos.index_select(0, at_rows), self.sin.index_select(0, at_rows)
        cos, sin = cos[:, None, None], sin[:, None, None]
        return self.decoder.step(tokens, self.cache, self.width + t, cos, sin, self.bias)

    def _drop(
        self, rows: Tensor, tokens: Tensor, active: Tensor, remaining: int, t: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Drop finished slots: the last active ones move into the holes, so few cache rows are copied."""
        holes = (~active[:remaining]).nonzero().squeeze(1)
        tails = active[remaining:].nonzero().squeeze(1) + remaining
        order = torch.arange(remaining, device=rows.device)
        order[holes] = tails
        filled = self.width + t
        data = self.cache.data
        data[:, :, holes, :, :filled] = data[:, :, tails, :, :filled]
        self.cache.use(remaining)
        if self.positions is not None and self.bias is not None:
            self.positions, self.bias = self.positions[order], self.bias[order]
        return rows[order], tokens[order], torch.ones(remaining, dtype=torch.bool, device=rows.device)


def _collect(ids: Tensor, log_probs: Tensor, lengths: Tensor, finished: Tensor) -> Completions:
    """ids and log_probs [steps, rows] cut to each row's length."""
    counts = lengths.tolist()
    return Completions(
        [row[:n] for row, n in zip(ids.t().tolist(), counts, strict=True)],
        [row[:n] for row, n in zip(log_probs.t().tolist(), counts, strict=True)],
        [not done for done in finished.tolist()],
    )
