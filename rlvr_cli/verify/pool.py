"""Pairs of mathematical answers, judged by worker processes that may be killed over any of them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from rlvr_cli.verify.math_answer import DIED, TIMEOUT, Outcome, Rule, check, check_paper
from rlvr_cli.workers import pool as processes
from rlvr_cli.workers.pool import JobTimeout, Limits, Target, WorkerDied

WORKERS = 2
# As math-verify allows for a comparison.
DEADLINE = 5.0
# A worker that waits for a processor has not used its time; longer than this many deadlines nobody waits for it.
PATIENCE = 3
MEMORY_MIB = 1024
# SymPy keeps what it has computed; a process that has judged this many pairs is replaced by a fresh one.
PAIRS_PER_WORKER = 5000
# Pairs whose outcomes a pool remembers. A timeout or a death may have come of a busy machine and is not among them.
REMEMBERED = 20_000


class MathPool(processes.Pool):
    """Judges pairs (gold answer, answer) by their mathematics, in processes of their own.

    Pairs that ``math_answer.check`` (or ``check_paper``) decides never leave the calling process; nothing else is done
    to a text there. The first pair that needs a process starts one, which imports SymPy.

    Args:
        workers: number of processes.
        deadline: CPU seconds per pair in a ready process; the wall-clock limit is PATIENCE times that. Beyond them the
            process is replaced and the pair's outcome is ``timeout``: a busy machine changes no reward.
        memory_mib: address space of one process. A pair that needs more has the outcome ``died``.
    """

    def __init__(self, workers: int = WORKERS, deadline: float = DEADLINE, memory_mib: int = MEMORY_MIB) -> None:
        judge = Target("rlvr_cli.verify.algebra:ready", ours=True, purpose="judges mathematics")
        limits = Limits(PATIENCE * deadline, deadline, memory_mib)
        super().__init__(judge, limits, workers, PAIRS_PER_WORKER)
        self._memory: dict[tuple[str, str, Rule], Outcome] = {}

    def judge(self, gold: str, answer: str, rule: Rule = "strict") -> Outcome:
        """Judge one pair; see ``judge_many``."""
        return self.judge_many([(gold, answer)], rule)[0]

    def judge_many(self, pairs: Sequence[tuple[str, str]], rule: Rule = "strict") -> list[Outcome]:
        """Return one outcome a pair, in order; identical pairs are judged once, also across calls.

        No text makes it raise. Raises RunError when no worker process can start, RuntimeError when the pool is closed.
        """
        with self.pending(rule) as pending:
            for pair in pairs:
                pending.add(*pair)
            return [pending.outcome(*pair) for pair in pairs]

    def pending(self, rule: Rule = "strict") -> Pending:
        """Begin a judgement of pairs that come one after another, while the caller does something else."""
        return Pending(self, rule)

    def outcome(self, gold: str, answer: str, rule: Rule) -> Outcome | None:
        """Return the outcome of a pair that needs no worker, or had one."""
        outcome = check_paper(gold, answer) if rule == "paper" else check(gold, answer)
        return outcome or self._memory.get((gold, answer, rule))

    def remember(self, gold: str, answer: str, rule: Rule, outcome: Outcome) -> None:
        """Keep the outcome of a pair."""
        with self._lock:
            if len(self._memory) >= REMEMBERED:
                self._memory.clear()
            self._memory[gold, answer, rule] = outcome


class Pending:
    """Pairs that a pool judges; identical ones are judged once and have one outcome.

    A context manager: what has not begun at its end is not judged. Not for several threads at once.
    """

    def __init__(self, pool: MathPool, rule: Rule) -> None:
        self._pool, self._rule = pool, rule
        self._outcomes: dict[tuple[str, str], Outcome | Future[list[Any]]] = {}

    def add(self, gold: str, answer: str) -> None:
        """Have a pair judged, without waiting. Raises as ``MathPool.judge_many``."""
        if (gold, answer) not in self._outcomes:
            outcome = self._pool.outcome(gold, answer, self._rule)
            self._outcomes[gold, answer] = outcome or self._pool.submit([self._rule, gold, answer])

    def outcome(self, gold: str, answer: str) -> Outcome:
        """Return the outcome of a pair that was added; waits for it. Raises as ``MathPool.judge_many``."""
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

    def __enter__(self) -> Pending:
        return self

    def __exit__(self, *_: object) -> None:
        for outcome in self._outcomes.values():
            if isinstance(outcome, Future):
                outcome.cancel()


_shared = MathPool()


def math_pool() -> MathPool:
    """Return the pool of this process; one that was closed is replaced."""
    global _shared
    if _shared.closed:
        _shared = MathPool()
    return _shared


def size_math_pool(workers: int) -> None:
    """Have ``math_pool`` give a pool of that many processes; one of another size is closed."""
    global _shared
    if _shared.closed or _shared.workers != workers:
        _shared.close()
        _shared = MathPool(workers)
