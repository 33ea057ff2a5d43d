"""The request of `rlvr compare`, validated before any file is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.store.training import BUDGETS

# The value of --over if the tasks are the benchmarks of each run.
BENCHMARK = ("benchmark",)


def parse_match(text: str | None) -> tuple[str | None, float | None]:
    """Split `tokens@0.6` into budget and level. Raises UserError if the level is not a number."""
    budget, mark, level = (text or "").partition("@")
    try:
        return budget or text, float(level) if mark else None
    except ValueError:
        raise UserError(f"--match {text}: {level!r} is not a number. Write BUDGET@VALUE, as tokens@0.6.") from None


@dataclass(frozen=True)
class CompareRequest:
    """The options of `rlvr compare`.

    Attributes:
        names: runs, folders of runs and globs. root: the folder in which names are resolved first.
        by: keys whose values define an arm; none = every key that changes the training except the seed.
        baseline, metric, benchmark: None = the default.
        where: `KEY=VALUE` filters on the settings of evaluations.
        match: the budget at which learning curves are compared; None = compare final checkpoints.
        level: with ``match``, report the budget at which each arm first reaches this value of the metric; None = the
            baseline's final value.
        power: the difference to detect, in the unit of the metric; None = a default for shares.
        permutation: add a permutation test.
        over: the tasks to compare over: ("benchmark",) = the benchmarks of the evaluations, else keys or sections whose
            values are the tasks; none = one comparison.
        benchmarks: the benchmarks of ``over``; none = all on which every run was evaluated.
    """

    names: tuple[str, ...]
    root: Path
    by: tuple[str, ...] = ()
    baseline: str | None = None
    metric: str | None = None
    benchmark: str | None = None
    where: tuple[str, ...] = ()
    match: str | None = None
    level: float | None = None
    power: float | None = None
    permutation: bool = False
    common_problems: bool = False
    unpaired: bool = False
    unfinished: bool = False
    over: tuple[str, ...] = ()
    benchmarks: tuple[str, ...] = ()

    def validate(self) -> list[str]:
        """Return the problems of the request, one line each."""
        problems = []
        if self.match is not None and self.match not in BUDGETS:
            problems.append(
                f"--match {self.match}: unknown budget.{did_you_mean(self.match, BUDGETS)} "
                f"Allowed: {', '.join(BUDGETS)}."
            )
        if self.match is not None:
            problems += [
                f"{option} and --match cannot be combined: held-out evaluations have one setting. Remove one."
                for option, value in (("--benchmark", self.benchmark), ("--where", self.where))
                if value
            ]
        if self.level is not None and not math.isfinite(self.level):
            problems.append(f"--match {self.match}@{self.level}: must be a finite number.")
        if self.over == BENCHMARK and self.match is not None:
            problems.append(
                "--over benchmark and --match cannot be combined: held-out evaluations have one benchmark. Remove one."
            )
        if self.over and self.permutation:
            problems.append("--permutation and --over cannot be combined. Remove one.")
        if self.power is not None and not (math.isfinite(self.power) and self.power > 0):
            problems.append(f"--power {self.power}: must be above 0: a difference of the metric, as 0.02.")
        return problems
