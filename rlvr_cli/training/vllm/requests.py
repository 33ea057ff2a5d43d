"""What a vLLM server is asked in the course of a training, and what its answers must say.

Completions go through OpenAI's API, token ids in and out. The rest are the development endpoints that `vllm serve` has
with VLLM_SERVER_DEV_MODE=1: `/server_info`, `/collective_rpc`, `/reset_prefix_cache`, `/update_weight_version` and
`/weight_info` (vLLM 0.31).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError
from rlvr_cli.evaluation.served.client import Client, Refused
from rlvr_cli.evaluation.served.kinds import LARGEST_ID, MOST_NATS, ROUNDING
from rlvr_cli.evaluation.served.options import ServerOptions
from rlvr_cli.models.sampling.engine import Completions, OnDone, joined

# Requests of one process that are under way at a time.
IN_FLIGHT = 256
# With growing pauses of up to half a minute, about three minutes.
RETRIES = 10
# Loading weights may take as long as that.
_SYNC_SECONDS = 1800.0
DEV_MODE = "VLLM_SERVER_DEV_MODE=1"


@dataclass(frozen=True)
class Facts:
    """What a server reports.

    Attributes:
        model: its name in requests. root: where the server has it from. longest: prompt and completion, in tokens.
        log_probs: vLLM's `logprobs_mode`. dtype: of the weights, as torch names it. device: cuda, cpu, ...
        version: vLLM's.
    """

    model: str
    root: str
    longest: int | None
    log_probs: str | None
    dtype: str | None
    device: str | None
    version: str


def options(url: str, seconds: float) -> ServerOptions:
    """How the client asks the server at ``url`` for a completion that may take ``seconds``."""
    return ServerOptions(
        url.rstrip("/"),
        concurrency=IN_FLIGHT,
        retries=RETRIES,
        timeout=seconds,
        timeout_key="rollout.vllm.request_timeout",
        key_variable="VLLM_API_KEY",
    )


async def facts(client: Client) -> Facts:
    """What the server serves, and how. Raises RunError; Refused where it has no development endpoints."""
    listed = await client.get("/v1/models")
    entries = listed.get("data") if isinstance(listed, Mapping) else None
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, Mapping) for entry in entries):
        raise RunError(f"{client.options.base_url}/v1/models: not the model list of a vLLM server.")
    # Adapters loaded with it have a parent.
    entry = next((entry for entry in entries if not entry.get("parent")), entries[0])
    if entry.get("owned_by") != "vllm":
        raise RunError(f"{client.options.base_url}: not a vLLM server, but one of {entry.get('owned_by')}.")
    info = await client.get("/server_info?config_format=json")
    found = info.get("vllm_config") if isinstance(info, Mapping) else None
    version = await client.get("/version")
    how, where = (_part(found, part) for part in ("model_config", "device_config"))
    return Facts(
        model=str(entry.get("id")),
        root=str(entry.get("root")),
        longest=longest if type(longest := entry.get("max_model_len")) is int else None,
        log_probs=how.get("logprobs_mode"),
        dtype=how.get("dtype"),
        device=where.get("device"),
        version=str(_part({"version": version}, "version").get("version", "of unknown version")),
    )


def _part(found: Any, name: str) -> Mapping[str, Any]:
    part = found.get(name) if isinstance(found, Mapping) else None
    return part if isinstance(part, Mapping) else {}


async def request_tokens(client: Client, model: str, text: str) -> list[int] | None:
    """``text`` as the server's own tokenizer reads it; None where it has no such endpoint."""
    try:
        answer = await client.post(
            "/tokenize", {"model": model, "prompt": text, "add_special_tokens": False}, retries=0
        )
    except Refused:
        return None
    ids = answer.get("tokens") if isinstance(answer, Mapping) else None
    return ids if isinstance(ids, list) else None


async def load_server_weights(client: Client, folder: Path, version: str) -> None:
    """Have the server load the weights in ``folder``, forget what it cached, and keep ``version`` in mind.

    Raises RunError where it does not.
    """
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}, "timeout": _SYNC_SECONDS}
    try:
        await client.post("/collective_rpc", body, retries=0)
        reset = await client.post("/reset_prefix_cache", {}, retries=0)
        await client.post("/update_weight_version", {"new_version": version}, retries=0)
    except Refused as error:
        raise RunError(f"{error.answer} {server_advice(error)}") from error
    if not (isinstance(reset, Mapping) and reset.get("success") is True):
        raise RunError(
            f"{client.options.base_url}: kept its cache of the earlier weights because it is sampling for another "
            "client. A run needs its own server."
        )


async def check_version(client: Client, version: str) -> None:
    """Raise RunError where the server has other weights than those that were called ``version``."""
    try:
        answer = await client.get("/weight_info", retries=RETRIES)
    except Refused as error:
        raise RunError(f"{error.answer} {server_advice(error)}") from error
    found = answer.get("weight_version") if isinstance(answer, Mapping) else None
    if found != version:
        raise RunError(
            f"{client.options.base_url}: has other weights ({found}) than this run gave it ({version}): it was "
            "restarted, or another run uses it. Nothing was trained on its samples. A run needs its own server."
        )


async def complete(
    client: Client, model: str, prompt: Sequence[int], arguments: Mapping[str, Any]
) -> tuple[list[int], list[float], bool]:
    """Token ids of one completion, their log-probs, and whether it was cut. Raises RunError."""
    body = {"model": model, "prompt": list(prompt), "return_token_ids": True, **arguments}
    try:
        found: tuple[list[int], list[float], bool] = await client.post("/v1/completions", body, read_completion)
    except Refused as error:
        raise RunError(f"{error.answer} {server_advice(error)}") from error
    return found


def read_completion(answer: Any) -> tuple[list[int], list[float], bool]:
    """Token ids, log-probs, truncated. Raises ValueError for an answer without them, or a completion broken off."""
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    ids, reason = choice.get("token_ids"), choice.get("finish_reason")
    scores = choice.get("logprobs")
    values = scores.get("token_logprobs") if isinstance(scores, Mapping) else None
    if reason not in ("stop", "length"):
        raise ValueError(f"an aborted completion ({reason})")
    if not isinstance(ids, list) or not isinstance(values, list) or len(ids) != len(values):
        said = " ".join(json.dumps(answer).split())
        raise ValueError(f"no token ids with their log-probabilities in {said[:200]}")
    if not all(type(item) is int and 0 <= item <= LARGEST_ID for item in ids):
        raise ValueError("token_ids that are no token ids")
    if not all(type(item) in (int, float) and -MOST_NATS <= item <= ROUNDING for item in values):
        raise ValueError("logprobs.token_logprobs that are no log-probabilities")
    return ids, [float(value) for value in values], reason == "length"


async def complete_all(
    client: Client,
    model: str,
    rows: Sequence[tuple[Sequence[int], Mapping[str, Any]]],
    *,
    alive: Callable[[], None],
    on_progress: Callable[[int], None],
    on_done: OnDone,
) -> Completions:
    """Completions of all ``rows`` (prompt, arguments), in their order.

    Args:
        alive: raises the error to show when the server is gone.
    """
    free = asyncio.Semaphore(IN_FLIGHT)

    async def one(row: int, prompt: Sequence[int], arguments: Mapping[str, Any]) -> Completions:
        async with free:
            ids, scores, cut = await complete(client, model, prompt, arguments)
        on_progress(len(ids))
        found = Completions([ids], [scores], [cut])
        on_done([row], found)
        return found

    async def watch() -> None:
        while True:
            alive()
            await asyncio.sleep(0.3)

    work: asyncio.Future[Any] = asyncio.gather(*(one(row, *asked) for row, asked in enumerate(rows)))
    watcher: asyncio.Future[Any] = asyncio.ensure_future(watch())
    try:
        await asyncio.wait([work, watcher], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            watcher.result()
        results = work.result()
    finally:
        for task in (work, watcher):
            task.cancel()
        await asyncio.gather(work, watcher, return_exceptions=True)
    return joined(results)


def server_advice(error: Refused) -> str:
    """What a server must have that refuses like this."""
    if error.status in (404, 405):
        return f"Weights go to it by endpoints that it has with {DEV_MODE} in its environment (vLLM 0.31 or later)."
    if error.status in (401, 403):
        return "The server wants a key: export VLLM_API_KEY=..."
    return ""
