"""Start the processes of a training with torchrun, pass signals on to them, and report how they ended.

This process loads no torch and trains nothing. Rank 0 writes to the terminal itself, like a training in one process;
the output of the other ranks and torchrun's own report are appended to the run's log.txt when the launch fails.
torchrun ends with this process, and the ranks with torchrun, by PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import psutil
from rich.console import Console

from rlvr_cli.config.load import dump_yaml
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import open_for_append, write_json
from rlvr_cli.core.text import without_secrets
from rlvr_cli.launch.command import FOLDER, LOGS, REPORT, Node, environment, launcher_command, plan_node
from rlvr_cli.launch.deepspeed_config import check_deepspeed
from rlvr_cli.launch.ranks import (
    CONFIG,
    ORDER,
    RankFailure,
    end_with_parent,
    first_cause,
    read_failures,
    read_report,
)
from rlvr_cli.launch.stopping import SIGNALS, RunEnd, announce, leave_terminal, listen, say, writing
from rlvr_cli.models.libraries import remote_code_allowed
from rlvr_cli.models.source import resolve_model
from rlvr_cli.runs.folder import RunDir, check_free, now

# Seconds.
TICK = 0.1
ECHO_TIMEOUT = 2.0  # for the other ranks to end by themselves after the first failure
LAUNCHER_TIMEOUT = 15.0  # for torchrun to end after its ranks
KILL_TIMEOUT = 10.0

# The end of a process's output that is appended to log.txt, and, before there is a run, shown.
LOG_BYTES = 100_000
SHOWN_LINES = 40

# In torchrun's report on each process that failed, the first of them last; exit code -N: killed by signal N.
_EXIT_CODE = re.compile(r"^ +rank +: (\d+) \(local_rank: \d+\)\n +exitcode +: (-?\d+)", re.MULTILINE)
# Of a rank that another one took with it: gloo aborts a process whose peer is gone, and torchrun ends it with SIGTERM.
_CONSEQUENCES = (-signal.SIGABRT, -signal.SIGTERM)


def start_launched(config: Config, *, overwrite: bool, console: Console, command: str | None = None) -> RunEnd:
    """Train a new run in ``config.launch.processes`` processes, this machine's part of them.

    Args:
        command: recorded in the run; None = the command line of this process.

    Raises UserError before anything is started, RunError when a process failed, KeyboardInterrupt for a second Ctrl-C.
    """
    if config.run.name:
        check_free(RunDir(Path(config.run.dir) / config.run.name), overwrite=overwrite)
    resolve_model(config.model.name, revision=config.model.revision)
    command = command or without_secrets(shlex.join(["rlvr", *sys.argv[1:]]))
    return _launch(config, {"resume": None, "overwrite": overwrite, "command": command}, console)


def resume_launched(run: RunDir, config: Config, *, console: Console) -> RunEnd:
    """Continue ``run`` with ``config``, its own or that of a longer run, in as many processes as before.

    Raises as :func:`start_launched`.
    """
    from rlvr_cli.launch.checks import check_resumable

    rollouts = config.train.rollouts
    check_resumable(run, finished=rollouts > (run.read_manifest().get("rollouts_total") or 0))
    return _launch(config, {"resume": str(run.path), "rollouts": rollouts, "overwrite": False}, console)


def _launch(config: Config, order: dict[str, Any], console: Console) -> RunEnd:
    check_deepspeed(config)
    node, warnings = plan_node(config.launch)
    devices = f"{node.gpus} visible GPU{'' if node.gpus == 1 else 's'}" if node.gpus else "the CPU"
    processes = "1 process" if node.local == 1 else f"{node.local} processes"
    for line in (*warnings, f"starting {processes} on {devices} with torchrun"):
        say(console, line)
    with tempfile.TemporaryDirectory(prefix="rlvr-launch-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / CONFIG).write_text(dump_yaml(config), encoding="utf-8")
        facts = {
            "parent": os.getpid(),
            "trust_remote_code": remote_code_allowed(),
            "console": {"stderr": console.stderr, "quiet": console.quiet},
        }
        write_json(folder / ORDER, {**order, **facts})
        launch = _Launch(node, folder, console)
        try:
            return launch.result()
        except KeyboardInterrupt:
            launch.interrupted()
            raise


class _Launch:
    """torchrun and the ranks that it starts on this machine.

    Attributes:
        processes: the ranks that have started. killed: those of them that were killed from here.
        signal: the first that arrived. signalled: the ranks that it was passed on to.
    """

    def __init__(self, node: Node, folder: Path, console: Console) -> None:
        self.node, self.folder, self.console = node, folder, console
        self.run: RunDir | None = None
        self.signal: int | None = None
        self.processes: dict[int, psutil.Process] = {}
        self.signalled: set[int] = set()
        self.killed: set[int] = set()

    def result(self) -> RunEnd:
        """Start torchrun, wait for the end of all ranks, and return the run. Raises the first cause of a failure."""
        with contextlib.ExitStack() as cleanup:
            for number, handler in listen(self._on_signal).items():
                cleanup.callback(signal.signal, number, handler)
            self.launcher = subprocess.Popen(
                launcher_command(self.node, self.folder),
                env=environment(self.node, {FOLDER: str(self.folder)}),
                stdin=subprocess.DEVNULL,
                # What libraries print must not mix with JSON on standard output.
                stdout=2 if self.console.stderr else None,
                start_new_session=True,
                preexec_fn=partial(_prepare_launcher, os.getpid()),
            )
            cleanup.callback(self._end)
            self._wait()
        if failure := self._failure():
            raise self._error(failure)
        result = read_report(self.folder, "result", self.node.ranks[0])
        assert result is not None
        return RunEnd(RunDir(Path(result["run"])), result["status"], result["exit_code"])

    def _wait(self) -> None:
        """Wait until torchrun or every rank has ended, or too long after the first failure."""
        deadline = math.inf
        while self.launcher.poll() is None and time.monotonic() < deadline:
            time.sleep(TICK)
            self._read_reports()
            self._pass_on_signal()
            ended = [rank for rank, process in self.processes.items() if not _is_alive(process)]
            if read_failures(self.folder) or not all(map(self._has_result, ended)):
                deadline = min(deadline, time.monotonic() + ECHO_TIMEOUT)
            elif len(ended) == self.node.local:
                return

    def _read_reports(self) -> None:
        for rank in self.node.ranks:
            if rank not in self.processes and (report := read_report(self.folder, "pid", rank)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    self.processes[rank] = psutil.Process(report["pid"])
            if self.run is None and (report := read_report(self.folder, "run", rank)):
                self.run = RunDir(Path(report["run"]))

    def _has_result(self, rank: int) -> bool:
        return read_report(self.folder, "result", rank) is not None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            leave_terminal()
        if self.signal is None:
            self.signal = number
            # Not rank 0: it gets SIGTERM from torchrun too, when another rank has failed and nothing is saved.
            step = "this" if self.processes else "the first"
            announce(f"{signal.Signals(number).name}: saving after {step} step (Ctrl-C: stop at once)")
        elif number == signal.SIGINT:
            raise KeyboardInterrupt

    def _pass_on_signal(self) -> None:
        """Send each rank the first signal once it has started."""
        if self.signal is None:
            return
        for rank in self.processes.keys() - self.signalled:
            self.signalled.add(rank)
            with contextlib.suppress(psutil.NoSuchProcess):
                self.processes[rank].send_signal(self.signal)

    def _end(self) -> None:
        """Kill the remaining ranks with their helpers, and torchrun once it has reported how the ranks ended."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # an impatient Ctrl-C must not stop it half-way
        self._read_reports()
        for rank, process in self.processes.items():
            if self.launcher.poll() is None and _is_alive(process):
                self.killed.add(rank)
            _kill_group(process.pid)  # torchrun starts a session for each rank
        if len(self.processes) == self.node.local:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.launcher.wait(LAUNCHER_TIMEOUT)
        _kill_group(self.launcher.pid)
        self.launcher.wait()
        deadline = time.monotonic() + KILL_TIMEOUT
        # A killed process keeps its locks until it is gone.
        while any(map(_is_alive, self.processes.values())) and time.monotonic() < deadline:
            time.sleep(TICK)
        if self.console.is_terminal and 0 in self._silent_ranks():
            with writing(self.console):
                self.console.show_cursor()  # rank 0 was killed in the middle of its display
                self.console.line()

    def _silent_ranks(self) -> set[int]:
        """Return the ranks without a result or a failure."""
        failed = {failure.rank for failure in read_failures(self.folder)}
        return {rank for rank in self.node.ranks if not self._has_result(rank)} - failed

    def _failure(self) -> RankFailure | None:
        """Return the first cause of a failure; None where every rank has its result."""
        failures = read_failures(self.folder)
        silent = self._silent_ranks() - self.killed
        if not failures and not silent:
            return None
        if not all(failure.secondary for failure in failures):
            return first_cause(failures)
        report = _end_of(self.folder / REPORT)
        codes = {int(rank): int(code) for rank, code in reversed(_EXIT_CODE.findall(report)) if int(rank) in silent}
        causes = [rank for rank, code in codes.items() if code not in _CONSEQUENCES]
        first = self.node.ranks[0]
        if not causes and (failures or codes) and self.node.nodes > 1:
            text = "a process of another machine ended first; that machine's output has the cause"
            return RankFailure(first, "joint", text)
        if causes := causes or list(codes):
            output = "" if self.run else "".join(map(_end_of, self._logs(causes[0] - first)))
            return RankFailure(causes[0], "run", _ending(codes[causes[0]], output))
        if failures:
            return first_cause(failures)
        return RankFailure(first, "joint", f"torchrun: {_ending(self.launcher.returncode, report)}")

    def _logs(self, local_rank: int | Literal["*"]) -> list[Path]:
        """Return the files with the output of a rank, or of all (``*``) but rank 0."""
        return sorted(self.folder.glob(f"{LOGS}/*/attempt_0/{local_rank}/*.log"))

    def _error(self, failure: RankFailure) -> Exception:
        """Record ``failure`` in the run, and return it as an error for the user."""
        if failure.kind == "user":
            return UserError(failure.text.split("\n"))
        prefix = "" if failure.kind == "joint" else f"rank {failure.rank} of {self.node.processes}: "
        if self.run is None:
            return RunError("\n".join(filter(None, [prefix + failure.text, failure.trace])))
        text = failure.text + (f" (traceback in {self.run.log_path})" if failure.trace else "")
        resume = f"continue with: rlvr train --resume {self.run.path}"
        ending = "" if "--resume" in text else f"\n{resume}" if "\n" in text else f". {resume[0].upper()}{resume[1:]}"
        error = RunError(f"{prefix}{text.rstrip('.')}{ending}")
        try:
            if 0 in self.node.ranks:
                with self.run.lock():
                    self._log(self.run, failure, str(error))
                    self.run.update_manifest(status="failed", finished=now(), error=str(error))
            else:
                self._log(self.run, failure, str(error))  # the first machine holds the run
        except (OSError, UserError, RunError) as second:
            error.add_note(f"the failure could not be recorded either: {second}")
        return error

    def _log(self, run: RunDir, failure: RankFailure, message: str) -> None:
        """Append to log.txt a failure that rank 0 could not write, or of which it knew only the consequence."""
        with open_for_append(run.log_path) as log:
            log.write(f"{now()} {message}\n{failure.trace}")
            for path in (self.folder / REPORT, *self._logs("*")):
                log.write(without_secrets(_end_of(path)))

    def interrupted(self) -> None:
        """Record that the run, all of whose processes are gone, was stopped without saving; nothing if it has saved."""
        if self.run is not None and 0 in self.node.ranks and not self._has_result(0):
            with self.run.lock():
                self.run.update_manifest(status="interrupted", finished=now())
            say(self.console, f"stopped without saving; continue with: rlvr train --resume {self.run.path}")


def _prepare_launcher(parent: int) -> None:
    end_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    # A cluster may signal every process of a job: torchrun has to outlive the save of its ranks.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _end_of(path: Path) -> str:
    """Return the end of what a process wrote to ``path``; nothing where the file was never made."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - LOG_BYTES))
        return stream.read().decode(errors="replace")
    return ""


def _ending(exit_code: int, output: str) -> str:
    """Return how a process ended that reported nothing, with the last lines of its output."""
    if exit_code >= 0:
        text = f"ended with exit code {exit_code}"
    else:
        name = next((known.name for known in signal.Signals if known == -exit_code), f"signal {-exit_code}")
        text = f"killed by {name}{' (out of memory?)' if -exit_code == signal.SIGKILL else ''}"
    return "\n".join([text, *output.splitlines()[-SHOWN_LINES:]])
