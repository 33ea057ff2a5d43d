"""Validate server options, without I/O."""

from __future__ import annotations

import os
from collections.abc import Callable
from urllib.parse import urlsplit

from rlvr_cli.config.evaluation import EvalConfig
from rlvr_cli.config.schema import Config

Say = Callable[[str], None]


def server_url(options: EvalConfig) -> str:
    return (options.base_url or "").rstrip("/")


def api_key(options: EvalConfig) -> str | None:
    """Return the server's key from the environment; it is never stored."""
    return os.environ.get(options.api_key_variable, "").strip() or None


def key_note(config: Config) -> list[str]:
    """Return a note on the server that the key is sent to; empty without a key or a server."""
    options = config.eval
    if options.engine != "openai" or api_key(options) is None:
        return []
    return [f"the key in {options.api_key_variable} is sent to {options.base_url}"]


def option_problems(config: Config, *, named: bool) -> list[str]:
    """Return the problems of server options; a key is sent to no server but one ``named`` on the command line."""
    url, variable, key = config.eval.base_url, config.eval.api_key_variable, api_key(config.eval)
    if url is None:
        problems = [
            "--engine openai: needs the server's address. Use --base-url (eval.base_url), as in --base-url "
            "http://localhost:8000/v1."
        ]
    else:
        problems = _url_problems(url)
    if key is None and variable != "OPENAI_API_KEY":
        problems.append(
            f"eval.api_key_variable={variable}: not set in the environment, or empty. Set it to the server's key: "
            f"export {variable}=..."
        )
    if key is not None and not (key.isascii() and key.isprintable()):
        # The message must not repeat the key.
        problems.append(
            f"{variable}: the key has a line break or a character that is invalid in an HTTP header. Check that it was "
            "copied completely and without extra text."
        )
    if key is not None and url is not None and not named:
        problems.append(
            f"eval.base_url={url}: is from the run's configuration, and a key ({variable}) is sent only to a server "
            f"that the command line names. Use --base-url {url}, or unset {variable}."
        )
    return problems


def _url_problems(url: str) -> list[str]:
    example = "Use one such as http://localhost:8000/v1."
    try:
        address = urlsplit(url)
        host, _ = address.hostname, address.port
    except ValueError as error:
        return [f"--base-url: not an address ({error}). {example}"]
    if address.scheme not in ("http", "https") or not host:
        return [f"--base-url {url}: must be an http or https address. {example}"]
    if address.path.rstrip("/").endswith(("/completions", "/models")):
        return [f"--base-url {url}: must end before /completions or /chat/completions, in most cases in /v1."]
    return []
