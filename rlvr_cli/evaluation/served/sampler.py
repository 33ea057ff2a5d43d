"""Fill an evaluation from a server: many requests at a time, each finished sample on the disk at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.evaluation.served.client import Client, connect
from rlvr_cli.evaluation.served.kinds import Answer, Ask, Prompt
from rlvr_cli.evaluation.served.prompts import chat_prompts, check_tags, prompt_hash, prompt_text, text_prompts
from rlvr_cli.evaluation.served.server import Server
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.evaluation.store import SampleKey, Sampler, SampleStore, passes, sample_record
from rlvr_cli.models.sampling.engine import SamplingParams
from rlvr_cli.models.tokenizer import ModelFacts
from rlvr_cli.tasks.base import Task, response_text
from rlvr_cli.tasks.problem import Problem

UNKNOWN_WEIGHTS = "unknown, behind a server"
# Seeds of more bits are refused by some servers.
_SEED_BITS = 31
KEPT = "The samples so far are kept: the same command continues."


class ServedSampler(Sampler):
    """A model behind a server. Its weights are unknown: its name at the server stands for them.

    The server's address is no part of its identity: a server may move.

    Args:
        facts: the model's tokenizer and what goes with it; None = unknown, so prompts go as messages.
        style: of the prompts, where the model is unknown.
        say: shows one line to the user.
    """

    weights = UNKNOWN_WEIGHTS

    def __init__(self, server: Server, facts: ModelFacts | None, style: str, say: Callable[[str], None]) -> None:
        self.server, self.facts, self.say = server, facts, say
        self.tokenizer = facts.tokenizer if facts else None
        self.style = facts.style if facts else style
        # Of messages, only the server knows how many tokens they are.
        self.longest = server.longest if server.endpoint == "completions" else None
        self.served_as = (Path(server.model).name.removesuffix("@main") or server.model, f"{server.kind.name} server")
        names = {"model": server.model, "kind": server.kind.name, "endpoint": server.endpoint}
        self.engine_identity = {"server": names}

    def fill(self, store: SampleStore, task: Task, problems: Sequence[Problem], settings: EvalSettings) -> None:
        """Add every sample that is asked for and missing, each as soon as it has come and was judged.

        Raises UserError when the prompts cannot be put to this server as they are; RunError when it fails for longer
        than the retries last, or refuses a request.
        """
        prompts = self._prompts(task, problems)
        store.expect(problems, settings, {problem_id: prompt_hash(prompt) for problem_id, prompt in prompts.items()})
        store.add_prompts({name: prompt_text(prompt) for name, prompt in prompts.items()})
        plan = [(key, temperature) for temperature, keys in passes(problems, settings) for key in keys]
        missing = [(key, temperature) for key, temperature in plan if key not in store.samples]
        by_id = {problem.id: problem for problem in problems}

        def record(answers: Sequence[tuple[SampleKey, Answer]]) -> None:
            store.add(self._records(answers, task, by_id, prompts))

        if missing:
            asyncio.run(self._fill(prompts, missing, settings, record))
        self._warn(store.samples, problems, settings)

    def _prompts(self, task: Task, problems: Sequence[Problem]) -> dict[str, Prompt]:
        if self.server.endpoint == "chat":
            return chat_prompts(task, problems, self.facts.tokenizer if self.facts else None, self.server.kind)
        assert self.facts is not None
        check_tags(self.server.kind, self.facts.tokenizer)
        return text_prompts(task, problems, self.facts.tokenizer)

    async def _fill(
        self,
        prompts: Mapping[str, Prompt],
        missing: Sequence[tuple[SampleKey, float]],
        settings: EvalSettings,
        record: Callable[[Sequence[tuple[SampleKey, Answer]]], None],
    ) -> None:
        async with connect(self.server.options, self.say) as client:
            if self.server.endpoint == "completions":
                prompts = await self._agreed(client, prompts, settings)

            async def ask(item: tuple[SampleKey, float]) -> tuple[SampleKey, Answer]:
                (problem_id, index), temperature = item
                seed = stream_seed(settings.seed, "eval", problem_id, index) >> (63 - _SEED_BITS)
                wanted = self._ask(prompts[problem_id], settings.max_new_tokens, temperature, settings.top_p, seed)
                return item[0], await self.server.ask(client, wanted)

            async def keep(answers: Sequence[tuple[SampleKey, Answer]]) -> None:
                # Judging may take seconds and waits for the disk; requests must not.
                await asyncio.to_thread(record, answers)

            try:
                await in_flight(missing, ask, keep, self.server.options.concurrency)
            except RunError as error:
                raise RunError(f"{error} {KEPT}") from error

    def _ask(self, prompt: Prompt, max_tokens: int, temperature: float, top_p: float = 1.0, seed: int = 0) -> Ask:
        stops: Sequence[int] = self.facts.stops if self.facts else ()
        pad = self.facts.tokenizer.pad_token_id if self.facts else None
        params = SamplingParams(
            max_new_tokens=max_tokens,
            eos_token_ids=stops,
            seed=seed,
            temperature=temperature,
            top_p=top_p if temperature > 0 else 1.0,
        )
        return Ask(prompt, params, pad)

    async def _agreed(
        self, client: Client, prompts: Mapping[str, Prompt], settings: EvalSettings
    ) -> Mapping[str, Prompt]:
        """The prompts in a form that the server reads as the same tokens as here, checked on the longest.

        Raises UserError when there is none, or the longest does not fit.
        """
        longest = max(prompts.values(), key=lambda prompt: len(prompt.ids or ()))
        length, url = len(longest.ids or ()), self.server.url
        limit = self.server.longest
        if limit is not None and length + settings.max_new_tokens > limit:
            raise UserError(
                f"--max-new-tokens {settings.max_new_tokens}: with prompts of {length} tokens this is more than the "
                f"{limit} tokens of {url}. Give at most {max(0, limit - length)}, or start it with a longer context."
            )
        read = await self._read(client, longest)
        if read is None:
            self.say(
                f"{url} does not report the number of prompt tokens, so it is not checked that it tokenizes as here"
            )
            return prompts
        if read == length or (read == length + 1 and self.server.kind.takes_ids):
            return prompts
        start = getattr(self.facts.tokenizer, "bos_token", None) if self.facts else None
        if start and longest.text.startswith(start):
            # The server puts the model's first token in front of every text.
            bare = {name: Prompt(prompt.text.removeprefix(start), prompt.ids) for name, prompt in prompts.items()}
            if await self._read(client, Prompt(longest.text.removeprefix(start), longest.ids)) == length:
                return bare
        raise UserError(
            f"{url}: reads a prompt as {read} tokens that is {length} tokens by the tokenizer here. It serves a "
            "different model, or adds tokens. Name the served model by its folder or hub id, with --model-name for "
            "its name at the server."
        )

    async def _read(self, client: Client, prompt: Prompt) -> int | None:
        """How many tokens the server reads a text as; -1 where it says which, and they are others."""
        try:
            answer = await self.server.ask(client, self._ask(prompt, 1, 1.0), as_text=True)
        except RunError as error:
            raise RunError(f"{error} {KEPT}") from error
        if answer.prompt_ids is not None:
            ids = list(prompt.ids or ())
            return len(answer.prompt_ids) if list(answer.prompt_ids)[-len(ids) :] == ids else -1
        return answer.prompt_tokens

    def _records(
        self,
        answers: Sequence[tuple[SampleKey, Answer]],
        task: Task,
        problems: Mapping[str, Problem],
        prompts: Mapping[str, Prompt],
    ) -> list[dict[str, Any]]:
        texts = [self._text(answer, prompts[problem_id]) for (problem_id, _), answer in answers]
        chosen = [problems[problem_id] for (problem_id, _), _ in answers]
        verdicts = task.judge_many(chosen, texts, [answer.truncated for _, answer in answers])
        return [
            sample_record(
                problems[problem_id],
                index,
                prompt=prompt_hash(prompts[problem_id]),
                text=text,
                tokens=self._tokens(answer),
                log_prob=answer.log_prob,
                truncated=answer.truncated,
                verdict=verdict,
            )
            for ((problem_id, index), answer), text, verdict in zip(answers, texts, verdicts, strict=True)
        ]

    def _text(self, answer: Answer, prompt: Prompt) -> str:
        """The completion as judges read it, as it would come from a model in this process."""
        if answer.token_ids is not None and self.facts is not None:
            return response_text(self.facts.tokenizer, answer.token_ids, self.facts.stops)
        if answer.reasoning is not None:
            return f"{'' if prompt.opened else '<think>'}{answer.reasoning}</think>{answer.text}"
        if self.facts is None:
            return answer.text
        # Some servers write the token that ended the completion.
        ends = (response_text(self.facts.tokenizer, [stop], ()) for stop in self.facts.stops)
        return next((answer.text.removesuffix(end) for end in ends if end and answer.text.endswith(end)), answer.text)

    def _tokens(self, answer: Answer) -> int | None:
        if answer.tokens is not None or self.facts is None or answer.reasoning is not None:
            return answer.tokens
        counted = len(self.facts.tokenizer(answer.text, add_special_tokens=False)["input_ids"])
        # The end-of-sequence token is counted, as elsewhere.
        return counted if answer.truncated else counted + 1

    def _warn(
        self, samples: Mapping[SampleKey, Mapping[str, Any]], problems: Sequence[Problem], settings: EvalSettings
    ) -> None:
        if settings.samples < 2 or settings.temperature == 0:
            return
        texts = [[samples[problem.id, index]["text"] for index in range(settings.samples)] for problem in problems]
        if all(len(set(of_problem)) == 1 for of_problem in texts):
            self.say(
                f"{self.server.url}: the {settings.samples} samples of each problem are the same, though "
                f"the temperature is {settings.temperature:g}. Check that the server reads temperature and seed from "
                "the request. pass@k would tell nothing then (eval.server names what it is)"
            )


Item = TypeVar("Item")
Result = TypeVar("Result")


async def in_flight(
    items: Sequence[Item],
    ask: Callable[[Item], Awaitable[Result]],
    keep: Callable[[Sequence[Result]], Awaitable[None]],
    concurrency: int,
) -> None:
    """``ask`` for every item, ``concurrency`` at a time, and ``keep`` what has come, as it comes.

    When one fails, or the whole is cancelled, the requests in flight are dropped; what had come is still kept, and then
    the failure is raised.
    """
    waiting = iter(items)
    came: asyncio.Queue[Result | None] = asyncio.Queue()

    async def work() -> None:
        for item in waiting:
            came.put_nowait(await ask(item))

    async def write() -> None:
        while True:
            found = [await came.get()]
            while not came.empty():
                found.append(came.get_nowait())
            results = [result for result in found if result is not None]
            if results:
                await keep(results)
            if len(results) < len(found):
                return

    workers = [asyncio.create_task(work()) for _ in range(min(concurrency, len(items)))]
    writer = asyncio.create_task(write())
    try:
        running: set[asyncio.Task[None]] = set(workers)
        # The writer ends by itself only when it fails, as on a full disk.
        while running and not writer.done():
            done, _ = await asyncio.wait({*running, writer}, return_when=asyncio.FIRST_COMPLETED)
            running -= done
            for worker in done - {writer}:
                worker.result()
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        came.put_nowait(None)
        await writer
