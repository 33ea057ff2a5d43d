"""The prompts of a task as a server takes them: text with token ids, or chat messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.hashes import digest
from rlvr_cli.evaluation.served.kinds import KINDS, Kind, Prompt
from rlvr_cli.tasks.base import Task
from rlvr_cli.tasks.problem import Problem
from rlvr_cli.tasks.prompts import TemplateFailure, by_chat_template, check_template_options

# What judges look for; a server that drops special tokens drops these where a tokenizer holds them as such.
_TAGS = ("<think>", "</think>", "<answer>", "</answer>", "<reasoning>", "</reasoning>")


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


def prompt_text(prompt: Prompt) -> str:
    """Return a prompt as a reader sees it: its text, or its messages with their roles."""
    if prompt.messages is None:
        return prompt.text
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in prompt.messages)


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
