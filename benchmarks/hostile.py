r"""Hostile completions through the public judges: do verifiers crash, hang, grow, or pay for a wrong answer?

    python -m benchmarks.hostile [--count 10000] [--seed 0] [--tasks math gsm8k ...] [--rules paper strict]

Half of the completions are labelled: wrong by construction, most of them with the right answer next to the wrong one.
The other half is fuzz, which must get a verdict, whatever it is. Every completion is judged alone and timed, by the
call that `rlvr score` makes; its verdict must be one that `rlvr score` can write. Mathematics is judged from two
threads, by the two processes of the shared pool. Prints a Markdown table, and below it the first of each kind of
failure.
"""

from __future__ import annotations

import argparse
import gc
import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.hostile_texts import BOXED, Completion, block, completions, problems_of, response, right_answer
from rlvr_cli.config.load import choose_task
from rlvr_cli.evaluation.score import verdict_as_json
from rlvr_cli.tasks import Problem, Task, Verdict
from rlvr_cli.verify.pool import math_pool

TASKS = ("kk", "countdown", "math", "gsm8k", "hitab")
RULES = ("paper", "strict")

# Wrong answers that the graders of the papers pay for, and with them the rule `paper`.
PAID_BY_DESIGN = {
    ("countdown", "several, right last"): "the last block of the last line counts",
    ("countdown", "only in the reasoning"): "the reasoning need not have ended",
    ("math", "several, right last"): "the last box counts",
    ("gsm8k", "several, right last"): "the last box counts",
    ("hitab", "several, right last"): "the last answer counts",
    ("kk", "denied"): "`Zoey is a knight` is searched for, whatever stands before it",
}


@dataclass
class Result:
    """What judging one task's completions by one rule came to; times in seconds, memory in MiB."""

    task: str
    rule: str
    completions: int = 0
    labelled: int = 0
    crashes: int = 0
    missing: int = 0
    false_rewards: int = 0
    by_design: Counter[str] = field(default_factory=Counter)
    unscorable: Counter[str] = field(default_factory=Counter)
    longest: float = 0.0
    longest_kind: str = ""
    worker_peak: float | None = None
    parent_growth: float = 0.0
    unharmed: bool = False
    examples: dict[str, str] = field(default_factory=dict)


def run(name: str, rule: str, count: int, seed: int) -> Result:
    """Judge ``count`` completions for the task ``name`` by ``rule``."""
    config = choose_task(name, rule=rule, generated=True)
    task = config.for_model("logic_rl")
    problems = [p for p in problems_of(task, "dev", 60, seed) if right_answer(task, p) not in ("0", "1", "-1")]
    result = Result(name, rule)
    good = [response(task, "So", block(task, right_answer(task, problem))) for problem in problems[:5]]
    pooled = name == "math"
    _all_right(task, problems, good)
    if pooled:
        # Starting is no part of a verdict's time.
        math_pool().judge("x^2-1", "(x-1)(x+1)")
    memory = _WorkerMemory() if pooled else None
    stream = completions(task, problems, count, seed)
    lock = threading.Lock()

    def serve() -> None:
        while True:
            with lock:
                completion = next(stream, None)
            if completion is None:
                return
            started = time.perf_counter()
            outcome = _judged(task, completion)
            seconds = time.perf_counter() - started
            with lock:
                _count(result, task, completion, outcome, seconds)

    gc.collect()
    before, threads = _resident(), threading.active_count()
    with ThreadPoolExecutor(2 if pooled else 1) as pool:
        for future in [pool.submit(serve) for _ in range(2 if pooled else 1)]:
            future.result()
    gc.collect()
    result.parent_growth = _resident() - before
    result.worker_peak = memory.stop() if memory is not None else None
    # The pool has a thread for each of its processes, from the first pair that needs it.
    left = threading.active_count() - threads - (math_pool().workers if pooled else 0)
    result.unharmed = left <= 0 and _all_right(task, problems, good)
    return result


def _judged(task: Task, completion: Completion) -> Verdict | Exception | None:
    try:
        verdicts = task.judge_many([completion.problem], [completion.text], [False])
        if len(verdicts) != 1 or not isinstance(verdicts[0], Verdict) or verdicts[0].reason not in task.reasons:
            return None
        line = json.loads(json.dumps(verdict_as_json(verdicts[0]), allow_nan=False).encode("utf-8"))
        if verdicts[0].scorable and (line["reward"] is None or line["correct"] is None):
            return None
        return verdicts[0]
    # SystemExit and the like end the run: nothing may hide them.
    except Exception as error:
        return error


def _count(result: Result, task: Task, completion: Completion, outcome: Any, seconds: float) -> None:
    result.completions += 1
    result.labelled += completion.wrong
    if seconds > result.longest:
        result.longest, result.longest_kind = seconds, completion.kind
    failure = None
    if isinstance(outcome, Exception):
        result.crashes += 1
        failure = f"crash ({type(outcome).__name__})"
    elif outcome is None:
        result.missing += 1
        failure = "missing"
    elif not outcome.scorable:
        result.unscorable[outcome.reason] += 1
    elif completion.wrong and (outcome.correct or outcome.reward >= task.reward_range[1]):
        by_design = (task.name, completion.kind) in PAID_BY_DESIGN
        if by_design and (result.rule == "paper" or task.name in BOXED):
            result.by_design[completion.kind] += 1
        else:
            result.false_rewards += 1
            failure = f"false reward ({completion.kind})"
    if failure is not None:
        gold = {key: completion.problem.data.get(key) for key in ("answer", "nums", "target", "solution", "names")}
        result.examples.setdefault(failure, f"{gold}: {completion.text[:400]!r}")


def _all_right(task: Task, problems: Sequence[Problem], good: Sequence[str]) -> bool:
    """Whether the right responses are judged right."""
    return all(verdict.correct for verdict in task.judge_many(problems[: len(good)], good, [False] * len(good)))


def _resident() -> float:
    """MiB of this process that are in memory."""
    return _status("self", "VmRSS")


def _status(pid: int | str, key: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:")), 0.0)


class _WorkerMemory(threading.Thread):
    """Watches the most memory that any process of the shared pool has held, 50 times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._peak = 0.0
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._ended.wait(0.02):
            self._peak = max([self._peak, *(_status(pid, "VmHWM") for pid in math_pool().pids)])

    def stop(self) -> float:
        self._ended.set()
        self.join()
        return self._peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--rules", nargs="+", choices=RULES, default=RULES)
    options = parser.parse_args()
    print(
        "| verifier | rule | completions | wrong by construction | crashes | missing | false rewards | paid by design",
        end="",
    )
    print(" | not scorable | longest, s | of kind | worker peak, MiB | parent grew, MiB | unharmed |")
    print("|---|---|" + "---:|" * 8 + "---|---:|---:|---|")
    failures: list[str] = []
    for name in options.tasks:
        for rule in options.rules:
            result = run(name, rule, options.count, options.seed)
            counts: tuple[int, ...] = (
                result.completions,
                result.labelled,
                result.crashes,
                result.missing,
                result.false_rewards,
            )
            counts += (result.by_design.total(), result.unscorable.total())
            peak = "" if result.worker_peak is None else f"{result.worker_peak:.0f}"
            cells = [
                name,
                rule,
                *(f"{count:,}" for count in counts),
                f"{result.longest:.2f}",
                result.longest_kind,
                peak,
            ]
            print(
                "| " + " | ".join([*cells, f"{result.parent_growth:.1f}", "yes" if result.unharmed else "NO"]) + " |",
                flush=True,
            )
            failures += [f"{name}, {rule}: {kind}: {text}" for kind, text in result.examples.items()]
    print("\n".join(["", *failures]))


if __name__ == "__main__":
    main()
