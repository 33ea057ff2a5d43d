"""Pad the rows of a rollout, gather them from all processes, split them into steps, pack them into forward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from rlvr_cli.core.streams import stream_seed

TensorRows = dict[str, Tensor]

# Prompts are padded on the left, completions on the right.
LEFT_PADDED = ("prompt_ids", "prompt_mask")

# Sharing prompts costs a second, shorter pass through the layers, so it must save this share of the tokens.
MIN_SHARE_SAVED = 0.2
# Lower bound of a token's memory for the backward pass, in units of its keys and values.
KV_PER_TOKEN = 8
# Fixed cost of a pass, in tokens; higher on a GPU, which short passes underuse.
PASS_TOKENS, GPU_PASS_TOKENS = 256, 2048


def pad_rows(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], pad_id: int) -> TensorRows:
    """Return token ids and masks, (n, P) of left-padded prompts and (n, T) of right-padded completions."""

    def pad(rows: Sequence[Sequence[int]], *, pad_left: bool) -> tuple[Tensor, Tensor]:
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
        mask = torch.zeros((len(rows), width), dtype=torch.int64)
        for index, row in enumerate(rows):
            columns = slice(width - len(row), None) if pad_left else slice(len(row))
            ids[index, columns] = torch.tensor(row, dtype=torch.int64)
            mask[index, columns] = 1
        return ids, mask

    prompt_ids, prompt_mask = pad(prompts, pad_left=True)
    completion_ids, completion_mask = pad(completions, pad_left=False)
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
    }


def policy_mask(rows: Mapping[str, Tensor]) -> Tensor:
    """Return (n, T), 1 on the policy's tokens: the completion without the tokens of tools and environments.

    ``completion_mask`` marks all tokens to attend to; TRL's ``tool_mask``, if present, the policy's.
    """
    mask = rows["completion_mask"]
    return mask * rows["tool_mask"] if "tool_mask" in rows else mask


def pad_values(rows: Sequence[Sequence[float]], mask: Tensor) -> Tensor:
    """Return (n, T) float32: the sampler's values of each row at the tokens of ``mask``, 0 elsewhere.

    Raises ValueError if a row's numbers of values and tokens differ.
    """
    values = torch.zeros(mask.shape, dtype=torch.float32)
    lengths = mask.sum(dim=1).tolist()
    for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        # A row dropped from training has no tokens.
        if length and len(row) != length:
            raise ValueError(f"row {index}: {len(row)} values from the sampler for {int(length)} tokens")
        values[index, : int(length)] = torch.tensor(row[: int(length)], dtype=torch.float32)
    return values.to(mask.device)


def gather_rows(
    rows: Mapping[str, Tensor], gather: Callable[[Tensor], Tensor], processes: int, pad_id: int
) -> TensorRows:
    """Return the rows of all processes, in the order of the processes, padded to a common width.

    ``rows``: this process's columns (n,), (n, 1) or (n, T). ``gather``: concatenates a tensor of equal shape on all
    processes along its first dimension.
    """
    if processes == 1:
        return dict(rows)
    gathered: TensorRows = {}
    for key in sorted(rows):
        value = rows[key].contiguous()
        if value.dim() == 2:
            widths = gather(torch.tensor([value.shape[1]], device=value.device))
            missing = int(widths.max()) - value.shape[1]
            sides = (missing, 0) if key in LEFT_PADDED else (0, missing)
            fill = pad_id if key in ("prompt_ids", "completion_ids") else 0
            value = torch.nn.functional.pad(value, sides, value=fill)
        gathered[key] = gather(value)
    return gathered


def row_order(seed: int, rollout: int, rows: int) -> Tensor:
    """Return the permutation (rows,) that assigns a rollout's rows to optimizer steps, from the run's seed."""
    generator = torch.Generator().manual_seed(stream_seed(seed, "row-order", rollout))
    return torch.randperm(rows, generator=generator)


def split_into_steps(rows: TensorRows, order: Tensor, *, steps: int, process: int, processes: int) -> list[TensorRows]:
    """Return this process's rows for each optimizer step of one pass over a rollout.

    A step's rows do not depend on the number of processes. Rows with an advantage are distributed first, by length, to
    balance the load.

    Args:
        rows: the whole rollout, of all processes.
        order: (N,) permutation of the rows; optimizer step i takes its i-th chunk of ``steps``.
    """
    lengths = rows["completion_mask"].sum(dim=1)
    no_advantage = (rows["advantages"] == 0).all(dim=1)
    step_rows: list[TensorRows] = []
    for chosen in order.to(lengths.device).chunk(steps):
        by_length = chosen[torch.sort(lengths[chosen], stable=True).indices]
        indices = by_length[torch.sort(no_advantage[by_length].int(), stable=True).indices]
        step_rows.append({key: value[indices[process::processes]] for key, value in rows.items()})
    return step_rows


@dataclass(frozen=True)
class MicroBatches:
    """The rows of each forward pass.

    Attributes:
        rows: row indices by pass. tokens: total over the passes, padding included.
        share_prompts: whether a prompt is computed once for its completions in a pass.
        dummies: number of dummy passes at the front, with gradient 0, so that all processes run equally many.
    """

    rows: list[list[int]]
    tokens: int
    share_prompts: bool
    dummies: int = 0


@dataclass(frozen=True)
class TokenRow:
    """A row's index, numbers of prompt and completion tokens, and prompt number."""

    index: int
    prompt: int
    completion: int
    prompt_id: int


def pack(rows: list[TokenRow], *, max_tokens: int, share_prompts: bool, pass_tokens: int = PASS_TOKENS) -> MicroBatches:
    """Pack rows of similar length into passes of at most ``max_tokens`` tokens; a longer row gets its own pass.

    ``share_prompts`` allows sharing where it saves a fifth of the tokens (:data:`MIN_SHARE_SAVED`). The cuts minimise
    the number of tokens, plus ``pass_tokens`` for each pass.
    """
    by_length = sorted(rows, key=lambda row: (row.completion, row.index))
    unshared = _pack_chunks([[row] for row in by_length], max_tokens, pass_tokens, shared=False)
    if not share_prompts:
        return unshared
    longest: dict[int, int] = {}
    for row in rows:
        longest[row.prompt_id] = max(longest.get(row.prompt_id, 0), row.completion)
    by_prompt = sorted(by_length, key=lambda row: (longest[row.prompt_id], row.prompt_id))
    groups = [list(group) for _, group in groupby(by_prompt, key=lambda row: row.prompt_id)]
    chunks = [chunk for group in groups for chunk in _split_group(group, max_tokens)]
    shared = _pack_chunks(chunks, max_tokens, pass_tokens, shared=True)
    return shared if shared.tokens <= (1 - MIN_SHARE_SAVED) * unshared.tokens else unshared


@dataclass
class _Pass:
    """Numbers of rows and prompts in a pass, and the longest prompt and completion."""

    shared: bool
    rows: int = 0
    prompts: int = 0
    prompt: int = 0
    completion: int = 0

    def add(self, chunk: list[TokenRow]) -> None:
        self.rows += len(chunk)
        self.prompts += 1 if self.shared else len(chunk)
        self.prompt = max(self.prompt, *(row.prompt for row in chunk))
        self.completion = max(self.completion, *(row.completion for row in chunk))

    @property
    def tokens(self) -> int:
        return self.prompts * self.prompt + self.rows * self.completion

    def fits(self, max_tokens: int) -> bool:
        # Each row keeps a copy of its prompt's keys and values for the backward pass, also of a shared prompt.
        copies = self.rows * self.prompt // KV_PER_TOKEN if self.shared else 0
        return self.tokens + copies <= max_tokens


def _split_group(group: list[TokenRow], max_tokens: int) -> Iterator[list[TokenRow]]:
    """Yield the completions of one prompt in chunks that fit into a pass."""
    chunk: list[TokenRow] = []
    for row in group:
        longer = _Pass(shared=True)
        longer.add([*chunk, row])
        if chunk and not longer.fits(max_tokens):
            yield chunk
            chunk = []
        chunk.append(row)
    yield chunk


def _pack_chunks(chunks: list[list[TokenRow]], max_tokens: int, pass_tokens: int, *, shared: bool) -> MicroBatches:
    """Join consecutive chunks at minimal cost, by dynamic programming over the cuts."""
    # For each prefix of the chunks: the minimal cost, the index of the last cut, the tokens after it.
    best: list[tuple[int, int, int]] = [(0, 0, 0)]
    for end in range(1, len(chunks) + 1):
        cheapest: tuple[int, int, int] | None = None
        last = _Pass(shared)
        for start in range(end - 1, -1, -1):
            last.add(chunks[start])
            if cheapest is not None and not last.fits(max_tokens):
                break
            cost = best[start][0] + last.tokens + pass_tokens
            if cheapest is None or cost < cheapest[0]:
                cheapest = (cost, start, last.tokens)
        assert cheapest is not None
        best.append(cheapest)
    passes, tokens, end = [], 0, len(chunks)
    while end > 0:
        _, start, pass_size = best[end]
        passes.append([row.index for chunk in chunks[start:end] for row in chunk])
        tokens, end = tokens + pass_size, start
    return MicroBatches(passes[::-1], tokens, shared)


def number_prompts(prompt_ids: Tensor, prompt_mask: Tensor) -> list[int]:
    """Return for each row the index of the first row with the same prompt; arguments (n, P), left-padded."""
    first: dict[tuple[int, ...], int] = {}
    numbers = []
    for index, (ids, length) in enumerate(zip(prompt_ids.tolist(), prompt_mask.sum(dim=1).tolist(), strict=True)):
        numbers.append(first.setdefault(tuple(ids[len(ids) - int(length) :]), index))
    return numbers
