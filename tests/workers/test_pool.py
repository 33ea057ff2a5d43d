"""Workers with code of the user's: it prints, leaves, forks, sleeps and fills the memory, and harms nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rlvr_cli.workers.pool import JobFailed, JobTimeout, Limits, Pool, Target, WorkerDied, shared_pool
from tests.training.processes import gone

ROOT = Path(__file__).parents[2]
FILE = """
import multiprocessing, os, signal, subprocess, sys, threading, time
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


def test_a_judge_by_its_module() -> None:
    with Pool(Target("rlvr_cli.verify.algebra:ready"), Limits(60.0)) as pool:
        assert asked(pool, ["strict", "x+1", "1+x"]) == [True, "equal"]
        assert pool.submit(["strict", "x+1", "x+2"]).result() == [False, "different"]


@pytest.mark.parametrize(
    ("job", "kind", "said"),
    [
        ("exit", JobFailed, "SystemExit"),
        ("raise", JobFailed, "KeyError"),
        ("interrupt", JobFailed, "KeyboardInterrupt"),
        ("memory", JobFailed, "MemoryError"),
        ("not json", JobFailed, "set"),
        ("leave", WorkerDied, "exit code 3"),
        ("segfault", WorkerDied, "SIGSEGV"),
        ("close everything", WorkerDied, "ended"),
        ("sleep", JobTimeout, "^$"),
        ("loop", JobTimeout, "^$"),
        ("children", JobTimeout, "^$"),
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
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", WorkerDied, "SIGKILL"),
        ("import time; time.sleep(600)", JobTimeout, "^$"),
    ],
)
def test_code_that_does_not_load(
    code: str, kind: type[Exception], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "mine.py").write_text(code)
    with Pool(Target("mine:make"), Limits(1.0, load_seconds=1.0)) as pool:
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


def test_a_worker_that_is_killed_from_outside_is_replaced(pool: Pool) -> None:
    assert asked(pool, "first") == [1, {"a": 1}]
    os.kill(pool.pids[0], signal.SIGKILL)
    assert asked(pool, "next") == [1, {"a": 1}]


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
