"""Pairs of mathematics judged by real processes: order, memory, deadlines of a processor's time, hostile answers.

What any pool of workers does (deaths, replacement, closing, memory) is in tests/workers/test_pool.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future

import psutil
import pytest

from rlvr_cli.verify.math_answer import DIED, DIFFERENT, EQUAL, TIMEOUT, Outcome
from rlvr_cli.verify.pool import MathPool, PairBatch, math_pool
from rlvr_cli.workers import pool as processes
from rlvr_cli.workers.pool import WorkerDied

# math-verify takes minutes for this.
SLOW = (r"7", r"\int \sin(x^x)\cos(e^x) dx")
# Needs algebra, so it goes to a worker.
HARD = ("x^2-1", "(x-1)(x+1)")


def judge(pool: MathPool, gold: str, answer: str) -> Outcome:
    return pool.judge_many([(gold, answer)])[0]


@pytest.fixture(scope="module")
def pool() -> Iterator[MathPool]:
    with MathPool(workers=2, deadline=2.0) as pool:
        yield pool


@pytest.fixture(scope="module")
def hurried() -> Iterator[MathPool]:
    with MathPool(workers=1, deadline=0.3) as pool:
        yield pool


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The pairs that reach a worker."""
    pairs: list[tuple[str, str]] = []
    run_job = processes._Worker.run_job

    def noting(worker: processes._Worker, job: list[str], seconds: float | None) -> object:
        pairs.append((job[1], job[2]))
        return run_job(worker, job, seconds)

    monkeypatch.setattr(processes._Worker, "run_job", noting)
    return pairs


def until(condition: object, seconds: float = 60.0) -> None:
    """Wait for ``condition()``."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_what_needs_no_algebra_needs_no_process() -> None:
    with MathPool() as pool:
        assert pool.judge_many([("5", "5.0"), ("5", "6"), ("x", " $x$ ")]) == [EQUAL, DIFFERENT, EQUAL]
        assert pool.judge_many([]) == [] and pool.pids == []


def test_outcomes_come_in_the_order_of_the_pairs(pool: MathPool) -> None:
    pairs = [(f"x+{number}", f"{number % 3}+x+{number - number % 3}") for number in range(40)]
    pairs[7] = ("x+7", "x+8")
    outcomes = pool.judge_many(pairs)
    assert [index for index, outcome in enumerate(outcomes) if outcome != EQUAL] == [7]
    assert outcomes[7] == DIFFERENT


def test_a_pair_is_judged_once_also_across_calls(pool: MathPool, asked: list[tuple[str, str]]) -> None:
    assert pool.judge_many([HARD] * 1000) == [EQUAL] * 1000
    assert judge(pool, *HARD) == EQUAL
    assert asked == [HARD]


def test_a_timeout_is_that_of_its_pair_and_is_not_remembered(hurried: MathPool, asked: list[tuple[str, str]]) -> None:
    """Nor does the start of a cold worker count."""
    assert hurried.judge_many([HARD, SLOW, HARD[::-1], SLOW]) == [EQUAL, TIMEOUT, EQUAL, TIMEOUT]
    assert asked == [HARD, SLOW, HARD[::-1]]
    with PairBatch(hurried) as batch:
        batch.submit(*SLOW)
        assert batch.result(*SLOW) == TIMEOUT
        batch.submit(*SLOW)
        assert batch.result(*SLOW) == TIMEOUT, "within one judgement it has one outcome"
    assert asked[3:] == [SLOW]


def test_what_has_not_begun_when_the_judgement_is_given_up_is_not_judged(
    hurried: MathPool, asked: list[tuple[str, str]]
) -> None:
    with pytest.raises(KeyboardInterrupt), PairBatch(hurried) as batch:
        batch.submit(*SLOW)
        until(lambda: asked)
        batch.submit("x+5", "5+x")
        raise KeyboardInterrupt
    assert judge(hurried, "x+1", "1+x+0") == EQUAL
    assert asked == [SLOW, ("x+1", "1+x+0")]


def test_a_busy_machine_times_nobody_out_and_a_worker_that_never_gets_a_processor_is_given_up() -> None:
    with MathPool(workers=1, deadline=1.0) as pool:
        for seconds, pair, outcome in ((2.0, HARD, EQUAL), (60.0, HARD[::-1], TIMEOUT)):
            assert judge(pool, "x+1", f"1+x+{0 * seconds}") == EQUAL
            worker = psutil.Process(pool.pids[0])
            worker.suspend()
            timer = threading.Timer(seconds, worker.resume)
            timer.start()
            try:
                assert judge(pool, *pair) == outcome
            finally:
                timer.cancel()
                timer.join()


def test_a_worker_that_ends_over_a_pair_is_an_outcome_of_the_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    def died(pool: MathPool, job: object) -> Future[object]:
        future: Future[object] = Future()
        future.set_exception(WorkerDied("its process was ended by SIGKILL"))
        return future

    monkeypatch.setattr(MathPool, "submit", died)
    assert judge(MathPool(), *HARD) == DIED


def test_hostile_answers_are_not_right_and_change_nothing_for_the_next(pool: MathPool) -> None:
    for answer in [
        *("(" * 50 + "7" + ")" * 50, "9**9**9", "10^{10^{10}}", "100000!", "__import__('os').system('kill 1')"),
        *("\x00\x01\x1b[2J", "\ud800", "\u202e7", "7" * 1_000_000, "\\boxed{" * 100_000, "7\\end", "-" * 1900 + "7x"),
        *("^" * 1900, "\\frac" * 300, "}{", "7}+\\boxed{7", "8=7", "7\n8", "7 or 8", "\\text{7}8", "x\u2460"),
    ]:
        outcome = judge(pool, "7", answer)
        assert outcome.equal is not True or answer == "\u202e7", answer
        assert judge(pool, "x+7", f"{len(answer)}+x") == (EQUAL if len(answer) == 7 else DIFFERENT), answer


def test_the_pool_of_this_process_is_shared_until_it_is_closed() -> None:
    pool = math_pool()
    assert math_pool() is pool
    pool.close()
    assert math_pool() is not pool
