"""The parent of a training in several processes: starts them, shows what they say, and ends them all when one fails.

It loads no torch and trains nothing. The launcher runs in another session, so that Ctrl-C reaches this process
alone; it is passed on to the ranks, which agree on the step after which they save.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from rich.console import Console

from rlvr_cli.config.load import dump_yaml
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import open_for_append, write_json
from rlvr_cli.core.text import without_secrets
from rlvr_cli.launch import link
from rlvr_cli.launch.command import Node, environment, launcher_command, plan_node
from rlvr_cli.launch.deepspeed_config import check_deepspeed
from rlvr_cli.launch.link import RankFailure
from rlvr_cli.launch.stopping import RunEnd, announce, leave_terminal, listen, say
from rlvr_cli.models.libraries import remote_code_allowed
from rlvr_cli.models.source import resolve_model
from rlvr_cli.runs.folder import RunDir, check_free, now

TICK = 0.1
# How long the others may take to say what happened to them, once one is gone.
ECHO_SECONDS = 0.5
# How long a launcher may take to notice that its processes are gone.
LAUNCHER_SECONDS = 15.0
# How long another machine may take to say that it was the first, where all that is known here is an echo.
OTHER_MACHINE_SECONDS = 30.0
GONE_SECONDS = 10.0
LAST_LINES = 40

# torchrun's report of the first process that it saw end: with minus the number of the signal, where it was one.
_EXIT_CODE = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
# Of its last report, the lines on one process: the first that it saw end may be one that another took with it.
_REPORTED_RANK = re.compile(r"^\s+rank +: \d+ \(local_rank: (\d+)\)")
_REPORTED_CODE = re.compile(r"^\s+exitcode +: (-?\d+) ")
# Of gloo's own, one a connection; of torchrun's, one a process.
_NOISE = re.compile(r"^\[Gloo\] Rank \d+ is connected|\[W\d+ .*(Hostname|hostname)")


@dataclass
class _Rank:
    """A rank of this machine, by what it left in the folder; one that has begun without a ``process`` is gone."""

    number: int
    output: int
    started: bool = False
    process: psutil.Process | None = None
    buffer: bytes = b""
    signalled: bool = False
    ended: bool = False

    def alive(self) -> bool:
        """Return whether it runs, or has not begun to."""
        if self.process is None:
            return not self.started
        try:
            return bool(self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def kill(self) -> None:
        """End it, and the helpers that it started: launchers start each rank in a new session."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            with contextlib.suppress(psutil.NoSuchProcess):
                self.process.kill()


def start_launched(config: Config, *, overwrite: bool, console: Console) -> RunEnd:
    """Train a new run in ``config.launch.processes`` processes, this machine's part of them.

    Raises UserError before anything is started, RunError when a process failed, KeyboardInterrupt for a second Ctrl-C.
    """
    if config.run.name:
        check_free(RunDir(Path(config.run.dir) / config.run.name), overwrite=overwrite)
    resolve_model(config.model.name, revision=config.model.revision)
    return _supervise(config, {"resume": None, "overwrite": overwrite}, console)


def resume_launched(run: RunDir, config: Config, *, console: Console) -> RunEnd:
    """Continue ``run`` with ``config``, its own or that of a longer run, in as many processes as before.

    Raises as :func:`start_launched`.
    """
    from rlvr_cli.launch.checks import check_resumable

    rollouts = config.train.rollouts
    check_resumable(run, finished=rollouts > (run.read_manifest().get("rollouts_total") or 0))
    return _supervise(config, {"resume": str(run.path), "rollouts": rollouts, "overwrite": False}, console)


def _supervise(config: Config, order: dict[str, Any], console: Console) -> RunEnd:
    check_deepspeed(config)
    node, warnings = plan_node(config.launch)
    where = f"{node.gpus} visible GPU{'' if node.gpus == 1 else 's'}" if node.gpus else "the CPU"
    some = "1 process" if node.local == 1 else f"{node.local} processes"
    starting = f"starting {some} on {where} with torchrun"
    for line in (*warnings, starting):
        say(console, line)
    with tempfile.TemporaryDirectory(prefix="rlvr-launch-") as name:
        folder = Path(name)
        (folder / link.CONFIG).write_text(dump_yaml(config), encoding="utf-8")
        facts = {
            "trust_remote_code": remote_code_allowed(),
            "command": without_secrets(shlex.join(["rlvr", *sys.argv[1:]])),
        }
        write_json(folder / link.ORDER, {**order, **facts})
        supervisor = _Supervisor(config, node, folder, console)
        try:
            with supervisor:
                return supervisor.watch()
        except KeyboardInterrupt:
            supervisor.interrupted()
            raise


class _Supervisor:
    """One launch on this machine, from its start to its end."""

    def __init__(self, config: Config, node: Node, folder: Path, console: Console) -> None:
        self.config, self.node, self.folder, self.console = config, node, folder, console
        self.run: RunDir | None = None
        self.signal: int | None = None
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.exit_codes: dict[int, int] = {}
        self.reported_codes: dict[int, int] = {}
        self._reported_rank = 0
        # Once one has failed: the ranks that are still shown, since what they said last may be the cause.
        self.shown: set[int] | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._selector = selectors.DefaultSelector()

    # --- from start to end -------------------------------------------------------------------------------------

    def __enter__(self) -> _Supervisor:
        self._previous = listen(self._signalled)
        os.mkfifo(self.folder / link.ALIVE)
        # Open to read as well: it neither waits for a rank nor ends when one does.
        self._alive = os.open(self.folder / link.ALIVE, os.O_RDWR)
        # Not torchrun's --tee: it labels and prints half a line as a line, does not flush, and is gone with what it has
        # read where the launcher itself is killed.
        self.ranks = []
        for local in range(self.node.local):
            path = self.folder / f"output-{local}"
            os.mkfifo(path)
            output = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            self.ranks.append(_Rank(self.node.ranks[local], output))
            self._selector.register(output, selectors.EVENT_READ, self._reader(self.ranks[-1]))
        self.launcher = subprocess.Popen(
            launcher_command(self.node),
            env=environment(self.node, {link.FOLDER: str(self.folder)}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # A cluster sends SIGTERM to every process of a job: the launcher has to outlive the save of its ranks.
            preexec_fn=_without_sigterm,
        )
        assert self.launcher.stdout is not None
        os.set_blocking(self.launcher.stdout.fileno(), False)
        self._launcher_buffer = b""
        self._selector.register(self.launcher.stdout, selectors.EVENT_READ, self._read_launcher)
        return self

    def __exit__(self, *exception: object) -> None:
        self._end_all()
        self._selector.close()
        for rank in self.ranks:
            os.close(rank.output)
            if rank.buffer:
                self._show(rank.number, rank.buffer.decode(errors="replace"))
        os.close(self._alive)
        if self.launcher.stdout is not None:
            self.launcher.stdout.close()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def watch(self) -> RunEnd:
        """Until all ranks of this machine have ended. Raises what went wrong."""
        while not all(rank.ended for rank in self.ranks):
            self._listen(TICK)
            self._see_ranks()
            self._pass_on_signals()
            failure = self._failure()
            if failure is not None:
                raise self._failed(failure)
        self._listen(0)
        how = link.read_link(self.folder / "done-0.json")
        assert how is not None
        return RunEnd(RunDir(Path(how["run"])), how["status"], how["exit_code"])

    # --- what the ranks say ------------------------------------------------------------------------------------

    def _listen(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            key.data()

    def _reader(self, rank: _Rank) -> Callable[[], None]:
        def read() -> None:
            with contextlib.suppress(BlockingIOError):
                rank.buffer += os.read(rank.output, 65536)
            *lines, rank.buffer = rank.buffer.split(b"\n")
            for line in lines:
                self._show(rank.number, line.decode(errors="replace"))

        return read

    def _show(self, rank: int, line: str) -> None:
        if (self.shown is not None and rank not in self.shown) or _NOISE.search(line):
            return
        say(self.console, f"[rank {rank}] {line}")

    def _read_launcher(self) -> None:
        stream = self.launcher.stdout
        assert stream is not None
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(stream.fileno(), 65536)
            if not data:
                self._selector.unregister(stream)
        *lines, self._launcher_buffer = (self._launcher_buffer + data).split(b"\n")
        for raw in lines:
            line = raw.decode(errors="replace")
            self.last_lines.append(line)
            if match := _EXIT_CODE.search(line):
                self.exit_codes[int(match[2])] = int(match[1])
            elif match := _REPORTED_RANK.match(line):
                self._reported_rank = int(match[1])
            elif match := _REPORTED_CODE.match(line):
                self.reported_codes[self._reported_rank] = int(match[1])

    def _see_ranks(self) -> None:
        for local, rank in enumerate(self.ranks):
            if not rank.started and (message := link.read_link(self.folder / f"rank-{local}.json")):
                rank.started = True
                with contextlib.suppress(psutil.NoSuchProcess):
                    rank.process = psutil.Process(message["pid"])
            rank.ended = rank.ended or (self.folder / f"done-{local}.json").exists()
            if self.run is None and (message := link.read_link(self.folder / f"{link.RUN}-{local}.json")):
                self.run = RunDir(Path(message["run"]))

    # --- signals -----------------------------------------------------------------------------------------------

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            leave_terminal()
        if self.signal is None:
            self.signal = number
            announce(f"{signal.Signals(number).name}: all processes save after this step (Ctrl-C: stop at once)")
        elif number == signal.SIGINT:
            raise KeyboardInterrupt

    def _pass_on_signals(self) -> None:
        """To every rank the first signal, as soon as it can take one."""
        for rank in self.ranks:
            if self.signal is not None and rank.process is not None and not rank.signalled and not rank.ended:
                rank.signalled = True
                with contextlib.suppress(psutil.NoSuchProcess):
                    rank.process.send_signal(self.signal)

    # --- failures ----------------------------------------------------------------------------------------------

    def _failure(self) -> RankFailure | None:
        """Why the launch has failed, if it has: what the first failure among all ranks was."""
        if not (self._found() or self._silent() or self._launcher_is_gone()):
            return None
        launcher = self.launcher.poll()
        self.shown = {rank.number for rank in self._silent()}
        self._wait(ECHO_SECONDS, until=lambda: False)
        silent = self._silent()
        self._end_ranks()
        aborted = all(code == -signal.SIGABRT for code in self.exit_codes.values())  # as gloo does of another's end
        if self.node.nodes > 1 and not self._own() and (not silent or aborted):
            self._wait(OTHER_MACHINE_SECONDS, until=lambda: bool(self._own()))
        failures, own = self._found(), self._own()
        if own:
            return link.first_cause(own)
        last = "\n".join(self.last_lines) or "it said nothing"
        unborn = [local for local in self.exit_codes if not self.ranks[local].started]
        if unborn:
            return RankFailure(self.node.ranks[unborn[0]], "run", f"it ended while it started: {last}")
        if silent:
            return self._silent_death(silent)
        if failures:
            return link.first_cause(failures)
        if any(rank.started for rank in self.ranks):
            return RankFailure(self.node.ranks[0], "run", f"its launcher, torchrun: {_ending(launcher)}")
        return RankFailure(self.node.ranks[0], "run", f"torchrun started no process: {last}")

    def _own(self) -> list[RankFailure]:
        """The failures that are not but echoes."""
        return [failure for failure in self._found() if not failure.secondary]

    def _found(self) -> list[RankFailure]:
        failures = link.failures(self.folder)
        if self.node.nodes > 1 and self.run is not None:
            failures += [failure for failure in link.failures(self.run.path / link.FAILURES) if failure not in failures]
        return sorted(failures, key=lambda failure: failure.time)

    def _silent(self) -> list[_Rank]:
        """The ranks that are gone without a word."""
        reported = {failure.rank for failure in link.failures(self.folder)}
        return [
            rank
            for local, rank in enumerate(self.ranks)
            if not rank.ended
            and not rank.alive()
            and rank.number not in reported
            and not (self.folder / f"done-{local}.json").exists()
        ]

    def _silent_death(self, silent: list[_Rank]) -> RankFailure:
        """torchrun says of the first of them how it ended; an abort is what gloo makes of another's end."""
        ranks = {rank.number - self.node.ranks[0]: rank for rank in silent}
        codes = {**self.exit_codes, **self.reported_codes}
        local = next((local for local in codes if local in ranks), min(ranks))
        return RankFailure(ranks[local].number, "run", _ending(codes.get(local)))

    def _launcher_is_gone(self) -> bool:
        if self.launcher.poll() is None:
            return False
        self._listen(0)
        self._see_ranks()
        return not all(rank.ended for rank in self.ranks)

    def _failed(self, failure: RankFailure) -> Exception:
        """The failure as an error for the user; it is recorded in the run before."""
        if failure.kind == "user":
            return UserError(failure.text.split("\n"))
        text = failure.text
        if self.run is None:
            return RunError(f"rank {failure.rank} of {self.node.processes}: {text}")
        again = f"continue with: rlvr train --resume {self.run.path}"
        ending = "" if "--resume" in text else f"\n{again}" if "\n" in text else f". {again[0].upper()}{again[1:]}"
        if failure.trace:
            text += f" (traceback in {self.run.log_path})"
        whose = "" if failure.kind == "joint" else f"rank {failure.rank} of {self.node.processes}: "
        message = f"{whose}{text.rstrip('.')}{ending}"
        if self.node.nodes > 1:
            folder = self.run.path / link.FAILURES
            with contextlib.suppress(OSError):
                folder.mkdir(exist_ok=True)
                failure.write(folder)
        error = RunError(message)
        if 0 in self.node.ranks:
            try:
                self._record(failure, message)
            except (OSError, UserError, RunError) as second:
                error.add_note(f"the status could not be written either: {second}")
        return error

    def interrupted(self) -> None:
        """Leave the run, all of whose processes are gone, as one that was stopped without saving."""
        if self.run is not None and 0 in self.node.ranks:
            with self.run.lock():
                self.run.update_manifest(status="interrupted", finished=now())
            say(self.console, f"stopped without saving; continue with: rlvr train --resume {self.run.path}")

    def _record(self, failure: RankFailure, message: str) -> None:
        """Record a failure that rank 0 could not write, or wrote only an echo of."""
        assert self.run is not None
        with self.run.lock():
            with open_for_append(self.run.log_path) as log:
                log.write(f"{now()} {message}\n{failure.trace}")
            self.run.update_manifest(status="failed", finished=now(), error=message)

    # --- endings -----------------------------------------------------------------------------------------------

    def _wait(self, seconds: float, until: Callable[[], bool]) -> None:
        end = time.monotonic() + seconds
        while not until() and (remaining := end - time.monotonic()) > 0:
            self._listen(min(TICK, remaining))

    def _end_ranks(self) -> None:
        """Kill every rank and what it started; before, let the launcher say how the first of them ended."""
        self._see_ranks()
        for rank in self.ranks:
            rank.kill()
        if all(rank.started for rank in self.ranks):
            self._wait(LAUNCHER_SECONDS, until=lambda: self.launcher.poll() is not None)
            self._listen(0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.launcher.pid, signal.SIGKILL)
        self.launcher.wait()
        # A killed process keeps its locks until it is gone.
        self._wait(GONE_SECONDS, until=lambda: not any(rank.process and rank.alive() for rank in self.ranks))

    def _end_all(self) -> None:
        """Leave nothing behind: ranks, launcher, and what they started."""
        with self._signals_held():
            if all(rank.ended for rank in self.ranks):
                self._wait(LAUNCHER_SECONDS, until=lambda: self.launcher.poll() is not None)
            self._end_ranks()

    @contextlib.contextmanager
    def _signals_held(self) -> Iterator[None]:
        """Inside, an impatient second Ctrl-C does not stop the clean-up half-way."""
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in self._previous}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _without_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _ending(exit_code: int | None) -> str:
    """Return how a process ended that said nothing."""
    if exit_code is None:
        return "it ended without a word (killed, or out of memory?)"
    if exit_code >= 0:
        return f"it ended without a word, with exit code {exit_code}"
    name = signal.Signals(-exit_code).name
    return f"killed by {name}{' (out of memory?)' if -exit_code == signal.SIGKILL else ''}"
