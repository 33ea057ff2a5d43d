"""The check before anything is sampled: the server answers, serves the model, and completes one token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.evaluation.served.client import Client, Refused, Unreachable
from rlvr_cli.evaluation.served.kinds import KINDS, Answer, Ask, Kind, Prompt, read_answer, request_body
from rlvr_cli.evaluation.served.options import Endpoint, ServerOptions
from rlvr_cli.models.sampling.engine import SamplingParams

_PATHS: dict[Endpoint, str] = {"completions": "/completions", "chat": "/chat/completions"}
_TRIES_AT_FIRST = 2


@dataclass(frozen=True)
class Server:
    """A server that has answered.

    Attributes:
        asked: the model's name in requests; None where the server wants none.
        model: the name that its answers carry, which names the samples.
        longest: prompt and completion together, in tokens, if the server tells.
    """

    options: ServerOptions
    kind: Kind
    endpoint: Endpoint
    asked: str | None
    model: str
    longest: int | None = None

    async def ask(self, client: Client, ask: Ask, *, as_text: bool = False, retries: int | None = None) -> Answer:
        """One completion. Raises RunError as :meth:`Client.post` does, and when another model answers."""
        host = urlsplit(self.options.base_url).hostname or ""
        body = request_body(self.kind, self.asked, ask, as_text=as_text, openai_host=host.endswith("openai.com"))
        path = _PATHS[self.endpoint]
        answer: Answer = await client.post(path, body, lambda found: read_answer(found, ask), retries=retries)
        if self.model and answer.model is not None and answer.model != self.model:
            raise RunError(
                f"{self.options.base_url}: answers as {answer.model} now, where it was {self.model} before. Samples of "
                "two models are never mixed: restart the server with the first one, or choose another folder with "
                "--output."
            )
        return answer


async def open_server(
    options: ServerOptions, *, tokenizer: bool, stops: Sequence[int], pad: int | None, say: Callable[[str], None]
) -> Server:
    """Ask a server what it is and serves, and for one token.

    Args:
        tokenizer: whether the model's is known here, without which prompts cannot be written as text.
    Raises:
        UserError: it cannot be reached, does not serve the model, or refuses to complete.
    """
    async with Client(options, say) as client:
        kind, entries = await _what_it_is(client, options)
        asked = _model(options, kind, entries)
        if kind.name == "openai" and options.kind == "auto":
            say(
                f"{options.base_url} does not say which server it is, so the plain OpenAI API is used, so its own "
                "defaults for top_k and the like hold (eval.server names vllm, sglang, llamacpp or transformers)"
            )
        endpoints: list[Endpoint] = [options.endpoint] if options.endpoint != "auto" else ["completions", "chat"]
        if not tokenizer and options.endpoint == "completions":
            raise UserError(
                "eval.endpoint=completions: needs the model's tokenizer to write prompts. Name the model by its folder "
                "or hub id, as in `rlvr eval FOLDER --engine openai --model-name ...`."
            )
        if not tokenizer and kind.name == "transformers":
            raise UserError(
                "--engine openai: a transformers server must be told which tokens end a completion. Name the model by "
                "its folder or hub id, as in `rlvr eval FOLDER --engine openai`."
            )
        if not tokenizer and options.endpoint == "auto":
            endpoints = ["chat"]
        endpoint, answer = await _one_token(client, options, kind, asked, endpoints, stops, pad)
        if endpoint == "chat" and options.endpoint == "auto":
            why = "it takes no text to complete" if tokenizer else "the model's tokenizer is not known here"
            say(
                f"{options.base_url}: prompts are sent as chat messages, because {why}; the server applies its own "
                "chat template"
            )
        model = answer.model or asked
        if model is None:
            raise UserError(
                f"{options.base_url}: its responses do not name the model. Give --model-name; the samples are stored "
                "under that name."
            )
        if kind.name == "transformers" and options.concurrency > 1:
            say(
                f"{options.base_url}: transformers uses one random generator for all requests, so samples repeat only "
                "with eval.concurrency=1 (it answers one request at a time anyway)"
            )
        entry = next((entry for entry in entries or () if entry["id"] == asked), {})
        return Server(options, kind, endpoint, asked, model, _longest(entry))


async def _what_it_is(client: Client, options: ServerOptions) -> tuple[Kind, list[Mapping[str, Any]] | None]:
    """The kind of server and what it lists; None where it has no such list."""
    entries: list[Mapping[str, Any]] | None = None
    try:
        answer = await client.get("/models")
    except Refused as error:
        if error.status not in (404, 405, 501):
            raise UserError(str(error)) from error
    except RunError as error:
        if not isinstance(error, Unreachable) and await _is_transformers(client, options):
            return KINDS["transformers" if options.kind == "auto" else options.kind], None
        raise UserError(
            f"{error} Check that the server is running and that --base-url is its address (it usually ends in /v1)."
        ) from error
    else:
        data = answer.get("data") if isinstance(answer, Mapping) else None
        if not isinstance(data, list):
            raise UserError(
                f"{options.base_url}/models: the answer is not a list of models as in OpenAI's API. Check --base-url; "
                "it usually ends in /v1."
            )
        entries = [entry for entry in data if isinstance(entry, Mapping) and isinstance(entry.get("id"), str)]
    if options.kind != "auto":
        return KINDS[options.kind], entries
    owners = {str(entry.get("owned_by")) for entry in entries or ()}
    for name in ("vllm", "sglang", "llamacpp"):
        if owners == {name}:
            return KINDS[name], entries
    return KINDS["transformers" if await _is_transformers(client, options) else "openai"], entries


async def _is_transformers(client: Client, options: ServerOptions) -> bool:
    """Whether it is `transformers serve`, which nothing but its routes says."""
    root = options.base_url.removesuffix("/v1")
    if not options.local and not urlsplit(root).port:
        # A hosted service: nobody runs it there, and its other pages are none of ours.
        return False
    try:
        # A server may close the connection on which it failed to list its models.
        found = await client.get("/openapi.json", root=root, retries=_TRIES_AT_FIRST)
    except RunError:
        return False
    paths = found.get("paths") if isinstance(found, Mapping) else None
    return isinstance(paths, Mapping) and {"/load_model", "/reset", "/v1/completions"} <= set(paths)


def _model(options: ServerOptions, kind: Kind, entries: Sequence[Mapping[str, Any]] | None) -> str | None:
    served = sorted({str(entry["id"]) for entry in entries or ()})
    named = options.model_name
    if entries is None or not kind.lists_models:
        return named
    if named is None:
        if len(served) == 1:
            return served[0]
        listed = ", ".join(served[:20]) or "none"
        raise UserError(f"--model-name: {options.base_url} serves {len(served)} models; name one. Served: {listed}.")
    if named not in served:
        listed = ", ".join(served[:20]) or "nothing"
        raise UserError(
            f"--model-name {named}: not served by {options.base_url}.{did_you_mean(named, served)} Served: {listed}."
        )
    return named


async def _one_token(
    client: Client,
    options: ServerOptions,
    kind: Kind,
    asked: str | None,
    endpoints: Sequence[Endpoint],
    stops: Sequence[int],
    pad: int | None,
) -> tuple[Endpoint, Answer]:
    refusals: list[str] = []
    for endpoint in endpoints:
        text = "Say yes."
        prompt = Prompt(text) if endpoint == "completions" else Prompt(messages=({"role": "user", "content": text},))
        server = Server(options, kind, endpoint, asked, "")
        ask = Ask(prompt, SamplingParams(max_new_tokens=1, eos_token_ids=stops), pad)
        try:
            return endpoint, await server.ask(client, ask, retries=min(_TRIES_AT_FIRST, options.retries))
        except Refused as error:
            refusals.append(str(error))
            if error.status not in (400, 404, 405, 501):
                break
        except RunError as error:
            refusals.append(str(error))
            break
    raise UserError(refusals)


def _longest(entry: Mapping[str, Any]) -> int | None:
    meta = entry.get("meta")
    for value in (entry.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, Mapping) else None):
        if type(value) is int and value > 0:
            return value
    return None
