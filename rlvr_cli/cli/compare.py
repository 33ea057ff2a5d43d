"""`rlvr compare`: which arm is better, by how much, and how sure that is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
)
from rlvr_cli.cli.output import ListFormat, echo, show
from rlvr_cli.core.errors import UserError

if TYPE_CHECKING:
    from rlvr_cli.compare.request import CompareRequest


def command(
    names: Names,
    baseline: Baseline = None,
    by: By = None,
    metric: Metric = None,
    benchmark: Annotated[
        str | None,
        typer.Option(
            "--benchmark",
            metavar="NAME[,NAME...]",
            help="Which, where runs were evaluated on several; of several names, over these.",
        ),
    ] = None,
    over: Annotated[
        str | None,
        typer.Option(
            "--over",
            metavar="benchmark|KEY",
            help="Compare over tasks: all benchmarks that the runs were evaluated on, or the values of a key, as "
            "task.name; each task, their mean, interquartile mean, chance of improvement, performance profiles.",
        ),
    ] = None,
    where: Where = None,
    match: Match = None,
    level: Level = None,
    power: Power = None,
    common_problems: CommonProblems = False,
    unpaired: Unpaired = False,
    unfinished: Unfinished = False,
    root: Runs = RUNS,
    form: ListFormat = "table",
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="With --over: also draw differences and profiles (.png or .svg)."),
    ] = None,
) -> None:
    """Compare runs: a table sorted by effect with 95% intervals, corrected p-values and costs, and a sentence each.

    Reads the evaluations that `rlvr eval` has made (with --match: those of eval.every in training), pairs runs by seed
    and problem, and changes nothing.
    """
    tasks, benchmarks = _tasks(over, benchmark)
    if plot is not None:
        from rlvr_cli.results.figure import check_path

        if not tasks:
            raise UserError("--plot: draws a comparison over tasks, so it needs --over.", note="Nothing was compared.")
        check_path(plot)
    from rlvr_cli.compare.request import CompareRequest
    from rlvr_cli.sweeps.folder import with_sweep_files

    request = CompareRequest(
        names=tuple(with_sweep_files(names)),
        root=root,
        by=tuple(key for text in by or () for key in text.split(",")),
        baseline=baseline,
        metric=metric,
        benchmark=None if benchmarks else benchmark,
        where=tuple(where or ()),
        match=match,
        level=level,
        power=power,
        common_problems=common_problems,
        unpaired=unpaired,
        unfinished=unfinished,
        over=tasks,
        benchmarks=benchmarks,
    )
    _show(request, form, plot)


def _tasks(over: str | None, benchmark: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What to compare over, and over which benchmarks; empty for one comparison."""
    names = tuple(dict.fromkeys(name.strip() for name in (benchmark or "").split(",") if name.strip()))
    if over in ("benchmark", "benchmarks"):
        if len(names) == 1:
            raise UserError(f"--over {over}: {names[0]} is one benchmark. Name several.", note="Nothing was compared.")
        return ("benchmark",), names
    if over is None:
        return (("benchmark",), names) if len(names) > 1 else ((), ())
    if len(names) > 1:
        raise UserError(
            f"--benchmark {benchmark}: with --over {over} every task has one benchmark. Leave one of the two out.",
            note="Nothing was compared.",
        )
    return tuple(key.strip() for key in over.split(",")), ()


def _show(request: CompareRequest, form: str, plot: Path | None) -> None:
    from rlvr_cli.compare.inputs import gather

    inputs = gather(request)
    from rlvr_cli.compare.contrasts import compare_arms
    from rlvr_cli.compare.tables import document
    from rlvr_cli.core.sparkline import BLOCKS, levels_for

    comparison = compare_arms(inputs)
    # LaTeX has no characters for curves, and a terminal may lack them.
    levels = {"table": levels_for(sys.stdout.encoding), "latex": None}.get(form, BLOCKS)
    show(form, document(comparison, levels))
    if plot is not None:
        from rlvr_cli.compare.figure import comparison_figure
        from rlvr_cli.results.figure import style, write_figure

        with style():
            write_figure(comparison_figure(comparison), plot)
        if form == "table":
            echo(f"\n{plot}: differences and performance profiles")
