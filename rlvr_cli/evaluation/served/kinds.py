"""The body of a request by the kind of server, and the fields of its answers.

The common fields are OpenAI's. What lies beyond is needed to sample from the model's own distribution: vLLM and SGLang
take top_k, top_p and penalties that a request leaves out from the model's generation_config.json, llama.cpp has
defaults of its own, and transformers samples only when a generation config says so.
Sources: vLLM's and SGLang's `entrypoints/openai` (protocols of completions), llama.cpp's `tools/server/README.md`,
transformers 5.23's `cli/serving`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlvr_cli.models.sampling.engine import SamplingParams


@dataclass(frozen=True)
class Kind:
    """A kind of server.

    Attributes:
        takes_ids: prompts may be token ids, so nothing can be added to them.
        keeps_special: special tokens stay in the text of a completion.
        template_options: chat takes variables of the chat template.
    """

    name: str
    takes_ids: bool = False
    keeps_special: bool = False
    template_options: bool = False


KINDS = {
    kind.name: kind
    for kind in (
        Kind("openai"),
        Kind("vllm", takes_ids=True, keeps_special=True, template_options=True),
        Kind("sglang", takes_ids=True, keeps_special=True, template_options=True),
        Kind("llamacpp", takes_ids=True, template_options=True),
        Kind("transformers"),
    )
}


@dataclass(frozen=True)
class Prompt:
    """A prompt as text and token ids (completions), or as messages (chat).

    ``options``: the template's variables. ``opened``: the template that writes the messages ends in an open
    ``<think>``.
    """

    text: str = ""
    ids: tuple[int, ...] | None = None
    messages: tuple[Mapping[str, str], ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    opened: bool = False


@dataclass(frozen=True)
class Ask:
    """One completion to ask for. ``params.eos_token_ids`` are as far as they are known."""

    prompt: Prompt
    params: SamplingParams
    pad: int | None = None


@dataclass(frozen=True)
class Answer:
    """A completion as a server returned it; None is what it left out, or cannot be.

    ``token_ids`` are those of the completion, with the one that ended it. ``reasoning`` is what a server cut out of
    the text as the model's thoughts.
    """

    text: str
    truncated: bool
    model: str | None = None
    tokens: int | None = None
    token_ids: tuple[int, ...] | None = None
    log_prob: float | None = None
    prompt_tokens: int | None = None
    prompt_ids: tuple[int, ...] | None = None
    reasoning: str | None = None


def request_body(kind: Kind, model: str | None, ask: Ask, *, as_text: bool = False, openai_host: bool = False) -> Any:
    """The JSON body of a request.

    Args:
        as_text: send the prompt as text even where token ids are taken. openai_host: it goes to OpenAI itself, whose
            chat calls the longest completion `max_completion_tokens`.
    """
    prompt, params = ask.prompt, ask.params
    chat = prompt.messages is not None
    body: dict[str, Any] = {} if model is None else {"model": model}
    if chat:
        body["messages"] = [dict(message) for message in prompt.messages or ()]
        if prompt.options:
            body["chat_template_kwargs"] = dict(prompt.options)
    else:
        by_ids = kind.takes_ids and prompt.ids is not None and not as_text
        body["prompt"] = list(prompt.ids or ()) if by_ids else prompt.text
    body["max_completion_tokens" if chat and openai_host else "max_tokens"] = params.max_new_tokens
    body["seed"] = params.seed
    if kind.name == "transformers":
        return body | {"generation_config": json.dumps(_generation_config(ask))}
    body |= {"temperature": params.temperature, "top_p": params.top_p if params.temperature > 0 else 1.0}
    if kind.name in ("vllm", "sglang"):
        body |= {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0}
        body |= {"frequency_penalty": 0.0, "skip_special_tokens": False}
        if params.eos_token_ids:
            body["stop_token_ids"] = list(params.eos_token_ids)
        if not chat:
            body |= {"return_token_ids": True, "logprobs": 0}
    if kind.name == "vllm":
        body["spaces_between_special_tokens"] = False
        if not chat:
            body["add_special_tokens"] = False
    if kind.name == "llamacpp":
        body |= {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        # Its own order applies top_p before the temperature.
        body["samplers"] = ["temperature", "top_p"]
    return body


def _generation_config(ask: Ask) -> dict[str, Any]:
    """It replaces the checkpoint's, so it must name everything, the tokens that end a completion too."""
    params, stops = ask.params, list(ask.params.eos_token_ids)
    config: dict[str, Any] = {"do_sample": params.temperature > 0, "max_new_tokens": params.max_new_tokens}
    if params.temperature > 0:
        config |= {"temperature": params.temperature, "top_p": params.top_p, "top_k": 0}
    if stops:
        config |= {"eos_token_id": stops, "pad_token_id": stops[0] if ask.pad is None else ask.pad}
    return config


def read_answer(answer: Any, ask: Ask) -> Answer:
    """The completion in an answer. Raises ValueError for one that holds none, or one that was broken off."""
    choice = _first_choice(answer)
    reason = choice.get("finish_reason")
    if reason in ("abort", "error"):
        raise ValueError(f"the server aborted the completion ({reason})")
    message = choice.get("message")
    chat = isinstance(message, Mapping)
    text = message.get("content") if isinstance(message, Mapping) else choice.get("text")
    reasoning = None
    if isinstance(message, Mapping):
        reasoning = next((v for k in ("reasoning_content", "reasoning") if isinstance(v := message.get(k), str)), None)
    if text is None and chat:
        # All tokens were spent on thoughts, or on a refusal.
        refusal = message.get("refusal") if isinstance(message, Mapping) else None
        text = refusal if isinstance(refusal, str) else ""
    if not isinstance(text, str):
        raise ValueError("a choice without text")
    if not isinstance(reason, str):
        raise ValueError("a choice without finish_reason")
    usage = answer.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    most = ask.params.max_new_tokens
    ids = _ids(choice.get("token_ids"), most)
    return Answer(
        text=_without_surrogates(text),
        truncated=reason == "length",
        model=answer["model"] if isinstance(answer.get("model"), str) else None,
        tokens=_count(usage.get("completion_tokens"), most) if ids is None else len(ids),
        token_ids=ids,
        log_prob=_log_prob(choice.get("logprobs"), most) if ask.params.temperature in (0.0, 1.0) else None,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        prompt_ids=_ids(choice.get("prompt_token_ids")),
        reasoning=_without_surrogates(reasoning) if reasoning else None,
    )


def _without_surrogates(text: str) -> str:
    """Half of a character, which JSON can say and no file can hold, becomes the replacement character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _first_choice(answer: Any) -> Mapping[str, Any]:
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    if not isinstance(choices, Sequence) or not choices or not isinstance(choices[0], Mapping):
        said = " ".join(json.dumps(answer).split())
        raise ValueError(f"no choices in {said[:200]}")
    found: Mapping[str, Any] = choices[0]
    return found


def _count(value: Any, most: float = math.inf) -> int | None:
    return value if type(value) is int and 0 <= value <= most else None


def _ids(value: Any, most: float = math.inf) -> tuple[int, ...] | None:
    possible = isinstance(value, list) and len(value) <= most
    return tuple(value) if possible and all(type(item) is int and 0 <= item < 2**31 for item in value) else None


def _log_prob(value: Any, most: int) -> float | None:
    """Return the sum over the completion's tokens, which is of the model's own distribution at temperature 0 and 1."""
    values = value.get("token_logprobs") if isinstance(value, Mapping) else None
    if not isinstance(values, list) or len(values) > most:
        return None
    # A log-probability may lie above 0 by rounding; an integer of any size is none.
    possible = all(type(item) in (int, float) and -1e6 <= item <= 1e-3 for item in values)
    return math.fsum(values) if possible else None
