"""Render prompts with a tokenizer's chat template or a Jinja template of the configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.tasks.files import find_text_error

# The prompt style of models without `rlvr_prompt_style` in their config.json: English.
DEFAULT_STYLE: Final = "logic_rl"

# The keys of a conversation's message.
_KEYS = ("role", "content")
Message = Mapping[str, str]


class TemplateFailure(Exception):
    """A chat template raised an error for the messages: some refuse system turns."""


def chat_prompt(
    tokenizer: Any,
    *conversations: Sequence[Message],
    alternative: str = "none",
    options: Mapping[str, Any] | None = None,
) -> str:
    """Render the first of equivalent conversations that the chat template accepts: some have no system turn.

    ``alternative``: a remedy for the message of the UserError if it accepts none.
    """
    errors: list[str] = []
    for messages in conversations:
        try:
            return apply_chat_template(tokenizer, messages, options)
        except TemplateFailure as error:
            errors.append(str(error))
    earlier = "".join(f"; with a system turn: {error}" for error in errors[:-1])
    raise UserError(
        f"model: its chat template cannot write a user turn ({errors[-1]}{earlier}). Use a model whose tokenizer has a "
        f"working chat template, or {alternative}."
    )


def is_conversation(value: Any) -> bool:
    messages = value if isinstance(value, list) else []
    complete = (
        isinstance(message, dict) and {type(message.get(key)) for key in _KEYS} == {str} for message in messages
    )
    return bool(messages) and all(complete)


def conversation_error(messages: Sequence[Message]) -> str | None:
    """Return why a conversation is not a prompt (no user turn, or an assistant's last turn), or None."""
    roles = [message["role"] for message in messages]
    if roles[-1] == "assistant":
        return "the last message must not be the assistant's"
    if set(roles) == {"system"}:
        return "it has only a system turn; a prompt needs a user's turn"
    return None


def conversation_variants(messages: Sequence[Message]) -> list[Sequence[Message]]:
    """Return the conversation, and a variant with its leading system turns merged into the user's."""
    first = next((turn for turn, message in enumerate(messages) if message["role"] != "system"), 0)
    if not first or messages[first]["role"] != "user":
        return [messages]
    joined = "\n\n".join(message["content"] for message in messages[: first + 1])
    return [messages, [{"role": "user", "content": joined}, *messages[first + 1 :]]]


def conversation_prompt(
    tokenizer: Any, messages: Sequence[Message], *, alternative: str, options: Mapping[str, Any] | None = None
) -> str:
    """Render a conversation that ends with a user's turn, for any tokenizer; ``alternative``: a remedy for the message.

    A template without system turns gets a merged user's turn; without a template the turns are joined by blank lines.
    Raises UserError as :func:`chat_prompt`, and for assistant's turns without a chat template.
    """
    if has_template(tokenizer):
        return chat_prompt(tokenizer, *conversation_variants(messages), alternative=alternative, options=options)
    if any(message["role"] == "assistant" for message in messages):
        raise UserError("model: has no chat template, which prompts with assistant's turns need.")
    *before, last = (message["content"] for message in messages)
    return leading_bos(tokenizer) + "\n\n".join([*before, last.rstrip(), ""])


def prefill_think(prompt: str, prefix: str) -> str:
    """Append ``prefix``, the beginning of the response up to ``<think>``, unless the template has opened the tag."""
    return prompt if prompt.rstrip().endswith("<think>") else prompt + prefix


def has_template(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "chat_template", None))


def check_template_options(options: Mapping[str, Any], tokenizer: Any) -> None:
    """Raise UserError for variables that the tokenizer's chat template does not read."""
    if not options:
        return
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        raise UserError("task.chat_template_kwargs: the model has no chat template. Remove the key.")
    read = _template_variables(template.values() if isinstance(template, dict) else [template])
    if unread := [name for name in options if name not in read]:
        raise UserError(
            f"task.chat_template_kwargs: the model's chat template does not read {', '.join(unread)}."
            f"{did_you_mean(unread[0], read)} It reads {', '.join(sorted(read))}."
        )


# A statement of transformers that jinja2 cannot parse.
_GENERATION = re.compile(r"{%-?\s*(end)?generation\s*-?%}")


def _template_variables(templates: Iterable[str]) -> set[str]:
    """Return the undeclared variables of templates. Raises UserError for an invalid template."""
    from jinja2 import Environment, TemplateError, meta

    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        parsed = [environment.parse(_GENERATION.sub("", template)) for template in templates]
        return {name for tree in parsed for name in meta.find_undeclared_variables(tree)}
    except TemplateError as error:
        raise UserError(f"model: its chat template cannot be read ({error}).") from error


def apply_chat_template(tokenizer: Any, messages: Sequence[Message], options: Mapping[str, Any] | None = None) -> str:
    """Render messages and the header of the assistant's turn. Raises TemplateFailure if the template refuses them."""
    turns = [dict(message) for message in messages]
    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **(options or {})))
    except Exception as error:
        raise TemplateFailure(str(error) or type(error).__name__) from error


def find_template_error(template: str) -> str | None:
    """Return an error in a template of the configuration (syntax, filters, tests), or None, without evaluating it."""
    from jinja2 import TemplateSyntaxError, nodes

    environment = _template_environment()
    try:
        for node in environment.parse(template).find_all((nodes.Filter, nodes.Test)):
            kind = "filter" if isinstance(node, nodes.Filter) else "test"
            if node.name not in (environment.filters if kind == "filter" else environment.tests):
                return f'line {node.lineno}: unknown {kind} "{node.name}"'
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    except (RecursionError, ValueError) as error:
        return f"it cannot be read ({error})"  # nested too deeply, or a number of too many digits
    return None


def render_template(template: str, columns: Mapping[str, Any], where: str) -> str:
    """Render a template of the configuration for the row at ``where``. Raises UserError."""
    location = f"{where}: task.prompt_template"
    try:
        text = str(_compile_template(template).render(columns))
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise UserError(f"{location}: {reason} (the row has {', '.join(columns)})") from error
    if not text.strip():
        raise UserError(f"{location} writes an empty prompt")
    if fault := find_text_error(text):
        raise UserError(f"{location} writes {fault}")
    return text


@lru_cache(maxsize=8)
def _compile_template(template: str) -> Any:
    return _template_environment().from_string(template)


def _template_environment() -> Any:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)


def leading_bos(tokenizer: Any) -> str:
    """Return the BOS token's text if the tokenizer adds one, else "": prompts are encoded without special tokens."""
    ids = tokenizer("")["input_ids"]
    return str(tokenizer.bos_token) if ids and ids[0] == tokenizer.bos_token_id else ""
