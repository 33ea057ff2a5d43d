"""Which server an evaluation asks, and how: from the configuration, checked. Nothing is sent here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError

Endpoint = Literal["completions", "chat"]


@dataclass(frozen=True)
class ServerOptions:
    """How a server is asked.

    Attributes:
        base_url: without a slash at the end, as ``http://host:8000/v1``.
        model_name: the model's name there; None = the only one that it serves.
        kind: one of the names in ``kinds.KINDS``, or ``auto``.
        endpoint: ``auto``, ``completions`` or ``chat``.
        timeout: seconds for one completion.
        key_variable: the environment variable that holds the key; the key itself is kept nowhere.
    """

    base_url: str
    model_name: str | None = None
    kind: str = "auto"
    endpoint: Literal["auto", "completions", "chat"] = "auto"
    concurrency: int = 16
    retries: int = 20
    timeout: float = 600.0
    key_variable: str = "OPENAI_API_KEY"

    @classmethod
    def from_config(cls, config: Config) -> ServerOptions:
        """The options of ``config.eval``, which was checked. Raises UserError with every problem found."""
        problems = option_problems(config, named=True)
        if problems or config.eval.base_url is None:
            raise UserError(problems)
        return cls(
            base_url=config.eval.base_url.rstrip("/"),
            model_name=config.eval.model_name,
            kind=config.eval.server,
            endpoint=config.eval.endpoint,
            concurrency=config.eval.concurrency,
            retries=config.eval.retries,
            timeout=config.eval.request_timeout,
            key_variable=config.eval.api_key_variable,
        )

    @property
    def key(self) -> str | None:
        """The server's key, from the environment; the end of a line that came with it is no part of it."""
        return os.environ.get(self.key_variable, "").strip() or None

    @property
    def local(self) -> bool:
        """Whether the server is on this machine, where no proxy leads to."""
        host = urlsplit(self.base_url).hostname or ""
        return host == "localhost" or host == "::1" or host.startswith("127.")


def key_note(config: Config) -> list[str]:
    """Where the key goes, for people to read before it is sent; empty where no key or no server is used."""
    chosen = config.eval
    if chosen.engine != "openai" or not os.environ.get(chosen.api_key_variable, "").strip():
        return []
    return [f"the key in {chosen.api_key_variable} is sent to {chosen.base_url}"]


def option_problems(config: Config, *, named: bool) -> list[str]:
    """What is wrong with asking the server of ``config.eval``; empty when nothing is.

    Args:
        named: whether the command line names the server. A key goes to no other: a configuration comes from anywhere.
    """
    chosen = config.eval
    problems = []
    if chosen.base_url is None:
        problems.append(
            "--engine openai: needs the server's address. Give --base-url (eval.base_url), as in --base-url "
            "http://localhost:8000/v1."
        )
    else:
        problems += _url_problems(chosen.base_url)
    if chosen.api_key_variable != "OPENAI_API_KEY" and not os.environ.get(chosen.api_key_variable):
        problems.append(
            f"eval.api_key_variable={chosen.api_key_variable}: no such variable in the environment, or it is empty. "
            f"Set it to the server's key: export {chosen.api_key_variable}=..."
        )
    key = os.environ.get(chosen.api_key_variable, "").strip()
    if not key.isascii() or not key.isprintable():
        # Not repeated in the message.
        problems.append(
            f"{chosen.api_key_variable}: the key has a line break or a character that no HTTP header can hold. Check "
            "that it was copied completely and without extra text."
        )
    if key and chosen.base_url is not None and not named:
        problems.append(
            f"eval.base_url={chosen.base_url}: is of the run's configuration, and a key ({chosen.api_key_variable}) is "
            f"sent only to a server that the command line names. Give --base-url {chosen.base_url}, or unset "
            f"{chosen.api_key_variable}."
        )
    return problems


def _url_problems(url: str) -> list[str]:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return [f"--base-url: not an address ({error}). Write one such as http://localhost:8000/v1."]
    if parts.scheme not in ("http", "https") or not host:
        return [f"--base-url {url}: not an address of http or https. Write one such as http://localhost:8000/v1."]
    if parts.path.rstrip("/").endswith(("/completions", "/models")):
        return [f"--base-url {url}: give the part before /completions or /chat/completions, which most often is /v1."]
    return []
