"""How the rows of an optimizer step are dealt into forward passes: which share one, and which share a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from torch import Tensor

# Sharing prompts takes a second, shorter pass through the layers: it must save this share of the tokens.
LEAST_SAVED = 0.2
# Tokens whose keys and values take as much memory as all that the backward pass needs of one, at most.
COPIED = 8
# What one more pass costs beside its tokens, in tokens: padding is worth as much to have one pass less.
PASS_TOKENS = 256


@dataclass(frozen=True)
class Parts:
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


@dataclass
class _Pass:
    """Rows that share a pass, and the columns x rows that they take: every row as wide as the widest."""

    shared: bool
    rows: int = 0
    prompts: int = 0
    prompt: int = 0
    completion: int = 0

    def add(self, piece: list[Row]) -> None:
        """Take in rows, of a prompt that none of the others has."""
        self.rows += len(piece)
        self.prompts += 1 if self.shared else len(piece)
        self.prompt = max(self.prompt, *(row.prompt for row in piece))
        self.completion = max(self.completion, *(row.completion for row in piece))

    @property
    def tokens(self) -> int:
        return self.prompts * self.prompt + self.rows * self.completion

    def fits(self, most_tokens: int, most_rows: int | None) -> bool:
        # Each row keeps the keys and values of its prompt for the backward pass, whoever computed them.
        copies = self.rows * self.prompt // COPIED if self.shared else 0
        return self.tokens + copies <= most_tokens and (most_rows is None or self.rows <= most_rows)


def _pieces(group: list[Row], most_tokens: int, most_rows: int | None) -> Iterator[list[Row]]:
    """The completions of one prompt, whole where one pass has room for them."""
    piece: list[Row] = []
    for row in group:
        longer = _Pass(shared=True)
        longer.add([*piece, row])
        if piece and not longer.fits(most_tokens, most_rows):
            yield piece
            piece = []
        piece.append(row)
    yield piece


def _packed(pieces: list[list[Row]], most_tokens: int, most_rows: int | None, *, shared: bool) -> Parts:
    """Consecutive pieces together: of all cuts those with the fewest tokens, padding and passes counted."""
    # For the pieces before each place: the least cost, the place of the last cut, the tokens of what follows it.
    best: list[tuple[int, int, int]] = [(0, 0, 0)]
    for end in range(1, len(pieces) + 1):
        found: tuple[int, int, int] | None = None
        last = _Pass(shared)
        for start in range(end - 1, -1, -1):
            last.add(pieces[start])
            if found is not None and not last.fits(most_tokens, most_rows):
                break
            cost = best[start][0] + last.tokens + PASS_TOKENS
            if found is None or cost < found[0]:
                found = (cost, start, last.tokens)
        assert found is not None
        best.append(found)
    passes, tokens, end = [], 0, len(pieces)
    while end > 0:
        _, start, own = best[end]
        passes.append([row.index for piece in pieces[start:end] for row in piece])
        tokens, end = tokens + own, start
    return Parts(passes[::-1], tokens, shared)


def numbered_prompts(prompt_ids: Tensor, prompt_mask: Tensor) -> list[int]:
    """(n,) for each row the number of the first row with the same prompt; both arguments (n, P), padded alike."""
    first: dict[tuple[int, ...], int] = {}
    numbers = []
    for index, (ids, length) in enumerate(zip(prompt_ids.tolist(), prompt_mask.sum(dim=1).tolist(), strict=True)):
        numbers.append(first.setdefault(tuple(ids[len(ids) - int(length) :]), index))
    return numbers
