"""Python files of the user's own, named on the command line or in a configuration: imported by their path."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.core.yaml import LongText, dump

ENDING = ".py"
# A configuration may have 200,000.
_MAX_BYTES = 150_000
_LOADED: dict[tuple[Path, str], ModuleType] = {}


def code_digest(path: Path) -> str:
    """The first twelve digits of the file's SHA-256. Raises UserError when it cannot be read."""
    return _digest(_read(path))


def checked_digest(path: Path, digest: str) -> None:
    """Raise UserError where the file's digest is another one by now; the empty one is any."""
    now = code_digest(path)
    if digest and digest != now:
        raise UserError(
            f"{path}: has changed since this configuration was made (SHA-256 {digest}... then, {now}... now). Put the "
            "file back; an evaluation or a new run that names it without a digest (--reward FILE.py:FUNCTION) takes it "
            "as it is."
        )


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


@dataclass(frozen=True)
class OwnFile:
    """A file whose text goes wherever the configuration goes that names it.

    Attributes:
        of: the section of the configuration that names it: task or method.
        file: its path; absolute where the file itself counts, bare where this text is all that counts (a sweep's copy).
        text: its content, with `\\n` at the ends of lines.
        module: the name by which it is imported, of an installed package; "" = it is executed from its text.
        package: that package with its version.
        known: the hash of a text that is not here, of a package's file in a configuration.
    """

    of: str
    file: str
    text: str
    module: str = ""
    package: str = ""
    known: str = ""

    @property
    def sha256(self) -> str:
        return self.known or text_digest(self.text)

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
        return {"of": self.of, "file": Path(self.file).name if bare else self.file, "text": LongText(self.text)}


def copied_file(block: Mapping[Any, Any]) -> OwnFile | None:
    """The file of such a block; None where it is not one."""
    keys = {str(key): str(value) for key, value in block.items() if isinstance(value, str)}
    if {*keys} == {"of", "file", "text"}:
        return OwnFile(**keys)
    if {*keys} == {"of", "file", "module", "package", "sha256"}:
        return OwnFile(keys["of"], keys["file"], "", keys["module"], keys["package"], keys["sha256"])
    return None


def read_own_file(path: Path, of: str) -> OwnFile:
    """The file at ``path``. Raises UserError where it cannot be read."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        near = [str(path.parent / other.name) for other in path.parent.glob(f"*{ENDING}")]
        raise UserError(f"{path}: no such file.{did_you_mean(str(path), near)}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}:{raw.count(10, 0, error.start) + 1}: is not UTF-8 text") from None
    source = OwnFile(of, str(path.resolve()), text.replace("\r\n", "\n").replace("\r", "\n"))
    if len(raw) > _MAX_BYTES or len(dump([source.block()]).encode()) > _MAX_BYTES:
        raise UserError(f"{path}: is larger than {_MAX_BYTES:,} bytes in a configuration, and every run's has a copy")
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
    return replace(read_own_file(Path(spec.origin), of), module=entry.module, package=package)


def _of_package(package: str, of: str, entry: Any, said: str) -> UserError:
    return UserError(f"the package {package} cannot give its {of} {entry.name} (= {entry.value}): {said}")


def import_own(source: OwnFile, name: str) -> ModuleType:
    """The module of the file: executed as ``name``, or that of a package imported. Raises whatever its code raises."""
    if not source.module:
        return execute(source.text, Path(source.file), name)
    with contextlib.redirect_stdout(sys.stderr):
        there = sys.modules.get(source.module)
        return importlib.import_module(source.module) if there is None else importlib.reload(there)


def find_own_file(name: str, folder: Path | None) -> Path:
    """Where the file ``name`` is: next to the file that names it, in ``folder``, else from the current folder."""
    path = local_path(name)
    near = path if folder is None else folder / path
    return near if near.exists() or not path.exists() else path


def in_manifest(sources: Iterable[OwnFile]) -> dict[str, list[dict[str, str]]]:
    """What a run's manifest says of the files: nothing where there are none."""
    files = [
        {"of": one.of, "file": one.file, "sha256": one.sha256} | ({"package": one.package} if one.package else {})
        for one in sources
    ]
    return {"own_files": files} if files else {}


def check_unchanged(place: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse to go on with a run of whose files one was edited since. Raises UserError.

    A run whose file is gone goes on with its copy.
    """
    for about in manifest.get("own_files") or ():
        of, path = str(about.get("of")), Path(str(about.get("file", "")))
        if package := about.get("package"):
            if not path.is_file() or read_own_file(path, of).sha256 != about.get("sha256"):
                raise UserError(
                    f"{place}: was begun with the {of} of the package {package}, and {path} is another now, or gone. "
                    f"Install that version again, or start a new run."
                )
        elif path.is_absolute() and path.is_file() and read_own_file(path, of).sha256 != about.get("sha256"):
            raise UserError(
                f"{path}: was changed after {place} began with it, so the rest would be another run's. Undo the "
                f"change, or move the file away: the run then goes on with its own copy (`code` in "
                f"{place / 'config.yaml'}). To train on the new {of}: rlvr train --{of} {path}"
            )


def class_lines(text: str) -> dict[str, int]:
    """The line of each class of a file of Python."""
    return {node.name: node.lineno for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        what = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror or error})"
        raise UserError(f"{path}: {what}. A path is relative to the folder in which rlvr was called.") from error


def _digest(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()[:12]
