"""Tokens per second of the local sampler against `model.generate` as TRL calls it, interleaved in one run.

    python -m benchmarks.sampler [--threads 1 2] [--repeats 5]

Cases: rollouts of the lab base (its own puzzles and ends of sequence), the same with no end before the limit, and a
vocabulary of 32,000. A token counts when it is part of a completion; what is computed after a row's end does not. Times
are wall time: on a machine that does other work, compare the ratios only.

TRL 1.16 itself samples with this same call of `generate` (GRPOTrainer._generate_single_turn): it is no second peer.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from rlvr_cli.models.load import eos_token_ids, load_model
from rlvr_cli.models.sampling.engine import SamplingParams
from rlvr_cli.models.sampling.local import sample
from rlvr_cli.tasks import kk_compact as compact
from rlvr_cli.tasks.kk_puzzles import generate_puzzle


@dataclass(frozen=True)
class Case:
    name: str
    model: Any
    prompts: list[list[int]]
    max_new_tokens: int
    eos: tuple[int, ...]


def random_case(vocabulary: int) -> Case:
    """Return 32 rows of a random model of the lab base's shape with another vocabulary, none of which ends early."""
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 24}
    sizes = {"vocab_size": vocabulary, "hidden_size": 96, "num_hidden_layers": 4, "intermediate_size": 256}
    model = Qwen3ForCausalLM(Qwen3Config(**heads, **sizes, tie_word_embeddings=True)).eval()
    rng = random.Random(0)
    prompts = [[rng.randrange(1, vocabulary) for _ in range(rng.randint(28, 36))] for _ in range(4)]
    return Case(f"32 rows, vocabulary {vocabulary:,}", model, [prompt for prompt in prompts for _ in range(8)], 48, ())


def lab_case() -> Case:
    model, tokenizer = load_model("lab")
    rng = random.Random(0)
    puzzles = [generate_puzzle(rng, people=2 + i % 3, compound=0.6, depth=1, split="train") for i in range(16)]
    prompts = [tokenizer(compact.write_prompt(puzzle))["input_ids"] for puzzle in puzzles]
    rows = [prompt for prompt in prompts for _ in range(8)]
    return Case("128 rollouts of the lab base", model, rows, 110, eos_token_ids(model, tokenizer))


def cases() -> list[Case]:
    lab = lab_case()
    return [
        lab,
        Case("the same, no row ends early", lab.model, lab.prompts, lab.max_new_tokens, ()),
        random_case(32_000),
    ]


def with_generate(case: Case) -> int:
    """Sample once with `generate`, configured as TRL's GRPOTrainer does; returns the number of tokens."""
    width = max(map(len, case.prompts))
    ids = torch.tensor([[*[0] * (width - len(p)), *p] for p in case.prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in case.prompts])
    config = GenerationConfig(
        max_new_tokens=case.max_new_tokens,
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        repetition_penalty=1.0,
        pad_token_id=0,
        # Without any it would take the model's own: one that no model says.
        eos_token_id=list(case.eos) or [case.model.config.vocab_size],
        disable_compile=True,
    )
    with torch.no_grad():
        rows = case.model.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, width:]
    ended = torch.isin(rows, torch.tensor(case.eos, dtype=torch.int64)).long().cumsum(1)
    # Tokens up to and including the first end of sequence.
    return int((ended.roll(1, dims=1)[:, 1:] == 0).sum()) + len(rows)


def with_sampler(case: Case, seed: int) -> int:
    """Sample once with the local sampler; returns the number of tokens."""
    out = sample(
        case.model,
        case.prompts,
        SamplingParams(max_new_tokens=case.max_new_tokens, eos_token_ids=case.eos, seed=seed),
        keys=range(len(case.prompts)),
    )
    return sum(map(len, out.ids))


def rate(run: Callable[[], int]) -> float:
    """Tokens per second of one run."""
    start = time.perf_counter()
    return run() / (time.perf_counter() - start)


def compare(case: Case, repeats: int) -> tuple[list[float], list[float]]:
    """Tokens per second of generate and of the sampler, one pair a repeat after one unmeasured pair."""
    pairs = [
        (rate(lambda: with_generate(case)), rate(lambda seed=seed: with_sampler(case, seed)))  # type: ignore[misc]
        for seed in range(repeats + 1)
    ]
    return [pair[0] for pair in pairs[1:]], [pair[1] for pair in pairs[1:]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampler", description=__doc__.splitlines()[0])
    both = sorted({1, os.cpu_count() or 1})
    parser.add_argument("--threads", type=int, nargs="+", default=both, help="thread counts to measure")
    parser.add_argument("--repeats", type=int, default=5, help="measured pairs a case")
    options = parser.parse_args(arguments)
    print(f"Tokens per second, median of {options.repeats}; ratio = median over pairs (lowest - highest)")
    print(f"load average at the start {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print(f"{'case':44}  threads  generate   sampler  ratio")
    for case in cases():
        for threads in options.threads:
            torch.set_num_threads(threads)
            theirs, ours = compare(case, options.repeats)
            ratios = [b / a for a, b in zip(theirs, ours, strict=True)]
            print(
                f"{case.name:44}  {threads:7}  {statistics.median(theirs):8,.0f}  {statistics.median(ours):8,.0f}"
                f"  {statistics.median(ratios):.1f} ({min(ratios):.1f} - {max(ratios):.1f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
