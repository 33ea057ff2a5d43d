"""`rlvr compare`: effects of arms, with intervals and corrected p-values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlvr_cli.cli.command import MORE, options_from
from rlvr_cli.cli.options import RUNS, Runs, complete_run, output
from rlvr_cli.cli.output import ListFormat, echo, show
from rlvr_cli.core.errors import UserError

if TYPE_CHECKING:
    from rlvr_cli.compare.request import CompareRequest


def build_request(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            autocompletion=complete_run,
            help="Runs, sweeps (name, folder or file), folders of runs or globs, by name in --runs or by path. Runs "
            "that differ only in the seed are one arm.",
            show_default=False,
        ),
    ],
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="ARM",
            help="The arm that the others are compared with, by its name or a run of it. Default: the arm of the "
            "first argument, if it names a single arm; else the sweep file's first method without modifiers.",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="accuracy (avg@n), pass@K, maj@K, greedy, reward, length, ... Default: accuracy.",
        ),
    ] = None,
    benchmark: Annotated[
        str | None, typer.Option("--benchmark", metavar="NAME", help="Benchmark to compare on, if runs have several.")
    ] = None,
    match: Annotated[
        str | None,
        typer.Option(
            "--match",
            metavar="BUDGET[@VALUE]",
            help="Compare the learning curves of held-out evaluations in training at the largest common budget: "
            "rollouts, updates, tokens (sampled) or seconds (of training); and when VALUE is first reached (else the "
            "baseline's final one).",
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            metavar="KEY,...",
            rich_help_panel=MORE,
            help="Group runs into arms by these keys, as method.name; the rest is pooled.",
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="KEY=VALUE",
            rich_help_panel=MORE,
            help="Select evaluations by their settings: split=dev, sampling.temperature=0.6, ...",
        ),
    ] = None,
    power: Annotated[
        float | None,
        typer.Option(
            "--power",
            metavar="DIFFERENCE",
            rich_help_panel=MORE,
            help="Report the seeds or problems needed to detect this difference of the metric, as 0.02.",
        ),
    ] = None,
    permutation: Annotated[
        bool,
        typer.Option("--permutation", rich_help_panel=MORE, help="Add a permutation test of whole runs between arms."),
    ] = False,
    common_problems: Annotated[
        bool,
        typer.Option(
            "--common-problems", rich_help_panel=MORE, help="Compare on the problems that all runs were evaluated on."
        ),
    ] = False,
    unpaired: Annotated[
        bool,
        typer.Option(
            "--unpaired", rich_help_panel=MORE, help="Use all seeds of each arm, without pairing runs by seed."
        ),
    ] = False,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", rich_help_panel=MORE, help="Include unfinished runs, as they are.")
    ] = False,
    root: Runs = RUNS,
) -> CompareRequest:
    """Return the request of `rlvr compare` and `rlvr report`. Raises UserError for unreadable sweep files."""
    from rlvr_cli.compare.request import CompareRequest, parse_match
    from rlvr_cli.sweeps.folder import resolve_sweep_files

    budget, level = parse_match(match)
    return CompareRequest(
        names=tuple(resolve_sweep_files(names)),
        root=root,
        by=tuple(key for text in by or () for key in text.split(",")),
        baseline=baseline,
        metric=metric,
        benchmark=benchmark,
        where=tuple(where or ()),
        match=budget,
        level=level,
        power=power,
        permutation=permutation,
        common_problems=common_problems,
        unpaired=unpaired,
        unfinished=unfinished,
    )


@options_from(build_request, into="request")
def command(
    request: CompareRequest,
    over: Annotated[
        str | None,
        typer.Option(
            "--over",
            metavar="benchmark|KEY",
            rich_help_panel=MORE,
            help="Compare over tasks: all benchmarks that the runs were evaluated on (or those of --benchmark A,B), or "
            "the values of a key, as task.name; each task and their mean.",
        ),
    ] = None,
    figure: Annotated[Path | None, output("FILE", "With --over: also draw the differences (.png or .svg).")] = None,
    form: ListFormat = "table",
) -> None:
    """Compare runs: a table sorted by effect with 95% intervals, corrected p-values and costs, and a sentence each.

    Reads the evaluations of `rlvr eval` (with --match: those of validation.every in training), pairs runs by seed and
    problem, and changes nothing.
    """
    tasks, benchmarks = _parse_over(over, request.benchmark)
    if figure is not None:
        from rlvr_cli.charts.figure import check_path

        if not tasks:
            raise UserError("--output needs --over: it writes the figure of a comparison over tasks.")
        check_path(figure)
    benchmark = None if benchmarks else request.benchmark
    _compare(replace(request, benchmark=benchmark, over=tasks, benchmarks=benchmarks), form, figure)


def _parse_over(over: str | None, benchmark: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the keys to compare over and the benchmarks; both empty for a single comparison."""
    names = tuple(dict.fromkeys(name.strip() for name in (benchmark or "").split(",") if name.strip()))
    if over in ("benchmark", "benchmarks"):
        if len(names) == 1:
            raise UserError(f"--over {over} needs several benchmarks; got {names[0]}. Use --benchmark A,B.")
        return ("benchmark",), names
    if over is None:
        return (("benchmark",), names) if len(names) > 1 else ((), ())
    if len(names) > 1:
        raise UserError(f"--benchmark {benchmark} and --over {over} cannot be combined. Remove one.")
    return tuple(key.strip() for key in over.split(",")), ()


def _compare(request: CompareRequest, form: str, figure: Path | None) -> None:
    from rlvr_cli.compare.read import read_scores

    scores = read_scores(request)
    from rlvr_cli.compare.document import comparison_document
    from rlvr_cli.compare.results import compare_arms

    comparison = compare_arms(scores)
    show(form, comparison_document(comparison))
    if figure is not None:
        from rlvr_cli.charts.figure import write_chart
        from rlvr_cli.compare.figure import comparison_figure

        write_chart(comparison_figure(comparison), figure)
        if form == "table":
            echo(f"\n{figure}: differences and their intervals")
