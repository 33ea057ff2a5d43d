"""A real server that speaks vLLM's part of the protocol, for tests where there is no vLLM.

It holds a model in a folder, samples with the project's own sampler, loads weights when it is asked to, and misbehaves
when told to. Also a command that takes what `rlvr` gives `vllm serve`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rlvr_cli.models.sampling.engine import SamplingParams


@dataclass
class Standin:
    """What it has and how it behaves; tests change it while it runs.

    Attributes:
        deaf: says that it took weights, and did not. bare: without development endpoints.
        version: what it calls its weights. loaded: the folders that it was given.
    """

    folder: Path
    longest: int = 512
    log_probs: str = "raw_logprobs"
    device: str = "cuda"
    name: str = "served"
    owner: str = "vllm"
    deaf: bool = False
    bare: bool = False
    busy: bool = False
    version: str = "default"
    loaded: list[str] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    break_off: int | None = None

    def __post_init__(self) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model = AutoModelForCausalLM.from_pretrained(self.folder, dtype="float32").eval()
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        self.lock = threading.Lock()

    def get(self, path: str) -> Any:
        entry = {"id": self.name, "owned_by": self.owner, "root": str(self.folder), "max_model_len": self.longest}
        config = {"model_config": {"logprobs_mode": self.log_probs, "dtype": "torch.float32"}}
        config["device_config"] = {"device": self.device}
        answers: dict[str, Any] = {"/v1/models": {"data": [entry]}, "/version": {"version": "0.0"}}
        if not self.bare:
            answers |= {"/weight_info": {"weight_version": self.version}}
            answers |= {"/server_info": {"vllm_config": config}}
        return answers.get(path.partition("?")[0])

    def post(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/v1/completions":
            with self.lock:
                return self._complete(body)
        if path == "/tokenize":
            return {"tokens": self.tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]}
        if self.bare:
            return None
        if path == "/collective_rpc" and body["method"] == "reload_weights":
            self._load(body["kwargs"]["weights_path"])
            return {"results": [None]}
        if path == "/reset_prefix_cache":
            return {"success": not self.busy}
        if path == "/update_weight_version":
            self.version = body["new_version"]
            return {"success": True}
        return None

    def _load(self, folder: str) -> None:
        import torch
        from safetensors.torch import load_file

        found = load_file(Path(folder) / "model.safetensors")
        self.loaded.append(folder)
        if self.deaf:
            return
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                weight.copy_(found[name])

    def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        from rlvr_cli.models.sampling.local import sample

        self.requests.append(body)
        found = sample(
            self.model,
            [body["prompt"]],
            SamplingParams(
                max_new_tokens=body["max_tokens"],
                eos_token_ids=body["stop_token_ids"],
                seed=body["seed"],
                temperature=body["temperature"],
                top_p=body["top_p"],
                top_k=max(0, body["top_k"]),
            ),
            keys=[0],
        )
        reason = "length" if found.truncated[0] else "stop"
        if self.break_off == len(self.requests):
            reason = "abort"
        choice = {
            "finish_reason": reason,
            "token_ids": found.ids[0],
            "logprobs": {"token_logprobs": found.log_probs[0]},
        }
        return {"model": self.name, "choices": [choice]}


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512


def _handler(standin: Standin) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._send(standin.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            try:
                self._send(standin.post(self.path, body))
            except Exception as error:
                self._send({"error": {"message": f"Call to collective_rpc method failed: {error}"}}, 500)

        def _send(self, content: Any, status: int = 200) -> None:
            text = json.dumps({"detail": "Not Found"} if content is None else content).encode()
            self.send_response(404 if content is None else status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    return Handler


@contextmanager
def serving(standin: Standin, port: int = 0) -> Iterator[str]:
    """Its address, while it runs on a thread of this process."""
    server = _Http(("127.0.0.1", port), _handler(standin))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def python_with_vllm(folder: Path) -> Path:
    """A command to name as `rollout.vllm.python`: this interpreter, where vLLM's server is this file."""
    script = folder / "python-with-vllm"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && exit 0\nshift 2\nexec {sys.executable} {Path(__file__).resolve()} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    return script


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("model", "served-model-name", "host", "dtype", "seed", "generation-config", "logprobs-mode"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    for name in ("gpu-memory-utilization", "tensor-parallel-size", "uvicorn-log-level"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--enforce-eager", action="store_true")
    asked = parser.parse_args()
    assert os.environ["VLLM_SERVER_DEV_MODE"] == "1"
    if os.environ.get("STANDIN_FULL"):
        print(
            "(EngineCore pid=7) ERROR 11-21 20:00:00 [core.py:9] ValueError: Free memory on device (3/80 GiB) is less"
        )
        sys.exit("RuntimeError: Engine core initialization failed. See root cause above.")
    standin = Standin(Path(asked.model), asked.max_model_len, asked.logprobs_mode, "cpu", asked.served_model_name)
    _Http(("127.0.0.1", asked.port), _handler(standin)).serve_forever()


if __name__ == "__main__":
    main()
