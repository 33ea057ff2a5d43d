"""Processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>


def with_parent() -> Callable[[], None]:
    """What a child runs before its command, so that it is killed when the process that calls this has ended.

    To be called by the main thread: Linux takes the end of the thread that started the child for the parent's. Other
    systems have nothing like it; there a child has to look for itself.
    """
    parent = os.getpid()
    library = ctypes.CDLL(None) if sys.platform == "linux" else None

    def bind() -> None:
        if library is not None:
            library.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return bind
