"""How the rows of an optimizer step are dealt into forward passes: which share one, and which share a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from torch import Tensor

# Sharing prompts takes a second, shorter pass through the layers: it must save this share of the tokens.
LEAST_SAVED = 0.2


@dataclass(frozen=True)
class Parts:
    """The forward passes of some rows.

    Attributes:
        rows: the rows of each pass. tokens: columns x rows of all passes together, padding included.
        share_prompts: whether a prompt is computed once for its completions in a pass.
    """

    rows: list[list[int]]
    tokens: int
    share_prompts: bool


@dataclass(frozen=True)
class Row:
    """One row: its index, the tokens of its prompt and of its completion, and a number that tells the prompt."""

    index: int
    prompt: int
    completion: int
    prompt_id: int


def deal(rows: list[Row], *, most_tokens: int, most_rows: int | None = None, share_prompts: bool) -> Parts:
    """Rows of like length together, in passes of at most ``most_tokens`` tokens; a row that is longer has its own.

    Prompts are shared where that saves a fifth of the tokens (:data:`LEAST_SAVED`).

    Args:
        most_rows: rows of a pass, whatever their length. share_prompts: whether prompts may be shared.
    """
    by_length = sorted(rows, key=lambda row: (row.completion, row.index))
    alone = _packed([[row] for row in by_length], most_tokens, most_rows, shared=False)
    if not share_prompts:
        return alone
    longest: dict[int, int] = {}
    for row in rows:
        longest[row.prompt_id] = max(longest.get(row.prompt_id, 0), row.completion)
    by_prompt = sorted(by_length, key=lambda row: (longest[row.prompt_id], row.prompt_id))
    groups = [list(group) for _, group in groupby(by_prompt, key=lambda row: row.prompt_id)]
    pieces = [piece for group in groups for piece in _pieces(group, most_tokens, most_rows)]
    shared = _packed(pieces, most_tokens, most_rows, shared=True)
    return shared if shared.tokens <= (1 - LEAST_SAVED) * alone.tokens else alone


def _tokens(rows: list[Row], *, shared: bool) -> int:
    """Columns x rows of one pass: all prompts as wide as the longest, and all completions."""
    prompts = len({row.prompt_id for row in rows}) if shared else len(rows)
    return prompts * max(row.prompt for row in rows) + len(rows) * max(row.completion for row in rows)


def _fits(rows: list[Row], most_tokens: int, most_rows: int | None, *, shared: bool) -> bool:
    return _tokens(rows, shared=shared) <= most_tokens and (most_rows is None or len(rows) <= most_rows)


def _pieces(group: list[Row], most_tokens: int, most_rows: int | None) -> Iterator[list[Row]]:
    """The completions of one prompt, whole where one pass has room for them."""
    piece: list[Row] = []
    for row in group:
        if piece and not _fits([*piece, row], most_tokens, most_rows, shared=True):
            yield piece
            piece = []
        piece.append(row)
    yield piece


def _packed(pieces: list[list[Row]], most_tokens: int, most_rows: int | None, *, shared: bool) -> Parts:
    """Consecutive pieces together as long as they fit."""
    passes: list[list[Row]] = []
    for piece in pieces:
        if passes and _fits([*passes[-1], *piece], most_tokens, most_rows, shared=shared):
            passes[-1].extend(piece)
        else:
            passes.append(list(piece))
    return Parts(
        [[row.index for row in rows] for rows in passes],
        sum(_tokens(rows, shared=shared) for rows in passes),
        shared,
    )


def numbered_prompts(prompt_ids: Tensor, prompt_mask: Tensor) -> list[int]:
    """(n,) for each row the number of the first row with the same prompt; both arguments (n, P), padded alike."""
    first: dict[tuple[int, ...], int] = {}
    numbers = []
    for index, (ids, length) in enumerate(zip(prompt_ids.tolist(), prompt_mask.sum(dim=1).tolist(), strict=True)):
        numbers.append(first.setdefault(tuple(ids[len(ids) - int(length) :]), index))
    return numbers
