"""Workers with code of the user's: it prints, leaves, forks, sleeps and fills the memory, and harms nobody else."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rlvr_cli.core.errors import RunError
from rlvr_cli.workers import child
from rlvr_cli.workers import pool as processes
from rlvr_cli.workers.pool import JobFailed, JobTimeout, Limits, Pool, Target, WorkerDied, shared_pool
from tests.training.processes import gone

ROOT = Path(__file__).parents[2]
FILE = """
import multiprocessing, os, resource, signal, subprocess, sys, threading, time
calls = []

def square(number):
    return number * number

def make(settings):
    print("loading", settings)

    def answer(job):
        calls.append(job)
        match job:
            case "print":
                print("x" * 100_000)
                os.write(1, b"raw")
                sys.stderr.write("more")
            case "close":
                sys.stdout.close(), sys.stderr.close(), os.close(1), os.close(2)
            case "exit":
                sys.exit(3)
            case "leave":
                os._exit(3)
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "sleep":
                time.sleep(600)
            case "loop":
                while True:
                    pass
            case "memory":
                return len(bytearray(1 << 40))
            case "raise":
                raise KeyError("gone")
            case "close everything":
                os.closerange(3, 100)
            case "children":
                for _ in range(20):
                    if os.fork() == 0:
                        time.sleep(600)
                time.sleep(600)
            case "child that comes back":
                os.fork()
            case "daemon":
                read, write = os.pipe()
                if os.fork() == 0:
                    os.setsid()
                    if os.fork() == 0:
                        os.write(write, str(os.getpid()).encode())
                        time.sleep(600)
                    os._exit(0)
                return int(os.read(read, 20))
            case "interrupt":
                raise KeyboardInterrupt
            case "child that stays":
                return subprocess.Popen(["sleep", "600"]).pid
            case "terminated":
                child = subprocess.Popen(["sleep", "600"])
                child.terminate()
                return child.wait(10)
            case "terminated at once":
                for _ in range(100):
                    if (pid := os.fork()) == 0:
                        time.sleep(5)
                        os._exit(0)
                    os.kill(pid, signal.SIGTERM)
                    if os.waitpid(pid, 0)[1] != signal.SIGTERM:
                        return "the signal was dropped"
                return "ended"
            case "blocked":
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
                if (pid := os.fork()) == 0:
                    os._exit(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, []))
                blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
                return os.waitpid(pid, 0)[1] == 256 and signal.SIGTERM in blocked and signal.SIGINT not in blocked
            case "processes":
                with multiprocessing.get_context("fork").Pool(2) as pool:
                    return pool.map(square, range(4))
            case "limit":
                return resource.getrlimit(resource.RLIMIT_AS)[0]
            case "thread":
                threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
            case "not json":
                return {1, 2}
            case {"sleep for": seconds}:
                time.sleep(seconds)
                return seconds
            case {"echo": value}:
                return value
        return [len(calls), settings]

    return answer
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    (tmp_path / "mine.py").write_text(FILE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Target("mine:make", {"a": 1})


@pytest.fixture
def pool(target: Target) -> Iterator[Pool]:
    with Pool(target, Limits(20.0, memory_mib=512)) as pool:
        yield pool


def asked(pool: Pool, job: object, seconds: float | None = None) -> object:
    return pool.submit(job, seconds).result(60)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_a_worker_keeps_its_state_and_what_it_prints_is_no_answer(
    pool: Pool, capfd: pytest.CaptureFixture[str]
) -> None:
    assert asked(pool, "first") == [1, {"a": 1}]
    assert asked(pool, "print") == [2, {"a": 1}]
    out, err = capfd.readouterr()
    assert not out and err.startswith("loading") and "raw" in err and "more" in err
    assert asked(pool, "close") == [3, {"a": 1}]
    long = "\ud800" + "x" * 5_000_000
    assert asked(pool, {"echo": long}) == long
    assert asked(pool, "thread") == [5, {"a": 1}]


@pytest.mark.parametrize(
    ("job", "kind", "said"),
    [
        *(("exit", JobFailed, "SystemExit"), ("interrupt", JobFailed, "KeyboardInterrupt")),
        *(("memory", JobFailed, "MemoryError"), ("not json", JobFailed, "set")),
        *(("leave", WorkerDied, "exit code 3"), ("segfault", WorkerDied, "SIGSEGV")),
        *(("close everything", WorkerDied, "ended"), ("loop", JobTimeout, "^$"), ("children", JobTimeout, "^$")),
    ],
)
def test_what_a_job_may_do(job: str, kind: type[Exception], said: str, pool: Pool) -> None:
    """Others, in the same pool and in another, are not touched."""
    assert asked(pool, "first") == [1, {"a": 1}]
    with pytest.raises(kind, match=said):
        asked(pool, job, 1.0)
    assert asked(pool, "next") == [3 if kind is JobFailed else 1, {"a": 1}]


def test_what_a_job_starts_ends_with_its_worker(pool: Pool) -> None:
    assert asked(pool, "processes") == [0, 1, 4, 9]
    assert asked(pool, "terminated") == -signal.SIGTERM
    assert asked(pool, "terminated at once") == "ended"
    assert asked(pool, "blocked") is True
    assert asked(pool, "child that comes back") == [5, {"a": 1}]
    stays = asked(pool, "child that stays")
    assert isinstance(stays, int) and not gone(stays)
    with pytest.raises(WorkerDied):
        asked(pool, "leave")
    until(lambda: gone(stays))
    stays = asked(pool, "child that stays")
    assert isinstance(stays, int) and not gone(stays)
    pool.close()
    until(lambda: gone(stays))


@pytest.mark.skipif(sys.platform != "linux", reason="needs a subreaper")
@pytest.mark.parametrize("end", ["leave", "sleep", "close"])
def test_a_daemon_ends_with_its_worker(end: str, pool: Pool) -> None:
    """A process in a session of its own, whose parent has ended."""
    daemon = asked(pool, "daemon")
    assert isinstance(daemon, int) and not gone(daemon)
    if end == "close":
        pool.close()
    else:
        with pytest.raises((WorkerDied, JobTimeout)):
            asked(pool, end, 0.5)
    until(lambda: gone(daemon))


def test_a_death_takes_no_other_job_with_it(target: Target) -> None:
    with Pool(target, Limits(20.0, memory_mib=512), workers=2) as pool:
        waiting = [pool.submit(job, 1.0) for job in ("leave", {"echo": 1}, "sleep", {"echo": 2}, "loop", {"echo": 3})]
        assert [one.result(60) for one in waiting[1::2]] == [1, 2, 3]
        assert [type(one.exception(60)) for one in waiting[::2]] == [WorkerDied, JobTimeout, JobTimeout]


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        ("raise ValueError('no')", JobFailed, "ValueError"),
        ("x = 1", JobFailed, "has no attribute 'make'"),
        ("import os; os._exit(7)", WorkerDied, "exit code 7"),
        ("import time; time.sleep(600)", JobTimeout, "^$"),
    ],
)
def test_code_that_does_not_load(
    code: str, kind: type[Exception], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "mine.py").write_text(code)
    with Pool(Target("mine:make"), Limits(1.0, loading=1.0)) as pool:
        with pytest.raises(kind, match=said) as raised:
            asked(pool, "job")
        assert raised.value.loading


def test_nobody_outlives_a_parent_that_is_killed(target: Target) -> None:
    script = """
import time
from rlvr_cli.workers.pool import *
pool = Pool(Target("mine:make"), Limits(20.0))
print(pool.submit("child that stays").result(), pool.submit("daemon").result(), *pool.pids, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 3
    pids += [process.pid for process in psutil.Process(parent.pid).children()]
    assert len(pids) == 4
    parent.kill()
    parent.wait(60)
    until(lambda: all(map(gone, pids)))


def test_time_in_which_the_caller_stands_still_is_not_counted(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a laptop that sleeps: the clock jumps, the worker had no chance."""
    jumps = [0.0]
    clock = time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: clock() + jumps[0])
    waiting = pool.submit("first", 20.0)
    jumps[0] = 1000.0
    assert waiting.result(60) == [1, {"a": 1}]


def test_a_job_whose_worker_is_killed_from_outside_is_tried_once_more(pool: Pool) -> None:
    assert asked(pool, "first") == [1, {"a": 1}]
    killed = {pool.pids[0]}
    os.kill(pool.pids[0], signal.SIGKILL)
    assert asked(pool, "next") == [1, {"a": 1}]
    (last,) = pool.pids
    killed.add(last)
    # What forks the workers.
    os.kill(psutil.Process(pool.pids[0]).ppid(), signal.SIGKILL)
    until(lambda: gone(last))
    assert asked(pool, "next") == [1, {"a": 1}] and not killed & set(pool.pids)
    waiting, killed = pool.submit({"sleep for": 600}, 600.0), set()
    for _ in range(2):
        until(lambda: bool(set(pool.pids) - killed))
        time.sleep(0.3)
        (pid,) = pool.pids
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
    with pytest.raises(WorkerDied, match="SIGKILL"):
        waiting.result(60)


def test_a_worker_is_replaced_after_so_many_jobs(target: Target) -> None:
    with Pool(target, Limits(20.0), jobs_per_worker=2) as pool:
        assert [asked(pool, "job") for _ in range(5)] == [[count, {"a": 1}] for count in (1, 2, 1, 2, 1)]


def test_code_of_ours_has_limited_address_space_and_ends_with_its_memory(target: Target) -> None:
    ours = replace(target, trusted=True)
    with Pool(ours, Limits(20.0, memory_mib=512)) as pool:
        assert asked(pool, "limit") == 512 * 2**20
        with pytest.raises(WorkerDied, match="exit code 1"):
            asked(pool, "memory")
        assert asked(pool, "next") == [1, {"a": 1}]


def test_a_worker_that_cannot_be_started_is_an_error_and_the_pool_goes_on(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    for module, name, value, reason in (
        (processes.socket, "socketpair", full, "cannot be started: .*Too many open files"),
        (processes.subprocess, "Popen", full, "cannot be started: .*Too many open files"),
        (processes.sys, "executable", "/bin/false", "cannot be started"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            with pytest.raises(RunError, match=reason):
                asked(pool, "job")
    assert asked(pool, "next") == [1, {"a": 1}]
    start = threading.Thread.start

    def starting(thread: threading.Thread) -> None:
        if thread.name.startswith("workers-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch, Pool(pool.target, pool.limits) as other:
        patch.setattr(threading.Thread, "start", starting)
        with pytest.raises(RunError, match="can't start new thread"):
            other.submit("job")
        patch.undo()
        assert asked(other, "next") == [1, {"a": 1}]


def test_an_error_while_waiting_leaves_no_answer_for_the_next_job(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(pool, "first") == [1, {"a": 1}]
    receive = child.receive
    with monkeypatch.context() as patch:

        def failing(connection: object) -> object:
            patch.setattr(child, "receive", receive)
            raise MemoryError

        patch.setattr(child, "receive", failing)
        with pytest.raises(MemoryError):
            asked(pool, {"echo": 1})
        assert asked(pool, {"echo": 2}) == 2


def test_closing_fails_what_is_being_done_and_leaves_nobody(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(target, Limits(60.0))
    assert asked(pool, "first") == [1, {"a": 1}]
    pids = [*pool.pids, psutil.Process(pool.pids[0]).ppid()]
    busy, waiting = pool.submit("sleep"), pool.submit("next")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(processes._Worker, "interrupt", lambda worker: signal.raise_signal(signal.SIGINT))
        pool.close()
    assert not gone(pids[1])
    pool.close()  # An interrupted closing is finished by the next.
    for future in (busy, waiting):
        with pytest.raises(RuntimeError, match="closed"):
            future.result(60)
    assert all(map(gone, pids)) and not any(thread.is_alive() for thread in pool._threads)
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit("job")


FORKING = """
import os, resource, sys
from rlvr_cli.workers.pool import *
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(24, 24)  # Not even root raises a limit again.
    resource.setrlimit(resource.RLIMIT_AS, (900 * 2**20, 900 * 2**20))
pool = Pool(Target("mine:make", trusted=True), Limits(20.0))
assert sys.platform != "linux" or pool.submit("limit").result() == 900 * 2**20, "a lower limit of the system stays"
parents = [pool.submit("job") and pool.submit("job").result() and pid for pid in pool.pids]
child = os.fork()
if child == 0:
    good = pool.submit("job").result()[0] == 1 and not set(pool.pids) & set(parents)
    pool.close()
    os._exit(0 if good else 1)
assert os.waitpid(child, 0)[1] == 0, "a forked child has workers of its own"
assert pool.submit("job").result()[0] > 1 and pool.pids == parents
print(*parents)
"""


def test_a_forked_child_has_workers_of_its_own_and_nothing_is_left_at_exit(target: Target) -> None:
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    (pid,) = map(int, done.stdout.split())
    until(lambda: gone(pid))


def test_a_pool_that_is_not_among_the_last_shared_ones_does_its_jobs_and_ends_its_workers(target: Target) -> None:
    limits = Limits(20.0, memory_mib=512)
    pool = shared_pool(target, limits)
    jobs = [pool.submit(job) for job in ({"sleep for": 1}, {"echo": 2})]
    others = [shared_pool(target, Limits(30.0 + number, memory_mib=512)) for number in range(16)]
    assert [job.result(60) for job in jobs] == [1, 2]
    until(lambda: not pool.pids)
    assert asked(pool, {"echo": 3}) == 3
    assert shared_pool(target, Limits(45.0, memory_mib=512)) is others[-1]
    again = shared_pool(target, limits)
    assert again is not pool
    for shared in (pool, again, *others):
        shared.close()
