"""Model the local sampler's memory: the rows that it decodes at once, also for `rlvr plan`. Imports no torch.

Bytes of a row of W tokens, prompt and completion, with a vocabulary of V tokens:

- keys and values: two numbers per token, block, key head and head dimension, for all W tokens from the start;
- a step's logits in float32 and their results: logits, probabilities, a padded copy and a reserve, 16 V.
  top_p and top_k sort them: 48 V with the order, the running sums and the workspace of the sort. min_p and a repetition
  penalty copy them, which is less.

The prefill adds, for at most ``PREFILL_TOKENS`` at once, each token's keys and values and the activations of a block
(the stream and its norm, queries, keys and values, the network's gate, up and their product); in float32, which a GPU's
fused kernels do not support, also its attention scores, twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rlvr_cli.core.errors import RunError

# Values of config.json's `model_type` that the local sampler decodes (models/sampling/decoder.py).
FAMILIES = ("qwen2", "qwen3", "llama")
# Maximum rows of a batch on a GPU: more are hardly faster.
MAX_ROWS = 256
# Prompt tokens of a prefill: enough to saturate a GPU.
PREFILL_TOKENS = 2**14
# Share of the free memory to use; workspaces and fragmentation take the rest.
USABLE_SHARE = 0.7
LOGIT_BYTES, SORTED_LOGIT_BYTES = 16, 48
OUT_OF_MEMORY = ("out of memory", "can't allocate memory")


def kv_bytes(layers: int, kv_heads: int, head_dim: int, element: int) -> int:
    return 2 * layers * kv_heads * head_dim * element


def activation_bytes(hidden: int, intermediate: int, heads: int, kv_heads: int, head_dim: int, element: int) -> int:
    return element * (2 * hidden + (heads + 2 * kv_heads) * head_dim + 3 * intermediate)


@dataclass(frozen=True)
class RowMemory:
    """The memory in bytes that a model needs to sample.

    ``activation_token``: of one prompt token in a block. ``scores``: query heads with stored scores; 0 = fused kernel.
    """

    kv_token: int
    activation_token: int
    vocabulary: int
    scores: int = 0

    def logits(self, *, sorts: bool = False) -> int:
        """Return the bytes of a row's logits and their results, with top_p, top_k, min_p or a penalty if ``sorts``."""
        return self.vocabulary * (SORTED_LOGIT_BYTES if sorts else LOGIT_BYTES)

    def row(self, length: int, *, sorts: bool = False) -> int:
        return length * self.kv_token + self.logits(sorts=sorts)

    def prompts(self, tokens: int, longest: int) -> int:
        """Return the bytes of the prefill of prompts with ``tokens`` tokens in total and at most ``longest`` each."""
        at_once = min(tokens, max(longest, PREFILL_TOKENS))
        return at_once * (self.kv_token + self.activation_token + 2 * 4 * self.scores * longest)

    def rows(self, requested: int, room: float, length: int, *, sorts: bool = False) -> int:
        """Return the number of rows of ``length`` tokens, from 1 to ``requested``, that fit into ``room`` bytes.

        All of them, or 1, 2, 3, 4, 6, 8, 12, 16, 24 ..., so that small changes of the free memory rarely change the
        number, on which rounding depends.
        """
        fitting = max(1, int(room // self.row(length, sorts=sorts)))
        if fitting >= requested:
            return requested
        power = 1 << (fitting.bit_length() - 1)
        return power + power // 2 if fitting >= power + power // 2 else power


class SamplingMemoryError(RunError):
    """Out of memory while sampling; names the setting to change."""


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or any(text in str(error) for text in OUT_OF_MEMORY)


@contextmanager
def explain_out_of_memory(rows: int, length: int) -> Iterator[None]:
    """Turn an out-of-memory error while sampling ``rows`` completions into SamplingMemoryError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        fewer = f"Set rollout.batch={rows // 2} (validation.batch, eval.batch) to sample fewer at once, or decrease"
        raise SamplingMemoryError(
            f"out of memory while sampling {rows} completion{'' if rows == 1 else 's'} of up to {length} tokens at "
            f"once ({reason}). {fewer if rows > 1 else 'Decrease'} rollout.max_new_tokens; `rlvr plan` estimates the "
            "memory."
        ) from error


def gib(size: float) -> str:
    """Format bytes: `12.3 GiB`, `85 MiB`."""
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.0f} MiB"
