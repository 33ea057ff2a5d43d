"""A small real server with OpenAI's API: it samples with the project's own sampler and misbehaves when told to.

A completion is a function of the prompt and the request's seed alone, so what a server was put through cannot show in
the samples.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rlvr_cli.models.sampling.engine import SamplingParams

# What a request may meet: ("status", code, headers), ("hang up",), ("truncate",), ("html",), ("sleep", seconds).
Fault = tuple[Any, ...]


@dataclass
class Behaviour:
    """How the server behaves; tests change it while it runs.

    Attributes:
        fault: given the number of the completion request (from 1) and its body, what it meets; None = nothing.
        allowed: the fields that a request may have; others are answered 422, as transformers does; None = any.
        bos: put in front of texts, as servers do whose tokenizer adds a first token.
        answers_as: the model's name in answers, in place of the one that was asked for.
    """

    names: list[str] = field(default_factory=lambda: ["tiny"])
    owner: str = "someone"
    key: str | None = None
    completions: bool = True
    chat: bool = True
    models: bool = True
    usage: bool = True
    token_ids: bool = False
    answers_as: str | None = None
    extra_prompt_tokens: int = 0
    finish: str | None = None
    model_entry: dict[str, Any] = field(default_factory=dict)
    message: dict[str, Any] | None = None
    allowed: set[str] | None = None
    fault: Callable[[int, dict[str, Any]], Fault | None] = lambda number, body: None


class TestServer:
    """A server on a port of this machine.

    ``bodies`` are the completion requests that came, ``headers`` theirs; ``keys`` are those of all requests, or None.
    """

    __test__ = False

    def __init__(self, model: Any, tokenizer: Any, behaviour: Behaviour | None = None) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.behaviour = behaviour or Behaviour()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.keys: list[str | None] = []
        self.most_at_once = self.at_once = 0
        self.lock, self.sampling = threading.Lock(), threading.Lock()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._http: ThreadingHTTPServer | None = None
        self._connections: set[socket.socket] = set()

    def start(self) -> None:
        server = self

        class Handler(_Handler):
            owner = server

        self._http = _Server(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def kill(self) -> None:
        """Close everything at once, requests in flight too."""
        http, self._http = self._http, None
        if http is not None:
            http.shutdown()
            http.server_close()
        with self.lock:
            connections, self._connections = self._connections, set()
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request of /completions or /chat/completions."""
        from rlvr_cli.models.sampling.local import sample

        how, prompt = self.behaviour, body.get("prompt")
        chat = prompt is None
        if chat:
            prompt = " ".join(message["content"] for message in body["messages"])
        ids = prompt if isinstance(prompt, list) else self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        temperature = body.get("temperature", 1.0)
        with self.sampling:
            found = sample(
                self.model,
                [ids],
                SamplingParams(
                    max_new_tokens=body["max_tokens"],
                    eos_token_ids=[self.tokenizer.eos_token_id],
                    temperature=temperature,
                    top_p=body.get("top_p", 1.0),
                ),
                keys=[body.get("seed", 0)],
            )
        special = not body.get("skip_special_tokens", True)
        new = found.ids[0]
        end = new[:-1] if not found.truncated[0] else new
        text = self.tokenizer.decode(end, skip_special_tokens=not special, clean_up_tokenization_spaces=False)
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": how.finish or ("length" if found.truncated[0] else "stop"),
        }
        if chat:
            choice["message"] = how.message or {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        if how.token_ids:
            choice |= {"token_ids": new, "logprobs": {"token_logprobs": found.log_probs[0]}}
        answer = {
            "object": "completion",
            "model": how.answers_as or body.get("model") or how.names[0],
            "choices": [choice],
        }
        if how.usage:
            answer["usage"] = {"prompt_tokens": len(ids) + how.extra_prompt_tokens, "completion_tokens": len(new)}
        return answer


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Connections that wait to be taken; the default of 5 resets some of sixteen that come at once.
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    owner: TestServer
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        with self.owner.lock:
            self.owner._connections.add(self.connection)

    def log_message(self, *arguments: Any) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, BrokenPipeError, ValueError, OSError):
            self.close_connection = True

    def do_GET(self) -> None:
        how = self.owner.behaviour
        self.owner.keys.append(self.headers.get("authorization"))
        if self.path != "/v1/models" or not how.models:
            return self._send(404, {"error": {"message": "no such page"}})
        if self._locked():
            return None
        entries = [{"id": name, "object": "model", "owned_by": how.owner, **how.model_entry} for name in how.names]
        return self._send(200, {"object": "list", "data": entries})

    def do_POST(self) -> None:
        how, owner = self.owner.behaviour, self.owner
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        owner.keys.append(self.headers.get("authorization"))
        with owner.lock:
            owner.bodies.append(body)
            owner.headers.append({name.lower(): value for name, value in self.headers.items()})
            number = len(owner.bodies)
            owner.at_once += 1
            owner.most_at_once = max(owner.most_at_once, owner.at_once)
        try:
            self._answer(how, number, body)
        finally:
            with owner.lock:
                owner.at_once -= 1

    def _answer(self, how: Behaviour, number: int, body: dict[str, Any]) -> None:
        open_paths = {"/v1/completions"} if how.completions else set()
        if how.chat:
            open_paths.add("/v1/chat/completions")
        if self.path not in open_paths:
            return self._send(404, {"detail": "Not Found"})
        if self._locked():
            return None
        if body.get("model") not in (None, *how.names):
            return self._send(404, {"error": {"message": f"The model `{body['model']}` does not exist."}})
        if how.allowed is not None and (unknown := set(body) - how.allowed):
            return self._send(422, {"detail": f"Unexpected fields in the request: {unknown}"})
        fault = how.fault(number, body)
        if fault is not None and fault[0] == "sleep":
            time.sleep(fault[1])
            fault = None
        if fault is None:
            return self._send(200, self.owner.complete(body))
        if fault[0] == "status":
            return self._send(fault[1], {"error": {"message": fault[3] if len(fault) > 3 else "on purpose"}}, fault[2])
        if fault[0] == "html":
            return self._raw(200, b"<html>hello</html>", {"content-type": "text/html"})
        if fault[0] == "empty":
            return self._send(200, {"choices": []})
        if fault[0] == "truncate":
            whole = json.dumps(self.owner.complete(body)).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(whole)))
            self.end_headers()
            self.wfile.write(whole[: len(whole) // 2])
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
        return None

    def _locked(self) -> bool:
        key = self.owner.behaviour.key
        if key is None or self.headers.get("authorization") == f"Bearer {key}":
            return False
        given = self.headers.get("authorization", "none")
        self._send(401, {"error": {"message": f"Incorrect API key provided: {given}", "code": "invalid_api_key"}})
        return True

    def _send(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        self._raw(status, json.dumps(content).encode(), {"content-type": "application/json", **(headers or {})})

    def _raw(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def running(server: TestServer) -> Iterator[TestServer]:
    server.start()
    try:
        yield server
    finally:
        server.kill()
