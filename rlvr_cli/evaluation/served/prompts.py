"""Format the prompts of a task for a server: text with token ids, or chat messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.hashes import digest
from rlvr_cli.evaluation.served.kinds import KEEP_SPECIAL, TAKE_IDS, Prompt
from rlvr_cli.tasks.base import Task
from rlvr_cli.tasks.problem import Problem
from rlvr_cli.tasks.prompts import apply_chat_template, check_template_options

# Tags that judges parse.
_TAGS = ("<think>", "</think>", "<answer>", "</answer>", "<reasoning>", "</reasoning>")
_ADVICE = "Use eval.endpoint=completions, with a model folder or hub id as the model so that its tokenizer is known."


def text_prompts(task: Task, problems: Sequence[Problem], tokenizer: Any, kind: str) -> dict[str, Prompt]:
    """Return text and token ids by problem id. Raises UserError if the server would strip tags that judges parse."""
    lost = [tag for tag in _TAGS if tag in tokenizer.all_special_tokens]
    if lost and kind not in KEEP_SPECIAL:
        raise UserError(
            f"--engine openai: this tokenizer holds {', '.join(lost)} as special tokens, which a {kind} server "
            "strips from completions, so no answer could be parsed. Use vLLM or SGLang, which keep them "
            "(eval.server=vllm if it is not detected)."
        )
    check_template_options(task.chat_template_kwargs, tokenizer)
    texts = {problem.id: task.prompt(problem, tokenizer) for problem in problems}
    encoded = {name: tokenizer(text, add_special_tokens=False)["input_ids"] for name, text in texts.items()}
    return {name: Prompt(text, tuple(encoded[name])) for name, text in texts.items()}


def chat_prompts(task: Task, problems: Sequence[Problem], tokenizer: Any | None, kind: str) -> dict[str, Prompt]:
    """Return each problem's prompt by its id as messages, which the server formats with the model's chat template.

    Args:
        tokenizer: the model's; None = unknown.
    Raises:
        UserError: messages cannot express the prompt (plain text, or an open ``<think>`` that the template does not
            add), or the server does not accept the task's template variables.
    """
    if task.chat_template_kwargs and kind not in TAKE_IDS:
        raise UserError(
            f"task.chat_template_kwargs: a server of kind {kind} does not accept variables of the chat template. Use "
            f"eval.endpoint=completions, or {', '.join(TAKE_IDS)} (eval.server)."
        )
    if tokenizer is not None:
        check_template_options(task.chat_template_kwargs, tokenizer)
    return {problem.id: _chat_prompt(task, problem, tokenizer) for problem in problems}


def prompt_hash(prompt: Prompt) -> str:
    """Return the hash of a prompt in the store; for token ids, as of a model in this process."""
    if prompt.messages is None:
        return digest(list(prompt.ids or ()))[:16]
    return digest([*map(dict, prompt.messages), *([dict(prompt.options)] if prompt.options else [])])[:16]


def prompt_text(prompt: Prompt) -> str:
    """Return the text of a prompt, or its messages with their roles, for display."""
    if prompt.messages is None:
        return prompt.text
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in prompt.messages)


class _Recorder:
    """A tokenizer that records the messages of a prompt, and formats them with the model's template if it is known."""

    chat_template = "messages"
    bos_token = None
    bos_token_id = None

    def __init__(self, tokenizer: Any | None) -> None:
        self.tokenizer, self.text = tokenizer, "\x00messages\x00"
        self.messages: tuple[Mapping[str, str], ...] | None = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": []}

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, str]], *, tokenize: bool, add_generation_prompt: bool, **options: Any
    ) -> str:
        if getattr(self.tokenizer, "chat_template", None):
            self.text = apply_chat_template(self.tokenizer, messages, options)
        self.messages = tuple(dict(message) for message in messages)
        return self.text


def _chat_prompt(task: Task, problem: Problem, tokenizer: Any | None) -> Prompt:
    recorder = _Recorder(tokenizer)
    added = task.prompt(problem, recorder).removeprefix(recorder.text)
    if recorder.messages is None:
        raise UserError(
            f"eval.endpoint=chat: the prompts of {task.name} are plain text with these settings, which chat messages "
            f"cannot express. {_ADVICE}"
        )
    if added:
        raise UserError(
            f"eval.endpoint=chat: the prompts of {task.name} end in {added!r} for the model to continue, but chat "
            f"always starts a new message. {_ADVICE}"
        )
    opened = recorder.text.rstrip().endswith("<think>")
    return Prompt(messages=recorder.messages, options=task.chat_template_kwargs, opened=opened)
