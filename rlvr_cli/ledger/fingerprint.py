"""What decides a measure beside its run: the source of the analysis, as far as it can change a number."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import rlvr_cli

# Packages whose code decides an analysis; what these import from elsewhere is the project's common ground.
DECIDING = ("rlvr_cli.report.analyses", "rlvr_cli.analysis", "rlvr_cli.methods")
_SIZE = 16
_ROOT = Path(rlvr_cli.__file__).parents[1]


def digest(value: Any) -> str:
    """A hash of JSON values, 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_SIZE]


@cache
def code_of(module: str) -> str:
    """A hash of a module and of all that it imports from :data:`DECIDING`, directly or not.

    Of the syntax tree without docstrings: comments, layout and words change nothing.
    """
    found: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _path(name)
        if name in found or path is None:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        waiting += [other for other in _imported(tree) if other.startswith(DECIDING)]
        found[name] = ast.dump(_without_docstrings(tree))
    return digest(found)


def _path(name: str) -> Path | None:
    """The file of a module; None for what is none, as a name that is imported from one. Imports nothing."""
    place = _ROOT.joinpath(*name.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            yield node.module
            # What is imported may be a module itself.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return tree
