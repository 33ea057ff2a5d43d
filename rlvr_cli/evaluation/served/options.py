"""Check which server an evaluation asks, and how; nothing is sent here."""

from __future__ import annotations

import os
from typing import Literal
from urllib.parse import urlsplit

from rlvr_cli.config.evaluation import EvalConfig
from rlvr_cli.config.schema import Config

Endpoint = Literal["completions", "chat"]


def url_of(options: EvalConfig) -> str:
    """Return the server's address without a slash at the end, as ``http://host:8000/v1``."""
    return (options.base_url or "").rstrip("/")


def key_of(options: EvalConfig) -> str | None:
    """Return the server's key, from the environment, without the end of a line; it is kept nowhere."""
    return os.environ.get(options.api_key_variable, "").strip() or None


def key_note(config: Config) -> list[str]:
    """Return where the key goes, to be shown before it is sent; empty where no key or no server is used."""
    chosen = config.eval
    if chosen.engine != "openai" or key_of(chosen) is None:
        return []
    return [f"the key in {chosen.api_key_variable} is sent to {chosen.base_url}"]


def option_problems(config: Config, *, named: bool) -> list[str]:
    """Return what is wrong with asking the server of ``config.eval``; empty when nothing is.

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
    key = key_of(chosen) or ""
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
