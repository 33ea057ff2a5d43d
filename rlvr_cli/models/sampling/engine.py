"""Interface of the sampling engines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling parameters. Raises ValueError for a value out of range.

    Attributes:
        max_new_tokens: maximum tokens of a completion.
        eos_token_ids: the tokens that end a completion.
        seed: together with a row's key, selects the row's random stream.
        temperature: 0 is greedy.
        top_p: probability mass of the likeliest tokens to sample from (1 = all).
        top_k: number of likeliest tokens to keep, before top_p (0 = all).
        max_rows: maximum rows in a batch; None = the engine's choice.
    """

    max_new_tokens: int
    eos_token_ids: Collection[int] = ()
    seed: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_rows: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1; got {self.max_new_tokens}")
        if self.temperature < 0:
            raise ValueError(f"temperature must be at least 0 (greedy); got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1; got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0 (all tokens); got {self.top_k}")
        if self.max_rows is not None and self.max_rows < 1:
            raise ValueError(f"max_rows must be at least 1; got {self.max_rows}")


@dataclass(frozen=True)
class Completions:
    """Sampled completions, one per row, in the order of the request.

    Attributes:
        ids: token ids after the prompt, including the end-of-sequence token if sampled.
        log_probs: of every token under softmax(logits / temperature) over the whole vocabulary, also with top_p < 1 or
            top_k; with temperature 0, under the distribution at temperature 1.
        truncated: whether `max_new_tokens` was reached without an end-of-sequence token.
        entropies: of the same distributions, in nats; None if the engine does not compute them.
    """

    ids: list[list[int]] = field(default_factory=list)
    log_probs: list[list[float]] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    entropies: list[list[float]] | None = None

    def select(self, rows: Iterable[int]) -> Completions:
        rows = list(rows)
        return Completions(
            [self.ids[row] for row in rows],
            [self.log_probs[row] for row in rows],
            [self.truncated[row] for row in rows],
            None if self.entropies is None else [self.entropies[row] for row in rows],
        )


def concatenate(batches: Sequence[Completions]) -> Completions:
    """Concatenate batches of completions."""
    has_entropies = all(batch.entropies is not None for batch in batches)
    return Completions(
        [ids for batch in batches for ids in batch.ids],
        [values for batch in batches for values in batch.log_probs],
        [flag for batch in batches for flag in batch.truncated],
        [values for batch in batches for values in batch.entropies or ()] if has_entropies else None,
    )


# Called with rows (indices into the prompts) and their completions.
OnDone = Callable[[Sequence[int], Completions], None]


class Engine(Protocol):
    """Samples a completion for every row of `prompts`.

    Args:
        prompts: token ids of each row's prompt, none empty. keys: one integer per row that selects its random stream.
        on_progress: called with the number of tokens sampled since the last call.
        on_done: called with finished rows while others are sampled: each row at most once, in any order, possibly on
            another thread but never concurrently. Engines that return all rows at once do not call it.

    Raises ValueError for prompts it cannot continue.
    """

    def __call__(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        keys: Sequence[int],
        on_progress: Callable[[int], None] | None = None,
        on_done: OnDone | None = None,
    ) -> Completions: ...


def check_rows(prompts: Sequence[Sequence[int]], keys: Sequence[int]) -> None:
    if len(keys) != len(prompts):
        raise ValueError(f"the number of keys must be that of the prompts, {len(prompts)}; got {len(keys)}")
    if any(len(prompt) == 0 for prompt in prompts):
        raise ValueError("a prompt without tokens cannot be continued")


def sample_greedy(
    engine: Engine,
    model: Any,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    keys: Sequence[int],
    on_progress: Callable[[int], None] | None = None,
    on_done: OnDone | None = None,
) -> Completions:
    """Sample at temperature 0, each distinct prompt once. Raises as ``engine``."""
    rows: dict[tuple[int, ...], list[int]] = {}
    for row, prompt in enumerate(prompts):
        rows.setdefault(tuple(prompt), []).append(row)
    copies = list(rows.values())

    def copy_done(distinct: Sequence[int], completions: Completions) -> None:
        if on_done is not None:
            for index, number in enumerate(distinct):
                on_done(copies[number], completions.select([index] * len(copies[number])))

    sampled = engine(
        model,
        list(rows),
        replace(params, temperature=0.0),
        keys=[keys[group[0]] for group in copies],
        on_progress=on_progress,
        on_done=copy_done,
    )
    number_of = {row: number for number, group in enumerate(copies) for row in group}
    return sampled.select(number_of[row] for row in range(len(prompts)))
