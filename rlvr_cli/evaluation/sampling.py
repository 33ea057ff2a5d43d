"""Draw and judge samples with a model in this process, or with vLLM in it."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.hashes import digest
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.evaluation.sample_store import SampleKey, Sampler, SampleStore, iter_passes, sample_record
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.launch.world import ALONE, World
from rlvr_cli.models.load import ModelFacts, eos_token_ids
from rlvr_cli.models.reading import length_error
from rlvr_cli.models.sampling.engine import Completions, Engine, OnDone, SamplingParams, StopStrings, sample_greedy
from rlvr_cli.models.sampling.local import rows_that_fit, sample
from rlvr_cli.models.sampling.transformers import choose_engine
from rlvr_cli.models.sampling.vllm import files_digest, generate_with_vllm
from rlvr_cli.models.source import prompt_style
from rlvr_cli.tasks.base import Task, prompt_ids, response_text
from rlvr_cli.tasks.problem import Problem, Verdict


def weights_hash(model: Any) -> str:
    """Return the SHA-256 of names, types, shapes and bytes of a model's parameters and buffers, except a value head."""
    state = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if name.startswith("value_head."):
            continue
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        state.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        state.update(flat.view(torch.uint8).numpy().data)
    return state.hexdigest()


def row_key(problem_id: str, sample: int | str) -> int:
    """Return the random stream of a sample: 63 bits that depend only on the problem and the index of the sample."""
    return int.from_bytes(hashlib.sha256(f"{problem_id}/{sample}".encode()).digest()[:8], "big") >> 1


class BatchSampler(Sampler):
    """A model with an engine that samples in batches.

    Random streams depend on the problem and the index of a sample, and batches on the whole plan, so a resumed
    evaluation has the samples of an uninterrupted one. (The transformers engine seeds whole batches: the samples added
    to an unfinished batch are different samples of the same policy.)

    Attributes:
        stops: the ids that end a completion.
        scored_at: the temperatures at which the engine's log-probabilities are of the sampled distribution; None = all.
        world: the processes that share the work, each with the model; rank 0 has the store.
    """

    scored_at: tuple[float, ...] | None = None
    world: World = ALONE

    def __init__(
        self, engine: Engine, model: Any, tokenizer: Any, stops: Sequence[int], max_sequence: int | None
    ) -> None:
        self.engine, self.model, self.tokenizer, self.stops = engine, model, tokenizer, stops
        self.max_sequence = max_sequence

    def fill(self, store: SampleStore | None, task: Task, problems: Sequence[Problem], settings: EvalSettings) -> None:
        """Add every missing sample, and write each chunk of the plan before the next begins.

        Each process samples a share of a chunk, and rank 0 writes it in the order of the plan, so the file does not
        depend on the number of processes.

        Args:
            store: None except in rank 0.
        Raises:
            UserError: the folder holds samples of other problems under the same ids, or a completion might exceed the
                model's positions. RunError: the model's probabilities are not finite.
        """
        prompts = {problem.id: prompt_ids(task, problem, self.tokenizer) for problem in problems}
        longest_prompt = max((len(ids) for ids in prompts.values()), default=0)
        if self.max_sequence is not None and longest_prompt + settings.max_new_tokens > self.max_sequence:
            raise UserError(length_error("max_new_tokens", settings.max_new_tokens, longest_prompt, self.max_sequence))
        hashes = {problem_id: digest(ids)[:16] for problem_id, ids in prompts.items()}

        def stored_keys() -> frozenset[SampleKey]:
            if store is None:
                return frozenset()
            texts = {name: response_text(self.tokenizer, ids, ()) for name, ids in prompts.items()}
            store.prepare(problems, settings, hashes, texts)
            return frozenset(store.samples)

        stored = self.world.run_on_main(stored_keys)
        by_id = {problem.id: problem for problem in problems}
        size = settings.chunk_size * self.world.processes
        for temperature, keys in iter_passes(problems, settings):
            for start in range(0, len(keys), size):
                missing = [key for key in keys[start : start + size] if key not in stored]
                if not missing:
                    continue
                share = partition_keys(missing, self.world.processes)[self.world.rank]
                records = self._sample(task, share, by_id, prompts, hashes, settings, temperature) if share else []
                by_key = {(record["problem"], record["sample"]): record for record in self.world.gather(records)}
                if store is not None:
                    store.add([by_key[key] for key in missing])

    def _sample(
        self,
        task: Task,
        keys: Sequence[SampleKey],
        problems: Mapping[str, Problem],
        prompts: Mapping[str, list[int]],
        hashes: Mapping[str, str],
        settings: EvalSettings,
        temperature: float,
    ) -> list[dict[str, Any]]:
        rows = [prompts[problem_id] for problem_id, _ in keys]
        row_keys = [row_key(problem_id, index) for problem_id, index in keys]
        params = SamplingParams(
            max_new_tokens=settings.max_new_tokens,
            eos_token_ids=self.stops,
            seed=stream_seed(settings.seed, "eval"),
            temperature=temperature,
            top_p=settings.top_p if temperature > 0 else 1.0,
            stop=StopStrings(settings.stop, self.tokenizer) if settings.stop else None,
            max_rows=settings.chunk_size,
        )
        if settings.batch is None and self.engine is sample:
            params = replace(params, max_rows=min(settings.chunk_size, rows_that_fit(self.model, rows, params)))

        def generate(on_done: OnDone | None) -> Completions:
            if temperature:
                return self.engine(self.model, rows, params, keys=row_keys, on_done=on_done)
            return sample_greedy(self.engine, self.model, rows, params, keys=row_keys, on_done=on_done)

        row_problems = [problems[problem_id] for problem_id, _ in keys]
        judged = sample_and_judge(generate, task, row_problems, self.tokenizer, self.stops)
        completions = judged.completions
        log_probs = [math.fsum(token_log_probs) for token_log_probs in completions.log_probs]
        for (problem_id, _), log_prob in zip(keys, log_probs, strict=True):
            if not math.isfinite(log_prob):
                raise RunError(
                    f"the model gave a completion of problem {problem_id} the log-probability {log_prob}: its weights "
                    "hold NaN or infinity. Evaluate an earlier checkpoint."
                )
        scored = self.scored_at is None or temperature in self.scored_at
        return [
            sample_record(
                problems[problem_id],
                index,
                prompt=hashes[problem_id],
                text=text,
                tokens=len(ids),
                log_prob=log_prob if scored else None,
                truncated=truncated,
                verdict=verdict,
            )
            for (problem_id, index), ids, truncated, log_prob, text, verdict in zip(
                keys, completions.ids, completions.truncated, log_probs, judged.texts, judged.verdicts, strict=True
            )
        ]


class LocalSampler(BatchSampler):
    """A model in this process, sampled in eval mode; its random state is kept. Raises UserError for other engines."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        engine: str = "auto",
        world: World = ALONE,
        key: str = "eval.engine",
    ) -> None:
        if engine not in ("auto", "local", "transformers"):
            raise UserError(
                f"{key}={engine}: cannot sample a model in this process. Allowed here: auto, local, transformers."
            )
        positions = getattr(model.config, "max_position_embeddings", None)
        engine_function, _ = choose_engine(engine, model, key)
        super().__init__(engine_function, model, tokenizer, eos_token_ids(model, tokenizer), positions)
        self.world, self.style = world, prompt_style(model.config)
        # The other processes have no store.
        self.weights = weights_hash(model) if world.main else ""

    def fill(self, store: SampleStore | None, task: Task, problems: Sequence[Problem], settings: EvalSettings) -> None:
        was_training = self.model.training
        self.model.eval()
        try:
            super().fill(store, task, problems, settings)
        finally:
            self.model.train(was_training)


class VllmSampler(BatchSampler):
    """A model in vLLM, identified by the hash of its files. Its random streams differ from other engines'."""

    scored_at = (0.0, 1.0)
    engine_identity = MappingProxyType({"engine": "vllm"})

    def __init__(self, engine: Any, facts: ModelFacts, folder: Path) -> None:
        super().__init__(generate_with_vllm, engine, facts.tokenizer, facts.stops, facts.positions)
        self.style, self.weights = facts.style, f"files {files_digest(folder)}"


def partition_keys(keys: Sequence[SampleKey], processes: int) -> list[list[SampleKey]]:
    """Partition ``keys`` into shares of about equal size, assigning problems round-robin.

    The samples of a problem stay together as far as possible, to compute its prompt once. Round-robin, because
    neighbouring problems are often of similar difficulty and length.
    """
    size = -(-len(keys) // processes)
    shares: list[list[SampleKey]] = [[] for _ in range(processes)]
    turn = 0
    for _, group in groupby(keys, key=lambda key: key[0]):
        remaining = list(group)
        while remaining:
            share = shares[turn % processes]
            room = size - len(share)
            share += remaining[:room]
            remaining = remaining[room:]
            turn += 1
    return shares


@dataclass(frozen=True)
class ScoredCompletions:
    """Completions, texts and verdicts, in the order of the rows; ``seconds``: of judging after sampling."""

    completions: Completions
    texts: list[str]
    verdicts: list[Verdict]
    seconds: float


def sample_and_judge(
    sample: Callable[[OnDone | None], Completions],
    task: Task,
    problems: Sequence[Problem],
    tokenizer: Any,
    stops: Collection[int],
) -> ScoredCompletions:
    """Sample a completion for each row, and judge it by the row's problem.

    Worker processes judge each completion when it ends; a judge in this process, which would only block the sampler,
    runs after the sampling. The verdicts are equal.

    Args:
        sample: an engine's call without its ``on_done``.
        stops: the ids that end a completion, which its text omits.
    """
    judging, by_row = task.start_judging(), dict[int, str]()
    if judging is None:
        completions = sample(None)
        sampled = time.perf_counter()
        texts = [response_text(tokenizer, ids, stops) for ids in completions.ids]
        verdicts = task.judge_many(problems, texts, completions.truncated, completions.ids)
        return ScoredCompletions(completions, texts, verdicts, time.perf_counter() - sampled)
    with judging:

        def judge(rows: Sequence[int], done: Completions) -> None:
            for row, ids, truncated in zip(rows, done.ids, done.truncated, strict=True):
                by_row[row] = response_text(tokenizer, ids, stops)
                judging.add(problems[row], by_row[row], truncated=truncated)

        completions = sample(judge)
        sampled = time.perf_counter()
        rest = [row for row in range(len(problems)) if row not in by_row]
        judge(rest, completions.select(rest))
        verdict_of = dict(zip(by_row, judging.verdicts(), strict=True))
    rows = range(len(problems))
    texts, verdicts = [by_row[row] for row in rows], [verdict_of[row] for row in rows]
    return ScoredCompletions(completions, texts, verdicts, time.perf_counter() - sampled)
