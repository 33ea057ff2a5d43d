"""Import torch and altair lazily, so that modules that only declare parameters import quickly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import altair as alt
    import torch
    from torch import Tensor
else:
    from importlib import import_module
    from types import ModuleType

    class _Lazy(ModuleType):
        """A module that is imported on first access."""

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module(self.__name__), name)
            if not name.startswith("__"):
                self.__dict__[name] = value
            return value

    alt, torch = _Lazy("altair"), _Lazy("torch")
    # For annotations only.
    Tensor = Any

__all__ = ["Tensor", "alt", "torch"]
