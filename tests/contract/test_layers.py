"""Imports point downwards only: which package may import which."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "rlvr_cli"

# From the top. A package imports from lower layers, and from its neighbours in its own.
LAYERS = (
    ("cli",),
    ("report", "sweeps"),
    ("compare",),
    ("analyses", "planning"),
    ("training", "evaluation", "describe"),
    ("models", "launch", "tracking"),
    ("config", "runs", "store", "charts"),
    ("methods", "tasks", "verify", "stats", "collapse"),
    ("workers",),
    ("core",),
)


def modules(path: Path) -> Iterator[str]:
    """The modules that a module imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def imports(path: Path) -> Iterator[str]:
    """The packages of the project that a module imports."""
    for name in modules(path):
        parts = name.split(".")
        if parts[0] == PACKAGE.name and len(parts) > 1:
            yield parts[1]


def test_every_package_has_a_layer() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages <= {package for layer in LAYERS for package in layer}


def test_imports_point_downwards() -> None:
    layer_of = {package: number for number, layer in enumerate(LAYERS) for package in layer}
    found = set()
    for path in PACKAGE.glob("*/**/*.py"):
        module = path.relative_to(PACKAGE)
        own = layer_of[module.parts[0]]
        found |= {(str(module), used) for used in imports(path) if layer_of.get(used, own) < own}
    assert found == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions and for types alone count too."""
    files = {path: ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in PACKAGE.rglob("*.py")}
    modules = {path: name.removesuffix(".__init__") for path, name in files.items()}
    known, used = set(modules.values()), dict[str, set[str]]()
    for path, module in modules.items():
        found = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                found |= {name if name in known else node.module for name in names}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
        used[module] = (found & known) - {module}
    TopologicalSorter(used).prepare()  # raises CycleError, which names the circle


def test_the_package_imports_nothing_that_is_not_installed() -> None:
    found = {(str(path), name) for path in PACKAGE.rglob("*.py") for name in modules(path)}
    assert {one for one in found if one[1].partition(".")[0] in ("experiments", "benchmarks", "tests")} == set()
