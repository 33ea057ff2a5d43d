"""Judge pairs of mathematical answers in worker processes with deadlines."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from rlvr_cli.verify.math_answer import DIED, TIMEOUT, Outcome, Rule, compare_plain, compare_plain_paper
from rlvr_cli.workers import pool as processes
from rlvr_cli.workers.pool import JobTimeout, Limits, Target, WorkerDied

WORKERS = 2
# math-verify's timeout of a comparison, in seconds.
DEADLINE = 5.0
# Wall-clock limit, in deadlines (CPU time).
PATIENCE = 3
MEMORY_MIB = 1024
# Pairs after which a worker is replaced, since SymPy's caches grow.
PAIRS_PER_WORKER = 5000
# Outcomes cached per pool, without timeouts and deaths, which may be due to a busy machine.
CACHED_PAIRS = 20_000


class MathPool(processes.Pool):
    """Judges pairs (gold answer, answer) in worker processes.

    The calling process only runs ``compare_plain`` (or ``compare_plain_paper``). The first undecided pair starts a
    worker, which imports SymPy.

    Args:
        workers: number of processes.
        deadline: CPU seconds per pair; the wall-clock limit is PATIENCE times that, so that a busy machine changes no
            reward. Beyond them the outcome is ``timeout``.
        memory_mib: address space of a process; beyond it the outcome is ``died``.
    """

    def __init__(self, workers: int = WORKERS, deadline: float = DEADLINE, memory_mib: int = MEMORY_MIB) -> None:
        judge = Target("rlvr_cli.verify.algebra:make_handler", trusted=True, purpose="judges mathematics")
        limits = Limits(PATIENCE * deadline, deadline, memory_mib)
        super().__init__(judge, limits, workers, PAIRS_PER_WORKER)
        self.cache: dict[tuple[str, str, Rule], Outcome] = {}

    def judge_many(self, pairs: Sequence[tuple[str, str]], rule: Rule = "strict") -> list[Outcome]:
        """Return the outcome of each pair, identical ones judged once, also across calls. Raises RunError."""
        with PairBatch(self, rule) as batch:
            for pair in pairs:
                batch.submit(*pair)
            return [batch.result(*pair) for pair in pairs]


class PairBatch:
    """Pairs submitted to a pool; identical ones are judged once. Its end cancels unstarted pairs. Not thread-safe."""

    def __init__(self, pool: MathPool, rule: Rule = "strict") -> None:
        self._pool, self._rule = pool, rule
        self._outcomes: dict[tuple[str, str], Outcome | Future[list[Any]]] = {}

    def submit(self, gold: str, answer: str) -> None:
        """Submit a pair. Raises as ``MathPool.judge_many``."""
        if (gold, answer) not in self._outcomes:
            outcome = compare_plain_paper(gold, answer) if self._rule == "paper" else compare_plain(gold, answer)
            outcome = outcome or self._pool.cache.get((gold, answer, self._rule))
            self._outcomes[gold, answer] = outcome or self._pool.submit([self._rule, gold, answer])

    def result(self, gold: str, answer: str) -> Outcome:
        """Wait for the outcome of a submitted pair. Raises as ``MathPool.judge_many``."""
        outcome = self._outcomes[gold, answer]
        if isinstance(outcome, Future):
            try:
                outcome = Outcome(*outcome.result())
                if len(self._pool.cache) >= CACHED_PAIRS:
                    self._pool.cache.clear()
                self._pool.cache[gold, answer, self._rule] = outcome
            except JobTimeout:
                outcome = TIMEOUT
            except WorkerDied:
                outcome = DIED
            self._outcomes[gold, answer] = outcome
        return outcome

    def __enter__(self) -> PairBatch:
        return self

    def __exit__(self, *_: object) -> None:
        for outcome in self._outcomes.values():
            if isinstance(outcome, Future):
                outcome.cancel()


_shared = MathPool()


def math_pool() -> MathPool:
    """Return this process's pool, replacing a closed one."""
    global _shared
    if _shared.closed:
        _shared = MathPool()
    return _shared


def resize_math_pool(workers: int) -> None:
    """Set the number of processes of ``math_pool``; a pool of another size is closed."""
    global _shared
    if _shared.closed or _shared.workers != workers:
        _shared.close()
        _shared = MathPool(workers)
