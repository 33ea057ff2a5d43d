"""The rows of a rollout: padded, gathered from all processes, split into steps, packed into forward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from rlvr_cli.core.streams import stream_seed

TensorRows = dict[str, Tensor]

# Prompts end where completions begin.
LEFT_PADDED = ("prompt_ids", "prompt_mask")

# Sharing prompts takes a second, shorter pass through the layers: it must save this share of the tokens.
LEAST_SAVED = 0.2
# Tokens whose keys and values take as much memory as all that the backward pass needs of one, at most.
COPIED = 8
# What one more pass costs on top of its tokens, in tokens: padding is worth as much to have one pass less. On a GPU,
# where short passes leave it idle, more.
PASS_TOKENS, GPU_PASS_TOKENS = 256, 2048


def padded_rows(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], pad_id: int) -> TensorRows:
    """Token ids and masks of some rows, (n, P) and (n, T): prompts end where completions begin."""

    def padded(rows: Sequence[Sequence[int]], *, left: bool) -> tuple[Tensor, Tensor]:
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
        mask = torch.zeros((len(rows), width), dtype=torch.int64)
        for index, row in enumerate(rows):
            places = slice(width - len(row), None) if left else slice(len(row))
            ids[index, places] = torch.tensor(row, dtype=torch.int64)
            mask[index, places] = 1
        return ids, mask

    prompt_ids, prompt_mask = padded(prompts, left=True)
    completion_ids, completion_mask = padded(completions, left=False)
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
    }


def own_tokens(rows: Mapping[str, Tensor]) -> Tensor:
    """(n, T) 1 on the tokens that the policy wrote: of a completion all but those of tools and environments.

    ``completion_mask`` says which tokens are there, to be attended to; TRL's ``tool_mask``, if present, which
    of them the policy wrote.
    """
    mask = rows["completion_mask"]
    return mask * rows["tool_mask"] if "tool_mask" in rows else mask


def token_rows(values_of_rows: Sequence[Sequence[float]], mask: Tensor) -> Tensor:
    """(n, T) float32: the sampler's values of each row's tokens at their places, 0 where ``mask`` has none.

    Raises ValueError where a row has not one value for each of its tokens.
    """
    values = torch.zeros(mask.shape, dtype=torch.float32)
    lengths = mask.sum(dim=1).tolist()
    for row, (of_row, length) in enumerate(zip(values_of_rows, lengths, strict=True)):
        # A row that is dropped from training has no tokens left.
        if length and len(of_row) != length:
            raise ValueError(f"row {row}: {len(of_row)} values from the sampler for {int(length)} tokens")
        values[row, : int(length)] = torch.tensor(of_row[: int(length)], dtype=torch.float32)
    return values.to(mask.device)


def gather_rows(
    rows: Mapping[str, Tensor], gather: Callable[[Tensor], Tensor], processes: int, pad_id: int
) -> TensorRows:
    """The rows of every process in the order of the processes, padded to one width.

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
    """(rows,) permutation that deals the rows of ``rollout`` to optimizer steps; equal in all processes.

    Args:
        seed: of the run.
    """
    generator = torch.Generator().manual_seed(stream_seed(seed, "row-order", rollout))
    return torch.randperm(rows, generator=generator)


def split_into_steps(rows: TensorRows, order: Tensor, *, steps: int, process: int, processes: int) -> list[TensorRows]:
    """This process's rows of each optimizer step of one pass over a rollout.

    The rows of an optimizer step are the same for any number of processes. Those with an advantage are dealt out first
    and by their length, so that every process has as much to compute.

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
        idle: how many passes at the front are made only because another process makes as many: their gradient is 0.
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


def pack(
    rows: list[TokenRow], *, most_tokens: int, share_prompts: bool, pass_tokens: int = PASS_TOKENS
) -> MicroBatches:
    """Rows of like length together, in passes of at most ``most_tokens`` tokens; a row that is longer has its own.

    With ``share_prompts`` they are shared where that saves a fifth of the tokens (:data:`LEAST_SAVED`). Of all cuts the
    cheapest is taken, where a pass costs its tokens and ``pass_tokens`` more.
    """
    by_length = sorted(rows, key=lambda row: (row.completion, row.index))
    alone = _packed([[row] for row in by_length], most_tokens, pass_tokens, shared=False)
    if not share_prompts:
        return alone
    longest: dict[int, int] = {}
    for row in rows:
        longest[row.prompt_id] = max(longest.get(row.prompt_id, 0), row.completion)
    by_prompt = sorted(by_length, key=lambda row: (longest[row.prompt_id], row.prompt_id))
    groups = [list(group) for _, group in groupby(by_prompt, key=lambda row: row.prompt_id)]
    pieces = [piece for group in groups for piece in _pieces(group, most_tokens)]
    shared = _packed(pieces, most_tokens, pass_tokens, shared=True)
    return shared if shared.tokens <= (1 - LEAST_SAVED) * alone.tokens else alone


@dataclass
class _Pass:
    """Rows that share a pass, and the columns x rows that they take: every row as wide as the widest."""

    shared: bool
    rows: int = 0
    prompts: int = 0
    prompt: int = 0
    completion: int = 0

    def add(self, piece: list[TokenRow]) -> None:
        """Take in rows, of a prompt that none of the others has."""
        self.rows += len(piece)
        self.prompts += 1 if self.shared else len(piece)
        self.prompt = max(self.prompt, *(row.prompt for row in piece))
        self.completion = max(self.completion, *(row.completion for row in piece))

    @property
    def tokens(self) -> int:
        return self.prompts * self.prompt + self.rows * self.completion

    def fits(self, most_tokens: int) -> bool:
        # Each row keeps the keys and values of its prompt for the backward pass, also of shared ones.
        copies = self.rows * self.prompt // COPIED if self.shared else 0
        return self.tokens + copies <= most_tokens


def _pieces(group: list[TokenRow], most_tokens: int) -> Iterator[list[TokenRow]]:
    """The completions of one prompt, whole where one pass has room for them."""
    piece: list[TokenRow] = []
    for row in group:
        longer = _Pass(shared=True)
        longer.add([*piece, row])
        if piece and not longer.fits(most_tokens):
            yield piece
            piece = []
        piece.append(row)
    yield piece


def _packed(pieces: list[list[TokenRow]], most_tokens: int, pass_tokens: int, *, shared: bool) -> MicroBatches:
    """Consecutive pieces together: of all cuts those with the fewest tokens, padding and passes counted."""
    # For the pieces before each place: the least cost, the place of the last cut, the tokens of what follows it.
    best: list[tuple[int, int, int]] = [(0, 0, 0)]
    for end in range(1, len(pieces) + 1):
        cheapest: tuple[int, int, int] | None = None
        last = _Pass(shared)
        for start in range(end - 1, -1, -1):
            last.add(pieces[start])
            if cheapest is not None and not last.fits(most_tokens):
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


def numbered_prompts(prompt_ids: Tensor, prompt_mask: Tensor) -> list[int]:
    """(n,) for each row the number of the first row with the same prompt; both arguments (n, P), padded alike."""
    first: dict[tuple[int, ...], int] = {}
    numbers = []
    for index, (ids, length) in enumerate(zip(prompt_ids.tolist(), prompt_mask.sum(dim=1).tolist(), strict=True)):
        numbers.append(first.setdefault(tuple(ids[len(ids) - int(length) :]), index))
    return numbers
