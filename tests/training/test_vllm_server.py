"""A vLLM server as the sampler: what is asked of it over HTTP, by TRL's client, and what becomes of its answers.

The answers are of the form that `vllm serve` 0.31 gives. vLLM itself is not here, nor a GPU: tensors go to a list.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch
import trl.generation.vllm_client as trl_client

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.launch.world import ALONE
from rlvr_cli.models.load import load_model
from rlvr_cli.models.sampling.engine import SamplingParams
from rlvr_cli.models.sampling.rng import stream_start
from rlvr_cli.models.source import PRESETS
from rlvr_cli.training.vllm_server import VllmServer

STOP = 7


class Server(ThreadingHTTPServer):
    """Answers like `vllm serve`: each completion is the prompt's first token as often as it says, then a stop."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, Any]] = []
        self.broken = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def bodies(self, path: str) -> list[Any]:
        return [body for asked, body in self.requests if asked == path]


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, value: Any) -> None:
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        answers = {
            "/health": {},
            "/v1/models": {"data": [{"id": "lab"}]},
            "/server_info": {"vllm_config": {"weight_transfer_config": {"backend": "nccl"}}},
            "/get_world_size": {"world_size": 1},
        }
        self._answer(answers[path])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
        self.server.requests.append((self.path, body))
        if self.path != "/v1/completions":
            self._answer({"success": True})
            return
        (prompt,) = body["prompt"]
        ids = ([prompt[0]] * prompt[0] + [STOP])[: body["max_tokens"]]
        ids = ids[:1] if self.server.broken else ids
        names = [f"token_id:{token}" for token in ids]
        log_probs = [-0.5 * (place + 1) for place in range(len(ids))]
        found = [{name: value} for name, value in zip(names, log_probs, strict=True)]
        logprobs = {"tokens": names, "token_logprobs": log_probs, "top_logprobs": found}
        self._answer({"choices": [{"prompt_token_ids": prompt, "token_ids": ids, "logprobs": logprobs}]})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    served = Server()
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    # The package vllm gives these; the broadcast is what NCCL would do.
    monkeypatch.setattr(trl_client, "is_vllm_available", lambda **_: True)
    monkeypatch.setattr(trl_client, "_HAS_STATEFUL_TRAINER_ENGINE", True)
    monkeypatch.setattr(trl_client, "_HAS_RESET_PREFIX_CACHE_SUCCESS", True)
    monkeypatch.setattr(trl_client, "get_ip", lambda: "127.0.0.1", raising=False)
    monkeypatch.setattr(trl_client, "open_trainer_endpoint", lambda info: None, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    yield served
    served.shutdown()
    served.server_close()


def engine_of(server: Server, *overrides: str) -> VllmServer:
    keys = ["rollout.engine=vllm_server", f"rollout.vllm.server={server.url}", *overrides]
    return VllmServer(load_config(overrides=keys), 100, ALONE)


def test_each_row_is_one_request_with_its_seed_and_its_own_answer(server: Server) -> None:
    engine = engine_of(server)
    params = SamplingParams(max_new_tokens=4, temperature=0.8, seed=3, eos_token_ids=(STOP,))
    streamed: dict[int, list[int]] = {}

    def done(rows: Any, completions: Any) -> None:
        streamed.update(zip(rows, completions.ids, strict=True))

    completions = engine(None, [[1], [2, 5], [6]], params, keys=[10, 11, 12], on_done=done)
    assert completions.ids == [[1, STOP], [2, 2, STOP], [6, 6, 6, 6]]
    assert streamed == dict(enumerate(completions.ids))
    assert completions.truncated == [False, False, True]
    assert completions.log_probs[1] == [-0.5, -1.0, -1.5]
    bodies = {tuple(body["prompt"][0]): body for body in server.bodies("/v1/completions")}
    seeds = [bodies[prompt]["seed"] for prompt in ((1,), (2, 5), (6,))]
    assert seeds == [stream_start(3, key) % (1 << 63) for key in (10, 11, 12)] and len(set(seeds)) == 3
    for body in bodies.values():
        assert (body["temperature"], body["max_tokens"], body["stop_token_ids"], body["n"]) == (0.8, 4, [STOP], 1)
        assert body["top_p"] == 1.0 and body["top_k"] == -1 and body["logprobs"] == 0 and "detokenize" not in body


def test_a_completion_that_was_broken_off_ends_the_training(server: Server) -> None:
    engine = engine_of(server)
    server.broken = True
    with pytest.raises(RunError, match="aborted a completion"):
        engine(None, [[5]], SamplingParams(max_new_tokens=4, seed=0, eos_token_ids=(STOP,)), keys=[0])


def test_weights_are_announced_and_sent_in_one_order_and_the_prefix_cache_is_emptied(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, torch.Tensor]] = []
    take = lambda iterator, **_: sent.extend(iterator)  # noqa: E731
    monkeypatch.setattr(trl_client, "packed_nccl_broadcast_producer", take, raising=False)
    engine = engine_of(server)
    model, _ = load_model(str(PRESETS["lab"]), device="cpu")
    engine.update_weights(model, 5)
    (announced,) = [body["update_info"] for body in server.bodies("/update_weights")]
    assert announced["names"] == [name for name, _ in sent] and engine.step == 5
    assert announced["shapes"] == [list(value.shape) for _, value in sent]
    assert set(announced["dtype_names"]) == {"float32"}
    held = dict(model.named_parameters())
    assert all(torch.equal(value, held[name]) for name, value in sent) and math.prod(sent[0][1].shape) > 0
    order = [path for path, _ in server.requests]
    assert order == [
        *("/init_weight_transfer_engine", "/start_weight_update", "/update_weights"),
        *("/finish_weight_update", "/reset_prefix_cache"),
    ]


def test_what_is_missing_is_said_with_the_command_that_starts_the_server(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlvr_cli.training.vllm_server.STARTUP_TIMEOUT", 0.0)
    keys = ["rollout.engine=vllm_server", "rollout.vllm.server=http://127.0.0.1:1"]
    with pytest.raises(UserError, match=r"can't be reached.*VLLM_SERVER_DEV_MODE=1 vllm serve lab "):
        VllmServer(load_config(overrides=keys), 100, ALONE)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="needs a GPU"):
        engine_of(server)
    with pytest.raises(UserError, match=r"rollout.vllm.server=http://localhost:8000"):
        load_config(overrides=["rollout.engine=vllm_server"])
    with pytest.raises(UserError, match=r"Set rollout.engine=vllm_server"):
        load_config(overrides=["rollout.engine=vllm_colocate", "rollout.vllm.server=http://localhost:8000"])
