"""Batch arithmetic: what follows from the sizes, and the nearest sizes that would divide."""

from __future__ import annotations

import itertools

import pytest

from rlvr_cli.config.batch import largest_divisor, nearest_divisors, nearest_multiples
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError


@pytest.mark.parametrize(
    # prompts, group, updates, epochs, micro-batch -> step batch, micro-batch, micro-batches, steps per rollout
    ("sizes", "expected"),
    [
        ((16, 8, 1, 1, None), (128, 16, 8, 1)),
        ((16, 8, 4, 1, None), (32, 16, 2, 4)),
        ((16, 8, 4, 2, 8), (32, 8, 4, 8)),
        ((67, 2, 1, 1, None), (134, 2, 67, 1)),
        ((3, 5, 15, 1, None), (1, 1, 1, 15)),
    ],
)
def test_sizes(sizes: tuple[int | None, ...], expected: tuple[int, ...]) -> None:
    names = (
        "rollout.prompts",
        "rollout.group_size",
        "update.mini_batches",
        "update.epochs",
        "update.micro_batch",
    )
    overrides = [f"{name}={'null' if size is None else size}" for name, size in zip(names, sizes, strict=True)]
    batch = load_config(overrides=[*overrides, "train.rollouts=10"]).batch
    assert (batch.step_batch, batch.micro_batch, batch.micro_batches, batch.steps_per_rollout) == expected
    assert batch.steps_total == 10 * batch.steps_per_rollout


@pytest.mark.parametrize("number", [1, 7, 12, 36, 97, 128, 360])
def test_nearest_divisors_by_brute_force(number: int) -> None:
    divisors = [size for size in range(1, number + 1) if number % size == 0]
    for wanted in range(1, number + 3):
        below = [size for size in divisors if size <= wanted][-1:]
        above = [size for size in divisors if size > wanted][:1]
        assert nearest_divisors(number, wanted) == below + above
        assert largest_divisor(number, wanted) == below[0]


def test_nearest_multiples_leave_out_zero() -> None:
    assert nearest_multiples(4, 3) == [4]
    assert nearest_multiples(4, 9) == [8, 12]


def test_the_nearest_values_of_an_error_are_valid() -> None:
    """Whatever the message proposes must load."""
    refused = 0
    for prompts, group_size, updates in itertools.product((3, 5, 10, 15), (2, 3, 7), (2, 4, 6, 9)):
        sizes = {"prompts": prompts, "mini_batches": updates}
        try:
            _load(group_size=group_size, **sizes)
        except UserError as error:
            refused += 1
            proposals = error.problems[0].split("Nearest valid: ")[1]
            for proposal in proposals.split("; "):
                name, *values = proposal.replace(" or ", " ").split()
                for value in values:
                    _load(group_size=group_size, **{**sizes, name: int(value)})
    assert refused > 10


def _load(*, prompts: int, group_size: int, mini_batches: int) -> None:
    load_config(
        overrides=[
            f"rollout={{prompts: {prompts}, group_size: {group_size}}}",
            f"update.mini_batches={mini_batches}",
        ]
    )
