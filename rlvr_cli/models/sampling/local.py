"""The local sampler: batched decoding with a key-value cache, several times faster than `generate`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import psutil
import torch
from torch import Tensor

from rlvr_cli.core.errors import RunError
from rlvr_cli.models.sampling.decoder import Cache, Decoder, row_memory, unsupported_reason
from rlvr_cli.models.sampling.engine import Completions, OnDone, SamplingParams, check_rows, concatenate
from rlvr_cli.models.sampling.memory import MAX_ROWS, USABLE_SHARE, explain_out_of_memory
from rlvr_cli.models.sampling.rng import draw_tokens, keep_likely, penalize, uniforms

# Bytes of keys and values of a batch on a CPU, to fit its cache. On the lab half the size takes a fifth more CPU time,
# double the size a tenth less, but leaves a second thread idle.
_CACHE_BYTES = 48 * 2**20
# Smaller models run one batch per thread; the matrix products of larger ones fill all threads.
_SMALL_WEIGHTS = 64 * 2**20
_POSITIONS_AT_ONCE = 64
# Share of finished rows in the batch at which they are dropped.
_DROP_SHARE = 0.1


def sample(
    model: Any,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    keys: Sequence[int],
    on_progress: Callable[[int], None] | None = None,
    on_done: OnDone | None = None,
) -> Completions:
    """Sample a completion for every prompt, as :class:`Engine`.

    Token t of a row is drawn by inverse CDF with a uniform number that depends only on (seed, the row's key, t), so a
    row's completion does not depend on other rows, up to floating-point rounding. Identical consecutive prompts are
    computed once.

    With max_rows None the batch depends on the free memory and the size of the model. Small models on a CPU decode
    several batches concurrently, one per thread; batches and results do not depend on the number of threads.
    on_progress is called with the number of new tokens, on_done with rows as they leave their batch.

    Raises ValueError for an unsupported model (`unsupported_reason`), SamplingMemoryError when the rows decoded at once
    exceed the memory.
    """
    check_rows(prompts, keys)
    if reason := unsupported_reason(model):
        raise ValueError(f"the local sampler cannot run this model: {reason}")
    if not prompts:
        return Completions([], [], [], [])
    lock = threading.Lock()

    def report(tokens: int) -> None:
        if on_progress is not None:
            with lock:
                on_progress(tokens)

    with torch.inference_mode():
        decoder = Decoder(model)

    def decode(batch: slice) -> Completions:
        def report_done(rows: Sequence[int], completions: Completions) -> None:
            if on_done is not None:
                with lock:
                    on_done([batch.start + row for row in rows], completions)

        with torch.inference_mode(), explain_out_of_memory(batch.stop - batch.start, longest):
            return DecodingBatch(decoder, prompts[batch], params.max_new_tokens).run(
                params, keys[batch], report, report_done
            )

    longest = max(map(len, prompts)) + params.max_new_tokens
    if params.max_rows is not None:
        slices = _split(len(prompts), params.max_rows)
    else:
        limit = _rows_per_batch(decoder, longest)
        fitting = rows_that_fit(model, prompts, params)
        # Each slice computes its prompts again, so cut many slices between prompts.
        slices = _split(len(prompts), limit) if limit <= fitting else _split_by_prompt(prompts, fitting)
    is_small = decoder.device.type == "cpu" and decoder.weight_bytes < _SMALL_WEIGHTS
    results = _decode_concurrently(decode, slices) if is_small else [decode(batch) for batch in slices]
    return concatenate(results)


def rows_that_fit(model: Any, prompts: Sequence[Sequence[int]], params: SamplingParams) -> int:
    """Return the number of rows, of the longest prompt and completion, that fit into the free memory.

    Small models on a CPU decode several slices at once, which share it. If the free memory is unknown, return the
    number of ``prompts``.
    """
    device = model.model.embed_tokens.weight.device
    free = _free_memory(device)
    if free is None:
        return len(prompts)
    memory, longest = row_memory(model), max(map(len, prompts))
    is_small = device.type == "cpu" and sum(weight.nbytes for weight in model.parameters()) < _SMALL_WEIGHTS
    room = USABLE_SHARE * free / (torch.get_num_threads() if is_small else 1) - memory.prompts(
        sum(map(len, {tuple(prompt) for prompt in prompts})), longest
    )
    copies = not params.whole_distribution
    return memory.rows(len(prompts), room, longest + params.max_new_tokens, sorts=copies)


def _free_memory(device: torch.device) -> int | None:
    """Return the free bytes of a device, including those in torch's cache; None if unknown."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(psutil.virtual_memory().available) if device.type == "cpu" else None


def _rows_per_batch(decoder: Decoder, length: int) -> int:
    """Return the number of rows whose keys and values fit the CPU's cache, or the size of the weights."""
    if decoder.device.type != "cpu":
        return MAX_ROWS
    row_bytes = length * decoder.memory.kv_token
    return min(512, max(16, max(_CACHE_BYTES, decoder.weight_bytes) // row_bytes))


def _split(rows: int, limit: int) -> list[slice]:
    """Split into consecutive slices of nearly equal size, at most ``limit``."""
    count = -(-rows // limit)
    bounds = [rows * i // count for i in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(bounds)]


def _split_by_prompt(prompts: Sequence[Sequence[int]], limit: int) -> list[slice]:
    """Split as `_split`, but between different prompts if the slices stay within ``limit``."""
    rows, ideal = len(prompts), _split(len(prompts), limit)
    between = [row for row in range(1, rows) if list(prompts[row]) != list(prompts[row - 1])]
    bounds = [0]
    for remaining, ideal_slice in zip(range(len(ideal) - 1, 0, -1), ideal, strict=False):
        first, last = max(bounds[-1] + 1, rows - remaining * limit), min(bounds[-1] + limit, rows - remaining)
        allowed = [row for row in between if first <= row <= last]
        nearest = min(
            allowed, key=lambda row: abs(row - ideal_slice.stop), default=min(max(ideal_slice.stop, first), last)
        )
        bounds.append(nearest)
    return [slice(a, b) for a, b in pairwise([*bounds, rows])]


def _decode_concurrently(decode: Callable[[slice], Completions], slices: list[slice]) -> list[Completions]:
    """Decode the slices on torch's number of threads, each single-threaded: a small model's operations are short."""
    threads = torch.get_num_threads()
    # New threads adopt torch's setting at their first operation.
    torch.set_num_threads(1)
    try:
        if threads == 1 or len(slices) == 1:
            return [decode(rows) for rows in slices]
        with ThreadPoolExecutor(min(threads, len(slices))) as pool:
            futures = [pool.submit(decode, rows) for rows in slices]
            try:
                return [future.result() for future in futures]
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
    finally:
        torch.set_num_threads(threads)


def _group_prompts(prompts: Sequence[Sequence[int]]) -> tuple[list[Sequence[int]], list[int]]:
    distinct: list[Sequence[int]] = []
    counts: list[int] = []
    for prompt in prompts:
        if distinct and list(prompt) == list(distinct[-1]):
            counts[-1] += 1
        else:
            distinct.append(prompt)
            counts.append(1)
    return distinct, counts


def _prefill_groups(lengths: Sequence[int], max_tokens: int) -> Iterator[range]:
    """Yield consecutive prompts to prefill together: at most ``max_tokens`` padded tokens, or a single prompt."""
    first, longest = 0, 0
    for index, length in enumerate(lengths):
        longest = max(longest, length)
        if index > first and longest * (index + 1 - first) > max_tokens:
            yield range(first, index)
            first, longest = index, length
    yield range(first, len(lengths))


class DecodingBatch:
    """A batch of rows whose prompts are right-aligned in the cache: all write their next token to the same column."""

    def __init__(self, decoder: Decoder, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
        device = decoder.device
        distinct, counts = _group_prompts(prompts)
        lengths = [len(prompt) for prompt in distinct]
        self.decoder, self.rows, self.width = decoder, len(prompts), max(lengths)
        self.prompts = prompts
        self.max_new_tokens = max_new_tokens
        self.turn = decoder.rotary_table(self.width + max_new_tokens)

        capacity = self.width + max_new_tokens
        cache = decoder.empty_cache(self.rows, capacity)
        # Empty columns are masked, but a NaN there would survive a multiplication by zero.
        cache[:, :, :, :, : self.width] = 0
        last = torch.tensor(lengths, device=device) - 1
        logits, row = [], 0
        for indices in _prefill_groups(lengths, decoder.prefill_tokens):
            width = max(lengths[index] for index in indices)
            ids = torch.tensor([[*distinct[i], *[0] * (width - lengths[i])] for i in indices], device=device)
            hidden, prompt_cache = decoder.prefill(ids, self.turn)
            logits.append(
                decoder.logits(hidden[torch.arange(len(indices), device=device), last[indices.start : indices.stop]])
            )
            for position, index in enumerate(indices):
                length, count = lengths[index], counts[index]
                cache[:, :, row : row + count, :, self.width - length : self.width] = prompt_cache[
                    :, :, position : position + 1, :, :length
                ]
                row += count
            # Free the memory before the next prefill.
            del hidden, prompt_cache
        repeats = torch.tensor(counts, device=device)
        row_prompt = torch.repeat_interleave(torch.arange(len(distinct), device=device), repeats)
        self.first_logits = (logits[0] if len(logits) == 1 else torch.cat(logits))[row_prompt]
        self.cache = Cache(cache)

        self.positions: Tensor | None = None
        self.bias: Tensor | None = None
        if min(lengths) < self.width:
            empty = (self.width - torch.tensor(lengths, device=device))[row_prompt].view(-1, 1, 1)
            columns = torch.arange(capacity, device=device)
            bias = torch.zeros(self.rows, decoder.kv_heads, capacity, dtype=decoder.score_dtype, device=device)
            self.bias = bias.masked_fill_(columns < empty, -torch.inf)
            self.positions = last[row_prompt] + 1

    def run(
        self, params: SamplingParams, keys: Sequence[int], on_progress: Callable[[int], None], on_done: OnDone
    ) -> Completions:
        """Decode until every row has ended; call on_done with rows as they leave the batch.

        Raises RunError for non-finite probabilities.
        """
        device, steps = self.decoder.device, self.max_new_tokens
        ids = torch.zeros(steps, self.rows, dtype=torch.int64, device=device)
        chosen = torch.ones(steps, self.rows, dtype=torch.float32, device=device)
        entropies = torch.zeros(steps, self.rows, dtype=torch.float32, device=device)
        lengths = torch.full((self.rows,), steps, dtype=torch.int64, device=device)
        truncated = torch.ones(self.rows, dtype=torch.bool, device=device)
        stops = torch.tensor(sorted(params.eos_token_ids), dtype=torch.int64, device=device)
        rows = torch.arange(self.rows, device=device)  # the row that each slot of the cache decodes
        active = torch.ones(self.rows, dtype=torch.bool, device=device)  # by slot
        remaining, logits = self.rows, self.first_logits
        seen = None if params.repetition_penalty == 1 else self._prompt_tokens(logits.shape[1])  # by slot
        order_done: list[int] = []
        batches: list[Completions] = []

        def finish(ended_rows: Tensor, longest: int) -> None:
            probabilities = chosen[:longest, ended_rows]
            if not bool(torch.isfinite(probabilities).all()):
                raise RunError("The model's probabilities are not finite numbers: its weights are damaged or diverged.")
            completed = _collect(
                ids[:longest, ended_rows],
                probabilities.log_(),
                entropies[:longest, ended_rows],
                lengths[ended_rows],
                truncated[ended_rows],
            )
            batches.append(completed)
            order_done.extend(ended_rows.tolist())
            on_done(ended_rows.tolist(), completed)

        for t in range(steps):
            offset = t % _POSITIONS_AT_ONCE
            if offset == 0:
                block = uniforms(params.seed, keys, t, min(_POSITIONS_AT_ONCE, steps - t))
                u = torch.from_numpy(block).to(device)
            tokens, probability, entropy = _sample_tokens(logits, u[offset].index_select(0, rows), params, seen)
            ids[t].index_copy_(0, rows, tokens)
            chosen[t].index_copy_(0, rows, probability)
            entropies[t].index_copy_(0, rows, entropy)
            on_progress(remaining)
            if seen is not None:
                seen.scatter_(1, tokens.unsqueeze(1), value=True)
            ended = torch.isin(tokens, stops)
            if params.stop is not None:
                tails = ids[max(0, t + 1 - params.stop.window) : t + 1, rows]
                ended |= torch.tensor(params.stop.end(tails.t().tolist()), device=device)
            ended.logical_and_(active)
            if bool(ended.any()):
                lengths[rows[ended]] = t + 1
                truncated[rows[ended]] = False
                active.logical_and_(~ended)
                remaining = int(active.sum())
                if remaining == 0:
                    break
                if len(rows) - remaining >= _DROP_SHARE * len(rows):
                    finish(rows[~active], t + 1)
                    order = self._drop_finished(active, remaining, self.width + t)
                    rows, tokens, active = rows[order], tokens[order], active[order]
                    seen = seen if seen is None else seen[order]
            if t + 1 < steps:
                logits = self._step(tokens, t)
        finish(rows, t + 1)
        return concatenate(batches).select(sorted(range(self.rows), key=order_done.__getitem__))

    def _prompt_tokens(self, vocabulary: int) -> Tensor:
        """Return (rows, vocabulary) whether a token is in the row's prompt."""
        seen = torch.zeros(self.rows, vocabulary, dtype=torch.bool, device=self.decoder.device)
        for row, prompt in enumerate(self.prompts):
            seen[row, torch.tensor(prompt, device=seen.device)] = True
        return seen

    def _step(self, tokens: Tensor, t: int) -> Tensor:
        if self.positions is None:
            turn = self.turn.narrow(0, self.width + t, 1)
        else:
            turn = self.turn.index_select(0, self.positions + t)
        bias = None if self.bias is None else self.bias.flatten(0, 1).unsqueeze(1)
        return self.decoder.step(tokens, self.cache, self.width + t, turn.unsqueeze(1), bias)

    def _drop_finished(self, active: Tensor, remaining: int, filled: int) -> Tensor:
        """Move the last active slots into finished ones, which copies few cache rows; return the old slot of each."""
        holes = (~active[:remaining]).nonzero().squeeze(1)
        tails = active[remaining:].nonzero().squeeze(1) + remaining
        order = torch.arange(remaining, device=active.device)
        order[holes] = tails
        # Layer by layer, since moved data is in memory twice.
        for data in self.cache.data:
            data[:, holes, :, :filled] = data[:, tails, :, :filled]
        self.cache.use(remaining)
        if self.positions is not None and self.bias is not None:
            self.positions, self.bias = self.positions[order], self.bias[order]
        return order


def _sample_tokens(
    logits: Tensor, u: Tensor, params: SamplingParams, seen: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the next token of each row [n], its probability [n] and the entropy of the row's distribution [n].

    logits [n, vocabulary] are overwritten; u [n] in [0, 1). ``seen`` [n, vocabulary]: the tokens of the repetition
    penalty, which like top_p affects the choice of the token, not its probability.
    """
    penalized = None if seen is None else penalize(logits, seen, params.repetition_penalty)
    if params.temperature not in (0, 1):
        logits.div_(params.temperature)
    probabilities = torch.softmax(logits, dim=-1)
    if params.temperature == 0:
        tokens = (logits if penalized is None else penalized).argmax(-1, keepdim=True)
    else:
        drawn = probabilities if penalized is None else torch.softmax(penalized.div_(params.temperature), dim=-1)
        tokens = draw_tokens(keep_likely(drawn, params.top_p, params.top_k, params.min_p), u)
    chosen = probabilities.gather(1, tokens)
    return tokens.squeeze(1), chosen.squeeze(1), _entropies(logits, probabilities, tokens, chosen)


def _entropies(logits: Tensor, probabilities: Tensor, tokens: Tensor, chosen: Tensor) -> Tensor:
    """Return the entropy of each row [n] in nats, without the logarithm of every probability.

    With p = softmax(l), for any token k: H = -log p_k - sum_i p_i (l_i - l_k). Logits and probabilities
    [n, vocabulary] are overwritten; tokens and chosen [n, 1] are k and p_k.
    """
    # For a large vocabulary softmax's float32 sum has an error that all probabilities share.
    total = probabilities.sum(-1)
    difference = logits.sub_(logits.gather(1, tokens))
    # A logit of minus infinity times its probability of 0 is NaN and must contribute 0.
    mean = probabilities.mul_(difference).nansum(-1)
    return (-(chosen.squeeze(1) / total).log() - mean / total).clamp_(min=0)


def _collect(ids: Tensor, log_probs: Tensor, entropies: Tensor, lengths: Tensor, truncated: Tensor) -> Completions:
    """Cut ids, log_probs and entropies [steps, rows] to each row's length."""
    counts = lengths.tolist()

    def cut(values: Tensor) -> list[Any]:
        return [row[:n] for row, n in zip(values.t().tolist(), counts, strict=True)]

    return Completions(cut(ids), cut(log_probs), truncated.tolist(), cut(entropies))
