"""Means over benchmarks, as papers print them, with an interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rlvr_cli.results.evaluations import ProblemValues
from rlvr_cli.stats.intervals import Estimate, share_interval
from rlvr_cli.tasks.suites import Average


def macro_interval(strata: Sequence[tuple[Sequence[float], float]]) -> Estimate:
    """The weighted mean of several means of shares, with a 95% interval.

    Each stratum is a set of problems of its own, so their errors are independent. The intervals of the means are
    joined as variances are (Zou and Donner 2008, "MOVER"; Newcombe's square-and-add for Wilson intervals): the lower
    end is the mean less the root of the sum of (weight * (mean - low))^2, the upper end likewise. It stays in [0, 1]
    and has a width where all problems of a benchmark agree.

    Args:
        strata: each stratum's value of each problem, in [0, 1], and its weight; the weights sum to 1.
    """
    parts = [(share_interval(values), weight) for values, weight in strata]
    mean = math.fsum(weight * part.value for part, weight in parts)
    problems = sum(part.n for part, _ in parts)
    if any(part.low is None or part.high is None for part, _ in parts):
        return Estimate(mean, None, None, problems)
    below = math.sqrt(math.fsum((weight * (part.value - (part.low or 0.0))) ** 2 for part, weight in parts))
    above = math.sqrt(math.fsum((weight * ((part.high or 0.0) - part.value)) ** 2 for part, weight in parts))
    return Estimate(mean, max(0.0, mean - below), min(1.0, mean + above), problems)


def metric_of(figure: str, samples: int) -> str:
    """The metric that a figure of a suite is: `avg` is `avg@n`."""
    return f"avg@{samples}" if figure == "avg" else figure


def average_over(
    average: Average,
    rows: Mapping[str, Sequence[ProblemValues]],
    samples: Mapping[str, int],
    suite_samples: Mapping[str, int],
) -> Estimate | str:
    """A suite's average; text that says why, where there is none.

    Args:
        rows: the problems' values of each benchmark. samples: the samples a problem of each benchmark.
        suite_samples: those that the suite asks for; with others an `avg` is not the figure that the suite names.
    Figures of one benchmark are of the same problems, so they are joined within each problem first.
    """
    for benchmark, figure in average.parts:
        if figure == "avg" and samples[benchmark] != suite_samples[benchmark]:
            return f"{benchmark} was evaluated with {samples[benchmark]} samples, not {suite_samples[benchmark]}"
    by_benchmark: dict[str, list[str]] = {}
    for benchmark, figure in average.parts:
        by_benchmark.setdefault(benchmark, []).append(metric_of(figure, samples[benchmark]))
    strata: list[tuple[list[float], float]] = []
    for benchmark, metrics in by_benchmark.items():
        missing = [metric for metric in metrics if metric not in rows[benchmark][0].values]
        if missing:
            return f"{benchmark} was evaluated without {' and '.join(missing)}"
        groups: dict[str, list[float]] = {}
        for row in rows[benchmark]:
            value = math.fsum(row.values[metric] for metric in metrics) / len(metrics)
            groups.setdefault(row.subgroup if average.by_subgroup else "", []).append(value)
        share = len(metrics) / len(average.parts) / len(groups)
        strata += [(values, share) for values in groups.values()]
    return macro_interval(strata)
