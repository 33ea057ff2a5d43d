"""Prompts through a tokenizer's chat template, which is a program that came with the model: it gets limits."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import TYPE_CHECKING, Any

from rlvr_cli.core.errors import RunError, UserError

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.sandbox import SandboxedEnvironment

# Processor seconds for one prompt, which takes milliseconds, and characters of its text.
MOST_SECONDS = 10.0
MOST_CHARACTERS = 1_000_000


# One message of a conversation: `role` and `content`.
Message = Mapping[str, str]


class TemplateFailure(Exception):
    """The template fails on these messages, or refuses them: some have no system turn."""


class _TooLong(BaseException):
    """The time is up. No Exception, so that nothing on the way takes it for an error of its own."""


def chat_prompt(
    tokenizer: Any, *ways: Sequence[Message], instead: str = "none", options: Mapping[str, Any] | None = None
) -> str:
    """The prompt that a tokenizer's chat template makes of the first conversation that it can write.

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
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(one, dict) and isinstance(one.get("role"), str) and isinstance(one.get("content"), str)
            for one in value
        )
    )


def unfit_conversation(messages: Sequence[Message]) -> str | None:
    """Return what keeps messages from being a prompt: no question, or the assistant spoke last."""
    roles = [message["role"] for message in messages]
    if roles[-1] == "assistant":
        return "the last message is the assistant's, but the assistant writes the next one"
    if set(roles) == {"system"}:
        return "there is a system turn alone; a prompt needs a user's turn"
    return None


def spellings(messages: Sequence[Message]) -> list[Sequence[Message]]:
    """The conversation, and the same with its first system turns in front of the user's, for templates without any."""
    first = next((place for place, message in enumerate(messages) if message["role"] != "system"), 0)
    if not first or messages[first]["role"] != "user":
        return [messages]
    joined = "\n\n".join(message["content"] for message in messages[: first + 1])
    return [messages, [{"role": "user", "content": joined}, *messages[first + 1 :]]]


def conversation_prompt(
    tokenizer: Any, messages: Sequence[Message], *, instead: str, options: Mapping[str, Any] | None = None
) -> str:
    """The prompt of a conversation that ends with a user's turn, whatever the tokenizer has.

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
    """The prompt with the beginning of the answer, which ends in ``<think>``; some templates open it themselves."""
    return prompt if prompt.rstrip().endswith("<think>") else prompt + prefix


def has_template(tokenizer: Any) -> bool:
    """Return whether prompts go through a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def check_template_options(options: Mapping[str, Any], tokenizer: Any) -> None:
    """Refuse variables that the tokenizer's chat template does not read. Raises UserError."""
    template = getattr(tokenizer, "chat_template", None) if options else ""
    if options and not template:
        raise UserError("task.chat_template_kwargs: the model has no chat template, and so no variables of one.")
    unread = [name for name in options if name not in json.dumps(template, default=str)]
    if unread:
        raise UserError(f"task.chat_template_kwargs: the model's chat template does not read {', '.join(unread)}.")


def by_chat_template(tokenizer: Any, messages: Sequence[Message], options: Mapping[str, Any] | None = None) -> str:
    """The messages as the model reads them, up to where the assistant begins.

    Raises:
        TemplateFailure: the template cannot write these messages.
        UserError: it exceeds the limits, so no other messages need to be tried.
    """
    # Imported here: `tasks` is used by commands that must not wait for a template engine.
    from jinja2 import TemplateError

    if _raises_to_a_power(getattr(tokenizer, "chat_template", None)):
        raise UserError(f"model: its chat template computes powers (**), {_ADVICE}")
    try:
        with _deadline():
            text = str(
                tokenizer.apply_chat_template(
                    [dict(message) for message in messages],
                    tokenize=False,
                    add_generation_prompt=True,
                    **(options or {}),
                )
            )
    except _TooLong:
        raise UserError(f"model: its chat template ran for {MOST_SECONDS:g} s on one prompt, {_ADVICE}") from None
    except (MemoryError, RecursionError, OverflowError) as error:
        raise UserError(
            f"model: its chat template is too large to run ({error or type(error).__name__}), {_ADVICE}"
        ) from error
    except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise TemplateFailure(str(error) or type(error).__name__) from error
    if len(text) > MOST_CHARACTERS:
        raise UserError(f"model: its chat template writes a prompt of {len(text):,} characters, {_ADVICE}")
    return text


@lru_cache(maxsize=1)
def _environment() -> SandboxedEnvironment:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # Not optimized: to compile a template computes nothing of it.
    made = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True, optimized=False)
    # Python code, which the deadline does not interrupt.
    del made.globals["lipsum"]
    return made


def template_problem(template: str) -> str | None:
    """Return what is wrong with a Jinja template: its syntax, filters and tests. Nothing of it is computed."""
    from jinja2 import TemplateSyntaxError, nodes

    environment = _environment()
    try:
        tree = environment.parse(template)
        for power in tree.find_all(nodes.Pow):
            return f"line {power.lineno}: it computes a power (**), which nothing interrupts"
        for node in tree.find_all((nodes.Filter, nodes.Test)):
            kind = "filter" if isinstance(node, nodes.Filter) else "test"
            if node.name not in (environment.filters if kind == "filter" else environment.tests):
                return f"line {node.lineno}: there is no {kind} {node.name!r}"
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    except RecursionError:
        return "its expressions are nested too deep"
    except ValueError as error:
        return f"it cannot be read ({error})"  # a number of too many digits
    return None


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    return _environment().from_string(template)


def by_template(template: str, columns: Mapping[str, Any]) -> str:
    """Write a row by a Jinja template. Raises TemplateFailure, and RunError where it exceeds the limits of a prompt."""
    try:
        with _deadline():
            text = _compiled(template).render(**columns)
    except _TooLong:
        # No error of this row alone: the others would take as long.
        raise RunError(f"task.prompt_template takes more than {MOST_SECONDS:g} s for a row.") from None
    except Exception as error:
        raise TemplateFailure(f"{error}" or type(error).__name__) from error
    if len(text) > MOST_CHARACTERS:
        raise TemplateFailure(f"writes {len(text):,} characters; at most {MOST_CHARACTERS:,}")
    if not text.strip():
        raise TemplateFailure("writes an empty prompt")
    return text


_ADVICE = "which no chat template needs. Use a model whose tokenizer has a working chat template, or none."


def leading_bos(tokenizer: Any) -> str:
    """Return what a prompt must begin with, "" for most models.

    Prompts are encoded without added special tokens, so a model that was trained with one needs it in the text.
    """
    ids = tokenizer("")["input_ids"]
    return str(tokenizer.bos_token) if ids and ids[0] == tokenizer.bos_token_id else ""


@contextmanager
def _deadline() -> Iterator[None]:
    """Raises _TooLong in the code of a template after MOST_SECONDS of this thread.

    By tracing, which works in every thread and ends with the block; a signal reaches the main thread only. The frames
    of templates are those that come from no file.
    """
    end = time.thread_time() + MOST_SECONDS

    def each_line(frame: FrameType, event: str, argument: Any) -> Any:
        if time.thread_time() > end:
            raise _TooLong
        return each_line

    def each_call(frame: FrameType, event: str, argument: Any) -> Any:
        return each_line if frame.f_code.co_filename.startswith("<") else None

    before = sys.gettrace()
    sys.settrace(each_call)
    try:
        yield
    finally:
        sys.settrace(before)


def _raises_to_a_power(template: Any) -> bool:
    """Return whether a template, or one of several by name, has the operator ``**``: nothing interrupts ``9**9**9``."""
    templates = template.values() if isinstance(template, Mapping) else [template]
    return any(isinstance(one, str) and "**" in one and _has_power(one) for one in templates)


@lru_cache(maxsize=8)
def _has_power(template: str) -> bool:
    from jinja2 import Environment, TemplateError

    before = ""
    try:
        for _, kind, text in Environment(autoescape=True).lex(template):
            if kind == "operator" and text == "**" and before not in ("(", ","):
                return True
            before = before if kind == "whitespace" else text
    except TemplateError:
        return False
    return False
