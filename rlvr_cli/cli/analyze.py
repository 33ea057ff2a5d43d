"""`rlvr analyze`: the papers' analyses of rollouts and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlvr_cli.cli.options import RUNS, Runs, output
from rlvr_cli.cli.output import ListFormat, print_waiting, show


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The analysis. Default: list them.", show_default=False)
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Keys of the analysis; `rlvr analyze` lists them.", show_default=False
        ),
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(
            "--run", metavar="RUN", help="A run's name in --runs, or its path; repeat it for analyses of several."
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option("--step", metavar="S", help="Step of the checkpoint. Default: the newest.")
    ] = None,
    rollout: Annotated[
        int | None,
        typer.Option("--rollout", metavar="K", help="Rollout, from 0. Default: the newest that can be used."),
    ] = None,
    figure: Annotated[
        Path | None,
        output(
            "FILE",
            "The figure (.svg or .png); the numbers go next to it. Default: in the folder `analysis` of the run, or "
            "of --runs for several runs.",
        ),
    ] = None,
    root: Runs = RUNS,
    form: ListFormat = "table",
) -> None:
    """Run an analysis, mostly of a saved rollout and a checkpoint: numbers, a figure and a sentence."""
    if name is None:
        _list_analyses(form)
        return
    from rlvr_cli.analyses.request import make_request

    request = make_request(name, run or [], root, rollout=rollout, step=step, overrides=overrides or [], figure=figure)
    print_waiting()
    from rlvr_cli.analyses.request import analyze_and_write

    show(form, analyze_and_write(request))


def _list_analyses(form: str) -> None:
    from rlvr_cli.analyses.base import analyses
    from rlvr_cli.core.keys import describe_field
    from rlvr_cli.core.table import ResultDocument, Table
    from rlvr_cli.core.yaml import yaml_text

    kinds = analyses()
    keys = [
        (f"{name} {key}=", yaml_text(field.default), describe_field(field), field.description or "")
        for name, kind in kinds.items()
        for key, field in kind.options.model_fields.items()
    ]
    show(
        form,
        ResultDocument(
            tables=[
                Table(
                    "",
                    ("analysis", "paper", "what it shows"),
                    [(name, kind.paper, kind.summary) for name, kind in kinds.items()],
                ),
                Table("", ("key", "default", "type", "meaning"), keys),
            ],
            data={
                name: {
                    "summary": kind.summary,
                    "paper": kind.paper,
                    "runs": kind.max_runs,
                    "options": kind.options.model_json_schema()["properties"],
                }
                for name, kind in kinds.items()
            },
            after=["Example: `rlvr analyze words --run RUN bins=5`."],
        ),
    )
