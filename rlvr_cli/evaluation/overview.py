"""Several benchmarks' results side by side, with the averages of a suite: as JSON and as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr_cli.core.files import write_json
from rlvr_cli.core.hashes import digest
from rlvr_cli.evaluation.benchmarks import Table
from rlvr_cli.evaluation.macro import average_over, metric_of
from rlvr_cli.evaluation.request import Plan, Request
from rlvr_cli.evaluation.session import Outcome
from rlvr_cli.evaluation.tables import Row, with_interval
from rlvr_cli.results.evaluations import read_evaluation

_COLUMNS = ("avg@", "pass@", "maj@", "greedy")


def overview(table: Table, requests: Sequence[Request], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """A table's evaluations and averages as JSON values.

    Args:
        requests, outcomes: those of the whole plan, in its order, each outcome's folder as its evaluation left it.
    """
    chosen = [(requests[place], outcomes[place]) for place in table.rows]
    rows = []
    for request, outcome in chosen:
        result = outcome.result
        # With other samples than the suite's, an average over them is not the paper's figure.
        figures = (
            [metric_of(figure, request.setting.samples) for figure in request.setting.figures]
            if request.setting
            else []
        )
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
    values = {outcome.result["benchmark"]: read_evaluation(outcome.folder).rows for _, outcome in chosen if suite}
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


def suite_folder(table: Table, plan: Plan, outcomes: Sequence[Outcome]) -> Path:
    """Where a suite's ``suite.json`` is kept: beside its evaluations, named for the suite, the model and them all."""
    assert table.suite is not None
    request = plan.requests[table.rows[0]]
    if request.out is not None:
        # `out` is FOLDER/SUITE/BENCHMARK, of the first suite that asked for this benchmark.
        return request.out.parent.parent / table.suite.name
    subject = request.target.subjects[0]
    count = len(request.target.subjects)
    stem = subject.stem if count == 1 else f"last-{count}"
    key = digest([outcomes[place].folder.name for place in table.rows])
    return subject.root / f"{table.suite.name}-{stem}-{key[:8]}"


def write_overview(folder: Path, content: Mapping[str, Any]) -> Path:
    """Write ``suite.json`` in ``folder``, which is made if there is none; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "suite.json", dict(content))
    return folder / "suite.json"


def overview_table(content: Mapping[str, Any]) -> tuple[Row, list[Row]]:
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
