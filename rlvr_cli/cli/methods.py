"""`rlvr methods`: list the methods, show one, plot their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rlvr_cli.cli.command import App
from rlvr_cli.cli.options import output
from rlvr_cli.cli.output import Format, ListFormat, echo, print_json, print_table, print_waiting
from rlvr_cli.cli.output import show as show_document
from rlvr_cli.core.terminal import width

app = App(help="List the methods, show one, plot their weights.")

NAME_HELP = "A method, with modifiers joined by +: `dgpo`, `dgpo+lopti`."


@app.callback(invoke_without_command=True)
def methods(context: typer.Context) -> None:
    """List the methods, show one, plot their weights. Without a command: list."""
    if context.invoked_subcommand is None:
        list_command()


@app.command("list")
def list_command(form: ListFormat = "table") -> None:
    """List every method and modifier: paper, summary, extra cost over GRPO."""
    from rlvr_cli.core.table import ResultDocument, Table
    from rlvr_cli.describe.sheet import preset_row, short_cost
    from rlvr_cli.methods.names import ALIASES, METHODS, MODIFIER_PRESETS

    bases, added = [*map(preset_row, METHODS.values())], [*map(preset_row, MODIFIER_PRESETS.values())]

    def cells(row: dict[str, Any]) -> list[str]:
        paper = row["paper"].replace(" et al.,", "")
        return [row["name"], paper, row["summary"], short_cost(row["extra_cost"])]

    header = ("paper", "what it does", "extra cost over grpo")
    show_document(
        form,
        ResultDocument(
            tables=[
                Table("", (first, *header), [cells(row) for row in rows])
                for first, rows in (("method", bases), ("modifier", added))
            ],
            data={"methods": bases, "modifiers": added, "aliases": dict(sorted(ALIASES.items()))},
            after=[
                f"Aliases: {', '.join(f'{alias} = {name}' for alias, name in sorted(ALIASES.items()))}.",
                "Join modifiers to a method with +: `rlvr methods show dgpo+lopti`.",
            ],
            rows=[*({"kind": "method", **row} for row in bases), *({"kind": "modifier", **row} for row in added)],
        ),
    )


@app.command()
def show(method: Annotated[str, typer.Argument(metavar="METHOD", help=NAME_HELP)], form: Format = "table") -> None:
    """Show a method: equation, choices, parameters with sources, differences from the released code."""
    from rlvr_cli.describe.sheet import change_line, method_sheet, sheet_as_dict, sheet_lines, table_rows

    sheet = method_sheet(method)
    if form == "json":
        print_json(sheet_as_dict(sheet))
        return
    echo("\n".join(sheet_lines(sheet, width())))
    if sheet.choices:
        echo()
        print_table(("choice and keys", "value", "default", "from"), list(table_rows(sheet)))
    if sheet.changes:
        echo("\nWhat the modifiers set:")
        echo("\n".join(f"  {change_line(change)}" for change in sheet.changes))
    echo(f"\nTested against: {', '.join(f'golden/{name}.json' for name in sheet.golden) or 'no golden file'}")
    echo(f"Example: {sheet.example}")


@app.command()
def plot(
    names: Annotated[
        list[str], typer.Argument(metavar="METHOD...", help="Methods, as dgpo gppo cispo grpo; at most 8 curves.")
    ],
    out: Annotated[Path | None, output("FILE", "A .png or .svg file. Default: weights-<methods>.png.")] = None,
    old_prob: Annotated[
        list[str] | None,
        typer.Option("--old-prob", metavar="P[,P...]", help="Old probabilities of the token. Default: 0.1,0.5,0.9."),
    ] = None,
    spread: Annotated[
        float | None,
        typer.Option("--spread", metavar="K", help="ACPO: standard deviation K (1 - p)^2 of the ratio. Default: 0.1."),
    ] = None,
    form: Format = "table",
) -> None:
    """Draw each method's weight on grad log pi and on grad pi over the ratio, for both signs of the advantage."""
    from rlvr_cli.describe.plot import plot_request

    request = plot_request(names, out, old_prob or [], spread)
    print_waiting()
    from rlvr_cli.describe.plot import curves_as_dict, plot_weights

    drawn = plot_weights(request)
    if form == "json":
        print_json(curves_as_dict(request, drawn))
        return
    probabilities = ", ".join(f"{value:g}" for value in request.old_probs)
    echo(f"{request.out}: {', '.join(request.names)}, at old probability {probabilities}")
    for note in drawn.notes:
        echo(f"  {note}")
