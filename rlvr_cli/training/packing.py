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

# Sharing prompts takes a second, shorter pass through the layers, so it must save this share of the tokens.
MIN_SHARE_SAVED = 0.2
# Lower bound of the memory of a token for the backward pass, in tokens' keys and values.
COPIED = 8
# Fixed cost of a pass, in tokens; higher on a GPU, which short passes leave idle.
PASS_TOKENS, GPU_PASS_TOKENS = 256, 2048


def pad_rows(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], pad_id: int) -> TensorRows:
    """Return token ids and masks of rows, (n, P) and (n, T): prompts left-padded, completions right-padded."""

    def padded(rows: Sequence[Sequence[int]], *, pad_left: bool) -> tuple[Tensor, Tensor]:
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
        mask = torch.zeros((len(rows), width), dtype=torch.int64)
        for index, row in enumerate(rows):
            places = slice(width - len(row), None) if pad_left else slice(len(row))
            ids[index, places] = torch.tensor(row, dtype=torch.int64)
            mask[index, places] = 1
        return ids, mask

    prompt_ids, prompt_mask = padded(prompts, pad_left=True)
    completion_ids, completion_mask = padded(completions, pad_left=False)
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
    }


def policy_mask(rows: Mapping[str, Tensor]) -> Tensor:
    """Return (n, T), 1 on the policy's tokens: those of a completion without the tokens of tools and environments.

    ``completion_mask`` marks all tokens to attend to; TRL's ``tool_mask``, if present, those of the policy.
    """
    mask = rows["completion_mask"]
    return mask * rows["tool_mask"] if "tool_mask" in rows else mask


def pad_values(values_of_rows: Sequence[Sequence[float]], mask: Tensor) -> Tensor:
    """Return (n, T) float32: the sampler's values at the tokens of ``mask``, 0 elsewhere.

    Raises ValueError for a row whose number of values is not its number of tokens.
    """
    values = torch.zeros(mask.shape, dtype=torch.float32)
    lengths = mask.sum(dim=1).tolist()
    for row, (of_row, length) in enumerate(zip(values_of_rows, lengths, strict=True)):
        # A row dropped from training has no tokens.
        if length and len(of_row) != length:
            raise ValueError(f"row {row}: {len(of_row)} values from the sampler for {int(length)} tokens")
        values[row, : int(length)] = torch.tensor(of_row[: int(length)], dtype=torch.float32)
    return values.to(mask.device)


def gather_rows(
    rows: Mapping[str, Tensor], gather: Callable[[Tensor], Tensor], processes: int, pad_id: int
) -> TensorRows:
    """Return the rows of all processes, in their order, padded to one width.

    Args:
        rows: tensors whose first dimension is this process's rows; (n,), (n, 1) or (n, T).
        gather: joins a tensor of equal shape on all processes along its first dimension.
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
    """Return the permutation (rows,) that assigns a rollout's rows to optimizer steps, the same in all processes.

    Args:
        seed: of the run.
    """
    generator = torch.Generator().manual_seed(stream_seed(seed, "row-order", rollout))
    return torch.randperm(rows, generator=generator)


def split_into_steps(rows: TensorRows, order: Tensor, *, steps: int, process: int, processes: int) -> list[TensorRows]:
    """Return this process's rows for each optimizer step of one pass over a rollout.

    The rows of an optimizer step do not depend on the number of processes. Rows with an advantage are distributed
    first, by length, to balance the load.

    Args:
        rows: the whole rollout, of all processes.
        order: (N,) permutation of the rows; optimizer step i takes the i-th of ``steps`` equal parts.
    """
    lengths = rows["completion_mask"].sum(dim=1)
    idle = (rows["advantages"] == 0).all(dim=1)
    step_rows: list[TensorRows] = []
    for chosen in order.to(lengths.device).chunk(steps):
        by_length = chosen[torch.sort(lengths[chosen], stable=True).indices]
        indices = by_length[torch.sort(idle[by_length].int(), stable=True).indices]
        step_rows.append({key: value[indices[process::processes]] for key, value in rows.items()})
    return step_rows


@dataclass(frozen=True)
class MicroBatches:
    """The forward passes of some rows.

    Attributes:
        rows: the rows of each pass. tokens: columns x rows of all passes together, padding included.
        share_prompts: whether a prompt is computed once for its completions in a pass.
        idle: the number of dummy passes at the front, with gradient 0, that match another process's number.
    """

    rows: list[list[int]]
    tokens: int
    share_prompts: bool
    idle: int = 0


@dataclass(frozen=True)
class TokenRow:
    """One row: its index, the tokens of its prompt and of its completion, and the number of its prompt."""

    index: int
    prompt: int
    completion: int
    prompt_id: int


def pack(rows: list[TokenRow], *, max_tokens: int, share_prompts: bool, pass_tokens: int = PASS_TOKENS) -> MicroBatches:
    """Pack rows of similar length into passes of at most ``max_tokens`` tokens; a longer row has a pass to itself.

    With ``share_prompts`` prompts are shared where that saves a fifth of the tokens (:data:`MIN_SHARE_SAVED`). The cuts
    minimise the cost, tokens plus ``pass_tokens`` for each pass.
    """
    by_length = sorted(rows, key=lambda row: (row.completion, row.index))
    alone = _pack_pieces([[row] for row in by_length], max_tokens, pass_tokens, shared=False)
    if not share_prompts:
        return alone
    longest: dict[int, int] = {}
    for row in rows:
        longest[row.prompt_id] = max(longest.get(row.prompt_id, 0), row.completion)
    by_prompt = sorted(by_length, key=lambda row: (longest[row.prompt_id], row.prompt_id))
    groups = [list(group) for _, group in groupby(by_prompt, key=lambda row: row.prompt_id)]
    pieces = [piece for group in groups for piece in _pieces(group, max_tokens)]
    shared = _pack_pieces(pieces, max_tokens, pass_tokens, shared=True)
    return shared if shared.tokens <= (1 - MIN_SHARE_SAVED) * alone.tokens else alone


@dataclass
class _Pass:
    """Rows of one pass, and their columns x rows at the width of the widest."""

    shared: bool
    rows: int = 0
    prompts: int = 0
    prompt: int = 0
    completion: int = 0

    def add(self, piece: list[TokenRow]) -> None:
        """Add rows of a new prompt."""
        self.rows += len(piece)
        self.prompts += 1 if self.shared else len(piece)
        self.prompt = max(self.prompt, *(row.prompt for row in piece))
        self.completion = max(self.completion, *(row.completion for row in piece))

    @property
    def tokens(self) -> int:
        return self.prompts * self.prompt + self.rows * self.completion

    def fits(self, max_tokens: int) -> bool:
        # Each row keeps the keys and values of its prompt for the backward pass, even of a shared one.
        copies = self.rows * self.prompt // COPIED if self.shared else 0
        return self.tokens + copies <= max_tokens


def _pieces(group: list[TokenRow], max_tokens: int) -> Iterator[list[TokenRow]]:
    """Yield the completions of one prompt, together if they fit into one pass."""
    piece: list[TokenRow] = []
    for row in group:
        longer = _Pass(shared=True)
        longer.add([*piece, row])
        if piece and not longer.fits(max_tokens):
            yield piece
            piece = []
        piece.append(row)
    yield piece


def _pack_pieces(pieces: list[list[TokenRow]], max_tokens: int, pass_tokens: int, *, shared: bool) -> MicroBatches:
    """Join consecutive pieces at minimal cost, by dynamic programming over the cuts."""
    # For each prefix of the pieces: the least cost, the index of the last cut, the tokens after it.
    best: list[tuple[int, int, int]] = [(0, 0, 0)]
    for end in range(1, len(pieces) + 1):
        cheapest: tuple[int, int, int] | None = None
        last = _Pass(shared)
        for start in range(end - 1, -1, -1):
            last.add(pieces[start])
            if cheapest is not None and not last.fits(max_tokens):
                break
            cost = best[start][0] + last.tokens + pass_tokens
            if cheapest is None or cost < cheapest[0]:
                cheapest = (cost, start, last.tokens)
        assert cheapest is not None
        best.append(cheapest)
    passes, tokens, end = [], 0, len(pieces)
    while end > 0:
        _, start, own = best[end]
        passes.append([row.index for piece in pieces[start:end] for row in piece])
        tokens, end = tokens + own, start
    return MicroBatches(passes[::-1], tokens, shared)


def number_prompts(prompt_ids: Tensor, prompt_mask: Tensor) -> list[int]:
    """Return (n,): for each row the index of the first row with the same prompt; arguments (n, P), equally padded."""
    first: dict[tuple[int, ...], int] = {}
    numbers = []
    for index, (ids, length) in enumerate(zip(prompt_ids.tolist(), prompt_mask.sum(dim=1).tolist(), strict=True)):
        numbers.append(first.setdefault(tuple(ids[len(ids) - int(length) :]), index))
    return numbers
