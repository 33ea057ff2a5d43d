"""The pool with real processes: deadlines, deaths, order, threads, asyncio, the end."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rlvr_cli.core.errors import RunError
from rlvr_cli.verify import pool as pool_module
from rlvr_cli.verify.math_answer import DIED, DIFFERENT, EQUAL, TIMEOUT, Outcome
from rlvr_cli.verify.pool import MathPool, math_pool
from rlvr_cli.workers import child
from rlvr_cli.workers import pool as processes
from tests.training.processes import gone

ROOT = Path(__file__).parents[2]
# math-verify takes minutes for this.
SLOW = (r"7", r"\int \sin(x^x)\cos(e^x) dx")
# Needs algebra, so it goes to a worker.
HARD = ("x^2-1", "(x-1)(x+1)")


@pytest.fixture
def pool() -> Iterator[MathPool]:
    with MathPool(workers=2, deadline=2.0) as pool:
        yield pool


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The pairs that reach a worker."""
    pairs: list[tuple[str, str]] = []
    ask = processes._Worker.ask

    def noting(worker: processes._Worker, job: list[str], seconds: float | None) -> object:
        pairs.append((job[1], job[2]))
        return ask(worker, job, seconds)

    monkeypatch.setattr(processes._Worker, "ask", noting)
    return pairs


def until(condition: object, seconds: float = 60.0) -> None:
    """Wait for ``condition()``."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_order(pool: MathPool) -> None:
    pairs = [(f"x+{number}", f"{number % 3}+x+{number - number % 3}") for number in range(40)]
    pairs[7] = ("x+7", "x+8")
    outcomes = pool.judge_many(pairs)
    assert [index for index, outcome in enumerate(outcomes) if outcome != EQUAL] == [7]
    assert outcomes[7] == DIFFERENT
    assert pool.judge_many([]) == []


def test_duplicates_are_judged_once(pool: MathPool, asked: list[tuple[str, str]]) -> None:
    assert pool.judge_many([HARD] * 1000) == [EQUAL] * 1000
    assert asked == [HARD]
    assert pool.judge(*HARD) == EQUAL
    assert asked == [HARD]


def test_a_timeout_is_not_remembered(asked: list[tuple[str, str]]) -> None:
    with MathPool(workers=1, deadline=0.5) as pool:
        assert pool.judge_many([SLOW, SLOW]) == [TIMEOUT, TIMEOUT]
        assert pool.judge(*SLOW) == TIMEOUT
    assert asked == [SLOW, SLOW]


def test_a_pair_that_comes_again_later_has_the_same_outcome(asked: list[tuple[str, str]]) -> None:
    with MathPool(workers=1, deadline=0.3) as pool, pool.pending() as pending:
        pending.add(*SLOW)
        assert pending.outcome(*SLOW) == TIMEOUT
        pending.add(*HARD)
        pending.add(*SLOW)
        assert (pending.outcome(*HARD), pending.outcome(*SLOW)) == (EQUAL, TIMEOUT)
    assert asked == [SLOW, HARD]


def test_what_has_not_begun_when_the_judgement_is_given_up_is_not_judged(asked: list[tuple[str, str]]) -> None:
    with MathPool(workers=1, deadline=0.5) as pool:
        with pytest.raises(KeyboardInterrupt), pool.pending() as pending:
            pending.add(*SLOW)
            until(lambda: asked)
            pending.add(*HARD)
            raise KeyboardInterrupt
        assert pool.judge("x+1", "1+x+0") == EQUAL
    assert asked == [SLOW, ("x+1", "1+x+0")]


def test_what_needs_no_algebra_needs_no_process(pool: MathPool) -> None:
    assert pool.judge_many([("5", "5.0"), ("5", "6"), ("x", " $x$ ")]) == [EQUAL, DIFFERENT, EQUAL]
    assert pool.pids == []


def test_the_deadline(pool: MathPool) -> None:
    pairs = [HARD, SLOW, HARD[::-1], SLOW, ("x+1", "1+x"), ("x+1", "x+2")]
    assert pool.judge_many(pairs) == [EQUAL, TIMEOUT, EQUAL, TIMEOUT, EQUAL, DIFFERENT]
    assert pool.judge(*HARD) == EQUAL


def stopped_for(pool: MathPool, seconds: float) -> Outcome:
    """What a pair is worth whose worker gets no processor for that long."""
    assert pool.judge("x+1", "1+x") == EQUAL
    worker = psutil.Process(pool.pids[0])
    worker.suspend()
    timer = threading.Timer(seconds, worker.resume)
    timer.start()
    try:
        return pool.judge(*HARD)
    finally:
        timer.cancel()
        timer.join()


def test_a_busy_machine_times_nobody_out() -> None:
    with MathPool(workers=1, deadline=1.0) as pool:
        assert stopped_for(pool, 2.0) == EQUAL


def test_a_worker_that_never_gets_a_processor_is_given_up() -> None:
    with MathPool(workers=1, deadline=0.2) as pool:
        assert stopped_for(pool, 60.0) == TIMEOUT
        assert pool.judge(*HARD) == EQUAL


def test_a_cold_worker_times_nobody_out() -> None:
    with MathPool(workers=1, deadline=0.3) as pool:
        assert pool.judge(*HARD) == EQUAL


def test_a_worker_that_is_killed_is_replaced(pool: MathPool) -> None:
    assert pool.judge_many([HARD, ("x+1", "1+x")]) == [EQUAL, EQUAL]
    before = pool.pids
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    pairs = [HARD[::-1], ("x+1", "1+x+0"), ("x+1", "x+2")]
    assert pool.judge_many(pairs) == [EQUAL, EQUAL, DIFFERENT]
    assert not set(before) & set(pool.pids)


def test_what_forks_the_workers_is_replaced_when_it_is_killed(pool: MathPool) -> None:
    assert pool.judge(*HARD) == EQUAL
    workers = pool.pids
    os.kill(psutil.Process(workers[0]).ppid(), signal.SIGKILL)
    until(lambda: all(gone(pid) for pid in workers))
    assert pool.judge_many([HARD[::-1], ("x+1", "1+x+0"), ("x+1", "x+2")]) == [EQUAL, EQUAL, DIFFERENT]
    assert not set(workers) & set(pool.pids)


def test_closing_leaves_nobody_behind() -> None:
    with MathPool(workers=2, deadline=1.0) as pool:
        assert pool.judge_many([HARD, SLOW, ("x+1", "1+x")]) == [EQUAL, TIMEOUT, EQUAL]
        pids = [*pool.pids, psutil.Process(pool.pids[0]).ppid()]
        assert len(pids) >= 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_killed_in_the_middle_of_a_judgement() -> None:
    with MathPool(workers=1, deadline=60.0) as pool:
        outcomes: list[Outcome] = []
        thread = threading.Thread(target=lambda: outcomes.extend(pool.judge_many([SLOW, HARD])))
        thread.start()
        killed: set[int] = set()

        def busy() -> bool:
            pids = [pid for pid in pool.pids if pid not in killed]
            return bool(pids) and psutil.Process(pids[0]).cpu_times().user > 4

        for _ in range(2):  # The pair is tried once more, since a kill from outside says nothing about it.
            until(busy)
            pid = next(pid for pid in pool.pids if pid not in killed)
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        thread.join(timeout=60)
        assert outcomes == [DIED, EQUAL]


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Have the process that forks the workers run some lines of Python before it does anything else."""

    def change(code: str) -> None:
        script = tmp_path / "changed.py"
        script.write_text(
            "import os\nfrom rlvr_cli.verify import algebra\nfrom rlvr_cli.workers import child\n"
            f"{code}\nchild.main()\n"
        )
        spawn = subprocess.Popen

        def start(arguments: list[str], **keywords: object) -> object:
            return spawn([sys.executable, str(script)], **keywords)  # type: ignore[call-overload]

        monkeypatch.setattr(processes.subprocess, "Popen", start)

    return change


def test_a_memory_bomb(changed: Callable[[str], None]) -> None:
    """A worker without the size guard, so that memory is what stops it."""
    changed(
        "judge = algebra.judge_strict\n"
        "def bomb(gold, answer):\n"
        "    return len(bytearray(2**31)) if answer == 'bomb' else judge(gold, answer)\n"
        "algebra.judge_strict = bomb\n"
    )
    with MathPool(workers=1, memory_mib=512) as pool:
        assert pool.judge_many([HARD, ("7", "bomb"), ("x+1", "1+x")]) == [EQUAL, DIED, EQUAL]


def test_a_segfault_and_junk(changed: Callable[[str], None]) -> None:
    changed(
        "judge = algebra.judge_strict\n"
        "def bad(gold, answer):\n"
        "    if answer == 'segfault':\n"
        "        import ctypes\n"
        "        ctypes.string_at(0)\n"
        "    if answer == 'junk':\n"
        "        for descriptor in range(30):\n"
        "            try:\n"
        "                os.write(descriptor, b'junk' * 100)\n"
        "            except OSError:\n"
        "                pass\n"
        "    return judge(gold, answer)\n"
        "algebra.judge_strict = bad\n"
    )
    with MathPool(workers=1) as pool:
        pairs = [("7", "segfault"), HARD, ("7", "junk"), ("x+1", "1+x"), ("x+1", "x+2")]
        assert pool.judge_many(pairs) == [DIED, EQUAL, DIED, EQUAL, DIFFERENT]


def test_descriptors_that_run_out_are_an_error_and_the_pool_goes_on(
    pool: MathPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(processes.socket, "socketpair", failing)
        with pytest.raises(RunError, match=r"cannot be started: .*Too many open files"):
            pool.judge(*HARD)
    assert pool.judge_many([("x+1", "1+x"), ("x+1", "x+2")]) == [EQUAL, DIFFERENT]


def test_a_thread_that_cannot_be_started_is_an_error_and_the_pool_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    start, fails = threading.Thread.start, [True]

    def starting(thread: threading.Thread) -> None:
        if thread.name.startswith("workers-") and fails[0]:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)
    with MathPool(workers=1) as pool:
        with pytest.raises(RunError, match="can't start new thread"):
            pool.judge(*HARD)
        fails[0] = False
        outcomes: list[Outcome] = []
        thread = threading.Thread(target=lambda: outcomes.append(pool.judge(*HARD)), daemon=True)
        thread.start()
        thread.join(timeout=60)
        assert outcomes == [EQUAL]


def test_an_error_while_waiting_leaves_no_outcome_for_the_next_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    with MathPool(workers=1) as pool:
        assert pool.judge(*HARD) == EQUAL
        receive = child.receive
        with monkeypatch.context() as patch:

            def failing(connection: object) -> object:
                patch.setattr(child, "receive", receive)
                raise MemoryError

            patch.setattr(child, "receive", failing)
            with pytest.raises(MemoryError):
                pool.judge("x+1", "x+2")
            assert pool.judge("x+3", "3+x") == EQUAL


def test_closing_while_what_forks_the_workers_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_REPLY_SECONDS", 0.5)
    pool = MathPool(workers=1, deadline=0.5)
    assert pool.judge(*HARD) == EQUAL
    os.kill(psutil.Process(pool.pids[0]).ppid(), signal.SIGSTOP)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            pool.judge(*SLOW)
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: not pool.pids)
    pool.close()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert len(errors) == 1


def test_the_address_space_of_a_worker_is_limited(pool: MathPool) -> None:
    pool.judge(*HARD)
    for pid in pool.pids:
        limits = psutil.Process(pid).rlimit(psutil.RLIMIT_AS)
        assert limits == (1024 * 2**20, 1024 * 2**20)


def test_hostile_answers(hostile_pool: MathPool) -> None:
    for answer in [
        "(" * 50 + "7" + ")" * 50,
        "9**9**9",
        "10^{10^{10}}",
        "100000!",
        "__import__('os').system('kill 1')",
        "\x00\x01\x1b[2J",
        "\ud800",
        "\u202e7",
        "7" * 1_000_000,
        "\\boxed{" * 100_000,
        "7\\end",
        "-" * 1900 + "7x",
        "^" * 1900,
        "\\frac" * 300,
        "}{",
        "7}+\\boxed{7",
        "8=7",
        "7\n8",
        "7 or 8",
        "\\text{7}8",
    ]:
        outcome = hostile_pool.judge("7", answer)
        assert outcome.equal is not True or answer == "\u202e7", answer
        assert hostile_pool.judge("x+7", f"{len(answer)}+x") == (EQUAL if len(answer) == 7 else DIFFERENT), answer


@pytest.fixture(scope="module")
def hostile_pool() -> Iterator[MathPool]:
    with MathPool(workers=1) as pool:
        yield pool


def test_threads(pool: MathPool) -> None:
    found: dict[int, list[Outcome]] = {}

    def work(number: int) -> None:
        found[number] = pool.judge_many([(f"y+{number}", f"{number}+y"), (f"y+{number}", f"y-{number}")])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert found == {number: [EQUAL, DIFFERENT] for number in range(1, 13)}


def test_asyncio(pool: MathPool) -> None:
    async def work() -> tuple[list[list[Outcome]], int]:
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0.02)
                beats += 1

        heart = asyncio.create_task(beat())
        tasks = [asyncio.to_thread(pool.judge_many, [HARD, SLOW]), asyncio.to_thread(pool.judge_many, [HARD])]
        results = await asyncio.gather(*tasks)
        heart.cancel()
        return list(results), beats

    results, beats = asyncio.run(work())
    assert results == [[EQUAL, TIMEOUT], [EQUAL]]
    assert beats > 10


def test_closing_kills(pool: MathPool) -> None:
    pool.judge(*HARD)
    pids = pool.pids
    assert pids
    pool.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with pytest.raises(RuntimeError, match="closed"):
        pool.judge("x+1", "1+x")
    pool.close()


def test_closing_that_is_interrupted_is_finished_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = MathPool(workers=1)
    assert pool.judge(*HARD) == EQUAL
    above = psutil.Process(pool.pids[0]).ppid()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(processes._Worker, "interrupt", lambda worker: signal.raise_signal(signal.SIGINT))
        pool.close()
    assert not gone(above)
    pool.close()
    assert gone(above)
    assert not any(thread.is_alive() for thread in pool._threads)


def test_closing_while_a_pair_is_judged() -> None:
    pool = MathPool(workers=1, deadline=60.0)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            pool.judge_many([SLOW, HARD])
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: pool.pids)
    pool.close()
    thread.join(timeout=60)
    assert len(errors) == 1


def test_workers_are_recycled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "PAIRS_PER_WORKER", 2)
    with MathPool(workers=1) as pool:
        pids = set()
        for number in range(5):
            assert pool.judge(f"z+{number}", f"{number}+z+0") == EQUAL
            pids.update(pool.pids)
    assert len(pids) == 3


def test_a_worker_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.sys, "executable", "/bin/false")
    with MathPool(workers=1) as pool, pytest.raises(RunError, match="cannot be started"):
        pool.judge_many([HARD, ("x", "y")])


def test_arguments() -> None:
    for keywords in ({"workers": 0}, {"deadline": 0.0}, {"memory_mib": 10}):
        with pytest.raises(ValueError, match="a pool needs"):
            MathPool(**keywords)  # type: ignore[arg-type]


def test_the_math_pool_is_shared() -> None:
    assert math_pool() is math_pool()


SCRIPT = """
import sys, time
from rlvr_cli.verify.pool import math_pool
assert math_pool().judge("x^2-1", "(x-1)(x+1)").equal
print(*math_pool().pids, flush=True)
loaded = {"torch", "trl", "transformers", "sympy", "math_verify", "latex2sympy2_extended"} & set(sys.modules)
assert not loaded, loaded
"""


LIMITED = """
import ctypes, resource
ctypes.CDLL(None).prctl(24, 24)  # Not even root raises a limit again.
resource.setrlimit(resource.RLIMIT_AS, (900 * 2**20, 900 * 2**20))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere address space is not limited")
def test_a_lower_limit_of_the_system_stays() -> None:
    child, pids = started(LIMITED + SCRIPT)
    assert child.wait(timeout=60) == 0
    assert pids


def started(script: str) -> tuple[subprocess.Popen[str], list[int]]:
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert child.stdout is not None
    return child, [int(pid) for pid in child.stdout.readline().split()]


def test_nothing_is_left_at_exit_and_the_parent_loads_no_algebra() -> None:
    child, pids = started(SCRIPT)
    assert child.wait(timeout=60) == 0
    assert pids
    until(lambda: all(gone(pid) for pid in pids))


@pytest.mark.parametrize("busy", [False, True])
def test_nothing_is_left_when_the_parent_is_killed(busy: bool) -> None:
    work = f"math_pool().judge{SLOW!r}" if busy else "time.sleep(600)"
    child, pids = started(SCRIPT + work)
    assert pids
    below = {process.pid for process in psutil.Process(child.pid).children(recursive=True)}
    assert set(pids) < below, "the workers, and what forks them"
    pids = list(below)
    if busy:
        time.sleep(0.5)
    child.kill()
    child.wait(timeout=60)
    until(lambda: all(gone(pid) for pid in pids))


def test_a_forked_child_has_workers_of_its_own() -> None:
    fork = """
import os
parents = math_pool().pids
child = os.fork()
if child == 0:
    good = math_pool().judge("x+1", "1+x").equal and not set(math_pool().pids) & set(parents)
    math_pool().close()
    os._exit(0 if good else 1)
assert os.waitpid(child, 0)[1] == 0
assert math_pool().judge("x+2", "2+x").equal and set(parents) <= set(math_pool().pids)
"""
    child, _ = started(SCRIPT + fork)
    assert child.wait(timeout=60) == 0
