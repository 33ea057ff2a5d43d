"""Paths as people write them."""

from __future__ import annotations

from pathlib import Path

from rlvr_cli.core.errors import UserError


def local_path(name: str) -> Path:
    """``name`` as a path, a leading ``~`` or ``~user`` replaced by that home folder.

    Raises UserError when there is no such home folder.
    """
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        home = name.replace("\\", "/").split("/", 1)[0]
        raise UserError(f"{name}: there is no home folder {home}. Write the path out.") from error
