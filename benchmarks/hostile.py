r"""Hostile completions through the public judges: do verifiers crash, hang, or pay for a wrong answer?

    python -m benchmarks.hostile [--count 10000] [--seed 0] [--tasks math gsm8k ...] [--rules paper strict]

Half of the completions are labelled: wrong by construction, most of them with the right answer next to the wrong one.
The other half is fuzz, which must get a verdict, whatever it is. Every completion is judged alone and timed, by the
call that `rlvr score` makes; its verdict must be one that `rlvr score` can write. Prints a Markdown table, and below it
the first of each kind of failure.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.hostile_texts import BOXED, Completion, block, completions, problems_of, response, right_answer
from rlvr_cli.config.load import choose_task
from rlvr_cli.evaluation.score import verdict_as_json
from rlvr_cli.tasks import Problem, Task, Verdict

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
    """What judging one task's completions by one rule came to; times in seconds."""

    completions: int = 0
    labelled: int = 0
    crashes: int = 0
    missing: int = 0
    false_rewards: int = 0
    by_design: Counter[str] = field(default_factory=Counter)
    unscorable: int = 0
    longest: float = 0.0
    longest_kind: str = ""
    unharmed: bool = False
    examples: dict[str, str] = field(default_factory=dict)


def run(name: str, rule: str, count: int, seed: int) -> Result:
    """Judge ``count`` completions for the task ``name`` by ``rule``."""
    task = choose_task(name, rule=rule, generated=True).for_model("logic_rl")
    problems = [p for p in problems_of(task, "dev", 60, seed) if right_answer(task, p) not in ("0", "1", "-1")]
    good = [response(task, "So", block(task, right_answer(task, problem))) for problem in problems[:5]]
    result = Result()
    _all_right(task, problems, good)  # starts the processes, which is no part of a verdict's time
    for completion in completions(task, problems, count, seed):
        started = time.perf_counter()
        outcome = _judged(task, completion)
        _count(result, task, rule, completion, outcome, time.perf_counter() - started)
    result.unharmed = _all_right(task, problems, good)
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


def _count(result: Result, task: Task, rule: str, completion: Completion, outcome: Any, seconds: float) -> None:
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
        result.unscorable += 1
    elif completion.wrong and (outcome.correct or outcome.reward >= task.reward_range[1]):
        by_design = (task.name, completion.kind) in PAID_BY_DESIGN
        if by_design and (rule == "paper" or task.name in BOXED):
            result.by_design[completion.kind] += 1
        else:
            result.false_rewards += 1
            failure = f"false reward ({completion.kind})"
    if failure is not None:
        gold = {key: completion.problem.data.get(key) for key in ("answer", "nums", "target", "solution", "names")}
        result.examples.setdefault(failure, f"{gold}: {completion.text[:400]!r}")


def _all_right(task: Task, problems: Sequence[Problem], good: Sequence[str]) -> bool:
    verdicts = task.judge_many(problems[: len(good)], good, [False] * len(good))
    return all(verdict.correct for verdict in verdicts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--rules", nargs="+", choices=RULES, default=RULES)
    options = parser.parse_args()
    numbers = ("completions", "labelled", "crashes", "missing", "false_rewards", "paid by design", "unscorable")
    print(f"| verifier | rule | {' | '.join(numbers)} | longest, s | of kind | unharmed |")
    print(f"|---|---|{'---:|' * (len(numbers) + 1)}---|---|")
    failures: list[str] = []
    for name in options.tasks:
        for rule in options.rules:
            result = run(name, rule, options.count, options.seed)
            counts = [getattr(result, key, result.by_design.total()) for key in numbers]
            cells = [name, rule, *(f"{count:,}" for count in counts), f"{result.longest:.2f}", result.longest_kind]
            print(f"| {' | '.join(cells)} | {'yes' if result.unharmed else 'NO'} |", flush=True)
            failures += [f"{name}, {rule}: {kind}: {text}" for kind, text in result.examples.items()]
    print("\n".join(["", *failures]))


if __name__ == "__main__":
    main()
