"""Write prompts through a tokenizer's chat template, or by a Jinja template of the configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.workers.pool import JobError, JobTimeout, Limits, Pool, Target

# Limits of one prompt by a user's template, which takes milliseconds, and of the characters of any prompt.
MOST_SECONDS = 10.0
MOST_CHARACTERS = 1_000_000
TEMPLATE_MIB = 1024


# The keys of a message of a conversation.
_KEYS = ("role", "content")
Message = Mapping[str, str]


class TemplateFailure(Exception):
    """A chat template failed on the messages, or refused them: some have no system turn."""


def chat_prompt(
    tokenizer: Any, *ways: Sequence[Message], instead: str = "none", options: Mapping[str, Any] | None = None
) -> str:
    """Return the chat template's prompt for the first conversation that it accepts.

    Args:
        ways: equivalent conversations, best first: some templates have no system turn.
        instead: the alternative named in the error.
        options: the template's own variables.
    Raises:
        UserError: it accepts none, or exceeds the limits.
    """
    errors: list[str] = []
    for messages in ways:
        try:
            return by_chat_template(tokenizer, messages, options)
        except TemplateFailure as error:
            errors.append(str(error))
    earlier = "".join(f"; with a system turn: {error}" for error in errors[:-1])
    raise UserError(
        f"model: its chat template cannot write a user turn ({errors[-1]}{earlier}). Use a model whose tokenizer has a "
        f"working chat template, or {instead}."
    )


def are_messages(value: Any) -> bool:
    """Return whether a value is a conversation: a list, not empty, of messages."""
    messages = value if isinstance(value, list) else []
    complete = (
        isinstance(message, dict) and {type(message.get(key)) for key in _KEYS} == {str} for message in messages
    )
    return bool(messages) and all(complete)


def unfit_conversation(messages: Sequence[Message]) -> str | None:
    """Return why messages are not a prompt: no user turn, or a last turn of the assistant's; None if they are."""
    roles = [message["role"] for message in messages]
    if roles[-1] == "assistant":
        return "the last message is the assistant's, but the assistant writes the next one"
    if set(roles) == {"system"}:
        return "there is only a system turn; a prompt needs a user's turn"
    return None


def spellings(messages: Sequence[Message]) -> list[Sequence[Message]]:
    """Return the conversation, and a variant with its first system turns merged into the user's."""
    first = next((turn for turn, message in enumerate(messages) if message["role"] != "system"), 0)
    if not first or messages[first]["role"] != "user":
        return [messages]
    joined = "\n\n".join(message["content"] for message in messages[: first + 1])
    return [messages, [{"role": "user", "content": joined}, *messages[first + 1 :]]]


def conversation_prompt(
    tokenizer: Any, messages: Sequence[Message], *, instead: str, options: Mapping[str, Any] | None = None
) -> str:
    """Return the prompt of a conversation that ends with a user's turn, for any tokenizer.

    A template without system turns gets the system turn in the user's; without a template the turns are joined by blank
    lines.

    Args:
        instead: the alternative named in the error.
        options: the template's own variables.
    Raises:
        UserError: as :func:`chat_prompt`; earlier answers without a chat template.
    """
    if has_template(tokenizer):
        return chat_prompt(tokenizer, *spellings(messages), instead=instead, options=options)
    if any(message["role"] == "assistant" for message in messages):
        raise UserError("model: has no chat template, and prompts with earlier answers need one.")
    *before, last = (message["content"] for message in messages)
    return leading_bos(tokenizer) + "\n\n".join([*before, last.rstrip(), ""])


def prefill_think(prompt: str, prefix: str) -> str:
    """Append the beginning of the response, which ends in ``<think>``, unless the template has already."""
    return prompt if prompt.rstrip().endswith("<think>") else prompt + prefix


def has_template(tokenizer: Any) -> bool:
    """Return whether prompts go through a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def check_template_options(options: Mapping[str, Any], tokenizer: Any) -> None:
    """Raise UserError for variables that the tokenizer's chat template does not read."""
    if not options:
        return
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        raise UserError("task.chat_template_kwargs: the model has no chat template, and so no variables of one.")
    read = _variables(template.values() if isinstance(template, dict) else [template])
    if unread := [name for name in options if name not in read]:
        listed = f" It reads {', '.join(sorted(read - _GIVEN))}." if read - _GIVEN else ""
        guess = did_you_mean(unread[0], read - _GIVEN)
        raise UserError(
            f"task.chat_template_kwargs: the model's chat template does not read {', '.join(unread)}.{guess}{listed}"
        )


# Variables that transformers passes to a chat template.
_GIVEN = {"messages", "add_generation_prompt", "raise_exception", "strftime_now", "bos_token", "eos_token"}
# A statement of transformers that jinja2 cannot parse.
_GENERATION = re.compile(r"{%-?\s*(end)?generation\s*-?%}")


def _variables(templates: Iterable[str]) -> set[str]:
    """Return the variables that templates read. Raises UserError for an invalid template."""
    from jinja2 import Environment, TemplateError, meta

    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        parsed = [environment.parse(_GENERATION.sub("", template)) for template in templates]
        return {name for tree in parsed for name in meta.find_undeclared_variables(tree)}
    except TemplateError as error:
        raise UserError(f"model: its chat template cannot be read ({error}).") from error


def by_chat_template(tokenizer: Any, messages: Sequence[Message], options: Mapping[str, Any] | None = None) -> str:
    """Apply the chat template, up to the beginning of the assistant's turn.

    Raises:
        TemplateFailure: the template fails on these messages.
        UserError: it exceeds the limits.
    """
    # Imported here: commands that only read tasks need no template engine.
    from jinja2 import TemplateError

    turns = [dict(message) for message in messages]
    try:
        text = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **(options or {})))
    except (MemoryError, RecursionError, OverflowError) as error:
        raise UserError(
            f"model: its chat template is too large to run ({error or type(error).__name__}), {_ADVICE}"
        ) from error
    except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise TemplateFailure(str(error) or type(error).__name__) from error
    if len(text) > MOST_CHARACTERS:
        raise UserError(f"model: its chat template writes a prompt of {len(text):,} characters, {_ADVICE}")
    return text


class TemplateWriter:
    """Renders a Jinja template of the configuration, in a worker: compiling it evaluates its constants."""

    def __init__(self, template: str) -> None:
        target = Target("rlvr_cli.workers.template:ready", template, ours=True, purpose="writes prompts by a template")
        self._pool = Pool(target, Limits(MOST_SECONDS, memory_mib=TEMPLATE_MIB))
        self._ended = ""

    def write(self, columns: Mapping[str, Any], where: str) -> str:
        """Render the template for a row; ``where`` names it in errors.

        Raises UserError; once a template has exceeded its limits, for every further row.
        """
        location = f"{where}: task.prompt_template"
        if not self._ended:
            try:
                text, error = self._pool.submit(dict(columns)).result()
            except JobTimeout:
                self._ended = f"{location} takes more than {MOST_SECONDS:g} s for a row."
            except JobError as ended:
                self._ended = f"{location} takes more than {TEMPLATE_MIB:,} MiB of memory for a row, or {ended}."
        if self._ended:
            raise UserError(self._ended)
        if error:
            raise UserError(f"{location}: {error} (the row has {', '.join(columns)})")
        if len(text) > MOST_CHARACTERS:
            raise UserError(f"{location} writes {len(text):,} characters; at most {MOST_CHARACTERS:,}")
        if not text.strip():
            raise UserError(f"{location} writes an empty prompt")
        return str(text)


# One process for all rows of a template.
template_writer = lru_cache(maxsize=8)(TemplateWriter)


_ADVICE = "which no chat template needs. Use a model whose tokenizer has a working chat template, or none."


def leading_bos(tokenizer: Any) -> str:
    """Return the token text with which a prompt must begin; "" for most models.

    Prompts are encoded without added special tokens, so a model trained with a BOS token needs it in the text.
    """
    ids = tokenizer("")["input_ids"]
    return str(tokenizer.bos_token) if ids and ids[0] == tokenizer.bos_token_id else ""
