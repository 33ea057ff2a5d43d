"""What the local sampler computes, counted: nothing twice, and next to nothing for rows that have ended."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlvr_cli.models.decoder import Decoder
from rlvr_cli.models.sampler import sample
from tests.models.tiny import make

pytestmark = pytest.mark.counts
# Eight rows of each of five prompts, of 2 to 14 tokens.
DISTINCT = [[1 + (5 * i + 3 * j) % 49 for j in range(2 + 3 * i)] for i in range(5)]
PROMPTS = [prompt for prompt in DISTINCT for _ in range(8)]
ROWS, LONGEST = 40, 60
# Slots of rows that have ended are given up once they are a tenth of the batch.
KEPT = 0.1


class Work:
    """Prompt tokens read (padding among them), rows decoded by step, and rows through the head."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prompt_tokens, self.head_rows = 0, 0
        self.steps: list[int] = []
        prefill, step, logits = Decoder.prefill, Decoder.step, Decoder.logits

        def counted_prefill(decoder: Decoder, ids: torch.Tensor, *rest: Any) -> Any:
            self.prompt_tokens += ids.numel()
            return prefill(decoder, ids, *rest)

        def counted_step(decoder: Decoder, tokens: torch.Tensor, *rest: Any) -> Any:
            self.steps.append(len(tokens))
            return step(decoder, tokens, *rest)

        def counted_logits(decoder: Decoder, x: torch.Tensor) -> Any:
            self.head_rows += len(x)
            return logits(decoder, x)

        monkeypatch.setattr(Decoder, "prefill", counted_prefill)
        monkeypatch.setattr(Decoder, "step", counted_step)
        monkeypatch.setattr(Decoder, "logits", counted_logits)


class Operators(TorchDispatchMode):
    """Counts torch's operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def run(**options: Any) -> Any:
    given = {"keys": range(ROWS), "seed": 5, "max_new_tokens": LONGEST, "eos_token_ids": (3, 11), **options}
    return sample(make("qwen3"), PROMPTS, **given)


def test_a_prompt_is_read_once_and_a_row_is_decoded_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    lengths = [len(ids) for ids in run().ids]
    assert len(set(lengths)) > 10
    assert work.prompt_tokens == len(DISTINCT) * max(map(len, DISTINCT)), "not of each of the 40 rows"
    # The first token of a row comes from its prompt; the last is not read.
    needed = sum(lengths) - ROWS
    assert len(work.steps) == max(lengths) - 1
    assert needed <= sum(work.steps) <= needed / (1 - KEPT)
    assert sum(work.steps) < 0.8 * ROWS * (max(lengths) - 1), "far fewer than of a batch that stays whole"
    assert work.head_rows == len(DISTINCT) + sum(work.steps), "the last position of a prompt, then one a step"


@pytest.mark.parametrize("max_rows", [8, 20])
def test_a_prompt_is_read_once_in_every_part_that_has_rows_of_it(
    max_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(monkeypatch)
    run(max_rows=max_rows)
    parts = [PROMPTS[first : first + max_rows] for first in range(0, ROWS, max_rows)]
    distinct = [{tuple(prompt) for prompt in part} for part in parts]
    assert work.prompt_tokens == sum(len(prompts) * max(map(len, prompts)) for prompts in distinct)


@pytest.mark.parametrize("vocabulary", [50, 2000])
def test_nothing_is_sorted_for_a_draw_from_the_whole_distribution(vocabulary: int) -> None:
    model = make("qwen3", vocab_size=vocabulary)

    def operators(**options: Any) -> Counter[str]:
        with Operators() as operators:
            options = {"keys": range(3), "seed": 0, "max_new_tokens": 10, "eos_token_ids": (), **options}
            sample(model, PROMPTS[:3], **options)
        return operators.calls

    whole = operators()
    assert not {"sort", "argsort", "topk", "multinomial"} & whole.keys()
    assert operators(top_p=0.9)["sort"] == 10
    step = whole - operators(max_new_tokens=9)
    assert step["softmax"] == 1 + model.config.num_hidden_layers, "one for each block's attention and one to draw"
