"""Requests to one server with the openai package, which sends again what failed for a passing reason."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2
import openai

from rlvr_cli.config.evaluation import EvalConfig
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.evaluation.served.options import key_of, url_of

# No completion is this long.
MOST_BYTES = 64 * 2**20
SECONDS_BETWEEN_NOTES = 10.0
_CONNECT_SECONDS = 10.0


class Refused(RunError):
    """The server answered with an error; ``status`` is HTTP's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _Limited(httpx2.AsyncByteStream):
    """The body of a response within a size and a time: a timeout of httpx holds for a read, not for the whole."""

    def __init__(self, stream: Any, seconds: float) -> None:
        self.stream, self.deadline = stream, time.monotonic() + seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self.stream:
            size += len(chunk)
            if size > MOST_BYTES:
                raise httpx2.RemoteProtocolError(f"the answer is longer than {MOST_BYTES // 2**20} MiB")
            if time.monotonic() > self.deadline:
                raise httpx2.ReadTimeout("the whole answer took longer than the timeout")
            yield chunk

    async def aclose(self) -> None:
        await self.stream.aclose()


class Client:
    """A connection to one server, for many requests at a time in one event loop; made by :func:`connect`."""

    def __init__(self, options: EvalConfig, say: Callable[[str], None]) -> None:
        self.options, self._say = options, say
        self.url, self.key = url_of(options), key_of(options)
        host = urlsplit(self.url).hostname or ""
        local = host in ("localhost", "::1") or host.startswith("127.")
        self._last_note = -SECONDS_BETWEEN_NOTES
        most = options.concurrency + 1
        try:
            http = openai.DefaultAsyncHttpxClient(
                limits=httpx2.Limits(max_connections=most, max_keepalive_connections=most),
                # A prompt and a key go to the server that was named and to no other.
                follow_redirects=False,
                # Proxies of the environment do not lead to this machine.
                trust_env=not local,
                event_hooks={"request": [self._note_retry], "response": [self._limit]},
            )
        except (ImportError, ValueError) as error:
            raise UserError(
                f"--base-url {self.url}: the proxy of the environment (ALL_PROXY, HTTPS_PROXY, HTTP_PROXY) "
                f"cannot be used: {error} Unset it, or name the server's host in NO_PROXY."
            ) from error
        self.api = openai.AsyncOpenAI(
            api_key=self.key or "none",
            base_url=self.url,
            timeout=openai.Timeout(options.request_timeout, connect=min(_CONNECT_SECONDS, options.request_timeout)),
            max_retries=options.retries,
            # A small body of gzip may unpack to any size.
            default_headers={"Accept-Encoding": "identity"},
            http_client=http,
        )

    async def request(self, path: str, body: Mapping[str, Any] | None = None, *, retries: int | None = None) -> Any:
        """Return the JSON that answers ``body`` at ``path``; without a body the page is fetched.

        Args:
            retries: how often a request is sent again; None = as the options say.
        Raises:
            Refused: the server answers with an error. RunError: it does not answer, or not with JSON.
        """
        count = self.options.retries if retries is None else retries
        options: Any = {"max_retries": count}
        if not self.key:
            options["headers"] = {"Authorization": openai.Omit()}
        tries = f"after {count + 1} tries" if count else "at the first try"
        url = self.url
        try:
            if body is None:
                return await self.api.get(path, cast_to=object, options=options)
            return await self.api.post(path, cast_to=object, body=body, options=options)
        except openai.APITimeoutError as error:
            limit = f"{self.options.request_timeout:g} s (eval.request_timeout)"
            raise RunError(f"{url}: did not answer within {limit} ({tries}).") from error
        except openai.APIStatusError as error:
            raise self._refused(path, error) from error
        except openai.APIConnectionError as error:
            raise RunError(
                f"{url}: cannot be reached or broke off ({self._text(error.__cause__)}; {tries})."
            ) from error
        except (ValueError, RecursionError) as error:
            raise RunError(f"{url}{path}: the answer is not JSON.") from error

    async def _limit(self, response: httpx2.Response) -> None:
        response.stream = _Limited(response.stream, self.options.request_timeout)

    async def _note_retry(self, request: httpx2.Request) -> None:
        attempt, now = int(request.headers.get("x-stainless-retry-count", 0)), time.monotonic()
        if attempt and now - self._last_note >= SECONDS_BETWEEN_NOTES:
            self._last_note = now
            self._say(f"{self.url}: a request failed and is sent again (retry {attempt})")

    def _text(self, content: object) -> str:
        """Return an error as one line without the key, of at most 300 characters."""
        if isinstance(content, Mapping):
            content = " ".join(str(content[key]) for key in ("message", "detail", "code") if content.get(key))
        text = " ".join(str(content or "").split()) or "without a message"
        text = text.replace(self.key, "***") if self.key else text
        return text if len(text) <= 300 else text[:297] + "..."

    def _refused(self, path: str, error: openai.APIStatusError) -> Refused:
        status, message = error.status_code, self._text(error.body)
        line = f"{self.url}{path}: the server answers {status} ({message})."
        if status in (401, 403):
            hint = "Is the key right?" if self.key else "No key is set."
            hint += f" It is read from the environment: export {self.options.api_key_variable}=..."
        elif status in (404, 405):
            hint = (
                "Does --base-url end where the API begins (most often in /v1), and is --model-name a model that it "
                "serves?"
            )
        elif status in (400, 413, 422) and any(
            word in message.lower() for word in ("context", "max_model_len", "too long")
        ):
            hint = (
                "Prompt and completion do not fit: give a smaller --max-new-tokens, or start the server with a longer "
                "context."
            )
        elif status < 400:
            hint = "It redirects; give that address as --base-url."
        elif status == 429 or status >= 500:
            hint = f"It was asked {self.options.retries + 1} times at most (eval.retries)."
        else:
            hint = "If it rejects a field, name what the server is with eval.server (openai = the plain API)."
        return Refused(f"{line} {hint}", status)


@asynccontextmanager
async def connect(options: EvalConfig, say: Callable[[str], None] = lambda line: None) -> AsyncIterator[Client]:
    """Return a client of a server; ``say`` shows one line to the user. Raises UserError for a proxy that is none."""
    client = Client(options, say)
    async with client.api:
        yield client
