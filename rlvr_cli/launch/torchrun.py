"""Start the processes of a training with torchrun's elastic agent, forward signals, and report failures.

This process does not train; the agent runs in one of its threads. Rank 0 writes to the terminal; after a failure the
output of the other ranks and the agent's report are appended to the run's log.txt. The ranks end with this process, by
PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from rich.console import Console

from rlvr_cli.config.load import dump_yaml
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import open_for_append, write_json
from rlvr_cli.core.text import redact_secrets
from rlvr_cli.launch import command as launching
from rlvr_cli.launch.command import FOLDER, Node, plan_node, rank_environment
from rlvr_cli.launch.deepspeed_config import check_deepspeed
from rlvr_cli.launch.ranks import CONFIG, OPTIONS, RankFailure, find_root_cause, read_failures, read_report
from rlvr_cli.launch.stopping import (
    SIGNALS,
    RunEnd,
    announce,
    detach_terminal,
    install_handlers,
    print_line,
    tolerate_write_errors,
)
from rlvr_cli.models.libraries import check_vllm, remote_code_allowed
from rlvr_cli.models.source import resolve_model
from rlvr_cli.runs.folder import RunDir, check_free, now

POLL_SECONDS = 0.1
# Seconds for the other ranks to exit after the first failure.
SECONDARY_TIMEOUT = 5
KILL_TIMEOUT = 15.0

# In the launch's temporary folder: the output of all ranks except rank 0, and the agent's warnings.
LOGS = "logs"
REPORT = "torchrun.txt"
# The end of a process's output, appended to log.txt, or shown before there is a run.
LOG_BYTES = 100_000
SHOWN_LINES = 40

# Exit codes of a rank after another's failure: gloo aborts it, the agent sends it SIGTERM.
_SECONDARY_CODES = (-signal.SIGABRT, -signal.SIGTERM)


def start_launched(config: Config, *, overwrite: bool, console: Console, command: str | None = None) -> RunEnd:
    """Train a new run in this node's share of ``config.launch.processes``; ``command``: the command line to record.

    Raises UserError before the start, RunError if a process failed, KeyboardInterrupt for a second Ctrl-C.
    """
    if config.run.name:
        check_free(RunDir(Path(config.run.dir) / config.run.name), overwrite=overwrite)
    resolve_model(config.model.name, revision=config.model.revision)
    command = command or redact_secrets(shlex.join(["rlvr", *sys.argv[1:]]))
    return _launch(config, {"resume": None, "overwrite": overwrite, "command": command}, console)


def resume_launched(run: RunDir, config: Config, *, console: Console) -> RunEnd:
    """Continue ``run`` with ``config``, possibly extended, in the same number of processes."""
    from rlvr_cli.launch.checks import check_resumable

    rollouts = config.train.rollouts
    check_resumable(run, finished=rollouts > (run.read_manifest().get("rollouts_total") or 0))
    return _launch(config, {"resume": str(run.path), "rollouts": rollouts, "overwrite": False}, console)


def _launch(config: Config, options: dict[str, Any], console: Console) -> RunEnd:
    check_deepspeed(config)
    if config.rollout.engine.startswith("vllm"):
        check_vllm(f"rollout.engine={config.rollout.engine}")
    node, warnings = plan_node(config.launch)
    devices = f"{node.gpus} visible GPU{'' if node.gpus == 1 else 's'}" if node.gpus else "the CPU"
    processes = "1 process" if node.local == 1 else f"{node.local} processes"
    for line in (*warnings, f"starting {processes} on {devices} with torchrun"):
        print_line(console, line)
    with tempfile.TemporaryDirectory(prefix="rlvr-launch-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / CONFIG).write_text(dump_yaml(config), encoding="utf-8")
        options |= {
            "parent": os.getpid(),
            "trust_remote_code": remote_code_allowed(),
            "console": {"stderr": console.stderr, "quiet": console.quiet},
        }
        write_json(folder / OPTIONS, options)
        launch = _Launch(node, folder, console)
        try:
            return launch.run()
        except KeyboardInterrupt:
            launch.record_interruption()
            raise


class _Launch:
    """The ranks of this node, and torchrun's agent that starts and monitors them.

    ``signal``: the first signal. ``signalled``: the ranks that got it. ``abort``: True after a second Ctrl-C.
    ``error``: of the agent; ChildFailedError if ranks failed.
    """

    def __init__(self, node: Node, folder: Path, console: Console) -> None:
        self.node, self.folder, self.console = node, folder, console
        self.signal: int | None = None
        self.signalled: set[int] = set()
        self.abort = False
        self.error: BaseException | None = None

    def run(self) -> RunEnd:
        """Start the ranks, wait for them, and return the run. Raises the root cause of a failure."""
        # The main thread must handle signals while the agent waits for other nodes.
        agent = threading.Thread(target=self._run_agent, daemon=True)
        with contextlib.ExitStack() as cleanup:
            for number, handler in install_handlers(self._on_signal).items():
                cleanup.callback(signal.signal, number, handler)
            cleanup.enter_context(_replace_environment(rank_environment(self.node, {FOLDER: str(self.folder)})))
            cleanup.callback(self._kill_ranks, agent)
            agent.start()
            while agent.is_alive():
                agent.join(POLL_SECONDS)
                if self.abort:
                    # Not in the handler: raised inside `join`, Python 3.11 and 3.12 consider the thread ended.
                    raise KeyboardInterrupt
                self._forward_signal()
        if failure := self._find_failure():
            raise self._record_failure(failure)
        result = self._read_report("result", self.node.ranks[0])
        assert result is not None
        return RunEnd(RunDir(Path(result["run"])), result["status"], result["exit_code"])

    def _run_agent(self) -> None:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        log = logging.getLogger("torch.distributed.elastic")
        log.propagate = False
        handler = logging.FileHandler(self.folder / REPORT)
        log.addHandler(handler)
        redirects = {local: Std.ALL for local, rank in enumerate(self.node.ranks) if rank}
        try:
            config = LaunchConfig(
                min_nodes=self.node.nodes,
                max_nodes=self.node.nodes,
                nproc_per_node=self.node.local,
                run_id="rlvr",
                rdzv_backend="static",
                rdzv_endpoint=f"{self.node.address}:{self.node.port}",
                rdzv_configs={"rank": self.node.number},
                max_restarts=0,
                shutdown_timeout=SECONDARY_TIMEOUT,
                logs_specs=DefaultLogsSpecs(log_dir=str(self.folder / LOGS), redirects=redirects),
            )
            elastic_launch(config, sys.executable)("-u", "-m", launching.WORKER)
        except BaseException as error:
            self.error = error
        finally:
            log.removeHandler(handler)
            handler.close()

    def _read_report(self, kind: str, rank: int) -> dict[str, Any] | None:
        return read_report(self.folder, kind, rank)

    def _find_run(self) -> RunDir | None:
        return next(
            (RunDir(Path(report["run"])) for rank in self.node.ranks if (report := self._read_report("run", rank))),
            None,
        )

    def _read_pids(self) -> dict[int, int]:
        return {rank: report["pid"] for rank in self.node.ranks if (report := self._read_report("pid", rank))}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            detach_terminal()
        if self.signal is None:
            self.signal = number
            # Not announced by rank 0, which also gets SIGTERM from the agent after another rank's failure.
            step = "this" if self._read_pids() else "the first"
            announce(f"{signal.Signals(number).name}: saving after {step} step (Ctrl-C: stop at once)")
        elif number == signal.SIGINT:
            self.abort = True

    def _forward_signal(self) -> None:
        if self.signal is None:
            return
        for rank, pid in self._read_pids().items():
            if rank not in self.signalled:
                self.signalled.add(rank)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, self.signal)

    def _kill_ranks(self, agent: threading.Thread) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # a further Ctrl-C must not interrupt the clean-up
        pids = set(self._read_pids().values()) | {child.pid for child in psutil.Process().children() if _is_rank(child)}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # the agent starts a session for each rank
        agent.join(KILL_TIMEOUT)
        reported = self._read_report("result", 0) or self._has_failed(0)
        if self.console.is_terminal and 0 in self.node.ranks and not reported:
            with tolerate_write_errors(self.console):
                self.console.show_cursor()  # rank 0 was killed in the middle of its display
                self.console.line()

    def _has_failed(self, rank: int) -> bool:
        return any(failure.rank == rank for failure in read_failures(self.folder))

    def _find_failure(self) -> RankFailure | None:
        """Return the root cause of a failure; None if every rank succeeded."""
        if self.error is None:
            return None
        failures, first = read_failures(self.folder), self.node.ranks[0]
        if not all(failure.secondary for failure in failures):
            return find_root_cause(failures)
        ends = getattr(self.error, "failures", {})  # of ChildFailedError, in the order of their ends
        codes = {rank: end.exitcode for rank, end in ends.items() if not self._has_failed(rank)}
        # The agent kills ranks that do not exit.
        begin = min((end.timestamp for end in ends.values()), default=0)
        early = [rank for rank in codes if ends[rank].timestamp < begin + SECONDARY_TIMEOUT - 1]
        causes = [rank for rank in early if codes[rank] not in _SECONDARY_CODES]
        if not causes and (failures or codes) and self.node.nodes > 1:
            text = "a process of another machine ended first; the cause is in that machine's output"
            return RankFailure(first, "joint", text)
        if causes := causes or early:
            output = "" if self._find_run() else "".join(map(_read_tail, self._log_paths(str(causes[0] - first))))
            return RankFailure(causes[0], "run", _describe_exit(codes[causes[0]], output))
        return find_root_cause(failures) if failures else RankFailure(first, "joint", f"torchrun: {self.error}")

    def _log_paths(self, local_rank: str) -> list[Path]:
        return sorted(self.folder.glob(f"{LOGS}/*/attempt_0/{local_rank}/*.log"))

    def _record_failure(self, failure: RankFailure) -> Exception:
        """Record ``failure`` in the run, and return it as an error for the user."""
        if failure.kind == "user":
            return UserError(failure.text.split("\n"))
        prefix = "" if failure.kind == "joint" else f"rank {failure.rank} of {self.node.processes}: "
        run = self._find_run()
        if run is None:
            return RunError("\n".join(filter(None, [prefix + failure.text, failure.trace])))
        text = failure.text + (f" (traceback in {run.log_path})" if failure.trace else "")
        resume = f"continue with: rlvr train --resume {shlex.quote(str(run.path))}"
        ending = "" if "--resume" in text else f"\n{resume}" if "\n" in text else f". {resume[0].upper()}{resume[1:]}"
        error = RunError(f"{prefix}{text.rstrip('.')}{ending}")
        try:
            if 0 in self.node.ranks:
                with run.lock():
                    self._append_to_log(run, failure, str(error))
                    run.update_manifest(status="failed", finished=now(), error=str(error))
            else:
                self._append_to_log(run, failure, str(error))  # the first machine holds the lock
        except (OSError, UserError, RunError) as second:
            error.add_note(f"the failure could not be recorded: {second}")
        return error

    def _append_to_log(self, run: RunDir, failure: RankFailure, message: str) -> None:
        """Append a failure to log.txt, which rank 0 could not write, or saw only as a lost peer."""
        with open_for_append(run.log_path) as log:
            log.write(f"{now()} {message}\n{failure.trace}{self.error}\n")
            for path in (self.folder / REPORT, *self._log_paths("*")):
                log.write(redact_secrets(_read_tail(path)))

    def record_interruption(self) -> None:
        """Record the end of the processes without a save, unless rank 0 reported a result."""
        run = self._find_run()
        if run is not None and 0 in self.node.ranks and not self._read_report("result", 0):
            with run.lock():
                run.update_manifest(status="interrupted", finished=now())
            resume = f"rlvr train --resume {shlex.quote(str(run.path))}"
            print_line(self.console, f"stopped without saving; continue with: {resume}")


@contextlib.contextmanager
def _replace_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Replace the environment of this process, which the agent passes to the ranks."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _is_rank(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return launching.WORKER in process.cmdline()
    return False


def _read_tail(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - LOG_BYTES))
        return stream.read().decode(errors="replace")
    return ""


def _describe_exit(exit_code: int, output: str) -> str:
    if exit_code >= 0:
        text = f"ended with exit code {exit_code}"
    else:
        name = next((number.name for number in signal.Signals if number == -exit_code), f"signal {-exit_code}")
        text = f"killed by {name}{' (out of memory?)' if -exit_code == signal.SIGKILL else ''}"
    return "\n".join([text, *output.splitlines()[-SHOWN_LINES:]])
