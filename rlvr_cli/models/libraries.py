"""Import large libraries at less cost."""

from __future__ import annotations

import gc
import sys
from importlib import import_module


def import_library(name: str) -> None:
    """Import the module ``name`` without a garbage collection meanwhile, and leave what is there out of later ones.

    torch, transformers and TRL make a million objects that stay. Collections that look through them again and again,
    and find nothing, are a sixth of the CPU time until a training's first step.
    Call it before there is a model: one that is in a cycle by then is never freed.
    """
    if name in sys.modules:
        return
    gc.disable()
    try:
        import_module(name)
    finally:
        gc.enable()
        gc.freeze()
