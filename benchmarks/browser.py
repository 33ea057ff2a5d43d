"""A headless Chromium, driven over a pipe by the DevTools protocol (https://chromedevtools.github.io/devtools-protocol).

The standard library is all it takes: messages are JSON, each ended by a zero byte, on the browser's descriptors 3
and 4.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
PATIENCE = 60.0


class BrowserError(Exception):
    """No browser was found, it did not answer, or it refused a command."""


def find_browser(name: str | None = None) -> str:
    """The program called ``name``, else the first of ``NAMES``. Raises BrowserError where there is none."""
    found = next((path for one in ([name] if name else NAMES) if (path := shutil.which(one))), None)
    if found is None:
        raise BrowserError(
            f"{name}: no such program."
            if name
            else f"no browser found (looked for {', '.join(NAMES)}); --browser names one."
        )
    return found


class Browser:
    """A browser with one page, in a profile of its own that is removed with it.

    Attributes:
        events: what the page told since :meth:`forget`, as (method, parameters).
    """

    def __init__(self, program: str) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._profile = tempfile.TemporaryDirectory(prefix="rlvr-browser-", ignore_cleanup_errors=True)
        command_read, self._write = os.pipe()
        self._read, answer_write = os.pipe()

        def descriptors() -> None:
            # Above 4 first: one of the four may be 3 or 4 itself.
            high = os.dup(command_read), os.dup(answer_write)
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [
                program,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--no-first-run",
                "--disable-background-networking",
                "--remote-debugging-pipe",
                f"--user-data-dir={self._profile.name}",
                "about:blank",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=descriptors,
            start_new_session=True,
        )
        os.close(command_read)
        os.close(answer_write)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session = None
        try:
            self.call("Browser.close")
            self._process.wait(timeout=10)
        except (BrowserError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command and its answer. Raises BrowserError where the browser refuses it or does not answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        try:
            os.write(self._write, json.dumps(message).encode() + b"\0")
        except BrokenPipeError as error:
            raise BrowserError("the browser has ended.") from error
        while True:
            answer = self._next(method)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error'].get('message')}")
                result: dict[str, Any] = answer["result"]
                return result

    def wait_for(self, method: str) -> None:
        """Wait until an event has come since :meth:`forget`."""
        while not any(name == method for name, _ in self.events):
            self._next(method)

    def forget(self) -> None:
        """Drop the events so far."""
        self.events.clear()

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression on the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise BrowserError(f"the page's script failed: {result['exceptionDetails']}")
        return result["result"].get("value")

    def _next(self, waiting_for: str) -> dict[str, Any]:
        """The next message; an event is kept too."""
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            part = os.read(self._read, 1 << 20) if ready else b""
            if not part:
                why = "has ended" if ready else f"said nothing for {PATIENCE:g} s"
                raise BrowserError(f"the browser {why} (waiting for {waiting_for}).")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append((message["method"], message.get("params", {})))
        return message


def requests(events: Sequence[tuple[str, dict[str, Any]]], page: Path) -> list[str]:
    """The addresses that were asked for, but for the page itself and data in it."""
    urls = (one["request"]["url"] for name, one in events if name == "Network.requestWillBeSent")
    return [url for url in urls if url != page.resolve().as_uri() and not url.startswith("data:")]


def complaints(events: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """What was written to the console, and exceptions."""
    found = []
    for name, one in events:
        if name == "Log.entryAdded":
            found.append(f"{one['entry']['level']}: {one['entry']['text']}")
        elif name == "Runtime.consoleAPICalled":
            found.append(f"{one['type']}: {' '.join(str(part.get('value', '')) for part in one['args'])}")
        elif name == "Runtime.exceptionThrown":
            found.append(f"exception: {one['exceptionDetails'].get('text')}")
    return found
