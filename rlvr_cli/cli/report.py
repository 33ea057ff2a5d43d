"""`rlvr report`: one page about runs or a sweep, with the answer first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlvr_cli.cli.options import (
    RUNS,
    Baseline,
    By,
    CommonProblems,
    Level,
    Match,
    Metric,
    Names,
    Power,
    Runs,
    Unfinished,
    Unpaired,
    Where,
    output,
)
from rlvr_cli.cli.output import Format, echo, print_json


def command(
    names: Names,
    output: Annotated[
        Path | None,
        output("FILE", "The page. Default: report.html in the run's or the sweep's folder."),
    ] = None,
    baseline: Baseline = None,
    by: By = None,
    metric: Metric = None,
    benchmark: Annotated[
        str | None, typer.Option("--benchmark", metavar="NAME", help="Which, where runs were evaluated on several.")
    ] = None,
    where: Where = None,
    match: Match = None,
    level: Level = None,
    power: Power = None,
    common_problems: CommonProblems = False,
    unpaired: Unpaired = False,
    unfinished: Unfinished = False,
    root: Runs = RUNS,
    form: Format = "table",
) -> None:
    """Write one HTML page about runs: the answer, learning curves, comparison, cost, completions, how to repeat it.

    The page is one file that needs no network and no script, for a browser and for paper. A page that is there already
    is replaced; nothing else is changed.
    """
    from rlvr_cli.compare.request import CompareRequest
    from rlvr_cli.report.write import write_report
    from rlvr_cli.sweeps.folder import with_sweep_files

    written = write_report(
        CompareRequest(
            names=tuple(with_sweep_files(names)),
            root=root,
            by=tuple(key for text in by or () for key in text.split(",")),
            baseline=baseline,
            metric=metric,
            benchmark=benchmark,
            where=tuple(where or ()),
            match=match,
            level=level,
            power=power,
            common_problems=common_problems,
            unpaired=unpaired,
            unfinished=unfinished,
        ),
        output,
    )
    if form == "json":
        print_json(written.as_json())
        return
    echo(written.question)
    echo(written.answer)
    for line in written.unfinished:
        echo(f"note: {line}")
    echo(f"report: {written.path} ({written.bytes / 1000:,.0f} kB)")
