"""A worker whose jobs a program in another Python does: JSON lines to its standard input, and from its output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

from rlvr_cli.core.errors import RunError

# Of the Python that calls, not of the one that is called.
_OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")


def environment() -> dict[str, str]:
    """The environment variables of a program in another Python; sets of text have one order in every process of it."""
    kept = {name: value for name, value in os.environ.items() if name not in _OURS}
    # Of several processes bars would run into each other.
    return {**kept, "PYTHONHASHSEED": "0", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}


def ready(settings: dict[str, Any]) -> Callable[[Any], Any]:
    """What the worker does with a job: the program's answer.

    The program gets one line for each job, the first one before any, and says ``["ok", answer]`` or
    ``["error", text]`` to each. Where it ends, this process ends as it did.

    Args:
        settings: `command` starts it; `first` is the first job.
    """
    # In the group of this process, with which the pool ends it.
    program = subprocess.Popen(settings["command"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
    assert program.stdin is not None and program.stdout is not None
    jobs, answers = program.stdin, program.stdout

    def answer(job: Any) -> Any:
        try:
            jobs.write(json.dumps(job).encode() + b"\n")
            jobs.flush()
            line = answers.readline()
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            _end_as(program.wait())
        kind, said = json.loads(line)
        if kind != "ok":
            raise RunError(said)
        return said

    answer(settings["first"])
    return answer


def _end_as(code: int) -> None:
    if code < 0:
        os.kill(os.getpid(), signal.SIGKILL if -code == signal.SIGTERM else -code)
    os._exit(code if code > 0 else 1)
