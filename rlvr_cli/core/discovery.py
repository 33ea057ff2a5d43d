"""Finds what registers itself by being defined."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType


def define_all(package: str) -> list[ModuleType]:
    """Every module of ``package``, imported, in the order of their names."""
    names = [module.name for module in pkgutil.iter_modules(import_module(package).__path__)]
    return [import_module(f"{package}.{name}") for name in names]
