"""How rows are dealt into forward passes."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
import torch

from rlvr_cli.training.packing import MIN_SHARE_SAVED, PASS_TOKENS, MicroBatches, TokenRow, number_prompts, pack


def some_rows(count: int, *, prompt: int, group: int, longest: int, seed: int = 0) -> list[TokenRow]:
    draw = random.Random(seed)
    return [TokenRow(index, prompt, draw.randint(1, longest), index // group) for index in range(count)]


def padded(parts: MicroBatches, rows: list[TokenRow]) -> list[int]:
    """Columns x rows of each pass, by its definition."""
    found = []
    for chosen in parts.rows:
        own = [rows[index] for index in chosen]
        prompts = len({row.prompt_id for row in own}) if parts.share_prompts else len(own)
        found.append(prompts * max(row.prompt for row in own) + len(own) * max(row.completion for row in own))
    return found


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("most", [30, 200, 10**9])
def test_every_row_is_in_one_pass_and_no_pass_is_too_large(share: bool, most: int) -> None:
    rows = some_rows(40, prompt=20, group=8, longest=30)
    parts = pack(rows, max_tokens=most, share_prompts=share)
    assert sorted(index for chosen in parts.rows for index in chosen) == list(range(40))
    sizes = padded(parts, rows)
    assert parts.tokens == sum(sizes)
    assert all(size <= most or len(chosen) == 1 for size, chosen in zip(sizes, parts.rows, strict=True))


def test_the_cuts_are_the_cheapest_of_all() -> None:
    """By trying every way to cut ten sorted rows."""
    rows = sorted(some_rows(10, prompt=50, group=10, longest=400), key=lambda row: row.completion)
    rows = [TokenRow(index, row.prompt, row.completion, index) for index, row in enumerate(rows)]
    cheapest = min(
        sum(padded(MicroBatches(parts, 0, share_prompts=False), rows)) + PASS_TOKENS * len(parts)
        for number in range(10)
        for cuts in combinations(range(1, 10), number)
        for parts in [[list(range(a, b)) for a, b in zip((0, *cuts), (*cuts, 10), strict=True)]]
        if max(padded(MicroBatches(parts, 0, share_prompts=False), rows)) <= 2000
    )
    found = pack(rows, max_tokens=2000, share_prompts=False)
    assert found.tokens + PASS_TOKENS * len(found.rows) == cheapest


def test_prompts_are_shared_where_that_saves_enough() -> None:
    long = some_rows(32, prompt=100, group=8, longest=20)
    assert pack(long, max_tokens=2000, share_prompts=True).share_prompts
    assert not pack(long, max_tokens=2000, share_prompts=False).share_prompts
    short = some_rows(32, prompt=10, group=8, longest=int(10 / MIN_SHARE_SAVED))
    assert not pack(short, max_tokens=2000, share_prompts=True).share_prompts


def test_prompts_are_told_apart_by_their_tokens_and_not_by_their_padding() -> None:
    ids = torch.tensor([[0, 0, 7], [0, 5, 7], [9, 9, 7], [0, 5, 7]])
    mask = torch.tensor([[0, 0, 1], [0, 1, 1], [0, 0, 1], [0, 1, 1]])
    assert number_prompts(ids, mask) == [0, 1, 0, 1]
