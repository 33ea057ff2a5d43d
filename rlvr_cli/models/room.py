"""How many completions the memory of a GPU lets the local sampler decode at once. Pure arithmetic, without torch."""

from __future__ import annotations

MOST_ROWS = 256
# Share of the free memory that is taken: the rest is for what is not counted here, workspaces and fragments.
USED = 0.7


def row_bytes(length: int, prompt: int, prompts_each: float, *, kv: int, wide: int, vocabulary: int) -> float:
    """Bytes that one row takes.

    Args:
        length: prompt and completion. prompt: the prompt alone.
        prompts_each: distinct prompts for each row; those of a group are read once.
        kv, wide: of one token the keys and values, and the activations while a prompt is read.
    """
    step = 4 * 4 * vocabulary  # logits, probabilities and what is made of them to draw from
    return length * kv + step + prompts_each * prompt * (kv + wide)


def rows_that_fit(rows: int, room: int, each: float) -> int:
    """How many of ``rows`` are decoded at once in ``room`` bytes, 1 at least.

    All of them, or a power of two, so that a little more or less free memory seldom decides.
    """
    wanted, fitting = min(rows, MOST_ROWS), int(USED * max(room, 0) // each)
    return wanted if fitting >= wanted else 1 << max(0, fitting.bit_length() - 1)
