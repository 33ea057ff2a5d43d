"""The checks for a GPU on a CPU, tiny: each has a line, and a second call runs nothing."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import CHECKS, run_check, table
from rlvr_cli.core.files import read_jsonl

CHEAP = ["attention", "zero2"]


def call(output: Path, *words: str) -> str:
    command = [sys.executable, "-m", "benchmarks.gpu", "--cpu", "--tiny", "--output", str(output), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]).stdout


@pytest.mark.parametrize(
    "names", [pytest.param(CHEAP, id="cheap"), pytest.param(list(CHECKS), id="all", marks=pytest.mark.slow)]
)
def test_every_check_has_a_line_and_is_made_once(tmp_path: Path, names: list[str]) -> None:
    output = tmp_path / "gpu.jsonl"
    call(output, "--only", *names)
    lines = list(read_jsonl(output))
    assert [line["check"] for line in lines] == names
    assert [line for line in lines if line["status"] not in ("ok", "skipped")] == []
    assert all(line["numbers"] if line["status"] == "ok" else line["why"] for line in lines)
    again = call(output, "--only", *names)
    assert list(read_jsonl(output)) == lines and " ..." not in again


def test_a_check_that_takes_too_long_is_recorded() -> None:
    options = argparse.Namespace(cpu=True, tiny=True, model=None, timeout=0.01)
    late = run_check("attention", options)
    assert late["status"] == "timeout" and "timeout" in table([late])
