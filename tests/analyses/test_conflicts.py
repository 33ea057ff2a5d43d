"""GTPO's conflict tokens against loops over single rows and tokens, on small random rollouts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from rlvr_cli.analyses.conflicts import (
    add_tallies,
    count_conflicts,
    find_shared_spans,
    summarize_conflicts,
)
from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.grpo import group_advantage

Rows = Sequence[Sequence[int]]


def rollout_of(rows: Rows, rewards: Sequence[float], group_size: int) -> Rollout:
    width = max(map(len, rows))
    return Rollout(
        rewards=torch.tensor(rewards, dtype=torch.float64),
        group_size=group_size,
        token_ids=torch.tensor([[*row, *[0] * (width - len(row))] for row in rows]),
        mask=torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows]),
    )


def random_rows(seed: int) -> tuple[list[list[int]], list[float]]:
    """Four groups of four rows of few distinct tokens, so that much is shared; some rewards are equal."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, size: int) -> list[int]:
        return torch.randint(high, (size,), generator=generator).tolist()

    rows = [draw(2, 1 + draw(7, 1)[0]) for _ in range(16)]
    return rows, [float(value) for value in draw(3, 16)]


def by_loops(rows: Rows, rewards: Sequence[float], size: int) -> dict[str, float | None]:
    """The same numbers from the definitions, token by token and row by row."""
    advantages = group_advantage(torch.tensor(rewards, dtype=torch.float64), size, divide_by_std=True).tolist()
    counts = dict.fromkeys(("tokens", "mixed", "prefix", "suffix", "conflict", "up", "down", "penalised"), 0.0)
    spans: list[int] = []
    groups_hit = 0
    for first in range(0, len(rows), size):
        group = range(first, first + size)
        hit = False

        def conflicts(row: int, offset: int, backwards: bool, group: range = group) -> bool:
            """Whether a right and a wrong row have this token at this offset."""

            def at(other: int) -> int | None:
                tokens = rows[other][::-1] if backwards else rows[other]
                return tokens[offset] if offset < len(tokens) else None

            same = [other for other in group if at(other) == at(row)]
            return any(advantages[i] > 0 for i in same) and any(advantages[i] < 0 for i in same)

        both = any(advantages[i] > 0 for i in group) and any(advantages[i] < 0 for i in group)
        for row in group:
            length = len(rows[row])
            counts["tokens"] += length
            counts["mixed"] += length if both else 0
            if not advantages[row]:
                continue
            runs = []
            for backwards in (False, True):
                run = 0
                while run < length and conflicts(row, run, backwards):
                    run += 1
                runs.append(run)
            counts["prefix"] += runs[0]
            counts["suffix"] += runs[1]
            spans += [run for run in runs if run]
            for place, token in enumerate(rows[row]):
                from_end = length - 1 - place
                if place >= runs[0] and from_end >= runs[1]:
                    continue
                hit = True
                net = 0.0
                for other in group:
                    tokens = rows[other] if place < runs[0] else rows[other][::-1]
                    offset = place if place < runs[0] else from_end
                    if offset < len(tokens) and tokens[offset] == token:
                        net += advantages[other] / len(tokens)
                counts["conflict"] += 1
                counts["penalised"] += net < 0
                counts["up" if advantages[row] > 0 else "down"] += abs(advantages[row]) / length
        groups_hit += hit
    conflict = counts["conflict"]
    return {
        "conflict_share": conflict / counts["tokens"],
        "conflict_mixed_share": conflict / counts["mixed"],
        "conflict_prefix_share": counts["prefix"] / counts["tokens"],
        "conflict_suffix_share": counts["suffix"] / counts["tokens"],
        "groups_share": groups_hit / (len(rows) / size),
        "span_mean": sum(spans) / len(spans),
        "span_largest": max(spans),
        "negative_push_share": counts["down"] / (counts["up"] + counts["down"]),
        "penalised_correct_share": counts["penalised"] / conflict,
        "push_gtpo_over_grpo": 2 * counts["up"] / (counts["up"] + counts["down"]),
    }


@pytest.mark.parametrize("seed", range(3))
def test_every_number_is_that_of_a_loop_over_rows_and_tokens(seed: int) -> None:
    rows, rewards = random_rows(seed)
    found = summarize_conflicts(count_conflicts(rollout_of(rows, rewards, 4)))
    expected = by_loops(rows, rewards, 4)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-12)
    assert found["negative_push_share_gtpo"] == 0


@pytest.mark.parametrize("seed", range(3))
def test_shared_prefixes_are_those_of_all_pairs(seed: int) -> None:
    """Every prefix that a right and a wrong row share, once each, with the sum of A / |o| of the rows that begin so."""
    rows, rewards = random_rows(seed)
    group, advantages = rows[:4], group_advantage(torch.tensor(rewards[:4]), 4, divide_by_std=True).tolist()
    coefficients = [a / len(row) for a, row in zip(advantages, group, strict=True)]
    nets: dict[tuple[int, ...], float] = {}
    for row in group:
        for end in range(1, len(row) + 1):
            prefix = tuple(row[:end])
            having = [c for other, c in zip(group, coefficients, strict=True) if tuple(other[:end]) == prefix]
            if max(having) > 0 > min(having):
                nets[prefix] = sum(having)
    spans = find_shared_spans(group, coefficients)
    found = {
        tuple(group[span.rows[0]][: span.start + 1 + step]): span.net for span in spans for step in range(span.length)
    }
    assert found == pytest.approx(nets)
    assert sum(span.length for span in spans) == len(nets)


def test_a_prefix_is_penalised_where_the_right_completions_are_longer() -> None:
    """Equation 6: advantages of one right and one wrong row balance, their divisors do not."""
    longer_right = count_conflicts(rollout_of([[1, 2, 3, 3, 3, 3], [1, 2, 4]], [1.0, 0.0], 2))
    longer_wrong = count_conflicts(rollout_of([[1, 2, 3, 3, 3, 3], [1, 2, 4]], [0.0, 1.0], 2))
    assert [longer_right[name] for name in ("shared", "shared_negative", "shared_tokens")] == [1, 1, 2]
    assert [longer_wrong[name] for name in ("shared", "shared_negative")] == [1, 0]
    assert longer_right["penalised"] == 4 and longer_wrong["penalised"] == 0
    # The same lengths balance: the net is 0, which is no penalty.
    even = count_conflicts(rollout_of([[1, 2, 3], [1, 2, 4]], [1.0, 0.0], 2))
    assert even["penalised"] == even["shared_negative"] == 0 and even["prefix"] == 4
    assert summarize_conflicts(even)["push_gtpo_over_grpo"] == pytest.approx(1)


def test_tallies_add_up() -> None:
    rows, rewards = random_rows(3)
    whole = count_conflicts(rollout_of(rows, rewards, 4))
    halves = add_tallies([count_conflicts(rollout_of(rows[at : at + 8], rewards[at : at + 8], 4)) for at in (0, 8)])
    assert summarize_conflicts(halves) == pytest.approx(summarize_conflicts(whole))
    assert halves["prefix_ids"] == whole["prefix_ids"] and halves["suffix_spans"] == whole["suffix_spans"]


def test_where_pushes_balance_rounding_is_no_push_down() -> None:
    """Rows of one length that are all alike: their A / |o| add up to 0."""
    for right in range(1, 8):
        for length in range(1, 8):
            rewards = [0.1 + 2.2 * (row < right) for row in range(8)]
            found = summarize_conflicts(count_conflicts(rollout_of([list(range(length))] * 8, rewards, 8)))
            assert found["conflict_share"] == 1, (right, length)
            assert found["negative_net_share"] == found["penalised_correct_share"] == 0, (right, length)
