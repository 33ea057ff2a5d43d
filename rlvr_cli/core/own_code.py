"""Python files of the user's own, named on the command line or in a configuration: imported by their path."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import did_you_mean

_LOADED: dict[tuple[Path, str], ModuleType] = {}


def code_digest(path: Path) -> str:
    """The first twelve digits of the file's SHA-256. Raises UserError when it cannot be read."""
    return _digest(_read(path))


def execute(source: str | bytes, path: Path, name: str) -> ModuleType:
    """The module ``name`` that ``source``, the content of ``path``, is; what it prints goes to stderr.

    Raises whatever the code raises; then there is no such module.
    """
    module = ModuleType(name)
    module.__file__ = str(path)
    # Dataclasses, pickle and pydantic look a class up by its module.
    sys.modules[name] = module
    try:
        with contextlib.redirect_stdout(sys.stderr):
            exec(compile(source, path, "exec", dont_inherit=True), vars(module))  # noqa: S102
    except BaseException:
        del sys.modules[name]
        raise
    return module


def load_code(path: Path) -> ModuleType:
    """The module that the file is, executed once for each content.

    It can import the modules next to it; a library of the same name wins.

    Raises:
        UserError: it cannot be read, or its code fails; names its line.
    """
    source = _read(path)
    key = (path.resolve(), _digest(source))
    if key not in _LOADED:
        folder = str(key[0].parent)
        if folder not in sys.path:
            # Last: a folder of data that is called `datasets` must not hide the library.
            sys.path.append(folder)
        try:
            _LOADED[key] = execute(source, key[0], f"rlvr_own_{path.stem}_{key[1]}")
        except SyntaxError as error:
            raise UserError(f"{error.filename or path}:{error.lineno}: syntax error: {error.msg}") from error
        except (Exception, SystemExit) as error:
            raise UserError(f"{blamed(error, path)} (while the file was loaded)") from error
    return _LOADED[key]


def from_code(path: Path, name: str) -> Any:
    """What the file calls ``name``. Raises UserError: as :func:`load_code`, or there is no such name."""
    module = load_code(path)
    if not hasattr(module, name):
        own = [
            key
            for key, value in vars(module).items()
            if not key.startswith("_") and getattr(value, "__module__", None) == module.__name__
        ]
        has = f" It has {', '.join(own)}." if own else " It defines nothing."
        raise UserError(f"{path}: has no {name}.{did_you_mean(name, own)}{has}")
    return getattr(module, name)


def line_of(error: BaseException, path: Path) -> int | None:
    """The line of the file that an exception passed through last; None where it did not."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((one.lineno for one in reversed(frames) if Path(one.filename).resolve() == path.resolve()), None)


def blamed(error: BaseException, path: Path) -> str:
    """An exception of the user's code in one line: the innermost place in the file, the type and the message."""
    line = line_of(error, path)
    said = " ".join(str(error).split())[:300]
    return f"{path}{'' if line is None else f':{line}'}: {type(error).__name__}{f': {said}' if said else ''}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        what = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror or error})"
        raise UserError(f"{path}: {what}. A path is relative to the folder in which rlvr was called.") from error


def _digest(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()[:12]
