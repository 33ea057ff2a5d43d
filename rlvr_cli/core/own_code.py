"""Python files of the user's own, named on the command line or in a configuration: imported by their path."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
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
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError as error:
        what = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror or error})"
        raise UserError(f"{path}: {what}. A path is relative to the folder in which rlvr was called.") from error


def load_code(path: Path) -> ModuleType:
    """The module that the file is, executed once for each content.

    It can import the modules next to it; a library of the same name wins. What it prints goes to stderr.

    Raises:
        UserError: it cannot be read, or its code fails; names its line.
    """
    key = (path.resolve(), code_digest(path))
    if key not in _LOADED:
        folder = str(key[0].parent)
        if folder not in sys.path:
            # Last: a folder of data that is called `datasets` must not hide the library.
            sys.path.append(folder)
        name = f"rlvr_own_{path.stem}_{key[1]}"
        spec = importlib.util.spec_from_file_location(name, key[0])
        if spec is None or spec.loader is None:
            raise UserError(f"{path}: is no Python file; its name must end in .py.")
        module = importlib.util.module_from_spec(spec)
        # Dataclasses and pickle look a class up by its module.
        sys.modules[name] = module
        try:
            with contextlib.redirect_stdout(sys.stderr):
                spec.loader.exec_module(module)
        except SyntaxError as error:
            del sys.modules[name]
            raise UserError(f"{error.filename or path}:{error.lineno}: syntax error: {error.msg}") from error
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise UserError(f"{blamed(error, path)} (while the file was loaded)") from error
        _LOADED[key] = module
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


def blamed(error: BaseException, path: Path) -> str:
    """An exception of the user's code in one line: the innermost place in the file, the type and the message."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).resolve() == path.resolve()]
    line = f":{own[-1].lineno}" if own else ""
    said = " ".join(str(error).split())[:300]
    return f"{path}{line}: {type(error).__name__}{f': {said}' if said else ''}"
