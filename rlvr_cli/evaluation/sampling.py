"""Generate the samples that an evaluation still lacks."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rlvr_cli.config.errors import RunError, UserError
from rlvr_cli.evaluation.settings import EvalSettings, digest, row_key
from rlvr_cli.evaluation.store import GREEDY, Key, SampleStore
from rlvr_cli.models.completions import Engine
from rlvr_cli.models.engines import choose_engine
from rlvr_cli.models.load import eos_token_ids
from rlvr_cli.streams import stream_seed
from rlvr_cli.tasks.base import Problem, Task, judge_all, prompt_ids, response_text


@dataclass(frozen=True)
class Progress:
    """How far an evaluation is: samples on disk of those planned, how many of them were there before, new tokens."""

    done: int
    planned: int
    found: int
    tokens: int


ProgressCallback = Callable[[Progress], None]


def weights_hash(model: Any) -> str:
    """SHA-256 over the names, types, shapes and bytes of a model's parameters and buffers."""
    whole = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        whole.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        whole.update(flat.view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def identity(model: Any, task: Task, settings: EvalSettings, weights: str | None = None) -> dict[str, Any]:
    """What decides the samples of an evaluation: weights, task, sampling settings.

    ``weights`` is ``weights_hash(model)``, if at hand.
    """
    return {
        "weights": weights or weights_hash(model),
        "task": task.settings,
        "split": settings.split,
        "sampling": settings.sampling(),
    }


def fill(
    store: SampleStore,
    samples: dict[Key, dict[str, Any]],
    model: Any,
    tokenizer: Any,
    task: Task,
    problems: Sequence[Problem],
    settings: EvalSettings,
    progress: ProgressCallback | None = None,
) -> None:
    """Add to ``store``, and to ``samples`` (what it holds), every sample that the settings ask for and that is missing.

    A sample's random stream is named by its problem and index, and batches are cut from the whole plan, so filling
    gaps gives the samples that an unbroken evaluation would have. (The transformers engine seeds whole batches: what
    it adds to a batch that was cut off are other samples of the same policy.) Each batch is on the disk before the
    next begins.
    Raises UserError when the folder holds samples of other problems under the same ids, RunError when the model's
    probabilities are not finite.
    """
    prompts = {problem.id: prompt_ids(task, problem, tokenizer) for problem in problems}
    hashes = {problem_id: digest(ids)[:16] for problem_id, ids in prompts.items()}
    _check_prompts(store, samples, hashes)
    by_id = {problem.id: problem for problem in problems}
    plan = list(_plan(problems, settings))
    found = sum(key in samples for _, batch in plan for key in batch)
    planned = sum(len(batch) for _, batch in plan)
    done, tokens = found, 0
    if progress is not None:
        progress(Progress(done, planned, found, 0))
    if done == planned:
        return
    engine, _ = choose_engine(settings.engine, model)
    stops = eos_token_ids(model, tokenizer)
    for temperature, batch in plan:
        missing = [key for key in batch if key not in samples]
        if not missing:
            continue
        records = _sample(engine, model, tokenizer, task, missing, by_id, prompts, hashes, settings, temperature, stops)
        store.append(records)
        samples.update(zip(missing, records, strict=True))
        done, tokens = done + len(missing), tokens + sum(record["tokens"] for record in records)
        if progress is not None:
            progress(Progress(done, planned, found, tokens))


def _plan(problems: Sequence[Problem], settings: EvalSettings) -> Iterator[tuple[float, list[Key]]]:
    """Batches of (problem, index) with their temperature: the greedy completions, then the samples."""
    passes: list[tuple[float, list[Key]]] = []
    if settings.greedy:
        passes.append((0.0, [(problem.id, GREEDY) for problem in problems]))
    indices = range(settings.samples)
    passes.append((settings.temperature, [(problem.id, index) for problem in problems for index in indices]))
    for temperature, keys in passes:
        for first in range(0, len(keys), settings.batch):
            yield temperature, keys[first : first + settings.batch]


def _sample(
    engine: Engine,
    model: Any,
    tokenizer: Any,
    task: Task,
    keys: Sequence[Key],
    problems: Mapping[str, Problem],
    prompts: Mapping[str, list[int]],
    hashes: Mapping[str, str],
    settings: EvalSettings,
    temperature: float,
    stops: Sequence[int],
) -> list[dict[str, Any]]:
    completions = engine(
        model,
        [prompts[problem_id] for problem_id, _ in keys],
        keys=[row_key(problem_id, index) for problem_id, index in keys],
        seed=stream_seed(settings.seed, "eval"),
        max_new_tokens=settings.max_new_tokens,
        eos_token_ids=stops,
        temperature=temperature,
        top_p=settings.top_p if temperature > 0 else 1.0,
        max_rows=settings.batch,
    )
    log_probs = [math.fsum(of_tokens) for of_tokens in completions.log_probs]
    for (problem_id, _), log_prob in zip(keys, log_probs, strict=True):
        if not math.isfinite(log_prob):
            raise RunError(
                f"the model gave a completion of problem {problem_id} the log-probability {log_prob}: its weights "
                "hold NaN or infinity. Evaluate an earlier checkpoint."
            )
    texts = [response_text(tokenizer, ids) for ids in completions.ids]
    verdicts = judge_all(task, [problems[problem_id] for problem_id, _ in keys], texts, completions.truncated)
    return [
        {
            "problem": problem_id,
            "sample": index,
            "prompt": hashes[problem_id],
            "text": text,
            "tokens": len(ids),
            # Sums of float32 differ in the last digits between batches of different make-up.
            "log_prob": round(log_prob, 3),
            "truncated": truncated,
            "correct": verdict.correct,
            "answer": verdict.answer,
            "reason": verdict.reason,
            "scorable": verdict.scorable,
            # Counted as not correct, and in the mean reward as nothing; its reason says how many there are.
            "reward": verdict.reward if verdict.scorable else 0.0,
            "parts": verdict.parts if verdict.scorable else dict.fromkeys(verdict.parts, 0.0),
        }
        for (problem_id, index), ids, truncated, log_prob, text, verdict in zip(
            keys, completions.ids, completions.truncated, log_probs, texts, verdicts, strict=True
        )
    ]


def _check_prompts(store: SampleStore, samples: Mapping[Key, Mapping[str, Any]], hashes: Mapping[str, str]) -> None:
    for (problem_id, _), record in samples.items():
        if problem_id in hashes and record.get("prompt") != hashes[problem_id]:
            raise UserError(
                f"{store.folder}: its samples of problem {problem_id} answer another prompt. The data or the "
                "tokenizer changed since; choose another folder with --out."
            )
