"""Whether Python code of a model's own repository may run in this process: only where the command line said so."""

from __future__ import annotations

_allowed = False


def allow_remote_code(allowed: bool = True) -> None:
    """What `--trust-remote-code` means; nothing stores it, so every command has to be told again."""
    global _allowed
    _allowed = allowed


def remote_code_allowed() -> bool:
    """Whether :func:`allow_remote_code` was called in this process."""
    return _allowed
