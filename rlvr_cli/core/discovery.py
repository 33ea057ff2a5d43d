"""Finds what registers itself by being defined."""

from __future__ import annotations

import pkgutil
from importlib import import_module


def define_all(package: str) -> None:
    """Import every module of ``package``, in the order of their names."""
    for module in pkgutil.iter_modules(import_module(package).__path__):
        import_module(f"{package}.{module.name}")
