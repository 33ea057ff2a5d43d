"""Tables of the results on several benchmarks, with the averages of a suite as in its paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr_cli.core.files import write_json
from rlvr_cli.core.hashes import digest
from rlvr_cli.evaluation.benchmarks import BenchmarkTable
from rlvr_cli.evaluation.jobs import EvalJob
from rlvr_cli.evaluation.tables import Row, with_interval
from rlvr_cli.stats.intervals import Estimate, share_interval
from rlvr_cli.store.evaluation import Evaluation, ProblemValues
from rlvr_cli.tasks.suites import Average

_COLUMNS = ("avg@", "pass@", "maj@", "greedy")


def build_overview(table: BenchmarkTable, jobs: Sequence[EvalJob], outcomes: Sequence[Evaluation]) -> dict[str, Any]:
    """Return the evaluations and averages of a table as JSON values; ``jobs``, ``outcomes``: all of the command."""
    suite, pairs = table.suite, [(jobs[row], outcomes[row]) for row in table.rows]
    rows = []
    for job, outcome in pairs:
        result = outcome.result
        metrics = {name: value for name, value in result["metrics"].items() if name.startswith(_COLUMNS)}
        # avg@n with another n is not the paper's figure.
        figures = [_figure_metric(figure, job.setting.samples) for figure in job.setting.figures] if job.setting else []
        rows.append(
            {
                "benchmark": result["benchmark"],
                "folder": str(outcome.folder),
                **{key: result[key] for key in ("problems", "samples", "sampling", "task")},
                "figures": [name for name in figures if name in metrics],
                "metrics": {**metrics, "truncated": result["metrics"]["truncated"]},
            }
        )
    values = {outcome.result["benchmark"]: outcome.rows for _, outcome in pairs}
    samples = {outcome.result["benchmark"]: outcome.result["samples"] for _, outcome in pairs}
    suite_samples = {setting.benchmark: setting.samples for setting in suite.settings} if suite else {}
    averages = []
    for average in suite.averages if suite else ():
        estimate = compute_average(average, values, samples, suite_samples)
        content = {"missing": estimate} if isinstance(estimate, str) else estimate.as_json()
        averages.append({"name": average.name, "source": average.source, **content})
    return {
        "suite": suite.name if suite else None,
        "paper": suite.paper if suite else None,
        "label": pairs[0][1].result["label"],
        "benchmarks": rows,
        "averages": averages,
        "notes": list(suite.notes) if suite else [],
    }


def write_overview(
    suite: str, rows: Sequence[int], jobs: Sequence[EvalJob], outcomes: Sequence[Evaluation], content: Mapping[str, Any]
) -> Path:
    """Write ``suite.json`` next to the evaluations of a suite, ``rows`` of ``outcomes``; return its path."""
    job = jobs[rows[0]]
    if job.out is not None:
        # `out` is FOLDER/SUITE/BENCHMARK, of the first suite that selects this benchmark.
        folder = job.out.parent.parent / suite
    else:
        subject, count = job.target.subjects[0], len(job.target.subjects)
        key = digest([outcomes[row].folder.name for row in rows])
        folder = subject.root / f"{suite}-{subject.stem if count == 1 else f'last-{count}'}-{key[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "suite.json", dict(content))
    return folder / "suite.json"


def overview_table(content: Mapping[str, Any]) -> tuple[list[str], list[Row]]:
    """Return header and one row per benchmark: pass@k and maj@k at the largest k; `*` marks the paper's figures."""
    header = ["", "problems", "n", "avg@n", "pass@n", "maj@n", "greedy"]
    return header, [_row(result) for result in content["benchmarks"]]


def format_averages(content: Mapping[str, Any]) -> list[str]:
    values = [
        f"none, {average['missing']}" if "missing" in average else with_interval("avg@", average)
        for average in content["averages"]
    ]
    return [
        f"average, {average['name']}: {value} ({average['source']})"
        for average, value in zip(content["averages"], values, strict=True)
    ]


def _row(result: Mapping[str, Any]) -> Row:
    metrics, samples = result["metrics"], result["samples"]
    cells = []
    for kind in _COLUMNS:
        names = [name for name in metrics if name.startswith(kind)]
        if not names:
            cells.append("-")
            continue
        name = max(names, key=lambda name: int(name.partition("@")[2] or 0))
        k = "" if name in ("greedy", f"{kind}{samples}") else f" k={name.split('@')[1]}"
        cells.append(f"{with_interval(name, metrics[name])}{k}{'*' if name in result['figures'] else ''}")
    return [result["benchmark"], str(result["problems"]), str(samples), *cells]


def macro_interval(strata: Sequence[tuple[Sequence[float], float]]) -> Estimate:
    """Return the weighted mean of the means of strata, with a 95% interval.

    The strata are disjoint sets of problems, so their errors are independent, and the intervals combine by MOVER (Zou
    and Donner 2008; Newcombe's square-and-add for Wilson intervals): low = mean - sqrt(sum((weight * (mean_i -
    low_i))^2)), likewise high. The interval stays in [0, 1], and has a width even if all problems of a stratum agree.

    Args:
        strata: the values of each stratum's problems, in [0, 1], and its weight; the weights sum to 1.
    """
    estimates = [(share_interval(values), weight) for values, weight in strata]
    mean = math.fsum(weight * estimate.value for estimate, weight in estimates)
    problems = sum(estimate.n for estimate, _ in estimates)
    below, above = [], []
    for estimate, weight in estimates:
        if estimate.low is None or estimate.high is None:
            return Estimate(mean, None, None, problems)
        below.append((weight * (estimate.value - estimate.low)) ** 2)
        above.append((weight * (estimate.high - estimate.value)) ** 2)
    low, high = mean - math.sqrt(math.fsum(below)), mean + math.sqrt(math.fsum(above))
    return Estimate(mean, max(0.0, low), min(1.0, high), problems)


def _figure_metric(figure: str, samples: int) -> str:
    """Return the metric of a suite's figure: `avg` is `avg@n`."""
    return f"avg@{samples}" if figure == "avg" else figure


def compute_average(
    average: Average,
    rows: Mapping[str, Sequence[ProblemValues]],
    samples: Mapping[str, int],
    suite_samples: Mapping[str, int],
) -> Estimate | str:
    """Return a suite's average, or the reason why it is missing.

    Figures of one benchmark share its problems, so they are averaged within each problem first.

    Args:
        rows: per-problem values by benchmark. samples: samples per problem by benchmark.
        suite_samples: of the suite's setting; `avg` with another number is not the suite's figure.
    """
    for benchmark, figure in average.figures:
        if figure == "avg" and samples[benchmark] != suite_samples[benchmark]:
            return f"{benchmark} was evaluated with {samples[benchmark]} samples, not {suite_samples[benchmark]}"
    by_benchmark: dict[str, list[str]] = {}
    for benchmark, figure in average.figures:
        by_benchmark.setdefault(benchmark, []).append(_figure_metric(figure, samples[benchmark]))
    strata: list[tuple[list[float], float]] = []
    for benchmark, metrics in by_benchmark.items():
        missing = [metric for metric in metrics if metric not in rows[benchmark][0].values]
        if missing:
            return f"{benchmark} was evaluated without {' and '.join(missing)}"
        groups: dict[str, list[float]] = {}
        for row in rows[benchmark]:
            value = math.fsum(row.values[metric] for metric in metrics) / len(metrics)
            groups.setdefault(row.subgroup if average.by_subgroup else "", []).append(value)
        share = len(metrics) / len(average.figures) / len(groups)
        strata += [(values, share) for values in groups.values()]
    return macro_interval(strata)
