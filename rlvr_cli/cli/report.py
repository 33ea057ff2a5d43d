"""`rlvr report`: one page about runs or a sweep, with the answer first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlvr_cli.cli.common import Json, print_json


def command(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|SWEEP|FOLDER|GLOB...",
            help="Runs, sweeps (name, folder or file), folders of runs or globs, by name in --dir or by path.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The page. Default: report.html in the run's or the sweep's folder.",
            show_default=False,
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="ARM", help="As for `rlvr compare`; so are the options below.")
    ] = None,
    by: Annotated[
        list[str] | None, typer.Option("--by", metavar="KEY[,KEY...]", help="Make arms by these keys; pool the rest.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option("--metric", metavar="NAME", help="accuracy, pass@K, maj@K, greedy, reward, ...")
    ] = None,
    benchmark: Annotated[
        str | None, typer.Option("--benchmark", metavar="NAME", help="Which, where runs were evaluated on several.")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option("--where", metavar="KEY=VALUE", help="Which evaluation, as split=dev.")
    ] = None,
    match: Annotated[
        str | None,
        typer.Option("--match", metavar="BUDGET", help="Compare at equal rollouts, updates, tokens or seconds."),
    ] = None,
    level: Annotated[
        float | None, typer.Option("--level", metavar="VALUE", help="With --match: when is it first reached?")
    ] = None,
    power: Annotated[
        float | None, typer.Option("--power", metavar="DIFFERENCE", help="What it takes to see this difference.")
    ] = None,
    common_problems: Annotated[
        bool, typer.Option("--common-problems", help="Compare on the problems that all runs were evaluated on.")
    ] = False,
    unpaired: Annotated[
        bool, typer.Option("--unpaired", help="Take all seeds of each arm, and do not pair runs by their seed.")
    ] = False,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Compare runs that are not finished as they are.")
    ] = False,
    root: Annotated[Path, typer.Option("--dir", metavar="FOLDER", help="Folder that holds the runs (run.dir).")] = Path(
        "runs"
    ),
    as_json: Json = False,
) -> None:
    """Write one HTML page about runs: the answer, learning curves, comparison, cost, completions, how to repeat it.

    The page is one file that needs no network and no script, for a browser and for paper. A page that is there already
    is replaced; nothing else is changed.
    """
    from rlvr_cli.evaluation.comparison.question import Question
    from rlvr_cli.report.report_write import write_report
    from rlvr_cli.sweeps.find import with_sweep_files

    written = write_report(
        Question(
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
    if as_json:
        print_json(written.as_json())
        return
    print(written.question)
    print(written.answer)
    for line in written.unfinished:
        print(f"note: {line}")
    print(f"report: {written.path} ({written.bytes / 1000:,.0f} kB)")
