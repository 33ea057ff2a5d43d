"""A method that does the wrong thing is caught: the claims that rest on it no longer hold.

The doubles are copies of the package with one line of the method changed: everything above it is the real thing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rlvr_cli
from tests.ledger.files import WORDS, write_book

SHORT = {"method": "grpo", "train.rollouts": 8, "optimizer.lr_schedule": "constant"}
LEARNS = {
    "id": "landscape/grpo-learns",
    **WORDS,
    "measure": {"analysis": "landscape", "number": "accuracy_end"},
    "arm": "grpo",
    # The shipped base's, sampled: docs/lab.md.
    "rule": {"above": 0.28},
    "seeds": 3,
}
LOW_FIRST = {
    "id": "ar_lopti/low-probability-first",
    **WORDS,
    "measure": {"exact": "passes_rise", "options": {"method": "lopti"}},
    "rule": {"above": 0},
}
# A file of the package, what stands in it, and what the double has in its place.
WRONG_SIGN = ("methods/grpo.py", "torch.where(known, grouped - mean, 0.0)", "torch.where(known, mean - grouped, 0.0)")
REVERSED = ("methods/lopti.py", '"low_first": ("low", "high")', '"low_first": ("high", "low")')


def double(folder: Path, file: str, right: str, wrong: str) -> Path:
    """A copy of the package in ``folder`` with one line changed."""
    package = folder / "rlvr_cli"
    shutil.copytree(Path(rlvr_cli.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    source = (package / file).read_text()
    assert source.count(right) == 1, f"{file} no longer has: {right}"
    (package / file).write_text(source.replace(right, wrong))
    return folder


def verdicts(data: Path, runs: Path, source: Path, *names: str) -> dict[str, Any]:
    """The verdicts of the package in ``source``."""
    arguments = ["reproduce", *names, "--claims", str(data), "--runs", str(runs), "--format=json"]
    done = subprocess.run(
        [sys.executable, "-m", "rlvr_cli", *arguments],
        env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        cwd=source,
        capture_output=True,
        text=True,
        check=True,
    )
    return {claim["id"]: claim["verdict"] for claim in json.loads(done.stdout)["claims"]}


@pytest.mark.slow
def test_lopti_in_reverse(tmp_path: Path) -> None:
    data = write_book(tmp_path / "data", [LOW_FIRST, LEARNS], {"grpo": {"set": SHORT}})
    true = Path(rlvr_cli.__file__).parents[1]
    name = str(LOW_FIRST["id"])
    assert verdicts(data, tmp_path / "true", true, name) == {name: "holds"}
    broken = double(tmp_path / "double", *REVERSED)
    assert verdicts(data, tmp_path / "broken", broken, name) == {name: "does not hold"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_advantage_of_the_wrong_sign(tmp_path: Path) -> None:
    data = write_book(tmp_path / "data", [LEARNS], {"grpo": {"set": SHORT}})
    true = Path(rlvr_cli.__file__).parents[1]
    name = str(LEARNS["id"])
    assert verdicts(data, tmp_path / "true", true, name) == {name: "holds"}
    broken = double(tmp_path / "double", *WRONG_SIGN)
    assert verdicts(data, tmp_path / "broken", broken, name) == {name: "does not hold"}
