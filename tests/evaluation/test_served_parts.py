"""What is sent to which kind of server, how its answers are read, and the queue of requests in flight."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.lab.model import make_tokenizer
from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import EvalConfig
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import append_jsonl
from rlvr_cli.evaluation.served import server as server_module
from rlvr_cli.evaluation.served.kinds import (
    Prompt,
    ServedCompletion,
    parse_completion,
    request_body,
)
from rlvr_cli.evaluation.served.options import api_key, option_problems
from rlvr_cli.evaluation.served.prompts import chat_prompts, prompt_hash, text_prompts
from rlvr_cli.evaluation.served.sampler import ServedSampler, run_concurrently
from rlvr_cli.evaluation.served.server import Client, Server
from rlvr_cli.models.load import ModelFacts, load_facts
from rlvr_cli.models.sampling.engine import SamplingParams, StopStrings
from rlvr_cli.models.source import PRESETS
from rlvr_cli.tasks import kk_compact as compact

PARAMS = SamplingParams(max_new_tokens=8, temperature=0.7, top_p=0.9, seed=11, eos_token_ids=(1, 2))
TEXT = Prompt("2 + 2 =", (5, 6, 7))
GREEDY = replace(PARAMS, temperature=0.0)
CHAT = Prompt(messages=({"role": "user", "content": "hi"},))
PLAIN = SamplingParams(max_new_tokens=8)


def test_the_plain_api_gets_its_own_fields_alone() -> None:
    assert request_body("openai", "m", TEXT, PARAMS) == {
        "model": "m",
        "prompt": "2 + 2 =",
        "max_tokens": 8,
        "seed": 11,
        "temperature": 0.7,
        "top_p": 0.9,
    }
    assert request_body("openai", "m", TEXT, GREEDY)["top_p"] == 1.0
    assert "max_completion_tokens" in request_body("openai", "m", CHAT, PLAIN, openai_host=True)
    assert request_body("openai", "m", CHAT, PLAIN)["messages"] == [{"role": "user", "content": "hi"}]


def test_variables_of_the_chat_template_are_sent_where_servers_take_them() -> None:
    task = load_config(task="math", overrides=["task.chat_template_kwargs={enable_thinking: false}"]).task
    problems = task.generate("dev", 1, 0)
    (plain,) = chat_prompts(load_config(task="math").task, problems, None, "vllm").values()
    for name in ("vllm", "sglang", "llamacpp"):
        (prompt,) = chat_prompts(task, problems, None, name).values()
        body = request_body(name, "m", prompt, PLAIN)
        assert body["chat_template_kwargs"] == {"enable_thinking": False}
        assert prompt_hash(prompt) != prompt_hash(plain)
    for name in ("openai", "transformers"):
        with pytest.raises(UserError, match=r"vllm, sglang, llamacpp \(eval"):
            chat_prompts(task, problems, None, name)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_defaults_of_a_models_generation_config_are_overruled(kind: str) -> None:
    body = request_body(kind, "m", TEXT, PARAMS)
    assert body["prompt"] == [5, 6, 7]
    assert (body["top_k"], body["min_p"], body["repetition_penalty"]) == (-1, 0.0, 1.0)
    assert body["stop_token_ids"] == [1, 2]
    assert body["skip_special_tokens"] is False


def test_stop_strings_stay_in_the_completion() -> None:
    body = request_body("vllm", "m", TEXT, replace(PARAMS, stop=StopStrings(("</a>",), None)))
    assert body["stop"] == ["</a>"] and body["include_stop_str_in_output"] is True


def test_llama_cpp_applies_the_temperature_before_top_p() -> None:
    body = request_body("llamacpp", "m", TEXT, PARAMS)
    assert body["samplers"] == ["temperature", "top_p"]
    assert (body["top_k"], body["min_p"], body["repeat_penalty"]) == (0, 0.0, 1.0)


def test_transformers_is_told_all_by_a_generation_config() -> None:
    body = request_body("transformers", None, TEXT, PARAMS)
    assert set(body) == {"prompt", "max_tokens", "seed", "generation_config"}
    assert json.loads(body["generation_config"]) == {
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 0,
        "max_new_tokens": 8,
        "eos_token_id": [1, 2],
        "pad_token_id": 1,
    }
    greedy = json.loads(request_body("transformers", None, TEXT, GREEDY)["generation_config"])
    assert greedy["do_sample"] is False
    assert "temperature" not in greedy


def answer(**choice: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"text": "4", "finish_reason": "stop", **choice}]}


def test_an_answer_says_no_more_than_it_says() -> None:
    found = parse_completion(answer(), PARAMS)
    assert (found.text, found.truncated, found.model) == ("4", False, "m")
    assert (found.tokens, found.log_prob, found.token_ids, found.prompt_tokens) == (None, None, None, None)
    assert parse_completion(answer(finish_reason="length"), PARAMS).truncated
    whole = answer(token_ids=[4, 1], logprobs={"token_logprobs": [-0.5, -0.25]})
    whole["usage"] = {"prompt_tokens": 3, "completion_tokens": 9}
    # At another temperature than 0 and 1 servers give those of another distribution than was sampled from.
    assert parse_completion(whole, PARAMS).log_prob is None
    at_one = parse_completion(whole, PLAIN)
    assert (at_one.log_prob, at_one.tokens, at_one.prompt_tokens) == (-0.75, 2, 3)


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        {},
        {"choices": []},
        {"choices": [{}]},
        {"choices": [{"text": "4"}]},
        {"choices": [{"text": 4, "finish_reason": "stop"}]},
        answer(finish_reason="abort"),
    ],
)
def test_what_is_no_answer_is_asked_for_again(broken: Any) -> None:
    with pytest.raises(ValueError):
        parse_completion(broken, PARAMS)


@pytest.mark.parametrize("log_probs", [[math.nan], [-math.inf], [None, -0.5], None])
def test_log_probabilities_that_are_not_finite_are_left_out(log_probs: Any) -> None:
    assert parse_completion(answer(logprobs={"token_logprobs": log_probs}), GREEDY).log_prob is None
    assert parse_completion(answer(logprobs={"token_logprobs": [-0.5, 1e-7]}), GREEDY).log_prob == pytest.approx(-0.5)


def test_what_has_come_is_kept_when_a_request_fails() -> None:
    kept: list[int] = []

    async def ask(item: int) -> int:
        await asyncio.sleep(0.01 * (item % 3))
        if item == 20:
            raise KeyError("refused")
        return item

    async def keep(items: Any) -> None:
        await asyncio.sleep(0.02)
        kept.extend(items)

    with pytest.raises(KeyError, match="refused"):
        asyncio.run(run_concurrently(range(1000), ask, keep, 4))
    assert 10 < len(kept) < 40
    assert len(set(kept)) == len(kept)


def test_nothing_more_is_asked_for_when_the_disk_is_full() -> None:
    asked: list[int] = []

    async def ask(item: int) -> int:
        asked.append(item)
        await asyncio.sleep(0.001)
        return item

    async def keep(items: Any) -> None:
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        asyncio.run(run_concurrently(range(1000), ask, keep, 4))
    assert len(asked) < 100


def test_an_interrupt_keeps_what_has_come() -> None:
    kept: list[int] = []

    async def ask(item: int) -> int:
        if item == 10:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(60)
        return item

    async def keep(items: Any) -> None:
        kept.extend(items)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run_concurrently(range(1000), ask, keep, 1))
    assert kept == list(range(10))


def test_what_prompts_need_is_read_without_weights_of_an_adapter_from_its_base(tmp_path: Path) -> None:
    lab = PRESETS["lab"]
    for path in lab.glob("tokenizer*.json"):
        shutil.copy(path, tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "base.json").write_text(json.dumps({"name": "lab"}), encoding="utf-8")
    facts = load_facts(str(tmp_path))
    assert facts.style == "compact"
    assert facts.stops == load_facts(str(lab)).stops == (facts.tokenizer.eos_token_id,)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "adapter_config.json").unlink()
    with pytest.raises(UserError, match="cannot be loaded"):
        load_facts(str(tmp_path))


class Tagged:
    """A tokenizer that holds a tag as a special token."""

    all_special_tokens = ("<eos>", "</think>")


def test_tags_that_a_server_would_drop_are_refused() -> None:
    task = load_config(task="math").task
    assert text_prompts(task, [], Tagged(), "vllm") == {}
    with pytest.raises(UserError, match=r"</think> as special tokens, which a llamacpp server strips"):
        text_prompts(task, [], Tagged(), "llamacpp")


def ask_raw(reply: Callable[[asyncio.StreamWriter], Awaitable[None]], **options: Any) -> Any:
    """What a client makes of a server that answers any request by ``reply``."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError):  # of a client that has gone
            await reply(writer)
        writer.close()

    async def run() -> Any:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        config = EvalConfig(base_url=f"http://127.0.0.1:{port}/v1", **options)
        async with Client(config, print, retries=0) as client:
            return parse_completion(await client.request("/completions", {}), PARAMS)

    return asyncio.run(run())


def whole(
    body: bytes, status: str = "200 OK", more: str = "content-type: application/json\r\n"
) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    async def reply(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{more}\r\n".encode() + body)
        await writer.drain()

    return reply


def test_a_server_that_drips_for_ever_is_given_up_after_the_timeout() -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        for _ in range(1200):
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.05)

    with pytest.raises(RunError, match=r"did not answer within 0.5 s \(eval.request_timeout\)"):
        ask_raw(drip, request_timeout=0.5)


def test_an_answer_of_any_size_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MOST_BYTES", 2**20)

    async def flood(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(1000):
            writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            await writer.drain()

    with pytest.raises(RunError, match="longer than 1 MiB"):
        ask_raw(flood)


@pytest.mark.parametrize("place", ["/v2/completions", "http://127.0.0.1:1/v1/completions"])
def test_a_prompt_is_sent_nowhere_else(place: str) -> None:
    with pytest.raises(RunError, match=r"the server responds with 307 .* It redirects; use that address as --base-url"):
        ask_raw(whole(b"", "307 Temporary Redirect", f"location: {place}\r\n"))


def test_json_of_any_depth_is_no_traceback() -> None:
    with pytest.raises(RunError, match="the response is not JSON"):
        ask_raw(whole(b"[" * 200_000))
    with pytest.raises(RunError, match="the server responds with 418"):
        ask_raw(whole(b"[" * 200_000, "418 I'm a teapot"))


def test_half_a_character_can_be_stored(tmp_path: Path) -> None:
    body = json.dumps(answer(text="so \ud83d 4 \ud83d\ude00")).encode()
    found = ask_raw(whole(body))
    assert found.text == "so \ufffd 4 \U0001f600"
    append_jsonl(tmp_path / "samples.jsonl", [{"text": found.text}])
    thoughts = {"choices": [{"message": {"content": None, "reasoning": "\udc00"}, "finish_reason": "stop"}]}
    assert parse_completion(thoughts, PARAMS).reasoning == "\ufffd"


@pytest.mark.parametrize("key", ["sk-secret\nX-Other: 1", "sk-secr\u00e9t", "sk\x00secret"])
def test_a_key_that_no_header_can_hold_is_said_and_not_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {**os.environ, "OPENAI_API_KEY": key})
    config = load_config(overrides=["eval.base_url=http://127.0.0.1:1/v1"])
    (problem,) = option_problems(config, named=True)
    assert "OPENAI_API_KEY: the key has a line break" in problem
    assert "sk" not in problem


def test_the_end_of_the_line_is_no_part_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret\n")
    assert option_problems(load_config(overrides=["eval.base_url=http://127.0.0.1:1/v1"]), named=True) == []
    assert api_key(EvalConfig(base_url="http://127.0.0.1:1/v1")) == "sk-secret"


def test_a_stop_token_that_a_server_writes_is_no_text(tmp_path: Path) -> None:
    """By ids or as text, each id of the generation config as the tokenizer's eos."""
    tokenizer = make_tokenizer(compact.vocabulary())
    end, other = tokenizer.convert_tokens_to_ids("</answer>"), tokenizer.convert_tokens_to_ids("</think>")
    server = Server(EvalConfig(base_url="http://127.0.0.1:1/v1"), "vllm", "completions", None)
    sampler = ServedSampler(server, ModelFacts(tokenizer, (tokenizer.eos_token_id, end), "compact"), "", print)
    text = tokenizer.decode([other, other])
    for stop in (tokenizer.eos_token_id, end):
        by_ids = ServedCompletion("", False, token_ids=(other, other, stop))
        as_text = ServedCompletion(f"{text}{tokenizer.decode([stop])}", False)
        assert sampler.read_text(by_ids, TEXT) == sampler.read_text(as_text, TEXT) == text
    assert sampler.read_text(ServedCompletion(text, False), TEXT) == text


def test_chat_gets_no_system_turn_where_the_template_has_none() -> None:
    """The server writes the messages by the model's own template, which would refuse them."""
    task = load_config(task="own", overrides=["task.reward=none.py:f", "task.system_prompt=Be short."]).task
    problem = task.problem_from({"prompt": "2 + 2?"}, "here")
    tokenizer = make_tokenizer(compact.vocabulary())
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('none') }}{% endif %}{{ messages }}"
    joined = [{"role": "user", "content": "Be short.\n\n2 + 2?"}]
    apart = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2 + 2?"}]
    for template, expected in ((refuses, joined), ("{{ messages }}", apart), (None, apart)):
        tokenizer.chat_template = template
        (prompt,) = chat_prompts(task, [problem], tokenizer, "vllm").values()
        assert [dict(message) for message in prompt.messages or ()] == expected
