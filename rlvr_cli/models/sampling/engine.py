"""Interface of the sampling engines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

# Tokens before a stop string that are decoded with it: decoders treat the first tokens of a text differently.
_CONTEXT = 4


@dataclass(frozen=True)
class StopStrings:
    """Texts that end a completion, after the token in which the first of them ends."""

    strings: tuple[str, ...]
    tokenizer: Any

    @property
    def window(self) -> int:
        """The last tokens of a completion that can hold a text that has just ended: each has a byte or more."""
        return max(len(string.encode()) for string in self.strings) + _CONTEXT

    def end(self, rows: Sequence[Sequence[int]]) -> list[bool]:
        """Return whether each completion [tokens], without a stop string before its last token, ends with one."""
        tails = [list(ids[-self.window :]) for ids in rows]
        texts = [
            self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False) for ids in tails
        ]
        return [any(string in text for string in self.strings) for text in texts]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling parameters, within the bounds that the configuration checks.

    Attributes:
        max_new_tokens: maximum tokens of a completion.
        eos_token_ids: the tokens that end a completion.
        seed: together with a row's key, selects the row's random stream.
        temperature: 0 is greedy.
        top_p: probability mass of the likeliest tokens to sample from (1 = all).
        top_k: number of likeliest tokens to keep, before top_p (0 = all).
        min_p: after these, drop tokens less likely than this share of the likeliest token's probability.
        repetition_penalty: the logit of a token of the prompt or the completion so far is divided by it if positive,
            else multiplied, before the temperature (1 = none).
        stop: texts that end a completion.
        extra: further arguments of transformers' GenerationConfig or of vLLM's SamplingParams.
        max_rows: maximum rows in a batch; None = the engine's choice.
    """

    max_new_tokens: int
    eos_token_ids: Collection[int] = ()
    seed: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: StopStrings | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    max_rows: int | None = None

    @property
    def whole_distribution(self) -> bool:
        """Return whether samples are from the distribution of the log-probs."""
        return self.top_p == 1 and self.top_k == 0 and self.min_p == 0 and self.repetition_penalty == 1


@dataclass(frozen=True)
class Completions:
    """Sampled completions, one per row, in the order of the request.

    Attributes:
        ids: token ids after the prompt, including the end-of-sequence token if sampled.
        log_probs: of every token under softmax(logits / temperature) over the whole vocabulary, also with top_p < 1,
            top_k, min_p or a repetition penalty; with temperature 0, under the distribution at temperature 1.
        truncated: whether `max_new_tokens` was reached without an end-of-sequence token or a stop string.
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
