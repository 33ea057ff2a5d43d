"""Supervised warm start of the lab's model on generated traces, counted in steps and seeded by named streams."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from rlvr_cli.core.streams import stream_seed
from rlvr_cli.lab.recipe import Phase, Recipe
from rlvr_cli.tasks.kk import compact
from rlvr_cli.tasks.kk.puzzles import Puzzle, Statement, generate

Progress = Callable[[str, int, int, float], None]
"""Called with the phase's name, the step done, the phase's steps and the loss."""

_BUCKET = 16  # batches that are drawn together and cut by length, so that little of a batch is padding


def stream(seed: int, name: str) -> random.Random:
    """The random stream `name` of a build; streams of different names are independent."""
    return random.Random(stream_seed(seed, "lab", name))


def training_puzzles(recipe: Recipe, seed: int) -> dict[int, list[Puzzle]]:
    """Train-split puzzles by number of people, for every number that a phase uses; repeats are left out."""
    numbers = sorted({number for phase in recipe.phases for number, share in phase.people.items() if share > 0})
    pools: dict[int, list[Puzzle]] = {}
    for number in numbers:
        rng = stream(seed, f"puzzles/{number}")
        found: dict[tuple[Statement, ...], Puzzle] = {}
        for _ in range(recipe.puzzles // len(numbers)):
            puzzle = generate(rng, people=number, compound=recipe.compound, split="train")
            found.setdefault(puzzle.statements, puzzle)
        pools[number] = list(found.values())
    return pools


def data_hash(pools: dict[int, list[Puzzle]]) -> str:
    """SHA-256 of all puzzles' statements, in order."""
    digest = hashlib.sha256()
    for number in sorted(pools):
        for puzzle in pools[number]:
            digest.update(repr(puzzle.statements).encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Example:
    """Token ids of a prompt with its trace and the end token; the first `prompt` ids are not trained on."""

    ids: list[int]
    prompt: int


def draw_example(
    pools: dict[int, list[Puzzle]],
    phase: Phase,
    tokenizer: PreTrainedTokenizerFast,
    max_tokens: int,
    rng: random.Random,
) -> Example:
    """A random puzzle of the phase with a random trace, or an answer alone, of at most `max_tokens` ids in all."""
    noise = compact.Noise(**phase.noise.model_dump())
    (number,) = rng.choices(list(phase.people), weights=list(phase.people.values()))
    puzzle = rng.choice(pools[number])
    vocabulary = tokenizer.vocab
    prompt = [vocabulary[word] for word in compact.prompt(puzzle).split()]
    at_once = phase.no_think > 0 and rng.random() < phase.no_think
    while True:
        response = compact.answer_at_once(puzzle, rng) if at_once else compact.trace(puzzle, rng, noise)
        trace = [vocabulary[word] for word in response.split()]
        if len(prompt) + len(trace) < max_tokens:
            return Example([*prompt, *trace, tokenizer.eos_token_id], len(prompt))


def batches(draw: Callable[[], Example], size: int, count: int, rng: random.Random) -> Iterator[list[Example]]:
    """`count` batches of `size` examples of similar length, in random order."""
    waiting: list[list[Example]] = []
    for _ in range(count):
        if not waiting:
            drawn = sorted((draw() for _ in range(size * _BUCKET)), key=lambda example: len(example.ids))
            waiting = [drawn[start : start + size] for start in range(0, len(drawn), size)]
            rng.shuffle(waiting)
        yield waiting.pop()


def trace_loss(model: Qwen3ForCausalLM, batch: list[Example], pad: int) -> torch.Tensor:
    """Mean cross-entropy over the trace tokens of a right-padded batch (causal attention never sees the padding)."""
    length = max(len(example.ids) for example in batch)
    ids = torch.full((len(batch), length), pad)
    trained = torch.zeros(len(batch), length, dtype=torch.bool)
    for row, example in enumerate(batch):
        ids[row, : len(example.ids)] = torch.tensor(example.ids)
        trained[row, example.prompt : len(example.ids)] = True
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[trained[:, 1:]])
    return F.cross_entropy(logits, ids[:, 1:][trained[:, 1:]])


def learning_rate(phase: Phase, step: int) -> float:
    """Linear warm-up over `phase.warmup` steps, then a cosine from `phase.lr` to `phase.lr * phase.final_lr_ratio`."""
    if step < phase.warmup:
        return phase.lr * (step + 1) / phase.warmup
    done = (step - phase.warmup) / max(1, phase.steps - phase.warmup)
    return phase.lr * (phase.final_lr_ratio + (1 - phase.final_lr_ratio) * 0.5 * (1 + math.cos(math.pi * done)))


def train_phase(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    pools: dict[int, list[Puzzle]],
    phase: Phase,
    *,
    max_tokens: int,
    rng: random.Random,
    progress: Progress | None = None,
) -> None:
    """Train `model` in place: AdamW (0.9, 0.98), weight decay 0.01, gradient norm clipped at 1."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=phase.lr, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()

    def draw() -> Example:
        return draw_example(pools, phase, tokenizer, max_tokens, rng)

    for step, batch in enumerate(batches(draw, phase.batch, phase.steps, rng)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(phase, step)
        loss = trace_loss(model, batch, tokenizer.pad_token_id)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if progress is not None:
            progress(phase.name, step + 1, phase.steps, loss.item())
