"""The check before anything is sampled: the server answers, serves the model, and completes one token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from rlvr_cli.config.evaluation import EvalConfig
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.evaluation.served.client import Client, Refused, connect
from rlvr_cli.evaluation.served.kinds import KINDS, Answer, Ask, Kind, Prompt, read_answer, request_body
from rlvr_cli.evaluation.served.options import Endpoint, url_of
from rlvr_cli.models.sampling.engine import SamplingParams
from rlvr_cli.models.tokenizer import ModelFacts

_PATHS: dict[Endpoint, str] = {"completions": "/completions", "chat": "/chat/completions"}
# A server that cannot complete one token is not waited for.
_FIRST_RETRIES = 2


@dataclass(frozen=True)
class Server:
    """A server that has answered.

    Attributes:
        asked: the model's name in requests; None where the server wants none.
        model: the name that its answers carry, which names the samples; empty = any.
        longest: prompt and completion together, in tokens, if the server lists it.
    """

    options: EvalConfig
    kind: Kind
    endpoint: Endpoint
    asked: str | None
    model: str = ""
    longest: int | None = None

    @property
    def url(self) -> str:
        """Return the server's address."""
        return url_of(self.options)

    async def ask(self, client: Client, ask: Ask, *, as_text: bool = False, retries: int | None = None) -> Answer:
        """Return one completion. Raises RunError as :meth:`Client.request`, and when another model answers."""
        url = self.url
        openai_host = (urlsplit(url).hostname or "").endswith("openai.com")
        body = request_body(self.kind, self.asked, ask, as_text=as_text, openai_host=openai_host)
        content = await client.request(_PATHS[self.endpoint], body, retries=retries)
        try:
            answer = read_answer(content, ask)
        except ValueError as error:
            raise RunError(f"{url}: the answer is no completion: {error}.") from error
        if self.model and answer.model is not None and answer.model != self.model:
            raise RunError(
                f"{url}: answers as {answer.model} now, where it was {self.model} before. Samples of two models are "
                "never mixed: restart the server with the first one, or choose another folder with --output."
            )
        return answer


async def open_server(options: EvalConfig, facts: ModelFacts | None, say: Callable[[str], None]) -> Server:
    """Ask a server what it serves, and for one token.

    Args:
        facts: the model's tokenizer, without which prompts cannot be written as text.
    Raises:
        UserError: it cannot be reached, does not serve the model, or refuses to complete.
    """
    url, auto = url_of(options), options.endpoint == "auto"
    async with connect(options, say) as client:
        entries = [] if options.server == "transformers" else await _listed(client)
        kind = KINDS[options.server] if options.server != "auto" else _kind_of(entries)
        if facts is None and (options.endpoint == "completions" or kind.name == "transformers"):
            key = "eval.endpoint=completions" if options.endpoint == "completions" else "eval.server=transformers"
            raise UserError(
                f"{key}: needs the model's tokenizer and the tokens that end a completion. Name the model by its "
                "folder or hub id, as in `rlvr eval FOLDER --engine openai --model-name ...`."
            )
        asked = options.model_name if kind.name == "transformers" else _model(options, entries)
        if kind.name == "openai" and options.server == "auto":
            say(
                f"{url} does not say which server it is, so the plain OpenAI API is used, so its own defaults for "
                "top_k and the like hold (eval.server names vllm, sglang, llamacpp or transformers)"
            )
        endpoints: list[Endpoint] = ["completions", "chat"] if facts else ["chat"]
        if options.endpoint != "auto":
            endpoints = [options.endpoint]
        server, answer = await _one_token(client, Server(options, kind, "chat", asked), endpoints, facts)
        if server.endpoint == "chat" and auto:
            why = "it takes no text to complete" if facts else "the model's tokenizer is not known here"
            say(f"{url}: prompts are sent as chat messages, because {why}; the server applies its own chat template")
        model = answer.model or asked
        if model is None:
            raise UserError(f"{url}: its responses do not name the model. Give --model-name, the name of the samples.")
        if kind.name == "transformers" and options.concurrency > 1:
            say(
                f"{url}: transformers uses one random generator for all requests, so samples repeat only with "
                "eval.concurrency=1 (it answers one request at a time anyway)"
            )
        entry = next((entry for entry in entries if entry["id"] == asked), {})
        return replace(server, model=model, longest=_longest(entry))


async def _listed(client: Client) -> list[Mapping[str, Any]]:
    """Return what the server lists as its models. Raises UserError."""
    try:
        content = await client.request("/models", retries=0)
    except RunError as error:
        hint = (
            ""
            if isinstance(error, Refused)
            else " Check that the server is running and that --base-url is its address."
        )
        raise UserError(f"{error}{hint} `transformers serve` may list none: eval.server=transformers.") from error
    data = content.get("data") if isinstance(content, Mapping) else None
    if not isinstance(data, list):
        raise UserError(
            f"{client.url}/models: the answer is not a list of models as in OpenAI's API. Check "
            "--base-url; it usually ends in /v1."
        )
    return [entry for entry in data if isinstance(entry, Mapping) and isinstance(entry.get("id"), str)]


def _kind_of(entries: Sequence[Mapping[str, Any]]) -> Kind:
    owners = {str(entry.get("owned_by")) for entry in entries}
    return next((KINDS[name] for name in ("vllm", "sglang", "llamacpp") if owners == {name}), KINDS["openai"])


def _model(options: EvalConfig, entries: Sequence[Mapping[str, Any]]) -> str:
    served = sorted({str(entry["id"]) for entry in entries})
    named, listed = options.model_name, ", ".join(served[:20]) or "none"
    if named is None and len(served) == 1:
        return served[0]
    if named is None:
        raise UserError(f"--model-name: {url_of(options)} serves {len(served)} models; name one. Served: {listed}.")
    if named not in served:
        raise UserError(
            f"--model-name {named}: not served by {url_of(options)}.{did_you_mean(named, served)} Served: {listed}."
        )
    return named


async def _one_token(
    client: Client, server: Server, endpoints: Sequence[Endpoint], facts: ModelFacts | None
) -> tuple[Server, Answer]:
    """Return the server with the first endpoint that completes a token, and its answer. Raises UserError."""
    refusals: list[str] = []
    text, retries = "Say yes.", min(_FIRST_RETRIES, server.options.retries)
    params = SamplingParams(max_new_tokens=1, eos_token_ids=facts.stops if facts else ())
    for endpoint in endpoints:
        prompt = Prompt(text) if endpoint == "completions" else Prompt(messages=({"role": "user", "content": text},))
        ask = Ask(prompt, params, facts.tokenizer.pad_token_id if facts else None)
        server = replace(server, endpoint=endpoint)
        try:
            return server, await server.ask(client, ask, retries=retries)
        except RunError as error:
            refusals.append(str(error))
            if not isinstance(error, Refused) or error.status not in (400, 404, 405, 501):
                break
    raise UserError(refusals)


def _longest(entry: Mapping[str, Any]) -> int | None:
    meta = entry.get("meta")
    for value in (entry.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, Mapping) else None):
        if type(value) is int and value > 0:
            return value
    return None
