"""Exchange of a supervising parent and its ranks through a folder: pids, output, failures, endings."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from rlvr_cli.core.errors import JointError, RunError, UserError
from rlvr_cli.core.files import write_json
from rlvr_cli.launch.world import Elsewhere, World

FOLDER = "RLVR_LAUNCH"
ORDER = "order.json"
CONFIG = "config.yaml"
ALIVE = "alive"
RUN = "run"
# In the run directory: what the parents of several machines tell one another.
FAILURES = "launch"

# What a rank says when another has gone. gloo, NCCL, their store, and DeepSpeed's and torch's wrappings of them.
_SECONDARY = re.compile(
    r"connection (reset|closed|refused|was (likely )?closed)|broken pipe|gloo|nccl|distbackenderror|timed out|"
    r"socket timeout|recvvalue|sendbytes|remote process exited|process group|tcpstore|read error \[|write error \[",
    re.IGNORECASE,
)
FailureKind = Literal["user", "run", "joint", "bug"]


# Not the error files of torch.distributed's `record`: their time stamps are whole seconds, within which the echoes of a
# failure fall too, and they don't say whether it was the user's mistake, which gets no traceback.
@dataclass(frozen=True)
class RankFailure:
    """Why a rank ended.

    Attributes:
        kind: ``user`` bad input, ``run`` a failure that is explained, ``joint`` one that is no rank's own, ``bug``
            anything else.
        text: the message. trace: the traceback, for a bug.
        secondary: whether this is but the echo of another rank's end.
    """

    rank: int
    kind: FailureKind
    text: str
    trace: str = ""
    secondary: bool = False
    time: float = field(default_factory=time.time)

    def write(self, folder: Path) -> None:
        """Leave it in ``folder`` as failure-<rank>.json, whole or not at all."""
        write_json(folder / f"failure-{self.rank}.json", asdict(self))


def failures(folder: Path) -> list[RankFailure]:
    """The failures in ``folder``, first ones first."""
    entries = [RankFailure(**json.loads(path.read_text(encoding="utf-8"))) for path in folder.glob("failure-*.json")]
    return sorted(entries, key=lambda failure: (failure.time, failure.rank))


def first_cause(failures: list[RankFailure]) -> RankFailure:
    """The one of several that the others follow from; of ranks that say the same, the lowest speaks."""
    own = [failure for failure in failures if not failure.secondary] or failures
    return min((failure for failure in own if failure.text == own[0].text), key=lambda failure: failure.rank)


def failure_of(rank: int, error: BaseException, trace: str) -> RankFailure:
    """``error`` as this rank's failure."""
    text = "\n".join([str(error) or type(error).__name__, *getattr(error, "__notes__", ())])
    if isinstance(error, Elsewhere):
        return RankFailure(rank, "run", text, secondary=True)
    if isinstance(error, UserError):
        return RankFailure(rank, "user", text)
    if isinstance(error, RunError):
        return RankFailure(rank, "joint" if isinstance(error, JointError) else "run", text)
    echo = isinstance(error, RuntimeError | OSError) and bool(_SECONDARY.search(f"{type(error).__name__} {text}"))
    return RankFailure(rank, "bug", f"{type(error).__name__}: {text}", trace, secondary=echo)


class Link:
    """A rank's end. Made first of all: from then on its output goes to the parent, and it ends when the parent does."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder, self.world = folder, world
        try:
            # Not waiting: a parent that has gone while this process was starting opens no other end any more.
            alive = os.open(folder / ALIVE, os.O_RDONLY | os.O_NONBLOCK)
            output = os.open(folder / f"output-{world.local_rank}", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            self._abandon()
        for pipe in (alive, output):
            os.set_blocking(pipe, True)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.close(output)
        threading.Thread(target=self._end_with_the_parent, args=(alive,), daemon=True).start()
        write_json(folder / f"rank-{world.local_rank}.json", {"rank": world.rank, "pid": os.getpid()})

    def order(self) -> dict[str, Any]:
        """Return what the parent wants done."""
        order: dict[str, Any] = json.loads((self.folder / ORDER).read_text(encoding="utf-8"))
        return order

    def begun(self, run: Path) -> None:
        """Tell the parent which run this is."""
        write_json(self.folder / f"{RUN}-{self.world.local_rank}.json", {"run": str(run)})

    def ended(self, **how: Any) -> None:
        """Tell the parent that all is done."""
        write_json(self.folder / f"done-{self.world.local_rank}.json", how)

    def _end_with_the_parent(self, alive: int) -> None:
        os.read(alive, 1)  # nothing is ever written; it ends when the parent does
        self._abandon()

    def _abandon(self) -> NoReturn:
        shutil.rmtree(self.folder, ignore_errors=True)
        os._exit(1)


def read_link(path: Path) -> dict[str, Any] | None:
    """Read a file of the link. Returns None while there is none."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return content
