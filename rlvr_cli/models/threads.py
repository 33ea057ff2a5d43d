"""How many CPU threads torch computes with."""

from __future__ import annotations

import os

from rlvr_cli.models.libraries import import_library
from rlvr_cli.runs.environment import usable_cores


def set_threads(wanted: int | None) -> int:
    """Compute with ``wanted`` threads (None: one for each usable core), and return their number.

    Best called before torch is imported. Threads that wait then sleep: the default, to spin, makes two threads on a
    busy machine slower than one by a factor of ten and more.
    """
    threads = wanted or usable_cores()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import_library("torch")
    import torch

    torch.set_num_threads(threads)
    return threads
