"""Check the options of a server; nothing is sent here."""

from __future__ import annotations

import os
from collections.abc import Callable
from urllib.parse import urlsplit

from rlvr_cli.config.evaluation import EvalConfig
from rlvr_cli.config.schema import Config

Say = Callable[[str], None]


def url_of(options: EvalConfig) -> str:
    """Return the server's address without a slash at the end, as ``http://host:8000/v1``."""
    return (options.base_url or "").rstrip("/")


def key_of(options: EvalConfig) -> str | None:
    """Return the server's key from the environment, without the end of its line; it is stored nowhere."""
    return os.environ.get(options.api_key_variable, "").strip() or None


def key_note(config: Config) -> list[str]:
    """Return which server the key is sent to, to be shown before it is; empty without a key or a server."""
    options = config.eval
    if options.engine != "openai" or key_of(options) is None:
        return []
    return [f"the key in {options.api_key_variable} is sent to {options.base_url}"]


def option_problems(config: Config, *, named: bool) -> list[str]:
    """Return what is wrong with the server options of ``config.eval``.

    Args:
        named: whether the command line names the server. A key goes to no other: a configuration comes from anywhere.
    """
    url, variable, key = config.eval.base_url, config.eval.api_key_variable, key_of(config.eval)
    if url is None:
        problems = [
            "--engine openai: needs the server's address. Use --base-url (eval.base_url), as in --base-url "
            "http://localhost:8000/v1."
        ]
    else:
        problems = _url_problems(url)
    if key is None and variable != "OPENAI_API_KEY":
        problems.append(
            f"eval.api_key_variable={variable}: no such variable in the environment, or it is empty. "
            f"Set it to the server's key: export {variable}=..."
        )
    if key is not None and not (key.isascii() and key.isprintable()):
        # Not repeated in the message.
        problems.append(
            f"{variable}: the key has a line break or a character that no HTTP header can hold. Check "
            "that it was copied completely and without extra text."
        )
    if key is not None and url is not None and not named:
        problems.append(
            f"eval.base_url={url}: is of the run's configuration, and a key ({variable}) is sent only to a server that "
            f"the command line names. Use --base-url {url}, or unset {variable}."
        )
    return problems


def _url_problems(url: str) -> list[str]:
    example = "Write one such as http://localhost:8000/v1."
    try:
        address = urlsplit(url)
        host, _ = address.hostname, address.port
    except ValueError as error:
        return [f"--base-url: not an address ({error}). {example}"]
    if address.scheme not in ("http", "https") or not host:
        return [f"--base-url {url}: not an address of http or https. {example}"]
    if address.path.rstrip("/").endswith(("/completions", "/models")):
        return [f"--base-url {url}: must end before /completions or /chat/completions, in most cases in /v1."]
    return []
