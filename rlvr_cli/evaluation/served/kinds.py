"""Format the body of a request by the kind of server, and parse its completion.

The common fields are OpenAI's. The others make a server sample from the unmodified distribution: vLLM and SGLang read
omitted top_k, top_p and penalties from the model's generation_config.json, llama.cpp has other defaults, and
transformers samples only with a generation config.
Sources: vLLM's and SGLang's `entrypoints/openai` (protocols of completions), llama.cpp's `tools/server/README.md`,
transformers 5.23's `cli/serving`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlvr_cli.core.text import shorten
from rlvr_cli.models.sampling.engine import SamplingParams

# Servers that accept token ids as prompts (to which they add none), and variables of the chat template.
TAKE_IDS = ("vllm", "sglang", "llamacpp")
# Servers that can keep special tokens in the text of a completion.
KEEP_SPECIAL = ("vllm", "sglang")


@dataclass(frozen=True)
class Prompt:
    """A prompt as text and token ids, or as messages; ``opened``: the template ends with an open ``<think>``."""

    text: str = ""
    ids: tuple[int, ...] | None = None
    messages: tuple[Mapping[str, str], ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    opened: bool = False


@dataclass(frozen=True)
class ServedCompletion:
    """A completion, None where the server omits a field; ``token_ids`` include the stop token."""

    text: str
    truncated: bool
    model: str | None = None
    tokens: int | None = None
    token_ids: tuple[int, ...] | None = None
    log_prob: float | None = None
    prompt_tokens: int | None = None
    reasoning: str | None = None


def request_body(
    kind: str, model: str | None, prompt: Prompt, params: SamplingParams, *, openai_host: bool = False
) -> dict[str, Any]:
    """Return the JSON body of a request; OpenAI's chat API has `max_completion_tokens` for `max_tokens`."""
    chat, sampled, stops = prompt.messages is not None, params.temperature > 0, list(params.eos_token_ids)
    body: dict[str, Any] = {} if model is None else {"model": model}
    if chat:
        body["messages"] = [dict(message) for message in prompt.messages or ()]
        if prompt.options:
            body["chat_template_kwargs"] = dict(prompt.options)
    else:
        body["prompt"] = prompt.text if prompt.ids is None or kind not in TAKE_IDS else list(prompt.ids)
    body["max_completion_tokens" if chat and openai_host else "max_tokens"] = params.max_new_tokens
    body["seed"] = params.seed
    if kind == "transformers":
        # It replaces the checkpoint's config, so it must be complete, including the stop tokens.
        config: dict[str, Any] = {"do_sample": sampled, "max_new_tokens": params.max_new_tokens}
        config |= {"temperature": params.temperature, "top_p": params.top_p, "top_k": 0} if sampled else {}
        config |= {"eos_token_id": stops, "pad_token_id": stops[0]} if stops else {}
        return body | {"generation_config": json.dumps(config)}
    body |= {"temperature": params.temperature, "top_p": params.top_p if sampled else 1.0}
    if kind in KEEP_SPECIAL:
        body |= {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0}
        body |= {"frequency_penalty": 0.0, "skip_special_tokens": False}
        body |= {"stop_token_ids": stops} if stops else {}
        body |= {} if chat else {"return_token_ids": True, "logprobs": 0}
    if params.stop is not None:
        body |= {"stop": list(params.stop.strings), "include_stop_str_in_output": True}
    if kind == "vllm":
        body |= {"spaces_between_special_tokens": False, **({} if chat else {"add_special_tokens": False})}
    if kind == "llamacpp":
        body |= {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        # By default, llama.cpp applies top_p before the temperature.
        body["samplers"] = ["temperature", "top_p"]
    return body


def parse_completion(content: Any, params: SamplingParams) -> ServedCompletion:
    """Parse the completion in a response. Raises ValueError without one, or for an aborted one."""
    try:
        choice, usage = content["choices"][0], content.get("usage") or {}
        message, reason, reasoning = choice.get("message"), choice["finish_reason"], None
        if message is None:
            text = choice["text"]
        else:
            # Without content, all tokens are reasoning or a refusal.
            text = message.get("content") if message.get("content") is not None else message.get("refusal") or ""
            reasoning = message.get("reasoning_content") or message.get("reasoning")
        if reason in ("abort", "error", None):
            raise ValueError(f"the server aborted the completion ({reason})")
        ids = choice.get("token_ids")
        # At other temperatures, servers return log-probabilities of another distribution than the sampled one.
        log_probs = (choice.get("logprobs") or {}).get("token_logprobs") if params.temperature in (0.0, 1.0) else None
        log_prob = math.fsum(log_probs) if log_probs is not None and None not in log_probs else None
        return ServedCompletion(
            text=_without_surrogates(text),
            truncated=reason == "length",
            model=content.get("model"),
            tokens=usage.get("completion_tokens") if ids is None else len(ids),
            token_ids=None if ids is None else tuple(map(int, ids)),
            log_prob=log_prob if log_prob is not None and math.isfinite(log_prob) else None,
            prompt_tokens=usage.get("prompt_tokens"),
            reasoning=_without_surrogates(reasoning) if reasoning else None,
        )
    except (AttributeError, LookupError, OverflowError, TypeError) as error:
        raise ValueError(f"no completion in {shorten(json.dumps(content), 200)}") from error


def _without_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can hold but UTF-8 cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
