"""Reports of the ranks to the launching process, as files: pids, the run, failures, results."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rlvr_cli.core.errors import JointError, RunError, UserError
from rlvr_cli.core.files import write_json
from rlvr_cli.core.processes import end_with_parent
from rlvr_cli.launch.world import PeerFailed, World

OPTIONS = "options.json"
CONFIG = "config.yaml"

# Errors after the loss of a peer, as worded by gloo, NCCL, their store, DeepSpeed and torch.
_SECONDARY = re.compile(
    r"connection (reset|closed|refused|was (likely )?closed)|broken pipe|gloo|nccl|distbackenderror|timed out|"
    r"socket timeout|recvvalue|sendbytes|remote process exited|process group|tcpstore|read error \[|write error \[",
    re.IGNORECASE,
)


# Not the error files of torch.distributed's `record`: their time stamps of whole seconds cannot order a failure and its
# consequences, and they do not distinguish user errors, which get no traceback, from bugs.
@dataclass(frozen=True)
class RankFailure:
    """The failure of a rank.

    Attributes:
        kind: ``user`` bad input, ``run`` an explained failure, ``joint`` one of all ranks, ``bug`` anything else.
        trace: the traceback of a bug.
        secondary: whether the rank failed only because another rank had ended.
        time: seconds since the epoch.
    """

    rank: int
    kind: Literal["user", "run", "joint", "bug"]
    text: str
    trace: str = ""
    secondary: bool = False
    time: float = field(default_factory=time.time)

    def write(self, folder: Path) -> None:
        write_json(folder / f"failure-{self.rank}.json", asdict(self))


def make_failure(rank: int, error: BaseException, trace: str) -> RankFailure:
    text = "\n".join([str(error) or type(error).__name__, *getattr(error, "__notes__", ())])
    if isinstance(error, PeerFailed):
        return RankFailure(rank, "run", text, secondary=True)
    if isinstance(error, UserError):
        return RankFailure(rank, "user", text)
    if isinstance(error, RunError):
        return RankFailure(rank, "joint" if isinstance(error, JointError) else "run", text)
    if isinstance(error, KeyboardInterrupt):
        return RankFailure(rank, "run", "stopped by a second SIGINT without saving")
    secondary = isinstance(error, RuntimeError | OSError) and _SECONDARY.search(f"{type(error).__name__} {text}")
    return RankFailure(rank, "bug", f"{type(error).__name__}: {text}", trace, secondary=bool(secondary))


def read_failures(folder: Path) -> list[RankFailure]:
    """Return the failures in ``folder``, oldest first."""
    failures = [RankFailure(**json.loads(path.read_text(encoding="utf-8"))) for path in folder.glob("failure-*.json")]
    return sorted(failures, key=lambda failure: (failure.time, failure.rank))


def find_root_cause(failures: list[RankFailure]) -> RankFailure:
    """Return the root cause; of ranks with the same text, the lowest."""
    primary = [failure for failure in failures if not failure.secondary] or failures
    return min((failure for failure in primary if failure.text == primary[0].text), key=lambda failure: failure.rank)


def read_report(folder: Path, kind: str, rank: int) -> dict[str, Any] | None:
    try:
        report: dict[str, Any] = json.loads((folder / f"{kind}-{rank}.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return report


class RankReports:
    """The writer of this rank's reports to the launching process, with which the rank ends from then on."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder, self.rank = folder, world.rank
        try:
            self.options: dict[str, Any] = json.loads((folder / OPTIONS).read_text(encoding="utf-8"))
        except FileNotFoundError:
            os._exit(1)  # the launch has already ended
        end_with_parent(self.options["parent"])
        self._write("pid", pid=os.getpid())

    def report_run(self, run: Path) -> None:
        self._write("run", run=str(run))

    def report_result(self, **result: Any) -> None:
        self._write("result", **result)

    def report_failure(self, error: BaseException, trace: str) -> None:
        make_failure(self.rank, error, trace).write(self.folder)

    def _write(self, kind: str, **report: Any) -> None:
        write_json(self.folder / f"{kind}-{self.rank}.json", report)
