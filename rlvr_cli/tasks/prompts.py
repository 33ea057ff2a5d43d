"""Write prompts through a tokenizer's chat template, or by a Jinja template of the configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.workers.pool import JobError, JobTimeout, Limits, Pool, Target

# Seconds and memory for one prompt by a user's template, which takes milliseconds, and characters of any prompt.
MOST_SECONDS = 10.0
MOST_CHARACTERS = 1_000_000
TEMPLATE_MIB = 1024


# The keys of a message of a conversation.
_KEYS = ("role", "content")
Message = Mapping[str, str]


class TemplateFailure(Exception):
    """Report that the template fails on these messages, or refuses them: some have no system turn."""


def chat_prompt(
    tokenizer: Any, *ways: Sequence[Message], instead: str = "none", options: Mapping[str, Any] | None = None
) -> str:
    """Return the prompt that a tokenizer's chat template makes of the first conversation that it can write.

    Args:
        ways: conversations that ask the same, the best one first: some templates have no system turn.
        instead: what may be used where the template can write none of them.
        options: the template's own variables.
    Raises:
        UserError: it can write none, or exceeds the limits.
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
    """Return what keeps messages from being a prompt: no question, or the assistant spoke last."""
    roles = [message["role"] for message in messages]
    if roles[-1] == "assistant":
        return "the last message is the assistant's, but the assistant writes the next one"
    if set(roles) == {"system"}:
        return "there is a system turn alone; a prompt needs a user's turn"
    return None


def spellings(messages: Sequence[Message]) -> list[Sequence[Message]]:
    """Return the conversation, and the same with its first system turns in front of the user's."""
    first = next((turn for turn, message in enumerate(messages) if message["role"] != "system"), 0)
    if not first or messages[first]["role"] != "user":
        return [messages]
    joined = "\n\n".join(message["content"] for message in messages[: first + 1])
    return [messages, [{"role": "user", "content": joined}, *messages[first + 1 :]]]


def conversation_prompt(
    tokenizer: Any, messages: Sequence[Message], *, instead: str, options: Mapping[str, Any] | None = None
) -> str:
    """Return the prompt of a conversation that ends with a user's turn, whatever the tokenizer has.

    A template without system turns gets the system turn in front of the user's; without a template the turns stand
    below each other.

    Args:
        instead: what may be done where the template can write none of them.
        options: the template's own variables.
    Raises:
        UserError: as :func:`chat_prompt`; earlier answers, which only a chat template can tell from questions.
    """
    if has_template(tokenizer):
        return chat_prompt(tokenizer, *spellings(messages), instead=instead, options=options)
    if any(message["role"] == "assistant" for message in messages):
        raise UserError("model: has no chat template, and prompts with earlier answers need one.")
    *before, last = (message["content"] for message in messages)
    return leading_bos(tokenizer) + "\n\n".join([*before, last.rstrip(), ""])


def begun(prompt: str, prefix: str) -> str:
    """Append the beginning of the answer, which ends in ``<think>``; some templates open it themselves."""
    return prompt if prompt.rstrip().endswith("<think>") else prompt + prefix


def has_template(tokenizer: Any) -> bool:
    """Return whether prompts go through a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def check_template_options(options: Mapping[str, Any], tokenizer: Any) -> None:
    """Refuse variables that the tokenizer's chat template does not read. Raises UserError."""
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


# What transformers itself puts into a chat template.
_GIVEN = {"messages", "add_generation_prompt", "raise_exception", "strftime_now", "bos_token", "eos_token"}
# A statement of transformers' own, which jinja2 cannot parse.
_GENERATION = re.compile(r"{%-?\s*(end)?generation\s*-?%}")


def _variables(templates: Iterable[str]) -> set[str]:
    """Return the variables that templates read. Raises UserError for one that is no template."""
    from jinja2 import Environment, TemplateError, meta

    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        parsed = [environment.parse(_GENERATION.sub("", template)) for template in templates]
        return {name for tree in parsed for name in meta.find_undeclared_variables(tree)}
    except TemplateError as error:
        raise UserError(f"model: its chat template cannot be read ({error}).") from error


def by_chat_template(tokenizer: Any, messages: Sequence[Message], options: Mapping[str, Any] | None = None) -> str:
    """Return the messages as the model reads them, up to where the assistant begins.

    Raises:
        TemplateFailure: the template cannot write these messages.
        UserError: it exceeds the limits, so no other messages need to be tried.
    """
    # Imported here: `tasks` is used by commands that must not wait for a template engine.
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
    """Writes prompts by a Jinja template of the configuration, in a worker: to compile it computes its constants."""

    def __init__(self, template: str) -> None:
        target = Target("rlvr_cli.workers.template:ready", template, ours=True, what="writes prompts by a template")
        self._pool = Pool(target, Limits(MOST_SECONDS, memory_mib=TEMPLATE_MIB))
        self._ended = ""

    def write(self, columns: Mapping[str, Any], where: str) -> str:
        """Write a row, which messages call ``where``.

        Raises UserError. A template that went beyond its limits is not tried on other rows: they get the same message.
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


# One process serves all rows of a template.
template_writer = lru_cache(maxsize=8)(TemplateWriter)


_ADVICE = "which no chat template needs. Use a model whose tokenizer has a working chat template, or none."


def leading_bos(tokenizer: Any) -> str:
    """Return what a prompt must begin with, "" for most models.

    Prompts are encoded without added special tokens, so a model that was trained with one needs it in the text.
    """
    ids = tokenizer("")["input_ids"]
    return str(tokenizer.bos_token) if ids and ids[0] == tokenizer.bos_token_id else ""
