"""The results of one set of seeds on disk: one outcome a claim, where they were made, and how long it took."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import write_json
from rlvr_cli.ledger.folders import Folders
from rlvr_cli.ledger.outcomes import Outcome
from rlvr_cli.runs.environment import hardware, versions
from rlvr_cli.runs.folder import now

# How often a session says that it is still alive, seconds: one that is killed loses no more than this.
BEAT = 10.0


@dataclass(frozen=True)
class Results:
    """All outcomes of a set of seeds.

    Attributes:
        seconds: of wall time, over all sessions.
        machine: processor and cores; versions of what decides numbers.
    """

    scale: str
    seed_from: int
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    seconds: float = 0.0
    sessions: int = 0
    workers: int = 1
    machine: dict[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Replace the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, asdict(self))


def read_results(path: Path) -> Results:
    """Raises RunError for a file that is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        outcomes = {name: Outcome(**one) for name, one in content["outcomes"].items()}
        return Results(**{**content, "outcomes": outcomes})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read as results of the ledger ({error}).") from error


def all_results(folders: Folders) -> list[Results]:
    """Of every set of seeds that there is, by the first seed."""
    found = [read_results(path) for path in folders.own.glob(f"{folders.scale}-seeds-*.json")]
    return sorted(found, key=lambda one: one.seed_from)


def this_machine() -> dict[str, Any]:
    """What the page says of the machine."""
    found = hardware()
    packages = {name: version for name, version in versions().items() if name in ("rlvr", "torch", "trl")}
    return {"processor": found["processor"], "cores": found["cores"], **packages}


@contextmanager
def session(folder: Path) -> Iterator[None]:
    """Write down how long the context lasts, as it goes: a session that is killed counts too."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{now().replace(':', '')}-{time.monotonic_ns()}.json"
    begun = time.monotonic()
    over = threading.Event()

    def beat() -> None:
        while True:
            write_json(path, {"seconds": round(time.monotonic() - begun, 1)})
            if over.wait(BEAT):
                return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        write_json(path, {"seconds": round(time.monotonic() - begun, 1)})


def time_taken(folder: Path) -> tuple[float, int]:
    """Seconds over all sessions that ended or were killed, and how many there were."""
    seconds = [float(json.loads(path.read_text(encoding="utf-8"))["seconds"]) for path in folder.glob("*.json")]
    return sum(seconds), len(seconds)
