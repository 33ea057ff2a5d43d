"""`rlvr compare`: which arm is better, by how much, and how sure that is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlvr_cli.cli.common import Json, plain_table, print_json, print_table
from rlvr_cli.config.errors import UserError


def command(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="A B...",
            help="Runs, sweeps (name, folder or file), folders of runs or globs, by name in --dir or by path. Runs "
            "that differ in nothing but the seed are one arm.",
            show_default=False,
        ),
    ],
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="ARM",
            help="The arm that the others are compared with, by its name or a run of it. Default: the arm of the "
            "first argument, if it is of one arm alone; else the first method without modifiers, by the alphabet.",
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by", metavar="KEY[,KEY...]", help="Make arms by these keys, as method.name; the rest is pooled."
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
        str | None, typer.Option("--benchmark", metavar="NAME", help="Which, where runs were evaluated on several.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="KEY=VALUE",
            help="Which evaluation, where there are several settings: split=dev, sampling.temperature=0.6, ...",
        ),
    ] = None,
    match: Annotated[
        str | None,
        typer.Option(
            "--match",
            metavar="BUDGET",
            help="Compare the learning curves of held-out evaluations in training at the largest common budget: "
            "rollouts, updates, tokens (sampled) or seconds (of training).",
        ),
    ] = None,
    level: Annotated[
        float | None,
        typer.Option(
            "--level",
            metavar="VALUE",
            help="With --match: when is this value first reached? Default: the baseline's final one.",
        ),
    ] = None,
    power: Annotated[
        float | None,
        typer.Option(
            "--power",
            metavar="DIFFERENCE",
            help="How many seeds or problems it takes to see this difference of the metric, as 0.02.",
        ),
    ] = None,
    common_problems: Annotated[
        bool, typer.Option("--common-problems", help="Compare on the problems that all runs were evaluated on.")
    ] = False,
    unpaired: Annotated[
        bool, typer.Option("--unpaired", help="Take all seeds of each arm, and do not pair runs by their seed.")
    ] = False,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Take runs that are not finished as they are.")
    ] = False,
    root: Annotated[Path, typer.Option("--dir", metavar="FOLDER", help="Folder that holds the runs (run.dir).")] = Path(
        "runs"
    ),
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, one line an arm.")] = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX tables (booktabs).")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Compare runs: a table sorted by effect with 95% intervals, corrected p-values and costs, and a sentence each.

    Reads the evaluations that `rlvr eval` has made (with --match: those of eval.every in training), pairs runs by seed
    and problem, and changes nothing.
    """
    forms = {"--json": as_json, "--csv": as_csv, "--latex": as_latex, "--markdown": as_markdown}
    chosen = [option for option, given in forms.items() if given]
    if len(chosen) > 1:
        raise UserError(f"{' and '.join(chosen)}: give one of them.", note="Nothing was compared.")
    from rlvr_cli.evaluation.comparison.material import gather
    from rlvr_cli.evaluation.comparison.question import Question
    from rlvr_cli.sweeps.find import with_sweep_files

    material = gather(
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
        )
    )
    from rlvr_cli.report import comparison_data, comparison_tables
    from rlvr_cli.report.comparison import compare

    comparison = compare(material)
    if as_json:
        print_json(comparison_data.as_json(comparison))
    elif as_csv:
        print(comparison_data.as_csv(comparison), end="")
    elif as_latex:
        print(comparison_tables.latex(comparison))
    elif as_markdown:
        print(comparison_tables.markdown(comparison))
    else:
        for line in comparison_tables.lines_before(comparison):
            print(line)
        for header, rows in comparison_tables.tables(comparison):
            table = plain_table(*header)
            for row in rows:
                table.add_row(*row)
            print()
            print_table(table)
        print()
        for line in comparison_tables.lines_after(comparison):
            print(line)
