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
# The wall-clock limit in deadlines, which are CPU time.
PATIENCE = 3
MEMORY_MIB = 1024
# Pairs after which a process is replaced, since SymPy's caches grow.
PAIRS_PER_WORKER = 5000
# Size of a pool's cache of outcomes. Timeouts and deaths may be due to a busy machine and are not cached.
CACHED_PAIRS = 20_000


class MathPool(processes.Pool):
    """Judges pairs (gold answer, answer) in worker processes.

    The calling process only runs ``math_answer.compare_plain`` (or ``compare_plain_paper``). The first pair that it
    leaves undecided starts a worker, which imports SymPy.

    Args:
        workers: number of processes.
        deadline: CPU seconds per pair in a ready process; the wall-clock limit is PATIENCE times that, so that a busy
            machine changes no reward. Beyond them the process is replaced and the outcome is ``timeout``.
        memory_mib: address space of one process; beyond it the outcome is ``died``.
    """

    def __init__(self, workers: int = WORKERS, deadline: float = DEADLINE, memory_mib: int = MEMORY_MIB) -> None:
        judge = Target("rlvr_cli.verify.algebra:make_handler", ours=True, purpose="judges mathematics")
        limits = Limits(PATIENCE * deadline, deadline, memory_mib)
        super().__init__(judge, limits, workers, PAIRS_PER_WORKER)
        self._memory: dict[tuple[str, str, Rule], Outcome] = {}

    def judge(self, gold: str, answer: str, rule: Rule = "strict") -> Outcome:
        """Judge one pair, as ``judge_many``."""
        return self.judge_many([(gold, answer)], rule)[0]

    def judge_many(self, pairs: Sequence[tuple[str, str]], rule: Rule = "strict") -> list[Outcome]:
        """Return the outcome of each pair, in order; identical pairs are judged once, also across calls.

        Raises for no text, but RunError when no worker process can start, RuntimeError when the pool is closed.
        """
        with self.pending(rule) as pending:
            for pair in pairs:
                pending.add(*pair)
            return [pending.outcome(*pair) for pair in pairs]

    def pending(self, rule: Rule = "strict") -> PairBatch:
        """Start judging pairs that arrive one by one, concurrently with the caller."""
        return PairBatch(self, rule)

    def outcome(self, gold: str, answer: str, rule: Rule) -> Outcome | None:
        """Return the outcome of a pair without a worker: decided directly, or cached; else None."""
        outcome = compare_plain_paper(gold, answer) if rule == "paper" else compare_plain(gold, answer)
        return outcome or self._memory.get((gold, answer, rule))

    def remember(self, gold: str, answer: str, rule: Rule, outcome: Outcome) -> None:
        """Cache the outcome of a pair."""
        with self._lock:
            if len(self._memory) >= CACHED_PAIRS:
                self._memory.clear()
            self._memory[gold, answer, rule] = outcome


class PairBatch:
    """Pairs submitted to a pool; identical ones are judged once.

    A context manager that cancels unstarted pairs at its end. Not thread-safe.
    """

    def __init__(self, pool: MathPool, rule: Rule) -> None:
        self._pool, self._rule = pool, rule
        self._outcomes: dict[tuple[str, str], Outcome | Future[list[Any]]] = {}

    def add(self, gold: str, answer: str) -> None:
        """Submit a pair. Raises as ``MathPool.judge_many``."""
        if (gold, answer) not in self._outcomes:
            outcome = self._pool.outcome(gold, answer, self._rule)
            self._outcomes[gold, answer] = outcome or self._pool.submit([self._rule, gold, answer])

    def outcome(self, gold: str, answer: str) -> Outcome:
        """Wait for the outcome of an added pair. Raises as ``MathPool.judge_many``."""
        outcome = self._outcomes[gold, answer]
        if isinstance(outcome, Future):
            try:
                outcome = Outcome(*outcome.result())
                self._pool.remember(gold, answer, self._rule, outcome)
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
    """Set the number of processes of ``math_pool``, closing a pool of another size."""
    global _shared
    if _shared.closed or _shared.workers != workers:
        _shared.close()
        _shared = MathPool(workers)
