"""User files: methods, tasks and reward functions in Python, imported by path.

A configuration refers to a file as ``PATH.py@DIGEST``; the digest covers its text and the modules that it imports from
its folder. A run keeps copies in its folder ``code/``, to which references in its configuration resolve first. Commands
that only read do not import user files.
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

SUFFIX = ".py"
REFERENCE = re.compile(r"(?P<path>.+\.py)(?:@(?P<digest>[0-9a-f]{12}))?")
# The folder of copies in a run, and next to the configurations of a sweep.
COPIES = "code"
# Timeout of an import, in seconds.
IMPORT_TIMEOUT = 60.0
# Prefix of the module names of user files, and the module attribute with the executed text.
PREFIX, TEXT = "rlvr_user_", "__text__"


@dataclass(frozen=True)
class UserFile:
    """A user's Python file with its text.

    Attributes:
        path: absolute. text: its content, with `\\n` line endings.
        imports: text of the modules that it imports from its folder, by path relative to the folder.
    """

    path: Path
    text: str
    imports: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def sha256(self) -> str:
        return text_digest(json.dumps([self.text, dict(self.imports)]) if self.imports else self.text)

    @property
    def digest(self) -> str:
        return self.sha256[:12]

    @property
    def reference(self) -> str:
        return f"{self.path}@{self.digest}"

    def as_json(self) -> dict[str, Any]:
        return {"path": str(self.path), "text": self.text, "imports": dict(self.imports)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> UserFile:
        return cls(Path(value["path"]), value["text"], value["imports"])

    def location(self, name: str) -> str:
        """Return the location of a class or a constant of the file, as `my.py:12`."""
        return f"{display_path(self.path)}:{self._lines.get(name, 1)}"

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
        return f"{PREFIX}{re.sub(r'[^A-Za-z0-9_]', '_', self.path.stem)}_{self.digest}"


def read_user_file(path: Path) -> UserFile:
    """Read a file and its imports from its folder. Raises UserError if it is missing or not a text file."""
    path = path.parent.resolve() / path.name
    if not path.exists():
        raise UserError(f"{path}: no such file.{did_you_mean(str(path), map(str, path.parent.glob(f'*{SUFFIX}')))}")
    if not path.is_file():
        raise UserError(f"{path}: is not a regular file.")
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
    """Read the modules that the file imports from its folder, transitively; packages as a whole."""
    folder, texts, queue = path.parent, dict[str, str](), [text]
    while queue:
        try:
            nodes = list(ast.walk(ast.parse(queue.pop())))
        except (SyntaxError, ValueError):
            continue  # reported, with its line, on import
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
        for top in {name.partition(".")[0] for name in names}:
            if _is_library(top, folder):
                continue
            package, module = folder / top, folder / f"{top}{SUFFIX}"
            # As for `import`: a folder without __init__.py is a package unless a module has its name.
            is_package = package.is_dir() and ((package / "__init__.py").is_file() or not module.is_file())
            for file in sorted(package.rglob(f"*{SUFFIX}")) if is_package else [module]:
                key = file.relative_to(folder).as_posix()
                if file.is_file() and file != path and key not in texts:
                    texts[key] = _read(file)
                    queue.append(texts[key])
    return dict(sorted(texts.items()))


def _is_library(name: str, folder: Path) -> bool:
    """Return whether a module of that name is installed; it takes precedence over the folder's."""
    excluded = {"", str(Path.cwd()), str(folder), *_FOLDERS}
    paths = [path for path in sys.path if path not in excluded]
    # rlvr_cli itself may be an editable checkout in an excluded folder.
    names = sys.stdlib_module_names | {"rlvr_cli"}
    return name in names or PathFinder.find_spec(name, paths) is not None


def find_user_file(written: str, folder: Path | None = None) -> UserFile:
    """Read the file that a configuration in ``folder``, or the command line, refers to.

    A reference with a digest resolves first to the copies next to the configuration. Paths are relative to the folder,
    else to the current one. Raises UserError for a missing file or another digest.
    """
    match = REFERENCE.fullmatch(written)
    if match is None:
        raise UserError(f"{written}: must be a Python file, as my.py.")
    path, digest = resolve_path(match["path"], folder), match["digest"]
    if folder is not None and digest is not None and (copy := folder / COPIES / digest / path.name).is_file():
        path = copy
    file = read_user_file(path)
    if digest not in (None, file.digest):
        raise UserError(
            f"{path}: has changed since it was recorded (SHA-256 {digest}... then, {file.digest}... now), and there is "
            f"no copy of the earlier file. Name the file without @{digest} to use it as it is."
        )
    return file


def resolve_path(written: str, folder: Path | None) -> Path:
    path = local_path(written)
    near = path if folder is None else folder / path
    return near if near.exists() or not path.exists() else path


def strip_folder(reference: str) -> str:
    return reference.rpartition("/")[2]


class _TextLoader(SourceFileLoader):
    """Loads a module from its recorded text, even if the file has changed."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self.text = text

    def get_data(self, path: str) -> bytes:
        return self.text.encode()

    def path_stats(self, path: str) -> Any:
        raise OSError("no bytecode")


class _FolderFinder:
    """Finds the modules that a user file imports from its folder, before those of the current folder."""

    def __init__(self, file: UserFile) -> None:
        self.folder = str(file.path.parent)
        self.texts = file.imports
        self.names = {name.partition("/")[0].removesuffix(SUFFIX) for name in file.imports}
        # This file's modules while `sys.modules` has those of another file.
        self.modules: dict[str, ModuleType] = {}

    def provides(self, name: str) -> bool:
        return name.partition(".")[0] in self.names

    def activate(self) -> None:
        """Put the folder's modules into `sys.modules`: two folders may have modules of the same name."""
        first = next((finder for finder in sys.meta_path if isinstance(finder, _FolderFinder)), None)
        if first is self:
            return
        if first is not None:
            first.modules = {name: module for name, module in [*sys.modules.items()] if first.provides(name)}
        for name in filter(self.provides, [*sys.modules]):
            del sys.modules[name]
        sys.modules.update(self.modules)
        sys.meta_path[:] = [self, *(finder for finder in sys.meta_path if finder is not self)]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not self.provides(name):
            return None
        base = name.replace(".", "/")
        for key in (f"{base}{SUFFIX}", f"{base}/__init__{SUFFIX}"):
            if key in self.texts:
                origin = f"{self.folder}/{key}"
                return spec_from_file_location(name, origin, loader=_TextLoader(name, origin, self.texts[key]))
        if any(key.startswith(f"{base}/") for key in self.texts):
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [f"{self.folder}/{base}"]
            return spec
        return PathFinder.find_spec(name, [self.folder] if path is None else path)


_folder_finder = cache(_FolderFinder)
_FOLDERS: set[str] = set()
_LOADED: dict[tuple[Path, str], ModuleType] = {}


def load_module(file: UserFile, seconds: float | None = None) -> ModuleType:
    """Import the file; each text is executed once. Its folder stays last in `sys.path`, for imports in functions.

    Raises UserError, one line with file, line and error, also for `sys.exit` and a timeout.
    """
    key = (file.path, file.digest)
    if key not in _LOADED:
        folder = str(file.path.parent)
        if folder not in sys.path:
            sys.path.append(folder)
            _FOLDERS.add(folder)
        importlib.invalidate_caches()
        with guard(file, "the file", seconds or IMPORT_TIMEOUT, UserError):
            _LOADED[key] = _execute(file)
    return _LOADED[key]


def _execute(file: UserFile) -> ModuleType:
    module = ModuleType(file.module)
    vars(module).update({"__file__": str(file.path), TEXT: file.text})
    # Dataclasses, pickle and pydantic look up classes by their module.
    sys.modules[file.module] = module
    # Bytecode of the folder's modules could be reused for text changed within the same second.
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        # Execute the hashed text, even if the file has changed.
        exec(compile(file.text, file.path, "exec", dont_inherit=True), vars(module))  # noqa: S102
    except BaseException:
        del sys.modules[file.module]
        raise
    finally:
        sys.dont_write_bytecode = before
    return module


def load_name(file: UserFile, name: str, seconds: float | None = None) -> Any:
    values = vars(load_module(file, seconds))
    if name not in values:
        names = [key for key in values if getattr(values[key], "__module__", None) == file.module and key[0] != "_"]
        defined = ", ".join(names) or "nothing"
        raise UserError(f"{display_path(file.path)}: has no {name}.{did_you_mean(name, names)} It defines {defined}.")
    return values[name]


class _Timeout(BaseException):
    """Timeout. Derives from BaseException so that `except Exception` in user code does not catch it."""


@contextlib.contextmanager
def guard(
    file: UserFile,
    called: str,
    seconds: float | None = None,
    kind: type[UserError | RunError] = RunError,
    about: str = "",
) -> Iterator[None]:
    """Run user code in this process; raise its errors as ``kind``, one line with the location in the user's file.

    Output goes to standard error, and the current folder is restored. `os._exit` ends this process, so files are tried
    in a separate process first. ``seconds``: timeout (main thread only).
    """
    folder = Path.cwd()
    _folder_finder(file).activate()
    try:
        with contextlib.redirect_stdout(sys.stderr), _deadline(seconds):
            yield
    except (UserError, RunError):
        raise
    except _Timeout as error:
        if seconds is None:
            raise
        raise kind(f"{error_line(error, file)}: {called} took more than {seconds:g} s{about}.") from None
    except SyntaxError as error:
        if error.filename != str(file.path):
            raise kind(f"{error_line(error, file)}: {format_error(error)}{about}") from error
        raise kind(f"{display_path(file.path)}:{error.lineno}: syntax error: {error.msg}{about}") from None
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        # With the default SIGINT handler this may be Ctrl-C.
        if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            raise
        if type(error).__name__ == "OutOfMemoryError":
            raise
        raise kind(f"{error_line(error, file)}: {called} raised {format_error(error)}{about}") from error
    finally:
        with contextlib.suppress(OSError):
            os.chdir(folder)


@contextlib.contextmanager
def _deadline(seconds: float | None) -> Iterator[None]:
    """Raise _Timeout after ``seconds``, in the main thread only; restore an earlier timer."""
    earlier, _ = signal.getitimer(signal.ITIMER_REAL)
    main = threading.current_thread() is threading.main_thread()
    if seconds is None or not main or 0 < earlier < seconds:
        yield
        return

    def expire(*_: Any) -> None:
        raise _Timeout

    began, before = time.monotonic(), signal.signal(signal.SIGALRM, expire)
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
    return f"{display_path(frames[-1].filename)}:{frames[-1].lineno}" if frames else display_path(file.path)


def format_error(error: BaseException) -> str:
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}{f': {text}' if text else ''}"


def describe_value(value: Any) -> str:
    return f"{' '.join(repr(value).split())[:60]} ({type(value).__name__})"


def user_error_message(error: BaseException) -> str | None:
    """Return the message of an exception from a user file or a library that it called, else None."""
    ours = str(Path(__file__).parents[1])
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if str(frame.f_globals.get("__name__", "")).startswith(PREFIX):
            return f"{display_path(frame.f_code.co_filename)}:{line}: {format_error(error)}"
        if frame.f_code.co_filename.startswith(ours):
            return None
    return None


def run_async(value: Any) -> Any:
    """Run an awaitable and return its result; return any other value as is."""
    return _event_loop().run_until_complete(value) if inspect.isawaitable(value) else value


@cache
def _event_loop() -> Any:
    """Create the event loop of all calls, since a module's clients are bound to a loop."""
    import asyncio  # slow to import, and rarely needed

    return asyncio.new_event_loop()


def display_path(path: Path | str) -> str:
    with contextlib.suppress(ValueError, OSError):
        return str(Path(path).relative_to(Path.cwd()))
    return str(path)


def load_classes(file: UserFile) -> list[type]:
    """Import the file and return the classes that it defines. Raises UserError as :func:`load_module`."""
    module = load_module(file)
    values = dict.fromkeys(value for value in vars(module).values() if isinstance(value, type))
    return [kind for kind in values if kind.__module__ == module.__name__]


def function_line(function: Any, file: UserFile) -> str:
    """Return the location of a function or property, as `my.py:12`; line 1 if it is from another file."""
    code = getattr(inspect.unwrap(getattr(function, "fget", function)), "__code__", None)
    line = code.co_firstlineno if code is not None and code.co_filename == str(file.path) else 1
    return f"{display_path(file.path)}:{line}"


def save_copies(files: Iterable[UserFile], folder: Path) -> dict[str, list[dict[str, str]]]:
    """Write the files to ``folder``/code, each in a folder of its digest; return their entry for the manifest."""
    entries = []
    for file in files:
        copy = folder / COPIES / file.digest
        for name, text in {file.path.name: file.text, **file.imports}.items():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(copy / name, text.encode())
        entries.append({"file": str(file.path), "sha256": file.sha256})
    return {"user_files": entries} if entries else {}


def edited_file_warnings(manifest: Mapping[str, Any]) -> list[str]:
    """Return warnings about the run's user files that were edited since; deleted files are ignored."""
    warnings = []
    for entry in manifest.get("user_files") or ():
        path = Path(str(entry["file"]))
        with contextlib.suppress(UserError):
            if path.is_file() and read_user_file(path).sha256 != entry["sha256"]:
                warnings.append(
                    f"{display_path(path)} or a module that it imports was edited since; the run uses its copy. "
                    "To use the new version, give it on the command line of a new run or evaluation."
                )
    return warnings
