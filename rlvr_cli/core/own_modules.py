"""What a file of the user's own imports from its own folder: found, copied, and imported from the copies."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rlvr_cli.core.errors import UserError

# The name of a module's text in a module that was made from it.
TEXT = "__text__"
# Whatever was executed, by the name in tracebacks.
_EXECUTED: set[str] = set()


def read_text_of(path: Path) -> str:
    """A file of Python, with `\\n` at the ends of lines. Raises UserError where it is no UTF-8 text, and OSError."""
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}:{raw.count(10, 0, error.start) + 1}: is not UTF-8 text") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def imported_from_folder(path: Path, text: str) -> dict[str, str]:
    """The modules in the folder of the file ``path`` that it imports, directly or not: text by path in the folder.

    A library of the same name wins. What is imported by other means than `import` is not found.

    Raises:
        UserError: one cannot be read, or a relative import leads out of the folder; with file and line.
    """
    main = path.resolve()
    folder, found = main.parent, dict[str, str]()
    waiting = [(main, text, "")]
    while waiting:
        place, source, package = waiting.pop()
        for name in _names(place, source, package):
            for module, file in _files(name, folder):
                key = file.relative_to(folder).as_posix()
                if key in found or file == main:
                    continue
                try:
                    found[key] = read_text_of(file)
                except OSError as error:
                    raise UserError(f"{file}: cannot be read: {error.strerror}") from None
                inside = module if file.name == "__init__.py" else module.rpartition(".")[0]
                waiting.append((file, found[key], inside))
    return dict(sorted(found.items()))


def _names(place: Path, text: str, package: str) -> Iterator[str]:
    """The dotted names of modules, and of what may be one, that a file imports."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return  # said with its line when it is executed
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".") if package else []
                if node.level > len(parts):
                    written = f"from {'.' * node.level}{base} import ..."
                    raise UserError(
                        f"{place}:{node.lineno}: `{written}` is relative, and the file is in no package so deep. "
                        f"Write `{f'from {base} import ...' if base else 'import NAME'}`."
                    )
                base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [base])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _files(name: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """The files in the folder that make up a module: its packages and itself; none where it is a library's."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts) or _is_library(parts[0], folder):
        return
    for end in range(1, len(parts) + 1):
        base, module = folder.joinpath(*parts[:end]), ".".join(parts[:end])
        if (base / "__init__.py").is_file():
            yield module, base / "__init__.py"
        elif base.with_name(f"{base.name}.py").is_file():
            yield module, base.with_name(f"{base.name}.py")
            return
        elif not base.is_dir():
            return


def _is_library(name: str, folder: Path) -> bool:
    """Whether a module of that name is found elsewhere than in the folder."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    places = [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or ())
    return not places or any(Path(place).resolve().parent not in (folder, folder / name) for place in places)


def execute(text: str, path: Path, name: str, copies: Mapping[str, str] | None = None) -> ModuleType:
    """The module ``name`` that ``text``, the content of ``path``, is. Raises whatever the code raises.

    Args:
        copies: what it imports from its folder, as of :func:`imported_from_folder`; two files may each have a module
            of the same name.
    """
    own = None if copies is None or not copies else _Copies(name, path.parent, copies)
    return _executed(text, path, name, own, "")


def _executed(text: str, path: Path, name: str, own: _Copies | None, package: str) -> ModuleType:
    module = ModuleType(name)
    vars(module).update({"__file__": str(path), "__package__": package, TEXT: text})
    if own is not None:
        vars(module)["__builtins__"] = own.builtins
    # Dataclasses, pickle and pydantic look a class up by its module.
    sys.modules[name] = module
    _EXECUTED.add(str(path))
    if own is not None:
        own.begun(name, module)
    try:
        exec(compile(text, path, "exec", dont_inherit=True), vars(module))  # noqa: S102
    except BaseException:
        del sys.modules[name]
        raise
    return module


class _Copies:
    """The modules next to a file, from their copies; `import` in the file and in them, now or later, finds these."""

    def __init__(self, prefix: str, folder: Path, texts: Mapping[str, str]) -> None:
        self.prefix, self.folder, self.texts = prefix, folder, texts
        self.tops = {key.partition("/")[0].removesuffix(".py") for key in texts}
        self.modules: dict[str, ModuleType] = {}
        self.builtins = {**vars(builtins), "__import__": self.find}

    def begun(self, name: str, module: ModuleType) -> None:
        """Know a module while it is executed: others may import it in a circle."""
        if name != self.prefix:
            self.modules[name.removeprefix(f"{self.prefix}.")] = module

    def find(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """What ``__import__`` does."""
        if level:
            parts = str((globals or {}).get("__package__") or "").split(".")
            name = ".".join([*parts[: len(parts) - level + 1], *filter(None, [name])])
        elif name.partition(".")[0] not in self.tops:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        module = self._load(name)
        if not fromlist:
            return self._load(name.partition(".")[0])
        for one in fromlist:
            if not hasattr(module, one) and self._key(f"{name}.{one}") is not None:
                self._load(f"{name}.{one}")
        return module

    def _key(self, name: str) -> str | None:
        """The file of a module; "" of a folder without an `__init__.py`, None of no module."""
        path = name.replace(".", "/")
        for key in (f"{path}/__init__.py", f"{path}.py"):
            if key in self.texts:
                return key
        return "" if any(key.startswith(f"{path}/") for key in self.texts) else None

    def _load(self, name: str) -> ModuleType:
        if name in self.modules:
            return self.modules[name]
        above, _, last = name.rpartition(".")
        parent = self._load(above) if above else None
        key = self._key(name)
        if key is None:
            raise ModuleNotFoundError(f"No module named {name!r} in {self.folder}", name=name)
        package = name if not key or key.endswith("__init__.py") else above
        text, path = (self.texts[key], self.folder / key) if key else ("", self.folder / name.replace(".", "/"))
        try:
            module = _executed(text, path, f"{self.prefix}.{name}", self, package)
        except BaseException:
            self.modules.pop(name, None)
            raise
        if parent is not None:
            setattr(parent, last, module)
        return module


def was_executed(file: str) -> bool:
    """Whether a file, by its name in tracebacks, is one of the user's own."""
    return file in _EXECUTED
