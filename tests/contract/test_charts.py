"""A command that draws nothing loads no chart library: it is seconds of waiting."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("command", ["config show", "plan", "train", "runs", "compare", "report"])
def test_the_help_of_a_command_loads_no_chart_library(command: str) -> None:
    code = (
        "import sys; from rlvr_cli.cli.app import run; run(sys.argv[1:]);"
        "assert not {'altair', 'vl_convert', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command.split(), "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_modules_of_charts_are_loaded_without_their_library() -> None:
    names = "rlvr_cli.report.write, rlvr_cli.compare.figure, rlvr_cli.describe.plot, rlvr_cli.charts.figure"
    code = f"import sys, {names}; assert not {{'altair', 'vl_convert', 'matplotlib'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
