"""`rlvr analyze`: look closely at the rollouts and checkpoints of runs, as the papers do."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated

import typer

from rlvr_cli.cli.common import Json, echo, plain_table, print_json, print_table

WIDTH = 110


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The analysis; left out: list them.", show_default=False)
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Keys of the analysis; `rlvr analyze` lists them.", show_default=False
        ),
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option("--run", metavar="RUN", help="A run's name in --dir, or its path; some take several."),
    ] = None,
    step: Annotated[
        int | None, typer.Option("--step", metavar="S", help="The policy of this checkpoint. Default: the newest.")
    ] = None,
    rollout: Annotated[
        int | None, typer.Option("--rollout", metavar="K", help="From 0. Default: the newest that can be used.")
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="The figure (.svg or .png); the numbers go beside it. Default: in the folder `analysis` of the "
            "run, or of --dir for several runs.",
            show_default=False,
        ),
    ] = None,
    root: Annotated[Path, typer.Option("--dir", metavar="FOLDER", help="Folder that holds the runs (run.dir).")] = Path(
        "runs"
    ),
    as_json: Json = False,
) -> None:
    """Look closely at a saved rollout and a checkpoint: numbers, a figure, and how to read it."""
    if name is None:
        _list(as_json)
        return
    from rlvr_cli.analyses.request import analyze_request

    request = analyze_request(
        name, run or [], root, rollout=rollout, step=step, overrides=overrides or [], figure=figure
    )
    from rlvr_cli.analyses.request import analyze_and_write
    from rlvr_cli.analyses.request import as_json as json_of

    found = analyze_and_write(request)
    if as_json:
        print_json(json_of(request, found))
        return
    echo(found.headline)
    for line in found.notes:
        echo(f"Note: {line}")
    for table in found.tables:
        shown = plain_table(*table.header)
        for row in table.rows:
            shown.add_row(*row)
        echo(f"\n{table.title}")
        print_table(shown)
    echo(f"\n{textwrap.fill(found.reading, WIDTH)}")
    echo(f"\nfigure: {request.figure}, numbers: {request.numbers}")


def _list(as_json: bool) -> None:
    from rlvr_cli.analyses.base import analyses
    from rlvr_cli.core.keys import describe_field
    from rlvr_cli.core.yaml import shown

    if as_json:
        print_json(
            {
                name: {
                    "summary": kind.summary,
                    "paper": kind.paper,
                    "runs": kind.runs,
                    "options": kind.options.model_json_schema()["properties"],
                }
                for name, kind in analyses().items()
            }
        )
        return
    table = plain_table("analysis", "paper", "what it shows")
    for name, kind in analyses().items():
        table.add_row(name, kind.paper, kind.summary)
    print_table(table)
    echo()
    keys = plain_table("key", "default", "what it is", "meaning")
    for name, kind in analyses().items():
        for key, field in kind.options.model_fields.items():
            keys.add_row(f"{name} {key}=", shown(field.default), describe_field(field), field.description or "")
    print_table(keys)
    echo("\nAs `rlvr analyze words --run RUN bins=5`. How to read each: docs/analyses/README.md")
