"""What the local sampler computes, counted: nothing twice, and next to nothing for rows that have ended."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.sampler_work import work_of_generate, work_of_the_sampler
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


def run(**options: Any) -> Any:
    params = SamplingParams(max_new_tokens=LONGEST, eos_token_ids=(3, 11), seed=5, **options)
    return sample(make("qwen3"), PROMPTS, params, keys=range(ROWS))


def test_a_prompt_is_read_once_and_a_row_is_decoded_until_it_ends() -> None:
    with work_of_the_sampler() as work:
        lengths = [len(ids) for ids in run().ids]
    assert len(set(lengths)) > 10
    assert work.prompt_tokens == len(DISTINCT) * max(map(len, DISTINCT)), "not of each of the 40 rows"
    # The first token of a row comes from its prompt; the last is not read.
    needed = sum(lengths) - ROWS
    assert work.steps == max(lengths) - 1
    assert needed <= work.rows <= needed / (1 - KEPT)
    assert work.head_rows == len(DISTINCT) + work.rows, "the last position of a prompt, then one a step"


def test_generate_reads_every_copy_and_decodes_every_row_to_the_end_of_the_longest() -> None:
    """Greedy, so that both give the same completions."""
    model, width = make("qwen2"), max(map(len, PROMPTS))
    padded = torch.tensor([[*[0] * (width - len(prompt)), *prompt] for prompt in PROMPTS])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in PROMPTS])
    options = {"do_sample": False, "max_new_tokens": LONGEST, "eos_token_id": [3, 11], "pad_token_id": 0}
    with work_of_generate(model) as theirs:
        model.generate(padded, attention_mask=mask, **options)
    assert (theirs.prompt_tokens, theirs.rows) == (ROWS * width, ROWS * theirs.steps)
    with work_of_the_sampler() as ours:
        params = SamplingParams(max_new_tokens=LONGEST, eos_token_ids=(3, 11), temperature=0.0)
        sample(model, PROMPTS, params, keys=range(ROWS))
    assert ours.steps == theirs.steps
    assert ours.prompt_tokens == theirs.prompt_tokens / 8 and ours.rows < 0.9 * theirs.rows


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
