"""User files: a method, a task or reward functions in Python, imported by path.

A configuration refers to a file as ``PATH.py@DIGEST``, the digest of its text and of the modules that it imports from
its folder. A run keeps copies in its folder ``code/``, which references in the run's configuration resolve to first.
Commands that only read do not import user files.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import local_path, write_bytes
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.text import did_you_mean

ENDING = ".py"
REFERENCE = re.compile(r"(?P<path>.+\.py)(?:@(?P<digest>[0-9a-f]{12}))?")
# The folder of copies in a run, and next to the configurations of a sweep.
COPIES = "code"
# Timeout of an import, in seconds.
LOADING = 60.0
# Prefix of the names of user files' modules, and their attribute with the executed text.
PREFIX, TEXT = "rlvr_user_", "__text__"


@dataclass(frozen=True)
class UserFile:
    """A Python file of the user's, with its text.

    Attributes:
        path: absolute. text: its content, with `\\n` at the ends of lines.
        imports: the modules that it imports from its folder: text by the path below the folder.
    """

    path: Path
    text: str
    imports: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def sha256(self) -> str:
        """Return the hash of the text and of the imported modules."""
        return text_digest(json.dumps([self.text, dict(self.imports)]) if self.imports else self.text)

    @property
    def digest(self) -> str:
        """Return the first digits of the hash, as references have them."""
        return self.sha256[:12]

    @property
    def reference(self) -> str:
        """The reference to the file in a configuration."""
        return f"{self.path}@{self.digest}"

    def as_json(self) -> dict[str, Any]:
        """Return the file as JSON, for a worker."""
        return {"path": str(self.path), "text": self.text, "imports": dict(self.imports)}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> UserFile:
        """Return the file of :meth:`as_json`."""
        return cls(Path(value["path"]), value["text"], value["imports"])

    def at(self, name: str) -> str:
        """Return the location of a class or a constant of the file, as `my.py:12`."""
        return f"{shown(self.path)}:{self._lines.get(name, 1)}"

    @cached_property
    def _lines(self) -> dict[str, int]:
        lines: dict[str, int] = {}
        for node in ast.parse(self.text).body:
            names = [node.name] if isinstance(node, ast.ClassDef) else []
            names += [target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)]
            lines |= dict.fromkeys(names, node.lineno)
        return lines

    def __hash__(self) -> int:
        return hash((self.path, self.digest))

    @property
    def module(self) -> str:
        """Return the name of the module that the file is."""
        return f"{PREFIX}{re.sub(r'[^A-Za-z0-9_]', '_', self.path.stem)}_{self.digest}"


def read_user_file(path: Path) -> UserFile:
    """Read a file and its imports from its folder. Raises UserError for anything but Python text."""
    path = path.parent.resolve() / path.name
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: is {'a folder' if path.is_dir() else 'not a regular file'}; name a file of Python.")
    if not path.exists():
        near = [str(other) for other in path.parent.glob(f"*{ENDING}")]
        raise UserError(f"{path}: no such file.{did_you_mean(str(path), near)}")
    text = _read(path)
    return UserFile(path, text, _imports_of(path, text))


def _read(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}:{raw.count(10, 0, error.start) + 1}: is not UTF-8 text.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None


def _imports_of(path: Path, text: str) -> dict[str, str]:
    """Read the modules of the file's folder that it imports, directly or not; packages as a whole."""
    folder, texts, waiting = path.parent, dict[str, str](), [text]
    while waiting:
        try:
            nodes = list(ast.walk(ast.parse(waiting.pop())))
        except (SyntaxError, ValueError):
            continue  # reported with its line when it is executed
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
        for top in {name.partition(".")[0] for name in names}:
            if _is_library(top, folder):
                continue
            package, module = folder / top, folder / f"{top}{ENDING}"
            # As in `import`: a folder without __init__.py is a package unless a module has its name.
            is_package = package.is_dir() and ((package / "__init__.py").is_file() or not module.is_file())
            for file in sorted(package.rglob(f"*{ENDING}")) if is_package else [module]:
                key = file.relative_to(folder).as_posix()
                if file.is_file() and file != path and key not in texts:
                    texts[key] = _read(file)
                    waiting.append(texts[key])
    return dict(sorted(texts.items()))


def _is_library(name: str, folder: Path) -> bool:
    """Return whether a module of that name is installed, which takes precedence over the folder's."""
    others = {"", str(Path.cwd()), str(folder), *_FOLDERS}
    paths = [path for path in sys.path if path not in others]
    # This package, which may be in an editable checkout that the search excludes.
    names = sys.stdlib_module_names | {"rlvr_cli"}
    return name in names or PathFinder.find_spec(name, paths) is not None


def find_user_file(written: str, folder: Path | None = None) -> UserFile:
    """Read the file that a configuration, in ``folder``, or the command line refers to.

    A reference with a digest is first searched among the copies next to the configuration. Paths are relative to the
    folder, or else to the current one.

    Raises UserError for a missing file, or another digest.
    """
    match = REFERENCE.fullmatch(written)
    if match is None:
        raise UserError(f"{written}: must be a Python file, as my.py.")
    path, digest = near_path(match["path"], folder), match["digest"]
    if folder is not None and digest is not None and (copy := folder / COPIES / digest / path.name).is_file():
        path = copy
    file = read_user_file(path)
    if digest not in (None, file.digest):
        raise UserError(
            f"{path}: has changed since it was recorded (SHA-256 {digest}... then, {file.digest}... now), and there is "
            f"no copy of the earlier file. Name the file without @{digest} to use it as it is."
        )
    return file


def near_path(written: str, folder: Path | None) -> Path:
    """Resolve a path relative to the folder, or else to the current one."""
    path = local_path(written)
    near = path if folder is None else folder / path
    return near if near.exists() or not path.exists() else path


def without_folder(reference: str) -> str:
    """Return a reference without its folder, which identifies a file in any location."""
    return reference.rpartition("/")[2]


class _Text(SourceFileLoader):
    """Loads a module from its text, even if the file has changed since it was read."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self.text = text

    def get_data(self, path: str) -> bytes:
        return self.text.encode()

    def path_stats(self, path: str) -> Any:
        raise OSError("no bytecode")


class _Neighbours:
    """Finds the modules that a user file imports from its folder, before modules of the current folder."""

    def __init__(self, file: UserFile) -> None:
        self.folder = str(file.path.parent)
        self.texts = file.imports
        self.names = {name.partition("/")[0].removesuffix(ENDING) for name in file.imports}
        # This file's modules, while `sys.modules` has another file's of the same names.
        self.modules: dict[str, ModuleType] = {}

    def has(self, name: str) -> bool:
        return name.partition(".")[0] in self.names

    def come_first(self) -> None:
        """Put the folder's modules into `sys.modules`, as two folders may have modules of one name."""
        first = next((finder for finder in sys.meta_path if isinstance(finder, _Neighbours)), None)
        if first is self:
            return
        if first is not None:
            first.modules = {name: module for name, module in [*sys.modules.items()] if first.has(name)}
        for name in filter(self.has, [*sys.modules]):
            del sys.modules[name]
        sys.modules.update(self.modules)
        sys.meta_path[:] = [self, *(finder for finder in sys.meta_path if finder is not self)]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not self.has(name):
            return None
        base = name.replace(".", "/")
        for key in (f"{base}{ENDING}", f"{base}/__init__{ENDING}"):
            if key in self.texts:
                origin = f"{self.folder}/{key}"
                return spec_from_file_location(name, origin, loader=_Text(name, origin, self.texts[key]))
        if any(key.startswith(f"{base}/") for key in self.texts):
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [f"{self.folder}/{base}"]
            return spec
        return PathFinder.find_spec(name, [self.folder] if path is None else path)


_neighbours = cache(_Neighbours)
_FOLDERS: set[str] = set()
_LOADED: dict[tuple[Path, str], ModuleType] = {}


def load_module(file: UserFile, seconds: float | None = None) -> ModuleType:
    """Import the file; a text is executed once. Its folder stays last in `sys.path`, for imports in functions.

    Raises UserError: one line with file, line and error, also for `sys.exit` and a timeout.
    """
    key = (file.path, file.digest)
    if key not in _LOADED:
        folder = str(file.path.parent)
        if folder not in sys.path:
            sys.path.append(folder)
            _FOLDERS.add(folder)
        importlib.invalidate_caches()
        with guarded(file, "the file", seconds or LOADING, UserError):
            _LOADED[key] = _executed(file)
    return _LOADED[key]


def _executed(file: UserFile) -> ModuleType:
    module = ModuleType(file.module)
    vars(module).update({"__file__": str(file.path), TEXT: file.text})
    # Dataclasses, pickle and pydantic look up classes by their module.
    sys.modules[file.module] = module
    # Bytecode of the folder's modules could be used for a later text of the same second.
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        # The hashed text, even if the file has changed.
        exec(compile(file.text, file.path, "exec", dont_inherit=True), vars(module))  # noqa: S102
    except BaseException:
        del sys.modules[file.module]
        raise
    finally:
        sys.dont_write_bytecode = before
    return module


def load_name(file: UserFile, name: str, seconds: float | None = None) -> Any:
    """Import the file and return its object ``name``. Raises UserError as :func:`load_module`, or without the name."""
    values = vars(load_module(file, seconds))
    if name not in values:
        names = [key for key in values if getattr(values[key], "__module__", None) == file.module and key[0] != "_"]
        has = f"has {', '.join(names)}" if names else "defines nothing"
        raise UserError(f"{shown(file.path)}: has no {name}.{did_you_mean(name, names)} It {has}.")
    return values[name]


class _TooLong(BaseException):
    """Timeout. Derives from BaseException so that `except Exception` in user code does not catch it."""


@contextlib.contextmanager
def guarded(
    file: UserFile,
    called: str,
    seconds: float | None = None,
    kind: type[UserError | RunError] = RunError,
    about: str = "",
) -> Iterator[None]:
    """Run user code in this process; its errors become ``kind``, one line with the location in the user's file.

    Its output goes to standard error, and the current folder is restored. A call of `os._exit` ends this process, so
    files are first tried in a separate one.

    Args:
        called: name of the call. seconds: timeout, in the main thread only. about: end of the message.
    """
    folder = Path.cwd()
    _neighbours(file).come_first()
    try:
        with contextlib.redirect_stdout(sys.stderr), _deadline(seconds):
            yield
    except (UserError, RunError):
        raise
    except _TooLong as error:
        if seconds is None:
            raise
        raise kind(f"{error_line(error, file)}: {called} took more than {seconds:g} s{about}.") from None
    except SyntaxError as error:
        if error.filename != str(file.path):
            raise kind(f"{error_line(error, file)}: {error_text(error)}{about}") from error
        raise kind(f"{shown(file.path)}:{error.lineno}: syntax error: {error.msg}{about}") from None
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        # With the default handler of SIGINT this may be Ctrl-C.
        if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            raise
        if type(error).__name__ == "OutOfMemoryError":
            raise
        raise kind(f"{error_line(error, file)}: {called} raised {error_text(error)}{about}") from error
    finally:
        with contextlib.suppress(OSError):
            os.chdir(folder)


@contextlib.contextmanager
def _deadline(seconds: float | None) -> Iterator[None]:
    """Raise _TooLong after ``seconds``. Only in the main thread; an earlier timer is restored."""
    earlier, _ = signal.getitimer(signal.ITIMER_REAL)
    main = threading.current_thread() is threading.main_thread()
    if seconds is None or not main or 0 < earlier < seconds:
        yield
        return

    def late(*_: Any) -> None:
        raise _TooLong

    began, before = time.monotonic(), signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if earlier:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, earlier - (time.monotonic() - began)))


def error_line(error: BaseException, file: UserFile) -> str:
    """Return the innermost location of an exception in the file or its local imports, as `my.py:12`."""
    paths = {str(file.path), *(str(file.path.parent / name) for name in file.imports)}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in paths]
    return f"{shown(frames[-1].filename)}:{frames[-1].lineno}" if frames else shown(file.path)


def error_text(error: BaseException) -> str:
    """Format an exception's type and text on one line."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}{f': {text}' if text else ''}"


def value_text(value: Any) -> str:
    """Format a value with its type on one line, for an error."""
    return f"{' '.join(repr(value).split())[:60]} ({type(value).__name__})"


def escaped_error(error: BaseException) -> str | None:
    """Return the message for an exception from a user file, or a library that it called; else None."""
    ours = str(Path(__file__).parents[1])
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    for frame, line in reversed(frames):
        if str(frame.f_globals.get("__name__", "")).startswith(PREFIX):
            return f"{shown(frame.f_code.co_filename)}:{line}: {error_text(error)}"
        if frame.f_code.co_filename.startswith(ours):
            return None
    return None


def awaited(value: Any) -> Any:
    """Return a value, or the result of an awaitable."""
    return _event_loop().run_until_complete(value) if inspect.isawaitable(value) else value


@cache
def _event_loop() -> Any:
    """Create the event loop shared by all calls, since a module's clients are bound to a loop."""
    import asyncio  # slow to import, and few files need it

    return asyncio.new_event_loop()


def shown(path: Path | str) -> str:
    """Return a path relative to the current folder if it is inside."""
    with contextlib.suppress(ValueError, OSError):
        return str(Path(path).relative_to(Path.cwd()))
    return str(path)


def classes_of(file: UserFile) -> list[type]:
    """Import the file and return the classes that it defines. Raises as :func:`load_module`."""
    module = load_module(file)
    values = dict.fromkeys(value for value in vars(module).values() if isinstance(value, type))
    return [kind for kind in values if kind.__module__ == module.__name__]


def function_line(function: Any, file: UserFile) -> str:
    """Return the location of a function or property, as `my.py:12`; line 1 if it is of another file."""
    code = getattr(inspect.unwrap(getattr(function, "fget", function)), "__code__", None)
    line = code.co_firstlineno if code is not None and code.co_filename == str(file.path) else 1
    return f"{shown(file.path)}:{line}"


def keep_copies(files: Iterable[UserFile], folder: Path) -> dict[str, list[dict[str, str]]]:
    """Write the files into ``folder``/code, each in a folder of its digest; return their entry in the manifest."""
    entries = []
    for file in files:
        copy = folder / COPIES / file.digest
        for name, text in {file.path.name: file.text, **file.imports}.items():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(copy / name, text.encode())
        entries.append({"file": str(file.path), "sha256": file.sha256})
    return {"user_files": entries} if entries else {}


def changed_files(manifest: Mapping[str, Any]) -> list[str]:
    """Return warnings about the run's files that were edited since; deleted files are not reported."""
    sentences = []
    for entry in manifest.get("user_files") or ():
        path = Path(str(entry["file"]))
        with contextlib.suppress(UserError):
            if path.is_file() and read_user_file(path).sha256 != entry["sha256"]:
                sentences.append(
                    f"{shown(path)} was changed since, or what it imports from its folder; the run uses its own copy. "
                    "To use the new one, name it on the command line of a new run or evaluation."
                )
    return sentences
