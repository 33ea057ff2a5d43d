"""`rlvr doctor`: is everything here that rlvr needs, and the command that fixes what is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from rlvr_cli.cli.output import Format, echo, plain_table, print_json, print_table

if TYPE_CHECKING:
    from rlvr_cli.cli.doctor_checks import Finding

STYLE = {"ok": "green", "note": "yellow", "problem": "red"}


def command(form: Format = "table") -> None:
    """Check versions, devices, memory, disk and network; exit code 1 when something required is missing or unfit."""
    from rlvr_cli.cli.doctor_checks import all_findings

    findings = all_findings()
    if form == "json":
        print_json([vars(finding) for finding in findings])
    else:
        _print(findings)
    if any(finding.status == "problem" for finding in findings):
        raise typer.Exit(1)


def _print(findings: list[Finding]) -> None:
    from rich.text import Text

    table = plain_table("", "status", "found")
    table.show_header = False
    for finding in findings:
        table.add_row(finding.name, Text(finding.status, style=STYLE[finding.status]), finding.found)
    print_table(table)
    fixes = [finding for finding in findings if finding.fix]
    for finding in fixes:
        echo(f"\n{finding.name}: {finding.found}\n  {finding.fix}")
    problems = sum(finding.status == "problem" for finding in findings)
    summary = f"{problems} problem{'' if problems == 1 else 's'}; fix with the commands above."
    echo("\n" + (summary if problems else "Nothing required is missing."))
