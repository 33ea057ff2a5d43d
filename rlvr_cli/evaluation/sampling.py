"""Generate the samples that an evaluation still lacks with a model in this process, or with vLLM in it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.hashes import digest
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.evaluation.judged import sample_and_judge
from rlvr_cli.evaluation.plan import Progress, ProgressCallback, check_same_problems, deal, passes, sample_record
from rlvr_cli.evaluation.settings import EvalSettings, row_key
from rlvr_cli.evaluation.store import SampleKey, SampleStore
from rlvr_cli.launch.world import ALONE, World
from rlvr_cli.models.load import eos_token_ids
from rlvr_cli.models.reading import too_long
from rlvr_cli.models.sampling.engine import Completions, Engine, OnDone, SamplingParams, greedy_once
from rlvr_cli.models.sampling.local import rows_that_fit, sample
from rlvr_cli.models.sampling.transformers import choose_engine
from rlvr_cli.models.sampling.vllm import files_hash, generate_with_vllm
from rlvr_cli.models.tokenizer import ModelFacts
from rlvr_cli.tasks.base import Task, prompt_ids, response_text
from rlvr_cli.tasks.problem import Problem


def weights_hash(model: Any) -> str:
    """SHA-256 over the names, types, shapes and bytes of a model's parameters and buffers.

    A value head, which a model has in training alone, is none of them.
    """
    whole = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if name.startswith("value_head."):
            continue
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        whole.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        whole.update(flat.view(torch.uint8).numpy().data)
    return whole.hexdigest()


class LocalSampler:
    """A model in this process, sampled by the project's own sampler or by transformers.

    While it samples the model is in eval mode; its random state is not touched. A sample's random stream is named by
    its problem and index, and batches are cut from the whole plan, so filling gaps gives the samples that an unbroken
    evaluation would have. (The transformers engine seeds whole batches: what it adds to a batch that was cut off are
    other samples of the same policy.)

    Args:
        weights: ``weights_hash(model)``, if at hand. engine: auto, local or transformers; None = ``settings.engine``.
        world: the processes that share the work, each with the model; rank 0 fills, the others help.
    """

    def __init__(
        self, model: Any, tokenizer: Any, weights: str | None = None, engine: str | None = None, world: World = ALONE
    ) -> None:
        self.model, self.tokenizer, self.weights, self.engine = model, tokenizer, weights, engine
        self.world = world

    def identity(self, task: Task, settings: EvalSettings) -> dict[str, Any]:
        """Return what decides the samples of an evaluation: weights, task, sampling settings."""
        return {
            "weights": self.weights or weights_hash(self.model),
            "task": task.settings,
            "split": settings.split,
            "sampling": settings.sampling(),
        }

    def fill(
        self,
        store: SampleStore,
        samples: dict[SampleKey, dict[str, Any]],
        task: Task,
        problems: Sequence[Problem],
        settings: EvalSettings,
        progress: ProgressCallback | None = None,
    ) -> None:
        """Fill ``store`` together with the other processes, which :meth:`help`.

        Raises UserError when the folder holds samples of other problems under the same ids, the engine is not one of a
        model in this process, or a completion might run past the model's positions; RunError when the model's
        probabilities are not finite.
        """
        self._fill(store, samples, task, problems, settings, progress)

    def help(self, task: Task, problems: Sequence[Problem], settings: EvalSettings) -> None:
        """Do this rank's share of what rank 0 fills into its folder."""
        self._fill(None, {}, task, problems, settings, None)

    def _fill(
        self,
        store: SampleStore | None,
        samples: dict[SampleKey, dict[str, Any]],
        task: Task,
        problems: Sequence[Problem],
        settings: EvalSettings,
        progress: ProgressCallback | None,
    ) -> None:
        model, name = self.model, self.engine or settings.engine
        if name not in ("auto", "local", "transformers"):
            raise UserError(
                f"eval.engine={name}: cannot sample a model in this process. Allowed here: auto, local, transformers."
            )
        engine, _ = choose_engine(name, model)
        positions = getattr(model.config, "max_position_embeddings", None)
        stops = eos_token_ids(model, self.tokenizer)
        source = BatchSource(engine, model, self.tokenizer, stops, positions=positions)
        was_training = model.training
        model.eval()
        try:
            fill_batches(source, store, samples, task, problems, settings, progress, world=self.world)
        finally:
            model.train(was_training)


@dataclass(frozen=True)
class BatchSource:
    """What completes a batch of prompts, with all that it needs.

    ``stops`` are the ids that end a completion. ``scored_at`` are the temperatures at which the engine's
    log-probabilities are those of the distribution sampled from; None = at any. ``positions`` is the model's longest
    sequence; None = no limit.
    """

    engine: Engine
    model: Any
    tokenizer: Any
    stops: Sequence[int]
    scored_at: tuple[float, ...] | None = None
    positions: int | None = None


def fill_batches(
    source: BatchSource,
    store: SampleStore | None,
    samples: dict[SampleKey, dict[str, Any]],
    task: Task,
    problems: Sequence[Problem],
    settings: EvalSettings,
    progress: ProgressCallback | None = None,
    *,
    world: World = ALONE,
) -> None:
    """Add every missing sample with any engine that completes a batch of prompts; errors as :meth:`LocalSampler.fill`.

    The processes of ``world`` share the work; rank 0 alone has a ``store``. Each batch is on the disk before
    the next begins.

    In several processes each samples a batch of a piece of the plan, then rank 0 writes the piece in the plan's order:
    the file does not show how many there were, and none waits longer for another than a batch takes.
    """
    prompts = {problem.id: prompt_ids(task, problem, source.tokenizer) for problem in problems}
    longest = max((len(ids) for ids in prompts.values()), default=0)
    if source.positions is not None and longest + settings.max_new_tokens > source.positions:
        raise UserError(too_long("max_new_tokens", settings.max_new_tokens, longest, source.positions))
    hashes = {problem_id: digest(ids)[:16] for problem_id, ids in prompts.items()}

    def keys_found() -> frozenset[SampleKey]:
        if store is not None:
            check_same_problems(store, samples, problems, hashes)
            store.add_prompts({name: response_text(source.tokenizer, ids, ()) for name, ids in prompts.items()})
        return frozenset(samples)

    there = world.from_main(keys_found)
    by_id = {problem.id: problem for problem in problems}
    size = settings.kept_at_once * world.processes
    plan = [
        (temperature, keys[first : first + size])
        for temperature, keys in passes(problems, settings)
        for first in range(0, len(keys), size)
    ]
    found = sum(key in there for _, piece in plan for key in piece)
    planned = sum(len(piece) for _, piece in plan)
    done, tokens = found, 0
    if progress is not None:
        progress(Progress(done, planned, found, 0))
    for temperature, piece in plan:
        missing = [key for key in piece if key not in there]
        if not missing:
            continue
        own = deal(missing, world.processes)[world.rank]
        sampled = _sample(source, task, own, by_id, prompts, hashes, settings, temperature) if own else []
        by_key = {(record["problem"], record["sample"]): record for record in world.gather(sampled)}
        if store is None:
            continue
        records = [by_key[key] for key in missing]
        store.append(records)
        samples.update(zip(missing, records, strict=True))
        done, tokens = done + len(missing), tokens + sum(record["tokens"] for record in records)
        if progress is not None:
            progress(Progress(done, planned, found, tokens))


def _sample(
    source: BatchSource,
    task: Task,
    keys: Sequence[SampleKey],
    problems: Mapping[str, Problem],
    prompts: Mapping[str, list[int]],
    hashes: Mapping[str, str],
    settings: EvalSettings,
    temperature: float,
) -> list[dict[str, Any]]:
    of_rows = [prompts[problem_id] for problem_id, _ in keys]
    row_keys = [row_key(problem_id, index) for problem_id, index in keys]
    params = SamplingParams(
        max_new_tokens=settings.max_new_tokens,
        eos_token_ids=source.stops,
        seed=stream_seed(settings.seed, "eval"),
        temperature=temperature,
        top_p=settings.top_p if temperature > 0 else 1.0,
        max_rows=settings.kept_at_once,
    )
    if settings.batch is None and source.engine is sample:
        params = replace(params, max_rows=min(settings.kept_at_once, rows_that_fit(source.model, of_rows, params)))

    def sampled(on_done: OnDone | None) -> Completions:
        if temperature:
            return source.engine(source.model, of_rows, params, keys=row_keys, on_done=on_done)
        return greedy_once(source.engine, source.model, of_rows, params, keys=row_keys, on_done=on_done)

    chosen = [problems[problem_id] for problem_id, _ in keys]
    judged = sample_and_judge(sampled, task, chosen, source.tokenizer, source.stops)
    completions = judged.completions
    log_probs = [math.fsum(of_tokens) for of_tokens in completions.log_probs]
    for (problem_id, _), log_prob in zip(keys, log_probs, strict=True):
        if not math.isfinite(log_prob):
            raise RunError(
                f"the model gave a completion of problem {problem_id} the log-probability {log_prob}: its weights "
                "hold NaN or infinity. Evaluate an earlier checkpoint."
            )
    scored = source.scored_at is None or temperature in source.scored_at
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


class VllmSampler:
    """A model in vLLM.

    Args:
        engine: `vllm.LLM`. folder: the model's files, whose hash stands for the weights.
    """

    def __init__(self, engine: Any, facts: ModelFacts, folder: Path) -> None:
        self.engine, self.facts, self.weights = engine, facts, f"files {files_hash(folder)}"

    def identity(self, task: Task, settings: EvalSettings) -> dict[str, Any]:
        """What decides the samples; never that of the same model under another engine, whose random streams differ."""
        return {
            "weights": self.weights,
            "engine": "vllm",
            "task": task.settings,
            "split": settings.split,
            "sampling": settings.sampling(),
        }

    def fill(
        self,
        store: SampleStore,
        samples: dict[SampleKey, dict[str, Any]],
        task: Task,
        problems: Sequence[Problem],
        settings: EvalSettings,
        progress: ProgressCallback | None = None,
    ) -> None:
        """See :func:`fill_batches`; log-probabilities only where they are of what was
        sampled from: at temperature 0 and 1."""
        facts = self.facts
        source = BatchSource(
            generate_with_vllm, self.engine, facts.tokenizer, facts.stops, (0.0, 1.0), positions=facts.positions
        )
        fill_batches(source, store, samples, task, problems, settings, progress)
