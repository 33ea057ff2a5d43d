"""The process that judges: ``python -m rlvr_cli.verify.worker DEADLINE MEMORY_MIB PARENT``. Started by the pool.

It reads ``[gold, answer]`` messages from standard input and writes ``[equal, reason]`` messages to standard output,
until its input ends or its parent is gone.
"""

from __future__ import annotations

import math
import os
import resource
import select
import signal
import sys

from rlvr_cli.verify import channel
from rlvr_cli.verify.outcome import UNPARSED_ANSWER

# How often an idle worker looks whether its parent is still there, seconds. The end of input usually says it first.
_LOOK = 5.0
# What importing takes is not held against pairs: the process could not start otherwise.
_WARM = [
    ("1/2", r"\frac{2}{4}"),
    ("x^2-1", "(x-1)(x+1)"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    ("(1,2)", "[1,2)"),
    ("5", "x=5"),
]


def main(arguments: list[str]) -> None:
    """Serve until there is nobody to serve."""
    deadline, memory_mib, parent = float(arguments[0]), int(arguments[1]), int(arguments[2])
    answers = os.dup(1)
    # What a library prints must not end up between messages.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    limit = memory_mib * 2**20
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        from rlvr_cli.verify.algebra import Unable, judge

        for gold, answer in _WARM:
            judge(gold, answer)
    except Exception as error:
        channel.send(answers, f"{type(error).__name__}: {error}")
        return
    channel.send(answers, "ready")
    while _something_comes(parent):
        gold, answer = channel.receive(0, deadline)
        # The parent kills a late worker. Should the parent be dead or stopped by then, the alarm does.
        signal.alarm(math.ceil(deadline) + 2)
        try:
            outcome = judge(gold, answer)
        except RecursionError:
            outcome = UNPARSED_ANSWER
        except (MemoryError, Unable):
            os._exit(1)
        signal.alarm(0)
        channel.send(answers, [outcome.equal, outcome.reason])


def _something_comes(parent: int) -> bool:
    while os.getppid() == parent:
        if select.select([0], [], [], _LOOK)[0]:
            return True
    return False


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (channel.Closed, TimeoutError, KeyboardInterrupt):
        sys.exit(0)
