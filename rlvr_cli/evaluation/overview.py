"""Several benchmarks' results side by side, with the means of a suite as papers print them: as JSON and as a table."""

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


def overview(table: BenchmarkTable, jobs: Sequence[EvalJob], outcomes: Sequence[Evaluation]) -> dict[str, Any]:
    """A table's evaluations and averages as JSON values.

    Args:
        jobs, outcomes: those of the whole call, in its order, each outcome's folder as its evaluation left it.
    """
    chosen = [(jobs[row], outcomes[row]) for row in table.rows]
    rows = []
    for job, outcome in chosen:
        result = outcome.result
        # With other samples than the suite's, an average over them is not the paper's figure.
        figures = [_metric_of(figure, job.setting.samples) for figure in job.setting.figures] if job.setting else []
        shown = {name: value for name, value in result["metrics"].items() if name.startswith(_COLUMNS)}
        rows.append(
            {
                "benchmark": result["benchmark"],
                "folder": str(outcome.folder),
                "problems": result["problems"],
                "samples": result["samples"],
                "sampling": result["sampling"],
                "task": result["task"],
                "figures": [name for name in figures if name in shown],
                "metrics": {**shown, "truncated": result["metrics"]["truncated"]},
            }
        )
    suite = table.suite
    values = {outcome.result["benchmark"]: outcome.rows for _, outcome in chosen if suite}
    samples = {outcome.result["benchmark"]: outcome.result["samples"] for _, outcome in chosen}
    suite_samples = {setting.benchmark: setting.samples for setting in suite.settings} if suite else {}
    averages = []
    for average in suite.averages if suite else ():
        found = average_over(average, values, samples, suite_samples)
        entry = {"name": average.name, "source": average.source}
        averages.append({**entry, "missing": found} if isinstance(found, str) else {**entry, **found.as_json()})
    return {
        "suite": suite.name if suite else None,
        "paper": suite.paper if suite else None,
        "label": chosen[0][1].result["label"],
        "benchmarks": rows,
        "averages": averages,
        "notes": list(suite.notes) if suite else [],
    }


def suite_folder(table: BenchmarkTable, jobs: Sequence[EvalJob], outcomes: Sequence[Evaluation]) -> Path:
    """Where a suite's ``suite.json`` is kept: next to its evaluations, named for the suite, the model and them all."""
    assert table.suite is not None
    job = jobs[table.rows[0]]
    if job.out is not None:
        # `out` is FOLDER/SUITE/BENCHMARK, of the first suite that asked for this benchmark.
        return job.out.parent.parent / table.suite.name
    subject = job.target.subjects[0]
    count = len(job.target.subjects)
    stem = subject.stem if count == 1 else f"last-{count}"
    key = digest([outcomes[row].folder.name for row in table.rows])
    return subject.root / f"{table.suite.name}-{stem}-{key[:8]}"


def write_overview(folder: Path, content: Mapping[str, Any]) -> Path:
    """Write ``suite.json`` in ``folder``, which is made if there is none; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "suite.json", dict(content))
    return folder / "suite.json"


def overview_table(content: Mapping[str, Any]) -> tuple[list[str], list[Row]]:
    """Header and rows: a benchmark a row, pass@k and maj@k at the largest k; what the paper prints is marked."""
    header = ["", "problems", "n", "avg@n", "pass@n", "maj@n", "greedy"]
    return header, [_row(result) for result in content["benchmarks"]]


def average_lines(content: Mapping[str, Any]) -> list[str]:
    """A suite's averages, one a line."""
    lines = []
    for average in content["averages"]:
        value = f"none, {average['missing']}" if "missing" in average else with_interval("avg@", average)
        lines.append(f"average, {average['name']}: {value} ({average['source']})")
    return lines


def _row(result: Mapping[str, Any]) -> Row:
    metrics, samples = result["metrics"], result["samples"]
    cells = []
    for kind in _COLUMNS:
        name = _largest(metrics, kind)
        if name is None:
            cells.append("-")
            continue
        # Most often the largest k is n; another one is named.
        k = "" if name in ("greedy", f"{kind}{samples}") else f" k={name.split('@')[1]}"
        cells.append(f"{with_interval(name, metrics[name])}{k}{'*' if name in result['figures'] else ''}")
    return [result["benchmark"], str(result["problems"]), str(samples), *cells]


def _largest(metrics: Mapping[str, Any], kind: str) -> str | None:
    names = [name for name in metrics if name.startswith(kind)]
    return max(names, key=lambda name: int(name.split("@")[1]) if "@" in name else 0, default=None)


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


def _metric_of(figure: str, samples: int) -> str:
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
        by_benchmark.setdefault(benchmark, []).append(_metric_of(figure, samples[benchmark]))
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
