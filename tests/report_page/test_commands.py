"""A small real sweep, and the commands of its page carried out."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.sweep_kills import write_sweep
from rlvr_cli.cli.app import run
from tests.report_page.page_reader import Page


def rlvr(command: str, folder: Path) -> None:
    """Carry a command line out in ``folder``."""
    done = subprocess.run([sys.executable, "-m", "rlvr_cli", *shlex.split(command)[1:]], cwd=folder, check=False)
    assert done.returncode == 0, command


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two methods, one seed each, trained and evaluated."""
    folder = tmp_path_factory.mktemp("swept")
    file = write_sweep(folder / "sweep.yaml", folder / "runs", ("grpo", "lopti"), 1)
    with file.open("a") as stream:
        stream.write("eval: {samples: 2, problems: 8, pass_at: [1, 2]}\n")
    rlvr(f"rlvr sweep {file}", folder)
    page = folder / "page.html"
    assert run(["report", str(folder / "runs" / "sweep"), "--output", str(page)]) == 0
    return page


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_make_the_runs_again(swept: Path) -> None:
    """The same numbers come out, but for what a clock measures."""
    folder = swept.parent
    commands = Page(swept).commands
    assert commands[0] == f"rlvr sweep {folder}/sweep.yaml run.dir=again"
    for command in commands:
        rlvr(command, folder)
    assert (folder / "report.html").is_file()
    for run_folder in sorted((folder / "runs" / "sweep").glob("*/metrics.jsonl")):
        again = folder / "again" / "sweep" / run_folder.parent.name
        assert again.joinpath("metrics.jsonl").read_bytes() == run_folder.read_bytes()
        first, second = (
            [json.loads(path.read_text())["metrics"] for path in sorted(place.glob("eval/*/metrics.json"))]
            for place in (run_folder.parent, again)
        )
        assert first == second and first
