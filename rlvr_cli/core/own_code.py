"""Python files of the user's own, named on the command line or in a configuration: imported by their path."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.own_modules import execute, imported_from_folder, read_text_of, was_executed
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.core.yaml import LongText, dump

ENDING = ".py"
# Seconds that a file may take to be imported.
_LOADING = 60.0
# A configuration may have 200,000.
_MAX_BYTES = 150_000
_LOADED: dict[tuple[str, str], ModuleType] = {}


def load_code(source: OwnFile) -> ModuleType:
    """The module that the file is, executed once for each content. Raises UserError with its line where that fails."""
    key = (source.file, source.code)
    if key not in _LOADED:
        path = Path(source.file)
        try:
            _LOADED[key] = import_own(source, f"rlvr_own_{path.stem}_{source.code}")
        except SyntaxError as error:
            raise UserError(f"{shown(error.filename or path)}:{error.lineno}: syntax error: {error.msg}") from error
        except (Exception, SystemExit) as error:
            raise UserError(f"{blamed(error, path)} (while loading the file)") from error
    return _LOADED[key]


def from_code(source: OwnFile, name: str) -> Any:
    """What the file calls ``name``. Raises UserError: as :func:`load_code`, or there is no such name."""
    module = load_code(source)
    if not hasattr(module, name):
        own = [
            key
            for key, value in vars(module).items()
            if not key.startswith("_") and getattr(value, "__module__", None) == module.__name__
        ]
        has = f" It has {', '.join(own)}." if own else " It defines nothing."
        raise UserError(f"{shown(source.file)}: has no {name}.{did_you_mean(name, own)}{has}")
    return getattr(module, name)


def shown(path: Path | str) -> str:
    """A path as a person in this folder would write it."""
    with contextlib.suppress(ValueError, OSError):
        return str(Path(path).relative_to(Path.cwd()))
    return str(path)


def place_of(error: BaseException, path: Path | str) -> tuple[str, int | None]:
    """The innermost place of an exception in code of the user's own: the file ``path`` without a line where none is."""
    for one in reversed(traceback.extract_tb(error.__traceback__)):
        if was_executed(one.filename):
            return one.filename, one.lineno
    return str(path), None


def is_of_own_code(error: BaseException) -> bool:
    """Whether an exception comes from code of the user's own, or from a library that this called, and not from ours."""
    ours = str(Path(__file__).parents[1])
    for one in reversed(traceback.extract_tb(error.__traceback__)):
        if was_executed(one.filename) or one.filename.startswith(ours):
            return was_executed(one.filename)
    return False


def line_of(error: BaseException, path: Path | str) -> str:
    """The same as text, `my.py:12`."""
    file, line = place_of(error, path)
    return f"{file}:{line or 1}"


def said_of(error: BaseException) -> str:
    """An exception's type and text."""
    return f"{type(error).__name__}: {error}".rstrip(": ")


def blamed(error: BaseException, path: Path) -> str:
    """An exception of the user's code in one line: the innermost place in the file, the type and the message."""
    file, line = place_of(error, path)
    said = " ".join(str(error).split())[:300]
    return f"{shown(file)}{'' if line is None else f':{line}'}: {type(error).__name__}{f': {said}' if said else ''}"


@dataclass(frozen=True)
class OwnFile:
    """A file whose text goes wherever the configuration goes that names it.

    Attributes:
        of: what it is: a task, a method, or reward functions.
        file: its path; absolute where the file itself counts, bare where this text is all that counts (a sweep's copy).
        text: its content, with `\\n` at the ends of lines.
        module: the name by which it is imported, of an installed package; "" = it is executed from its text.
        package: that package with its version.
        known: the hash of a text that is not here, of a package's file in a configuration.
        imports: what it imports from its own folder: text by the path in the folder.
    """

    of: str
    file: str
    text: str
    module: str = ""
    package: str = ""
    known: str = ""
    imports: Mapping[str, str] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """Of the text, and of what it imports from its folder."""
        whole = json.dumps([self.text, dict(self.imports)]) if self.imports else self.text
        return self.known or text_digest(whole)

    @property
    def code(self) -> str:
        """The first digits of the hash, as the key `code` of a task or method has them."""
        return self.sha256[:12]

    def block(self, *, bare: bool = False) -> dict[str, Any]:
        """As files of configurations have it; ``bare`` = the text alone counts from now on.

        Of a package's there is no text: who has the package has it.
        """
        if self.module:
            names = ("of", "file", "module", "package")
            return {name: getattr(self, name) for name in names} | {"sha256": self.sha256}
        file = Path(self.file).name if bare else self.file
        block = {"of": self.of, "file": file, "text": LongText(self.text)}
        imports = {name: LongText(text) for name, text in self.imports.items()}
        return block | ({"imports": imports} if imports else {})


def copied_file(block: Mapping[Any, Any]) -> OwnFile | None:
    """The file of such a block; None where it is not one."""
    keys = {str(key): str(value) for key, value in block.items() if isinstance(value, str)}
    imports = block.get("imports", {})
    if not isinstance(imports, dict) or not all(isinstance(one, str) for pair in imports.items() for one in pair):
        return None
    if {*keys} == {"of", "file", "text"}:
        return OwnFile(**keys, imports=imports)
    if {*keys} == {"of", "file", "module", "package", "sha256"}:
        return OwnFile(keys["of"], keys["file"], "", keys["module"], keys["package"], keys["sha256"])
    return None


def read_own_file(path: Path, of: str, *, alone: bool = False) -> OwnFile:
    """The file at ``path`` and, unless it is ``alone``, what it imports from its folder.

    Raises UserError where one of them cannot be read.
    """
    try:
        text = read_text_of(path)
    except FileNotFoundError:
        near = [str(path.parent / other.name) for other in path.parent.glob(f"*{ENDING}")]
        raise UserError(f"{path}: no such file.{did_you_mean(str(path), near)}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    imports = {} if alone else imported_from_folder(path, text)
    source = OwnFile(of, str(path.resolve()), text, imports=imports)
    if len(dump([source.block()]).encode()) > _MAX_BYTES:
        rest = f", with what it imports from its folder ({', '.join(imports)})" if imports else ""
        raise UserError(
            f"{path}: is larger than {_MAX_BYTES:,} bytes in a configuration{rest}, and every run keeps a copy. Put "
            "the large parts into a package and install it."
        )
    return source


def offered(of: str) -> list[tuple[str, str, Any]]:
    """What installed packages offer as tasks or methods: name, package with version, entry point.

    Nothing of a package is imported.
    """
    from importlib.metadata import entry_points  # slow to import, and few commands need it

    return [
        (one.name, f"{one.dist.name} {one.dist.version}" if one.dist else "?", one)
        for one in entry_points(group=f"rlvr.{of}s")
    ]


def of_packages(of: str, built_in: Collection[str]) -> list[str]:
    """Lines that list the tasks or methods of installed packages; none where there are none."""
    said = [
        f"{name} ({package}{': hidden by the built-in one' if name in built_in else ''})"
        for name, package, _ in offered(of)
    ]
    return [f"From installed packages: {', '.join(sorted(said))}."] if said else []


def packaged(name: str, of: str) -> OwnFile | None:
    """The file of the task or method that an installed package offers by ``name``; None where none does.

    Raises:
        UserError: several packages offer it, or the package's module is not there; names the package.
    """
    found = [(package, entry) for offers, package, entry in offered(of) if offers == name]
    if not found:
        return None
    if len(found) > 1:
        raise UserError(f"{name}: is a {of} of several packages: {', '.join(package for package, _ in found)}.")
    ((package, entry),) = found
    try:
        spec = importlib.util.find_spec(entry.module)
    except Exception as error:
        raise _of_package(package, of, entry, f"{type(error).__name__}: {error}") from error
    if spec is None or spec.origin is None or not spec.origin.endswith(ENDING):
        raise _of_package(package, of, entry, f"there is no module {entry.module}")
    return replace(read_own_file(Path(spec.origin), of, alone=True), module=entry.module, package=package)


def _of_package(package: str, of: str, entry: Any, said: str) -> UserError:
    return UserError(f"the package {package} cannot give its {of} {entry.name} (= {entry.value}): {said}")


def import_own(source: OwnFile, name: str) -> ModuleType:
    """The module of the file: executed as ``name``, or that of a package imported. Raises whatever its code raises.

    What it prints goes to stderr. Should it end this process, standard error says so.
    """
    with contextlib.redirect_stdout(sys.stderr), _watched(source.file), staying():
        if not source.module:
            return execute(source.text, Path(source.file), name, source.imports)
        there = sys.modules.get(source.module)
        return importlib.import_module(source.module) if there is None else importlib.reload(there)


def imported(source: OwnFile, name: str) -> ModuleType:
    """As :func:`import_own`. Raises UserError for whatever the code raises, with file and line, and where it hangs."""
    try:
        with within(_LOADING):
            return import_own(source, name)
    except KeyboardInterrupt:
        raise
    except TooLong as error:
        raise UserError(f"{line_of(error, source.file)}: took more than {_LOADING:g} s to load") from None
    except BaseException as error:
        if isinstance(error, SyntaxError) and error.filename == source.file:
            raise UserError(f"{source.file}:{error.lineno}: {error.msg}") from None
        said = said_of(error)
        if isinstance(error, TypeError) and " is taken by " in str(error):
            said = f"{str(error).removeprefix(f'{name}.')}. Choose another name."
        raise UserError(f"{line_of(error, source.file)}: {said}") from error


class TooLong(BaseException):
    """Code of the user's ran for longer than it may; no ``except Exception`` of its own stops this."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TooLong in what runs longer. Only in the main thread; an earlier timer is set again."""
    theirs, _ = signal.getitimer(signal.ITIMER_REAL)
    if threading.current_thread() is not threading.main_thread() or 0 < theirs < seconds:
        yield
        return

    def late(*_: Any) -> None:
        raise TooLong

    started, before = time.monotonic(), signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if theirs:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, theirs - (time.monotonic() - started)))


class EndedProcess(SystemExit):
    """What `os._exit` raises in code of the user's own; no ``except Exception`` of its own stops this."""


@contextlib.contextmanager
def staying() -> Iterator[None]:
    """Have `os._exit` raise EndedProcess: it would end the command without a word. Forks may use it as ever."""
    leave, own = os._exit, os.getpid()

    def stay(status: int) -> NoReturn:
        if os.getpid() != own:
            leave(status)
        raise EndedProcess(f"os._exit({status}) would end this process")

    os._exit = stay
    try:
        yield
    finally:
        os._exit = leave


@contextlib.contextmanager
def _watched(file: str) -> Iterator[None]:
    """Have another process say that this one ended, as by a signal: its input ends without a line then."""
    said = f"{file}: this process ended while the file was loaded"
    # A worker's watcher ends with the worker, whose end is said by who waits for it.
    command = 'read -r done || { sleep 0.2; printf "%s\\n" "$0" >&2; }'
    try:
        watcher = subprocess.Popen(["/bin/sh", "-c", command, said], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    except OSError:  # the system has no process left: what follows will say so
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            watcher.communicate(b"\n")


def find_own_file(name: str, folder: Path | None) -> Path:
    """Where the file ``name`` is: next to the file that names it, in ``folder``, else from the current folder."""
    path = local_path(name)
    near = path if folder is None else folder / path
    return near if near.exists() or not path.exists() else path


def in_manifest(sources: Iterable[OwnFile]) -> dict[str, list[dict[str, Any]]]:
    """A run manifest's entries on the files: nothing where there are none."""
    files = [
        {"of": one.of, "file": one.file, "sha256": one.sha256}
        | ({"package": one.package} if one.package else {})
        | ({"imports": {name: text_digest(text) for name, text in one.imports.items()}} if one.imports else {})
        for one in sources
    ]
    return {"own_files": files} if files else {}


def check_packages(place: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse to go on with a run whose package is another now: of packages no copy is kept. Raises UserError."""
    for about in manifest.get("own_files") or ():
        of, path = str(about.get("of")), Path(str(about.get("file", "")))
        if (package := about.get("package")) and (
            not path.is_file() or read_own_file(path, of, alone=True).sha256 != about.get("sha256")
        ):
            raise UserError(
                f"{place}: was begun with the {of} of the package {package}, and {path} has changed or is missing. "
                "Reinstall that version, or start a new run."
            )


def changed(sources: Iterable[OwnFile]) -> list[str]:
    """Sentences on the files that were edited since these copies were made; a file that is gone was not."""
    said = []
    for one in sources:
        path = Path(one.file)
        if one.module or not path.is_absolute() or not path.is_file():
            continue
        try:
            now = read_own_file(path, one.of)
        except UserError:
            now = replace(one, text="", imports={})
        names = [
            name for name in sorted({*one.imports, *now.imports}) if one.imports.get(name) != now.imports.get(name)
        ]
        files = [path] * (one.text != now.text) + [path.parent / name for name in names]
        if files:
            was = "was" if len(files) == 1 else "were"
            said.append(
                f"{', '.join(map(shown, files))} {was} changed since; the run goes by its own copy of the {one.of}. To "
                "have the new one, name it on the command line of a new run or evaluation."
            )
    return said


def class_lines(text: str) -> dict[str, int]:
    """The line of each class of a file of Python."""
    return {node.name: node.lineno for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)}
