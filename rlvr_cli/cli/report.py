"""`rlvr report`: an HTML page about runs or a sweep, with the answer first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rlvr_cli.cli.command import options_from
from rlvr_cli.cli.compare import build_request
from rlvr_cli.cli.options import output
from rlvr_cli.cli.output import Format, echo, print_json, print_waiting

if TYPE_CHECKING:
    from rlvr_cli.compare.request import CompareRequest


@options_from(build_request, into="request")
def command(
    request: CompareRequest,
    page: Annotated[
        Path | None, output("FILE", "The page. Default: report.html in the run's or the sweep's folder.")
    ] = None,
    form: Format = "table",
) -> None:
    """Write an HTML page about runs: answer, learning curves, comparison, cost, completions, commands to repeat it.

    The page is a single file that needs no network and prints well. Replaces an existing page; changes nothing else.
    """
    print_waiting("reading the runs")
    from rlvr_cli.report.write import write_report

    written = write_report(request, page)
    if form == "json":
        print_json(written)
        return
    echo(written["question"])
    echo(written["answer"])
    for line in written["unfinished"]:
        echo(f"note: {line}")
    echo(f"report: {written['path']} ({written['bytes'] / 1000:,.0f} kB)")
