"""Judging mathematical responses, 1% of them hostile: the pool against math-verify in a loop.

    python -m benchmarks.verifier [--rows 256] [--hostile 0.01] [--workers 2]

The loop is `verify(parse(gold), parse(response))` with the limits that math-verify has by default (5 s to parse, 5 s
to compare). Both judge the same generated responses in one run, by turns, the pool's start included. Verdicts are
compared on the benign rows, and each pair on which they differ is printed.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import math_verify

from benchmarks.turns import processor_seconds
from rlvr_cli.tasks.answers import boxed_answer
from rlvr_cli.verify.math_answer import Outcome
from rlvr_cli.verify.pool import MathPool

# Answers that take a parser or SymPy long, or break them. None of them is the gold answer of its row, which is 7.
HOSTILE = [
    "(" * 50 + "3" + ")" * 50,
    "{" * 16 + "3" + "}" * 16,
    r"(x+y+z+w)^{200}",
    r"\int \sin(x^x)\cos(e^x) dx",
    "10^{10^{10}}",
    "9^{9^{9}}",
    r"\sqrt" * 300 + "2",
    "^" * 1000,
    "__import__('os').system('true')",
    "\x00\x1b[2J\u202e",
    "5" * 100_000,
    "8=7",
]


# Turns that the two take.
PIECES = 16


@dataclass(frozen=True)
class Row:
    gold: str
    response: str
    hostile: bool


def generated(rng: random.Random) -> tuple[str, str]:
    """A gold answer and an answer: two spellings of one value, or of two."""
    a, b, c = rng.randint(2, 99), rng.randint(2, 99), rng.randint(2, 9)
    wrong = rng.choice([0, 0, 1])
    pairs = [
        (str(a * b), str(a * b + wrong)),
        (str(a * b * 1000), f"{a * b * 1000 + wrong:,}"),
        (rf"\frac{{{a}}}{{{b}}}", rf"\dfrac{{{a * c + wrong}}}{{{b * c}}}"),
        (rf"\frac{{{a}}}{{8}}", f"{a / 8 + wrong}"),
        (rf"{c}\sqrt{{{b}}}", rf"\sqrt{{{c * c * b + wrong}}}"),
        (f"x^2+{a + c}x+{a * c}", f"(x+{a})(x+{c + wrong})"),
        (f"{c}x+{a}", f"{a}+{c}x+{wrong}"),
        (rf"\frac{{{c}\pi}}{{{b}}}", rf"{c + wrong}\pi/{b}"),
        (f"({a},{b})", f"({a}, {b + wrong})"),
        (f"[{a},{a + b})", f"[{a + wrong}, {a + b})"),
        (str(a), f"x={a + wrong}"),
        (str(a), rf"{a + wrong}\text{{ cm}}"),
    ]
    return rng.choice(pairs)


def rows(count: int, hostile: float, rng: random.Random) -> list[Row]:
    """Return ``count`` responses in random order, the given share of them hostile."""
    bad = round(count * hostile)
    pairs: dict[tuple[str, str], None] = {}
    while len(pairs) < count - bad:
        pairs[generated(rng)] = None
    made = [Row(gold, rf"Working: 1+1=2. So the answer is $\boxed{{{answer}}}$.", False) for gold, answer in pairs]
    made += [Row("7", rf"So \boxed{{{HOSTILE[index % len(HOSTILE)]}+{index}}}", True) for index in range(bad)]
    rng.shuffle(made)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--hostile", type=float, default=0.01)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    judged = rows(options.rows, options.hostile, random.Random(options.seed))
    outcomes, theirs, ours, loops = compared(judged, options.workers)
    report(judged, outcomes, theirs)
    print(f"seconds: pool {ours.wall:.1f}, loop {loops.wall:.1f}, ratio {ours.wall / loops.wall:.3f}")
    print(f"processor seconds: pool {ours.cpu:.1f}, loop {loops.cpu:.1f}, ratio {ours.cpu / loops.cpu:.3f}")
    print(f"longest call of one pair's loop: {loops.longest:.1f} s", flush=True)


@dataclass
class Cost:
    wall: float = 0.0
    cpu: float = 0.0
    longest: float = 0.0


def compared(judged: list[Row], workers: int) -> tuple[list[Outcome], list[bool], Cost, Cost]:
    """Both judge every row, by turns, so that other work on the machine slows both alike."""
    outcomes: list[Outcome] = []
    theirs: list[bool] = []
    ours, loops = Cost(), Cost()
    pool: MathPool | None = None
    size = -(-len(judged) // PIECES)
    for start in range(0, len(judged), size):
        piece = judged[start : start + size]
        with _measured(ours):
            pool = pool or MathPool(workers=workers)
            outcomes += pool.judge_many([(row.gold, boxed_answer(row.response) or "") for row in piece])
            if start + size >= len(judged):
                # What children used is known when they have ended.
                pool.close()
        with _measured(loops):
            for row in piece:
                started = time.perf_counter()
                gold = math_verify.parse(rf"\boxed{{{row.gold}}}")
                theirs.append(bool(math_verify.verify(gold, math_verify.parse(row.response))))
                loops.longest = max(loops.longest, time.perf_counter() - started)
    return outcomes, theirs, ours, loops


@contextmanager
def _measured(cost: Cost) -> Iterator[None]:
    wall, cpu = time.perf_counter(), processor_seconds()
    yield
    cost.wall += time.perf_counter() - wall
    cost.cpu += processor_seconds() - cpu


def report(judged: list[Row], outcomes: list[Outcome], theirs: list[bool]) -> None:
    """Print what is compared, and the benign pairs on which the verdicts differ."""
    hostile = [index for index, row in enumerate(judged) if row.hostile]
    print(f"{len(judged)} responses, {len(hostile)} hostile")
    paid = [sum(outcomes[index].equal is True for index in hostile), sum(theirs[index] for index in hostile)]
    print(f"hostile taken for right: pool {paid[0]}, loop {paid[1]}")
    print(f"reasons: {dict(Counter(outcome.reason for outcome in outcomes))}")
    benign = [index for index, row in enumerate(judged) if not row.hostile]
    differing = [index for index in benign if bool(outcomes[index].equal) != theirs[index]]
    print(f"benign: {len(differing)} of {len(benign)} verdicts differ")
    for index in differing:
        row, outcome = judged[index], outcomes[index]
        print(f"  here {outcome.equal} ({outcome.reason}), there {theirs[index]}: {row.gold!r}, {row.response!r}")


if __name__ == "__main__":
    main()
