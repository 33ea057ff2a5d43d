"""The options that say what is compared, the same of every command that compares runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="A B...",
        help="Runs, sweeps (name, folder or file), folders of runs or globs, by name in --dir or by path. Runs "
        "that differ in nothing but the seed are one arm.",
        show_default=False,
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        metavar="ARM",
        help="The arm that the others are compared with, by its name or a run of it. Default: the arm of the "
        "first argument, if it is of one arm alone; else the sweep file's first method without modifiers.",
    ),
]
By = Annotated[
    list[str] | None,
    typer.Option("--by", metavar="KEY[,KEY...]", help="Make arms by these keys, as method.name; the rest is pooled."),
]
Metric = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="accuracy (avg@n), pass@K, maj@K, greedy, reward, length, ... Default: accuracy.",
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="KEY=VALUE",
        help="Which evaluation, where there are several settings: split=dev, sampling.temperature=0.6, ...",
    ),
]
Match = Annotated[
    str | None,
    typer.Option(
        "--match",
        metavar="BUDGET",
        help="Compare the learning curves of held-out evaluations in training at the largest common budget: "
        "rollouts, updates, tokens (sampled) or seconds (of training).",
    ),
]
Level = Annotated[
    float | None,
    typer.Option(
        "--level",
        metavar="VALUE",
        help="With --match: when is this value first reached? Default: the baseline's final one.",
    ),
]
Power = Annotated[
    float | None,
    typer.Option(
        "--power",
        metavar="DIFFERENCE",
        help="How many seeds or problems it takes to see this difference of the metric, as 0.02.",
    ),
]
CommonProblems = Annotated[
    bool, typer.Option("--common-problems", help="Compare on the problems that all runs were evaluated on.")
]
Unpaired = Annotated[
    bool, typer.Option("--unpaired", help="Take all seeds of each arm, and do not pair runs by their seed.")
]
Unfinished = Annotated[bool, typer.Option("--unfinished", help="Compare runs that are not finished as they are.")]
Root = Annotated[Path, typer.Option("--dir", metavar="FOLDER", help="Folder that holds the runs (run.dir).")]
RUNS = Path("runs")
