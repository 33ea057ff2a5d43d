"""Compute how many completions the local sampler decodes together in the free memory, also for `rlvr plan`.

No torch is imported here. Bytes of one row of W tokens, prompt and completion, of a vocabulary of V words:

- keys and values: two numbers a token, block, key head and head dimension, for all W tokens from the start;
- a step's logits in float32 and what is made of them: logits, probabilities, a padded copy and one to spare, 16 V.
  top_p and top_k sort them: 48 V with the order, the running sums and the sorting's own room.

Next to the rows, prompts are read: at most ``PREFILL_TOKENS`` at once, each token with its keys and values and what a
block is computed with (the stream and its norm, queries, keys and values, the network's gate, up and their product); in
float32, which a GPU's fused kernels do not take, with its attention scores, twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rlvr_cli.core.errors import RunError

# Values of config.json's `model_type` that the local sampler decodes (models/sampling/decoder.py).
FAMILIES = ("qwen2", "qwen3", "llama")
# Rows at once on a GPU, memory permitting: more of them gain little speed.
MOST_ROWS = 256
# Prompt tokens read at once: enough to keep a GPU busy.
PREFILL_TOKENS = 2**14
# Share of the free memory that is taken: the rest is for workspaces and fragments, which are not counted here.
USED = 0.7
LOGIT_BYTES, SORTED_LOGIT_BYTES = 16, 48
NO_MEMORY = ("out of memory", "can't allocate memory")


def kv_bytes(layers: int, kv_heads: int, head_dim: int, element: int) -> int:
    """Bytes of keys and values of one token, ``element`` bytes each number."""
    return 2 * layers * kv_heads * head_dim * element


def wide_bytes(hidden: int, intermediate: int, heads: int, kv_heads: int, head_dim: int, element: int) -> int:
    """Bytes of what a block is computed with, of one token of a prompt."""
    return element * (2 * hidden + (heads + 2 * kv_heads) * head_dim + 3 * intermediate)


def usable(free: int) -> float:
    """Bytes that sampling may take where so many are free."""
    return USED * free


@dataclass(frozen=True)
class RowMemory:
    """The memory that a model needs to sample.

    Attributes:
        kv_token: bytes of keys and values of one token.
        wide: bytes of what a block is computed with, of one token of a prompt.
        vocabulary: words.
        scores: query heads whose attention scores are stored; 0 where a fused kernel computes them.
    """

    kv_token: int
    wide: int
    vocabulary: int
    scores: int = 0

    def logits(self, *, sorts: bool = False) -> int:
        """Bytes that a row's step makes of its logits; ``sorts``: with top_p or top_k."""
        return self.vocabulary * (SORTED_LOGIT_BYTES if sorts else LOGIT_BYTES)

    def row(self, length: int, *, sorts: bool = False) -> int:
        """Bytes of one row of ``length`` tokens, prompt and completion."""
        return length * self.kv_token + self.logits(sorts=sorts)

    def prompts(self, tokens: int, longest: int) -> int:
        """Bytes that reading prompts of ``tokens`` tokens together, and ``longest`` each, takes."""
        at_once = min(tokens, max(longest, PREFILL_TOKENS))
        return at_once * (self.kv_token + self.wide + 2 * 4 * self.scores * longest)

    def rows(self, wanted: int, room: float, length: int, *, sorts: bool = False) -> int:
        """Return how many of the ``wanted`` rows of ``length`` tokens fit into ``room`` bytes; at least 1.

        All of them, or a coarse step (1, 2, 3, 4, 6, 8, 12, 16, 24 ...), so that a little more or less free memory
        seldom decides: with another number of rows sums are rounded in another way.
        """
        fitting = max(1, int(room // self.row(length, sorts=sorts)))
        if fitting >= wanted:
            return wanted
        power = 1 << (fitting.bit_length() - 1)
        return power + power // 2 if fitting >= power + power // 2 else power


class SamplingMemoryError(RunError):
    """There was too little memory for the rows that were sampled together."""


def out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` says that there is no memory left, on a GPU or not."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY)


@contextmanager
def told_with_rows(rows: int, length: int) -> Iterator[None]:
    """Inside, ``rows`` completions are sampled at once; an out-of-memory error says what to change."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        fewer = f"Sample fewer at once with rollout.batch={rows // 2} (validation.batch, eval.batch), or make"
        raise SamplingMemoryError(
            f"out of memory while sampling {rows} completion{'' if rows == 1 else 's'} of up to {length} tokens at "
            f"once ({reason}). {fewer if rows > 1 else 'Make'} rollout.max_new_tokens smaller; `rlvr plan` says what "
            "fits."
        ) from error


def gib(size: float) -> str:
    """Bytes in words: `12.3 GiB`, `85 MiB`."""
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.0f} MiB"
