"""Requests to a server: what passes is tried again with growing pauses, what does not is one plain message.

Written on httpx2, which the openai package is written on too. That package reads bodies of any size (2 GiB of memory
for 1 MiB of gzip), has no limit for a whole answer, follows redirects with the prompt in them, tries no answer again
that is cut off or no completion, and repeats the key in its errors.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import random
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import httpx2

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.evaluation.served.options import ServerOptions

# Pauses before a request is sent again: seconds of the first, and of the longest.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
# The longest pause that a server may ask for with Retry-After.
LONGEST_ASKED = 600.0
_CONNECT_SECONDS = 10.0
# For lists of models and the like, which are asked for before anything else.
_LISTING_SECONDS = 60.0
# No completion is this long.
MOST_BYTES = 64 * 2**20
SECONDS_BETWEEN_NOTES = 10.0
# Answers of a server that is starting, full or broken for a while; 520 to 524 and 529 are those of common gateways.
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
_TOO_LONG = re.compile(
    r"context.{0,20}(length|size|window)|maximum.{0,30}(length|tokens|position)|max_model_len|too long"
)


class Refused(RunError):
    """The server answered that it will not do what was asked, so asking again is of no use.

    ``status`` is HTTP's, None where it never answered; ``answer`` is what it said, without our advice.
    """

    def __init__(self, message: str, status: int | None, answer: str = "") -> None:
        super().__init__(message)
        self.status, self.answer = status, answer or message


class Unreachable(RunError):
    """Nothing answers at the address."""


class Passing(Exception):
    """A failure that may pass.

    ``after`` is the pause in seconds that the server asks for; ``reached`` says whether there was one at all.
    """

    def __init__(self, why: str, *, after: float | None = None, reached: bool = True) -> None:
        super().__init__(why)
        self.why, self.after, self.reached = why, after, reached


class Client(AbstractAsyncContextManager["Client"]):
    """A connection to one server, for many requests at a time in one event loop.

    Args:
        say: shows one line to the person, no more often than every ten seconds.
    """

    def __init__(self, options: ServerOptions, say: Callable[[str], None] = lambda line: None) -> None:
        self.options, self._say = options, say
        self._said = -SECONDS_BETWEEN_NOTES
        self._free_at = 0.0
        self._random = random.Random()
        key = options.key
        try:
            self._http = httpx2.AsyncClient(
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=httpx2.Timeout(options.timeout, connect=min(_CONNECT_SECONDS, options.timeout)),
                limits=httpx2.Limits(
                    max_connections=options.concurrency + 1, max_keepalive_connections=options.concurrency + 1
                ),
                # Proxies of the environment do not lead to this machine.
                trust_env=not options.local,
            )
        except (ImportError, ValueError) as error:
            raise UserError(
                f"--base-url {options.base_url}: the proxy of the environment (ALL_PROXY, HTTPS_PROXY, HTTP_PROXY) "
                f"cannot be used: {_reason(error)} Unset it, or name the server's host in NO_PROXY."
            ) from error

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def get(self, path: str, *, root: str | None = None, retries: int = 0) -> Any:
        """The JSON at ``root + path``; None = the API's own root. Raises Refused and RunError."""
        return await self._ask("GET", (root or self.options.base_url) + path, None, lambda answer: answer, retries)

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[Any], Any] = lambda answer: answer,
        *,
        retries: int | None = None,
    ) -> Any:
        """What ``read`` makes of the answer to ``body``.

        Args:
            read: raises ValueError for an answer that is none; the request is sent again then.
            retries: how often a request is sent again; None = as the options say.
        Raises:
            Refused: the server will not do it. RunError: it failed once more than ``retries`` allows (Unreachable where
                nothing answered).
        """
        url = self.options.base_url + path
        return await self._ask("POST", url, body, read, self.options.retries if retries is None else retries)

    async def _ask(
        self, method: str, url: str, body: Mapping[str, Any] | None, read: Callable[[Any], Any], retries: int
    ) -> Any:
        for attempt in range(retries + 1):
            if (pause := self._free_at - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            try:
                return read(await self._once(method, url, body))
            except (ValueError, RecursionError) as error:
                failure = Passing(f"answered what is no completion: {self._hidden(_reason(error))}")
            except Passing as error:
                failure = error
            if attempt == retries:
                break
            pause = self._pause(attempt, failure)
            self._note(
                f"{self.options.base_url}: {failure.why}; once more in {pause:.1f} s ({attempt + 1} of {retries})"
            )
            await asyncio.sleep(pause)
        tries = f"after {retries + 1} tries" if retries else "at the first try"
        kind = RunError if failure.reached else Unreachable
        raise kind(f"{self.options.base_url}: {failure.why} ({tries}).") from failure

    async def _once(self, method: str, url: str, body: Mapping[str, Any] | None) -> Any:
        # A connection may drip for ever, so the whole answer has a limit next to that of each read.
        limit = self.options.timeout if method == "POST" else min(_LISTING_SECONDS, self.options.timeout)
        try:
            async with asyncio.timeout(limit), self._http.stream(method, url, json=body) as response:
                content = await self._content(url, response)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise Passing(f"cannot be reached ({self._hidden(_reason(error))})", reached=False) from error
        except (httpx2.TimeoutException, TimeoutError) as error:
            setting = f" ({self.options.timeout_key})" if limit == self.options.timeout else ""
            raise Passing(f"did not answer within {limit:g} s{setting}") from error
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise Passing(f"broke off ({self._hidden(_reason(error))})") from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise Refused(f"{url}: {self._hidden(_reason(error))}.", None) from error
        if response.status_code == 200:
            try:
                return json.loads(content)
            except (ValueError, RecursionError) as error:
                kind = response.headers.get("content-type", "an unknown type")
                raise Passing(f"answered with what is not JSON ({kind})") from error
        message = self._hidden(error_message(content))
        if response.status_code in _PASSING and "insufficient_quota" not in message:
            after = retry_after(response.headers.get("retry-after"))
            if after is not None and response.status_code in (429, 503):
                # It speaks of the server, so it holds for every request.
                self._free_at = max(self._free_at, time.monotonic() + after)
            raise Passing(f"answered {response.status_code} ({message})", after=after)
        said = f"{url}: the server answers {response.status_code} ({message})."
        raise Refused(self._advice(said, response.status_code, message), response.status_code, said)

    async def _content(self, url: str, response: httpx2.Response) -> bytes:
        content = bytearray()
        async for part in response.aiter_bytes():
            content += part
            if len(content) > MOST_BYTES:
                raise Refused(f"{url}: the answer is longer than {MOST_BYTES // 2**20} MiB.", response.status_code)
        return bytes(content)

    def _pause(self, attempt: int, failure: Passing) -> float:
        """Twice as long each time and up to a half shorter at random, so that the requests do not come all at once."""
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(attempt, 16))
        pause = longest * self._random.uniform(0.5, 1.0)
        return pause if failure.after is None else failure.after + self._random.uniform(0.0, 0.2)

    def _note(self, line: str) -> None:
        now = time.monotonic()
        if now - self._said >= SECONDS_BETWEEN_NOTES:
            self._said = now
            self._say(line)

    def _hidden(self, text: str) -> str:
        key = self.options.key
        return text.replace(key, "***") if key else text

    def _advice(self, said: str, status: int, message: str) -> str:
        variable = self.options.key_variable
        if status in (401, 403):
            given = "Is the key right?" if self.options.key else "It has no key."
            return f"{said} {given} The key is read from the environment: export {variable}=..."
        if status in (404, 405):
            return (
                f"{said} Does --base-url end where the API begins (most often in /v1), and is --model-name a model "
                "that it serves?"
            )
        if status in (400, 413, 422) and _TOO_LONG.search(message.lower()):
            return (
                f"{said} Prompt and completion do not fit: give a smaller --max-new-tokens, or start the server with "
                "a longer context."
            )
        if 300 <= status < 400:
            return f"{said} It sends elsewhere; give that address as --base-url."
        return f"{said} If it does not know a field, name what the server is with eval.server (openai = the plain API)."


def error_message(body: bytes) -> str:
    """What an answer with an error says, in the several forms that servers use; at most 300 characters."""
    text = body.decode("utf-8", errors="replace")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and found.get("error"):
        found = found["error"]
    if isinstance(found, dict):
        try:
            found = " ".join(str(found[key]) for key in ("message", "detail", "code") if found.get(key))
        except RecursionError:
            found = None
    message = " ".join((found if isinstance(found, str) else text).split()) or "without a message"
    return message if len(message) <= 300 else message[:297] + "..."


def retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header, which is a number or a date; None where it is absent or cannot be read."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError, OSError):
            # A date that no clock has, such as one of the year 0 or of a month 13.
            return None
    return min(LONGEST_ASKED, max(0.0, seconds)) if seconds == seconds else None


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if text else type(error).__name__
