"""What each kind of server is sent, the prompts of a task among it, and what its answers say.

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

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.hashes import digest
from rlvr_cli.models.sampling.engine import SamplingParams
from rlvr_cli.tasks.base import Task
from rlvr_cli.tasks.problem import Problem
from rlvr_cli.tasks.prompts import TemplateFailure, by_chat_template, check_template_options

# What a number of a server can be at most: tokens of a prompt, an id of any vocabulary, and -log p in nats.
MOST_TOKENS, LARGEST_ID, MOST_NATS = 10**9, 2**31 - 1, 1e6
# A log-probability may lie above 0 by rounding.
ROUNDING = 1e-3
# What judges look for; a server that drops special tokens drops these where a tokenizer holds them as such.
_TAGS = ("<think>", "</think>", "<answer>", "</answer>", "<reasoning>", "</reasoning>")


@dataclass(frozen=True)
class Kind:
    """A kind of server.

    Attributes:
        takes_ids: prompts may be token ids, so nothing can be added to them.
        keeps_special: special tokens stay in the text of a completion.
        lists_models: /v1/models lists what is served.
        scores: log-probabilities are asked for.
        template_options: chat takes variables of the chat template.
    """

    name: str
    takes_ids: bool = False
    keeps_special: bool = False
    lists_models: bool = True
    scores: bool = False
    template_options: bool = False


KINDS = {
    kind.name: kind
    for kind in (
        Kind("openai"),
        Kind("vllm", takes_ids=True, keeps_special=True, scores=True, template_options=True),
        Kind("sglang", takes_ids=True, keeps_special=True, scores=True, template_options=True),
        Kind("llamacpp", takes_ids=True, template_options=True),
        Kind("transformers", lists_models=False),
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
    """A completion as a server gave it; None is what it did not say, or said and cannot be.

    ``token_ids`` are those of the completion, with the one that ended it. ``reasoning`` is what a server cut out of
    the text as the model's thoughts. ``doubts`` name the fields that were not believed, with their values.
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
    doubts: tuple[str, ...] = ()


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
    doubts: list[str] = []
    ids = _ids(choice.get("token_ids"), "token_ids", doubts, most=ask.params.max_new_tokens)
    counted = _count(usage.get("completion_tokens"), "usage.completion_tokens", doubts, most=ask.params.max_new_tokens)
    return Answer(
        text=_without_surrogates(text),
        truncated=reason == "length",
        model=answer["model"] if isinstance(answer.get("model"), str) else None,
        tokens=counted if ids is None else len(ids),
        token_ids=ids,
        log_prob=_log_prob(choice.get("logprobs"), ask, doubts) if ask.params.temperature in (0.0, 1.0) else None,
        prompt_tokens=_count(usage.get("prompt_tokens"), "usage.prompt_tokens", doubts),
        prompt_ids=_ids(choice.get("prompt_token_ids"), "prompt_token_ids", doubts),
        reasoning=_without_surrogates(reasoning) if reasoning else None,
        doubts=tuple(doubts),
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


def _count(value: Any, field: str, doubts: list[str], *, most: int = MOST_TOKENS) -> int | None:
    if value is None:
        return None
    if type(value) is int and 0 <= value <= most:
        return value
    doubts.append(f"{field}={_short(value)} (possible: 0 to {most})")
    return None


def _ids(value: Any, field: str, doubts: list[str], *, most: int = MOST_TOKENS) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    if len(value) > most:
        doubts.append(f"{field}: {len(value)} tokens (possible: 0 to {most})")
    elif all(type(item) is int and 0 <= item <= LARGEST_ID for item in value):
        return tuple(value)
    else:
        wrong = next(item for item in value if type(item) is not int or not 0 <= item <= LARGEST_ID)
        doubts.append(f"{field} holds {_short(wrong)} (possible: integers from 0 to {LARGEST_ID})")
    return None


def _log_prob(value: Any, ask: Ask, doubts: list[str]) -> float | None:
    """The sum over the completion's tokens, which is of the model's own distribution at temperature 0 and 1."""
    values = value.get("token_logprobs") if isinstance(value, Mapping) else None
    if not isinstance(values, list) or None in values:
        return None
    wrong = [item for item in values if type(item) not in (int, float) or not -MOST_NATS <= item <= ROUNDING]
    if wrong or len(values) > ask.params.max_new_tokens:
        said = (
            f" {_short(wrong[0])}" if wrong else f" {len(values)} values for at most {ask.params.max_new_tokens} tokens"
        )
        doubts.append(f"logprobs.token_logprobs holds{said}")
        return None
    return math.fsum(values)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def text_prompts(task: Task, problems: Sequence[Problem], tokenizer: Any) -> dict[str, Prompt]:
    """Each problem's prompt by its id: the text and the token ids that a model in this process would read."""
    check_template_options(task.chat_template_kwargs, tokenizer)
    prompts = {}
    for problem in problems:
        text = task.prompt(problem, tokenizer)
        prompts[problem.id] = Prompt(text, tuple(tokenizer(text, add_special_tokens=False)["input_ids"]))
    return prompts


def chat_prompts(task: Task, problems: Sequence[Problem], tokenizer: Any | None, kind: Kind) -> dict[str, Prompt]:
    """Each problem's prompt by its id as messages, which the server writes by the model's own chat template.

    Args:
        tokenizer: the model's, if at hand; None = unknown.
    Raises:
        UserError: messages are not all of the prompt, as where it ends in an open ``<think>`` that the template does
            not write; or the server takes no variables of the template, and the task has some.
    """
    if task.chat_template_kwargs and not kind.template_options:
        takes = ", ".join(one.name for one in KINDS.values() if one.template_options)
        raise UserError(
            f"task.chat_template_kwargs: chat with a server of kind {kind.name} accepts no variables of the chat "
            f"template; {takes} have (eval.server). Or use eval.endpoint=completions."
        )
    if tokenizer is not None:
        check_template_options(task.chat_template_kwargs, tokenizer)
    return {problem.id: _chat_prompt(task, problem, tokenizer) for problem in problems}


def prompt_hash(prompt: Prompt) -> str:
    """What tells prompts apart in the store; of token ids the same as with a model in this process."""
    whole: list[Any] = list(prompt.ids or ())
    if prompt.messages is not None:
        whole = [*map(dict, prompt.messages), *([dict(prompt.options)] if prompt.options else [])]
    return digest(whole)[:16]


def check_tags(kind: Kind, tokenizer: Any) -> None:
    """Raise UserError where the server would drop tags that judges look for."""
    if kind.keeps_special:
        return
    lost = [tag for tag in _TAGS if tag in set(tokenizer.all_special_tokens)]
    if lost:
        raise UserError(
            f"--engine openai: this tokenizer holds {', '.join(lost)} as special tokens, which a {kind.name} server "
            "strips from its texts, so no answer would be found. Use vLLM or SGLang, which keep them "
            "(eval.server=vllm where the server does not say so itself)."
        )


# What a template is applied with besides its own variables.
_NO_VARIABLES = ("tokenize", "add_generation_prompt")


class _Messages:
    """A tokenizer that keeps the messages of a prompt in place of writing them.

    Args:
        tokenizer: the model's, whose template must be able to write them; None = unknown.
    """

    chat_template = "messages"
    bos_token = None
    bos_token_id = None
    mark = "\x00messages\x00"

    def __init__(self, tokenizer: Any | None) -> None:
        self.tokenizer = tokenizer
        self.messages: tuple[Mapping[str, str], ...] | None = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": []}

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], **options: Any) -> str:
        if getattr(self.tokenizer, "chat_template", None):
            variables = {name: value for name, value in options.items() if name not in _NO_VARIABLES}
            by_chat_template(self.tokenizer, messages, variables)
        self.messages = tuple(dict(message) for message in messages)
        return self.mark


def _chat_prompt(task: Task, problem: Problem, tokenizer: Any | None) -> Prompt:
    recorder = _Messages(tokenizer)
    written = task.prompt(problem, recorder)
    advice = (
        "Use an engine that takes prompts as they are: eval.endpoint=completions, with a model folder or hub id as the "
        "model so that its tokenizer is known."
    )
    if recorder.messages is None:
        raise UserError(
            f"eval.endpoint=chat: the prompts of {task.name} are plain text with these settings, which chat messages "
            f"cannot carry. {advice}"
        )
    added = written.removeprefix(recorder.mark)
    options = task.chat_template_kwargs
    alone = _by_template(recorder.messages, tokenizer, options)
    if added and (alone is None or task.prompt(problem, tokenizer) != alone):
        raise UserError(
            f"eval.endpoint=chat: the prompts of {task.name} end in {added!r} for the model to continue, but chat "
            f"always starts a new answer. {advice}"
        )
    opened = alone is not None and alone.rstrip().endswith("<think>")
    return Prompt(messages=recorder.messages, options=options, opened=opened)


def _by_template(
    messages: Sequence[Mapping[str, str]], tokenizer: Any | None, options: Mapping[str, Any]
) -> str | None:
    """What the model's template makes of the messages; None where it has none, or it is unknown."""
    if not getattr(tokenizer, "chat_template", None) or tokenizer is None:
        return None
    try:
        return by_chat_template(tokenizer, messages, options)
    except TemplateFailure:
        return None
