"""Connect to a server with OpenAI's API by the openai package, and check it before sampling."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import httpx2
import openai

from rlvr_cli.config.evaluation import EvalConfig
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.text import did_you_mean, shorten
from rlvr_cli.evaluation.served.kinds import Prompt, ServedCompletion, parse_completion, request_body
from rlvr_cli.evaluation.served.options import Say, api_key, server_url
from rlvr_cli.models.load import ModelFacts
from rlvr_cli.models.sampling.engine import SamplingParams

# Maximum size of a response.
MOST_BYTES = 64 * 2**20
SECONDS_BETWEEN_NOTES = 10.0
_CONNECT_SECONDS = 10.0
# Retries before the first completion of a server.
_FIRST_RETRIES = 2
Endpoint = Literal["completions", "chat"]
_PATHS: dict[Endpoint, str] = {"completions": "/completions", "chat": "/chat/completions"}


class _Limited(httpx2.AsyncByteStream):
    """The body of a response, limited in size and total time (httpx limits only single reads)."""

    def __init__(self, stream: Any, seconds: float) -> None:
        self.stream, self.deadline = stream, time.monotonic() + seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self.stream:
            size += len(chunk)
            if size > MOST_BYTES:
                raise httpx2.RemoteProtocolError(f"the response is longer than {MOST_BYTES // 2**20} MiB")
            if time.monotonic() > self.deadline:
                raise httpx2.ReadTimeout("the response took longer than the timeout")
            yield chunk

    async def aclose(self) -> None:
        await self.stream.aclose()


class _Api(openai.AsyncOpenAI):
    """A client without the headers that openai reads from the environment, such as OPENAI_CUSTOM_HEADERS."""

    @property
    def default_headers(self) -> dict[str, str | openai.Omit]:
        json = "application/json"
        # Not compressed, as a small gzip body may expand to any size.
        return {"Accept": json, "Content-Type": json, "User-Agent": self.user_agent, "Accept-Encoding": "identity"}


class Client:
    """A connection for concurrent requests in one event loop, with retries. Raises UserError for an invalid proxy."""

    def __init__(self, options: EvalConfig, say: Say, retries: int) -> None:
        self.options, self.say, self.retries = options, say, retries
        self.url, self.key = server_url(options), api_key(options)
        self._last_note = -SECONDS_BETWEEN_NOTES
        host = urlsplit(self.url).hostname or ""
        try:
            http = openai.DefaultAsyncHttpxClient(
                limits=httpx2.Limits(max_connections=options.concurrency + 1),
                # Prompts and the key are sent only to the named server.
                follow_redirects=False,
                # A proxy cannot reach this machine.
                trust_env=not (host in ("localhost", "::1") or host.startswith("127.")),
                event_hooks={"request": [self._note_retry], "response": [self._limit]},
            )
        except (ImportError, ValueError) as error:
            raise UserError(f"--base-url {self.url}: the proxy of the environment cannot be used: {error}") from error
        self.api = _Api(
            api_key=self.key or "none",
            base_url=self.url,
            timeout=openai.Timeout(options.request_timeout, connect=min(_CONNECT_SECONDS, options.request_timeout)),
            max_retries=retries,
            http_client=http,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.api.close()

    async def request(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """POST ``body`` to ``path``, or GET without a body, and return the JSON response. Raises RunError."""
        tries = f"after {self.retries + 1} tries" if self.retries else "at the first try"
        options: Any = {"headers": {} if self.key else {"Authorization": openai.Omit()}}
        try:
            if body is None:
                return await self.api.get(path, cast_to=object, options=options)
            return await self.api.post(path, cast_to=object, body=body, options=options)
        except openai.APITimeoutError as error:
            limit = f"{self.options.request_timeout:g} s (eval.request_timeout)"
            raise RunError(f"{self.url}: did not answer within {limit} ({tries}).") from error
        except openai.APIStatusError as error:
            status, message = error.status_code, self._one_line(error.body)
            hint = self._hint(status, message)
            raise RunError(f"{self.url}{path}: the server responds with {status} ({message}). {hint}") from error
        except openai.APIConnectionError as error:
            cause = self._one_line(error.__cause__)
            raise RunError(
                f"{self.url}: cannot be reached or dropped the connection ({cause}; {tries}). Check that the server is "
                "running and that --base-url is its address."
            ) from error
        except (ValueError, RecursionError) as error:
            raise RunError(f"{self.url}{path}: the response is not JSON.") from error

    async def _limit(self, response: httpx2.Response) -> None:
        response.stream = _Limited(response.stream, self.options.request_timeout)

    async def _note_retry(self, request: httpx2.Request) -> None:
        attempt, now = int(request.headers.get("x-stainless-retry-count", 0)), time.monotonic()
        if attempt and now - self._last_note >= SECONDS_BETWEEN_NOTES:
            self._last_note = now
            self.say(f"{self.url}: a request failed and is sent again (retry {attempt})")

    def _one_line(self, content: object) -> str:
        """Return an error on one line of at most 300 characters, without the key."""
        if isinstance(content, Mapping):
            content = " ".join(str(content[key]) for key in ("message", "detail", "code") if content.get(key))
        text = " ".join(str(content or "").split()) or "without a message"
        return shorten(text.replace(self.key, "***") if self.key else text, 300)

    def _hint(self, status: int, message: str) -> str:
        if status in (401, 403):
            cause = "Check the key." if self.key else "No key is set."
            return f"{cause} It is read from the environment: export {self.options.api_key_variable}=..."
        if status in (404, 405):
            return (
                "Check that --base-url ends where the API begins (usually in /v1), that the server has this endpoint "
                "(eval.endpoint), and that it serves --model-name."
            )
        if status < 400:
            return "It redirects; use that address as --base-url."
        if status == 429 or status >= 500:
            return f"It was sent up to {self.retries + 1} times (eval.retries)."
        if any(word in message.lower() for word in ("context", "max_model_len", "too long")):
            return "Prompt and completion do not fit: use a smaller --max-new-tokens, or serve a longer context."
        return "If it rejects a field, set the kind of the server with eval.server (openai = the plain API)."


@dataclass(frozen=True)
class Server:
    """A server that responds.

    Attributes:
        kind: eval.server, resolved. name: of the model in requests; None if it is optional.
        model: its name in responses, which identifies the samples; empty = any.
        max_sequence: the maximum length of prompt and completion in tokens, if listed.
    """

    options: EvalConfig
    kind: str
    endpoint: Endpoint
    name: str | None
    model: str = ""
    max_sequence: int | None = None

    async def complete(self, client: Client, prompt: Prompt, params: SamplingParams) -> ServedCompletion:
        """Return one completion. Raises RunError without one, or if the model changed."""
        openai_host = (urlsplit(client.url).hostname or "").endswith("openai.com")
        body = request_body(self.kind, self.name, prompt, params, openai_host=openai_host)
        content = await client.request(_PATHS[self.endpoint], body)
        try:
            completion = parse_completion(content, params)
        except ValueError as error:
            raise RunError(f"{client.url}: the response is not a completion: {error}.") from error
        if self.model and completion.model is not None and completion.model != self.model:
            raise RunError(
                f"{client.url}: responds as {completion.model}, but did as {self.model} before. Samples of two models "
                "are never mixed: restart the server with the first model, or choose another folder with --output."
            )
        return completion


async def open_server(options: EvalConfig, facts: ModelFacts | None, say: Say) -> Server:
    """Connect to a server, choose its model and test a completion of one token. Raises UserError."""
    url = server_url(options)
    async with Client(options, say, min(_FIRST_RETRIES, options.retries)) as client:
        try:
            kind, name, max_sequence = await _choose_model(client, say)
            endpoint: Endpoint = "completions" if facts is not None else "chat"
            endpoint = endpoint if options.endpoint == "auto" else options.endpoint
            if facts is None and (endpoint == "completions" or kind == "transformers"):
                raise UserError(
                    "eval.endpoint=completions and eval.server=transformers need the model's tokenizer and the tokens "
                    "that end a completion. Name the model by its folder or hub id, as in `rlvr eval FOLDER --engine "
                    "openai --model-name ...`."
                )
            if endpoint != options.endpoint and endpoint == "chat":
                say(
                    f"{url}: prompts are sent as chat messages, because the model's tokenizer is unknown; the server "
                    "applies its chat template"
                )
            messages = ({"role": "user", "content": "Say yes."},)
            prompt = Prompt("Say yes.") if endpoint == "completions" else Prompt(messages=messages)
            params = SamplingParams(max_new_tokens=1, eos_token_ids=facts.stops if facts else ())
            server = Server(options, kind, endpoint, name, max_sequence=max_sequence)
            model = (await server.complete(client, prompt, params)).model or name
        except RunError as error:
            raise UserError(str(error)) from error
        if model is None:
            raise UserError(f"{url}: its responses do not name the model. Use --model-name to name it.")
        return replace(server, model=model)


async def _choose_model(client: Client, say: Say) -> tuple[str, str | None, int | None]:
    """Return the server's kind, the model's name in requests, and its maximum length in tokens if listed."""
    options, url = client.options, client.url
    if options.server == "transformers":
        return options.server, options.model_name, None
    content = await client.request("/models")
    entries = content.get("data") if isinstance(content, Mapping) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and "id" in entry for entry in entries):
        raise UserError(
            f"{url}/models: the response is not a list of models as in OpenAI's API. Check --base-url, which usually "
            "ends in /v1; for `transformers serve` set eval.server=transformers."
        )
    owners, kind = {entry.get("owned_by") for entry in entries}, str(options.server)
    if kind == "auto":
        kind = next((name for name in ("vllm", "sglang", "llamacpp") if owners == {name}), "openai")
        if kind == "openai":
            say(
                f"{url}: the kind of server is unknown, so the plain OpenAI API is used, with the server's "
                "defaults for top_k and penalties. Set eval.server=vllm, sglang, llamacpp or transformers"
            )
    served = {str(entry["id"]): entry for entry in entries}
    name, listed = options.model_name, ", ".join(sorted(served)[:20]) or "none"
    if name is None and len(served) != 1:
        raise UserError(f"--model-name: {url} serves {len(served)} models; name one. Served: {listed}.")
    name = name or next(iter(served))
    if name not in served:
        raise UserError(f"--model-name {name}: not served by {url}.{did_you_mean(name, served)} Served: {listed}.")
    return kind, name, served[name].get("max_model_len") or (served[name].get("meta") or {}).get("n_ctx")
