"""What the local sampler computes, counted: nothing twice, and next to nothing for rows that have ended."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlvr_cli.models.sampling.decoder import Decoder
from rlvr_cli.models.sampling.engine import SamplingParams
from rlvr_cli.models.sampling.local import sample
from tests.models.tiny import make

pytestmark = pytest.mark.counts
# Eight rows of each of five prompts, of 2 to 14 tokens.
DISTINCT = [[1 + (5 * i + 3 * j) % 49 for j in range(2 + 3 * i)] for i in range(5)]
PROMPTS = [prompt for prompt in DISTINCT for _ in range(8)]
ROWS, LONGEST = 40, 60
# Slots of rows that have ended are given up once they are a tenth of the batch.
KEPT = 0.1


class Operators(TorchDispatchMode):
    """Counts torch's operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def test_a_prompt_is_read_once_and_a_row_is_decoded_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes of what each part of the decoder is called with: prompts' tokens, rows of a step, rows of the head."""
    sizes: dict[str, list[int]] = {"prefill": [], "step": [], "logits": []}

    def counted(name: str) -> Any:
        part = getattr(Decoder, name)

        def call(decoder: Decoder, tensor: torch.Tensor, *others: Any) -> Any:
            sizes[name].append(tensor.numel() if name == "prefill" else len(tensor))
            return part(decoder, tensor, *others)

        return call

    for name in sizes:
        monkeypatch.setattr(Decoder, name, counted(name))
    params = SamplingParams(max_new_tokens=LONGEST, eos_token_ids=(3, 11), seed=5)
    lengths = [len(ids) for ids in sample(make("qwen3"), PROMPTS, params, keys=range(ROWS)).ids]
    assert len(set(lengths)) > 10
    assert sum(sizes["prefill"]) == len(DISTINCT) * max(map(len, DISTINCT)), "not of each of the 40 rows"
    # The first token of a row comes from its prompt; the last is not read.
    needed = sum(lengths) - ROWS
    assert len(sizes["step"]) == max(lengths) - 1
    assert needed <= sum(sizes["step"]) <= needed / (1 - KEPT)
    assert sum(sizes["logits"]) == len(DISTINCT) + sum(sizes["step"]), "the last position of a prompt, then one a step"


@pytest.mark.parametrize("vocabulary", [50, 2000])
def test_nothing_is_sorted_for_a_draw_from_the_whole_distribution(vocabulary: int) -> None:
    model = make("qwen3", vocab_size=vocabulary)

    def operators(**options: Any) -> Counter[str]:
        with Operators() as operators:
            sample(model, PROMPTS[:3], SamplingParams(**{"max_new_tokens": 10, **options}), keys=range(3))
        return operators.calls

    whole = operators()
    assert not {"sort", "argsort", "topk", "multinomial"} & whole.keys()
    assert operators(top_p=0.9)["sort"] == 10
    step = whole - operators(max_new_tokens=9)
    assert step["softmax"] == 1 + model.config.num_hidden_layers, "one for each block's attention and one to draw"
