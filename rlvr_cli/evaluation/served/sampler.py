"""Fill an evaluation from a server: many requests at a time, each finished sample on the disk at once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.evaluation.sample_store import SampleKey, Sampler, SampleStore, passes, sample_record
from rlvr_cli.evaluation.served.kinds import TAKE_IDS, Answer, Prompt
from rlvr_cli.evaluation.served.options import Say
from rlvr_cli.evaluation.served.prompts import chat_prompts, prompt_hash, prompt_text, text_prompts
from rlvr_cli.evaluation.served.server import Client, Server
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.models.sampling.engine import SamplingParams
from rlvr_cli.models.tokenizer import ModelFacts
from rlvr_cli.tasks.base import Task, response_text
from rlvr_cli.tasks.problem import Problem

# Seeds of more bits are refused by some servers.
_SEED_BITS = 31


class ServedSampler(Sampler):
    """A model behind a server. Its weights are unknown: its name at the server stands for them.

    The server's address is no part of its identity: a server may move.

    Args:
        facts: the model's tokenizer and what goes with it; None = unknown, so prompts go as messages.
        style: of the prompts, for an unknown model.
        say: shows one line to the user.
    """

    weights = "unknown, behind a server"

    def __init__(self, server: Server, facts: ModelFacts | None, style: str, say: Say) -> None:
        self.server, self.say = server, say
        self.tokenizer = facts.tokenizer if facts else None
        self.stops: tuple[int, ...] = facts.stops if facts else ()
        self.style = facts.style if facts else style
        # Of messages, only the server knows how many tokens they are.
        self.max_sequence = server.max_sequence if server.endpoint == "completions" else None
        self.served_as = (Path(server.model).name.removesuffix("@main") or server.model, f"{server.kind} server")
        names = {"model": server.model, "kind": server.kind, "endpoint": server.endpoint}
        self.engine_identity = {"server": names}

    def fill(self, store: SampleStore, task: Task, problems: Sequence[Problem], settings: EvalSettings) -> None:
        """Add every missing sample, each as soon as it has come and was judged.

        Raises UserError when the prompts cannot be put to this server as they are; RunError when it fails for longer
        than the retries last, or refuses a request.
        """
        write = chat_prompts if self.server.endpoint == "chat" else text_prompts
        prompts = write(task, problems, self.tokenizer, self.server.kind)
        hashes = {name: prompt_hash(prompt) for name, prompt in prompts.items()}
        store.expect(problems, settings, hashes, {name: prompt_text(prompt) for name, prompt in prompts.items()})
        by_id = {problem.id: problem for problem in problems}
        plan = [(key, temperature) for temperature, keys in passes(problems, settings) for key in keys]
        missing = [(by_id[key[0]], key[1], temperature) for key, temperature in plan if key not in store.samples]

        def record(answers: Sequence[tuple[Problem, int | str, Answer]]) -> None:
            texts = [self.read_text(answer, prompts[problem.id]) for problem, _, answer in answers]
            truncated = [answer.truncated for _, _, answer in answers]
            verdicts = task.judge_many([problem for problem, _, _ in answers], texts, truncated)
            store.add(
                [
                    sample_record(
                        problem,
                        index,
                        prompt=hashes[problem.id],
                        text=text,
                        tokens=answer.tokens,
                        log_prob=answer.log_prob,
                        truncated=answer.truncated,
                        verdict=verdict,
                    )
                    for (problem, index, answer), text, verdict in zip(answers, texts, verdicts, strict=True)
                ]
            )

        async def sample() -> None:
            async with Client(self.server.options, self.say, self.server.options.retries) as client:
                sent = await self._check_tokenizer(client, prompts) if self.server.endpoint != "chat" else prompts

                async def ask(item: tuple[Problem, int | str, float]) -> tuple[Problem, int | str, Answer]:
                    problem, index, temperature = item
                    params = SamplingParams(
                        max_new_tokens=settings.max_new_tokens,
                        eos_token_ids=self.stops,
                        seed=stream_seed(settings.seed, "eval", problem.id, index) >> (63 - _SEED_BITS),
                        temperature=temperature,
                        top_p=settings.top_p if temperature > 0 else 1.0,
                    )
                    return problem, index, await self.server.complete(client, sent[problem.id], params)

                async def keep(answers: Sequence[tuple[Problem, int | str, Answer]]) -> None:
                    # Judging may take seconds and waits for the disk; requests must not.
                    await asyncio.to_thread(record, answers)

                await in_flight(missing, ask, keep, self.server.options.concurrency)

        if missing:
            try:
                asyncio.run(sample())
            except RunError as error:
                raise RunError(f"{error} The samples so far are kept: the same command continues.") from error
        if settings.samples > 1 and settings.temperature > 0:
            self._check_variety(store.samples, problems, settings)

    async def _check_tokenizer(self, client: Client, prompts: Mapping[str, Prompt]) -> Mapping[str, Prompt]:
        """Return the prompts in the form that the server tokenizes as here, by its count for the longest one.

        Raises UserError if its count differs.
        """
        longest = max(prompts.values(), key=lambda prompt: len(prompt.ids or ()))
        length, params = len(longest.ids or ()), SamplingParams(max_new_tokens=1, eos_token_ids=self.stops)
        count = (await self.server.complete(client, replace(longest, ids=None), params)).prompt_tokens
        if count is None:
            self.say(
                f"{client.url} does not report the number of prompt tokens, so it is not checked that it tokenizes as "
                "here"
            )
        if count in (None, length) or (count == length + 1 and self.server.kind in TAKE_IDS):
            return prompts
        start = getattr(self.tokenizer, "bos_token", None)
        if count == length + 1 and start and longest.text.startswith(start):
            # The server puts the model's first token in front of every text.
            return {name: Prompt(prompt.text.removeprefix(start), prompt.ids) for name, prompt in prompts.items()}
        raise UserError(
            f"{client.url}: reads a prompt as {count} tokens that is {length} tokens by the tokenizer here. It serves "
            "a different model, or adds tokens. Name the served model by its folder or hub id, with --model-name for "
            "its name at the server."
        )

    def read_text(self, answer: Answer, prompt: Prompt) -> str:
        """Return the completion as judges read it, as it would come from a model in this process."""
        if self.tokenizer is not None and answer.token_ids is not None:
            return response_text(self.tokenizer, answer.token_ids, self.stops)
        if answer.reasoning is not None:
            return f"{'' if prompt.opened else '<think>'}{answer.reasoning}</think>{answer.text}"
        # Some servers write the token that ended the completion.
        ends = (response_text(self.tokenizer, [stop], ()) for stop in self.stops)
        return next((answer.text.removesuffix(end) for end in ends if end and answer.text.endswith(end)), answer.text)

    def _check_variety(
        self, samples: Mapping[SampleKey, Mapping[str, Any]], problems: Sequence[Problem], settings: EvalSettings
    ) -> None:
        indices = range(settings.samples)
        if all(len({samples[problem.id, index]["text"] for index in indices}) == 1 for problem in problems):
            self.say(
                f"{self.server.options.base_url}: the {settings.samples} samples of each problem are the same, though "
                f"the temperature is {settings.temperature:g}, so pass@k means nothing. Check that the server reads "
                "temperature and seed from the request (eval.server names what it is)"
            )


Item = TypeVar("Item")
Result = TypeVar("Result")


async def in_flight(
    items: Sequence[Item],
    ask: Callable[[Item], Awaitable[Result]],
    keep: Callable[[Sequence[Result]], Awaitable[None]],
    concurrency: int,
) -> None:
    """Call ``ask`` for every item, ``concurrency`` at a time, and ``keep`` for the results as they come.

    When a call fails, the results that came with it are kept, the others in flight are cancelled, and it is raised.
    """
    waiting = iter(items)

    def start(count: int) -> set[asyncio.Future[Result]]:
        return {asyncio.ensure_future(ask(item)) for item in itertools.islice(waiting, count)}

    running = start(concurrency)
    try:
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            failed = [task for task in done if task.exception() is not None]
            if not failed:
                running |= start(concurrency - len(running))
            if results := [task.result() for task in done if task not in failed]:
                await keep(results)
            for task in failed:
                task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
