"""Accuracy of a lab model on held-out puzzles of the dev split."""

from __future__ import annotations

import random
from math import comb, sqrt
from statistics import fmean, stdev
from typing import Any

from rlvr_cli.models.sampler import sample
from rlvr_cli.streams import stream_seed
from rlvr_cli.tasks.kk import compact
from rlvr_cli.tasks.kk.puzzles import Puzzle, Statement, generate, structure_key

_PATIENCE = 1000


def dev_puzzles(people: dict[int, float], count: int, seed: int = 0) -> list[Puzzle]:
    """`count` dev-split puzzles of different statements, shared out by `people`.

    A structure comes again only when no new one turns up (two people have few); fewer puzzles are returned when even
    the statements are used up.
    """
    chosen: list[Puzzle] = []
    for number, share in sorted(people.items()):
        wanted = round(count * share / sum(people.values()))
        rng = random.Random(stream_seed(seed, "lab", "dev", number))
        found: dict[tuple[Statement, ...], Puzzle] = {}
        structures: set[str] = set()
        idle = 0
        while len(found) < wanted and idle < 2 * _PATIENCE:
            puzzle = generate(rng, people=number, split="dev")
            key = structure_key(puzzle.statements)
            if puzzle.statements in found or (key in structures and idle < _PATIENCE):
                idle += 1
                continue
            found[puzzle.statements] = puzzle
            if key not in structures:
                structures.add(key)
                idle = 0
        chosen += found.values()
    return chosen


def right(puzzle: Puzzle, response: str, truncated: bool) -> bool:
    """Whether a response has the right format and the right answer."""
    return not truncated and compact.format_ok(response) and compact.parse_answer(response) == puzzle.solution


def measure(
    model: Any, tokenizer: Any, puzzles: list[Puzzle], *, samples: int = 32, max_new_tokens: int = 128, seed: int = 0
) -> dict[str, Any]:
    """Greedy and sampled accuracy (temperature 1), pass@k by the unbiased estimator, format rate, tokens a response.

    `sampled_se` is the standard error over puzzles.
    """
    prompts = [tokenizer(compact.prompt(puzzle))["input_ids"] for puzzle in puzzles]

    def responses(copies: int, temperature: float) -> tuple[list[list[bool]], float, float]:
        rows = [ids for ids in prompts for _ in range(copies)]
        done = sample(
            model,
            rows,
            keys=list(range(len(rows))),
            seed=stream_seed(seed, "lab", "measure"),
            max_new_tokens=max_new_tokens,
            eos_token_ids=[tokenizer.eos_token_id],
            temperature=temperature,
        )
        texts = tokenizer.batch_decode(done.ids, skip_special_tokens=True)
        marks = [
            [right(puzzle, texts[i], done.truncated[i]) for i in range(first * copies, (first + 1) * copies)]
            for first, puzzle in enumerate(puzzles)
        ]
        shaped = fmean(compact.format_ok(t) and not cut for t, cut in zip(texts, done.truncated, strict=True))
        return marks, shaped, fmean(len(ids) for ids in done.ids)

    greedy, _, _ = responses(1, 0.0)
    marks, shaped, length = responses(samples, 1.0)
    rates = [fmean(row) for row in marks]

    def pass_at(k: int) -> float:
        return fmean(1 - comb(samples - sum(row), k) / comb(samples, k) for row in marks)

    numbers = [len(puzzle.solution) for puzzle in puzzles]
    return {
        "puzzles": len(puzzles),
        "samples": samples,
        "greedy": round(fmean(row[0] for row in greedy), 4),
        "sampled": round(fmean(rates), 4),
        "sampled_se": round(stdev(rates) / sqrt(len(rates)), 4),
        **{f"pass@{k}": round(pass_at(k), 4) for k in (8, 32) if k <= samples},
        "format": round(shaped, 4),
        "tokens": round(length, 1),
        "sampled_by_people": {
            str(number): round(fmean(r for r, n in zip(rates, numbers, strict=True) if n == number), 4)
            for number in sorted(set(numbers))
        },
    }
