"""Sample from a server with concurrent requests; each sample is written as soon as it is judged."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.evaluation.sample_store import SampleKey, Sampler, SampleStore, iter_passes, sample_record
from rlvr_cli.evaluation.served.kinds import TAKE_IDS, Prompt, ServedCompletion
from rlvr_cli.evaluation.served.options import Say
from rlvr_cli.evaluation.served.prompts import chat_prompts, prompt_hash, prompt_text, text_prompts
from rlvr_cli.evaluation.served.server import Client, Server
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.models.load import ModelFacts
from rlvr_cli.models.sampling.engine import SamplingParams, StopStrings
from rlvr_cli.tasks.base import Task, response_text
from rlvr_cli.tasks.problem import Problem

# Some servers reject longer seeds.
_SEED_BITS = 31


class ServedSampler(Sampler):
    """A model behind a server, identified by its name there instead of its weights, and not by the server's address.

    Args:
        facts: the model's tokenizer, stop tokens and style; None = unknown, so prompts are sent as messages.
        style: the prompt style of an unknown model.
        say: print a line.
    """

    weights = "unknown, behind a server"

    def __init__(self, server: Server, facts: ModelFacts | None, style: str, say: Say) -> None:
        self.server, self.say = server, say
        self.tokenizer = facts.tokenizer if facts else None
        self.stops: tuple[int, ...] = facts.stops if facts else ()
        self.style = facts.style if facts else style
        # Only the server can count the tokens of messages.
        self.max_sequence = server.max_sequence if server.endpoint == "completions" else None
        self.served_as = (Path(server.model).name.removesuffix("@main") or server.model, f"{server.kind} server")
        names = {"model": server.model, "kind": server.kind, "endpoint": server.endpoint}
        self.engine_identity = {"server": names}

    def fill(self, store: SampleStore, task: Task, problems: Sequence[Problem], settings: EvalSettings) -> None:
        """Add each missing sample once judged. Raises UserError if a prompt would change, RunError if retries fail."""
        if settings.stop and self.server.kind != "vllm":
            raise UserError(
                f"eval.stop: a server of kind {self.server.kind} returns no completion with its stop string. Remove "
                "it, serve the model with vLLM, or use --engine local, transformers or vllm."
            )
        write = chat_prompts if self.server.endpoint == "chat" else text_prompts
        prompts = write(task, problems, self.tokenizer, self.server.kind)
        hashes = {name: prompt_hash(prompt) for name, prompt in prompts.items()}
        store.prepare(problems, settings, hashes, {name: prompt_text(prompt) for name, prompt in prompts.items()})
        by_id = {problem.id: problem for problem in problems}
        plan = [(key, temperature) for temperature, keys in iter_passes(problems, settings) for key in keys]
        missing = [(by_id[key[0]], key[1], temperature) for key, temperature in plan if key not in store.samples]

        def record(completions: Sequence[tuple[Problem, int | str, ServedCompletion]]) -> None:
            texts = [self.read_text(completion, prompts[problem.id]) for problem, _, completion in completions]
            truncated = [completion.truncated for _, _, completion in completions]
            verdicts = task.judge_many([problem for problem, _, _ in completions], texts, truncated)
            store.add(
                [
                    sample_record(
                        problem,
                        index,
                        prompt=hashes[problem.id],
                        text=text,
                        tokens=completion.tokens,
                        log_prob=completion.log_prob,
                        truncated=completion.truncated,
                        verdict=verdict,
                    )
                    for (problem, index, completion), text, verdict in zip(completions, texts, verdicts, strict=True)
                ]
            )

        async def sample() -> None:
            async with Client(self.server.options, self.say, self.server.options.retries) as client:
                sent = await self._check_tokenizer(client, prompts) if self.server.endpoint != "chat" else prompts

                async def request(
                    sample: tuple[Problem, int | str, float],
                ) -> tuple[Problem, int | str, ServedCompletion]:
                    problem, index, temperature = sample
                    params = SamplingParams(
                        max_new_tokens=settings.max_new_tokens,
                        eos_token_ids=self.stops,
                        seed=stream_seed(settings.seed, "eval", problem.id, index) >> (63 - _SEED_BITS),
                        temperature=temperature,
                        top_p=settings.top_p if temperature > 0 else 1.0,
                        stop=StopStrings(settings.stop, self.tokenizer) if settings.stop else None,
                    )
                    return problem, index, await self.server.complete(client, sent[problem.id], params)

                async def save(completions: Sequence[tuple[Problem, int | str, ServedCompletion]]) -> None:
                    # In a thread, so that judging and the disk do not block requests.
                    await asyncio.to_thread(record, completions)

                await run_concurrently(missing, request, save, self.server.options.concurrency)

        if missing:
            try:
                asyncio.run(sample())
            except RunError as error:
                raise RunError(f"{error} The samples so far are kept: the same command continues.") from error
        if settings.samples > 1 and settings.temperature > 0:
            self._check_variety(store.samples, problems, settings)

    async def _check_tokenizer(self, client: Client, prompts: Mapping[str, Prompt]) -> Mapping[str, Prompt]:
        """Return the prompts in the form whose token count is the server's. Raises UserError if none is."""
        longest = max(prompts.values(), key=lambda prompt: len(prompt.ids or ()))
        length, params = len(longest.ids or ()), SamplingParams(max_new_tokens=1, eos_token_ids=self.stops)
        count = (await self.server.complete(client, replace(longest, ids=None), params)).prompt_tokens
        if count is None:
            self.say(f"{client.url} does not report the number of prompt tokens, so its tokenization is not checked")
        if count in (None, length) or (count == length + 1 and self.server.kind in TAKE_IDS):
            return prompts
        start = getattr(self.tokenizer, "bos_token", None)
        if count == length + 1 and start and longest.text.startswith(start):
            # The server adds the BOS token to every text.
            return {name: Prompt(prompt.text.removeprefix(start), prompt.ids) for name, prompt in prompts.items()}
        raise UserError(
            f"{client.url}: reads a prompt of {length} tokens, by the local tokenizer, as {count} tokens. It serves a "
            "different model, or adds tokens. Name the served model by its folder or hub id, with --model-name for its "
            "name at the server."
        )

    def read_text(self, completion: ServedCompletion, prompt: Prompt) -> str:
        """Return the text for judges, the same as of a model in this process."""
        text = completion.text
        if self.tokenizer is not None and completion.token_ids is not None:
            return response_text(self.tokenizer, completion.token_ids, self.stops)
        if completion.reasoning is not None:
            return f"{'' if prompt.opened else '<think>'}{completion.reasoning}</think>{text}"
        # Some servers include the stop token.
        ends = (response_text(self.tokenizer, [stop], ()) for stop in self.stops)
        return next((text.removesuffix(end) for end in ends if end and text.endswith(end)), text)

    def _check_variety(
        self, samples: Mapping[SampleKey, Mapping[str, Any]], problems: Sequence[Problem], settings: EvalSettings
    ) -> None:
        indices = range(settings.samples)
        if all(len({samples[problem.id, index]["text"] for index in indices}) == 1 for problem in problems):
            self.say(
                f"{self.server.options.base_url}: the {settings.samples} samples of each problem are identical, though "
                f"the temperature is {settings.temperature:g}, so pass@k is meaningless. Check that the server reads "
                "temperature and seed from the request (eval.server sets its kind)"
            )


Item = TypeVar("Item")
Result = TypeVar("Result")


async def run_concurrently(
    items: Sequence[Item],
    request: Callable[[Item], Awaitable[Result]],
    save: Callable[[Sequence[Result]], Awaitable[None]],
    concurrency: int,
) -> None:
    """Call ``request`` for every item, ``concurrency`` at a time, and ``save`` for results as they complete.

    If a call fails, the results completed with it are saved, the calls in flight cancelled, and its error raised.
    """
    waiting = iter(items)

    def start(count: int) -> set[asyncio.Future[Result]]:
        return {asyncio.ensure_future(request(item)) for item in itertools.islice(waiting, count)}

    running = start(concurrency)
    try:
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            failed = [task for task in done if task.exception() is not None]
            if not failed:
                running |= start(concurrency - len(running))
            if results := [task.result() for task in done if task not in failed]:
                await save(results)
            for task in failed:
                task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
