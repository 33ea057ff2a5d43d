"""The wheel: it has the labs, the templates and the recipes, and works unpacked, away from the checkout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from rlvr_cli import __version__
from tests.commands import ROOT

PROGRAM = """
import json, sys
from rlvr_cli.cli.app import run

codes = [run(words) for words in json.loads(sys.argv[1])]
sys.exit(max(codes))
"""
TINY = ("train.rollouts=1", "rollout.prompts=2", "rollout.group_size=2", "task.train_size=8", "run.name=tiny")


def test_the_changelog_and_the_citation_are_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = f"## {__version__} ({citation['date-released']})"
    assert citation["version"] == __version__ and re.findall(r"^## .*", changelog, re.MULTILINE)[0] == heading


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = folder.iterdir()
    return path


def files(folder: Path) -> set[str]:
    """The files below a folder of the checkout, by their places in it."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in paths if "__pycache__" not in path.parts}


def test_the_wheel_has_the_package_and_the_recipes(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    package = {f"rlvr_cli/{name}" for name in files(ROOT / "rlvr_cli")}
    recipes = {f"rlvr_cli/configs/{name}" for name in files(ROOT / "configs")}
    assert names == package | recipes and len(recipes) > 60
    assert {f"rlvr_cli/models/lab/{lab}/model.safetensors" for lab in ("kk", "countdown", "math")} <= package


def test_the_wheel_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Unpacked, with the packages that are installed here; nothing of the repository is on the path."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    (tmp_path / "work").mkdir()
    lines = [
        ["config", "recipes", "--json"],
        ["sweep", "sweeps/methods", "--dry-run"],
        ["plan", "-c", "papers/ar_lopti/figure-4:qwen2.5-3b-lopti"],
        ["methods", "list"],
        ["new", "method", "mine"],
        ["train", "-c", "lab_stable", *TINY],
        ["runs", "list"],
    ]
    environment = {"PYTHONPATH": str(tmp_path / "site"), "HF_HUB_OFFLINE": "1", "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, json.dumps(lines)],
        cwd=tmp_path / "work",
        env={**inherited(), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    listed, end = json.JSONDecoder().raw_decode(done.stdout)
    assert {row["name"] for row in listed} >= {
        "sweeps/methods",
        "lab_stable",
        "papers/dgpo/table-3",
        "words/kk-compact",
    }
    assert all(Path(row["path"]).is_relative_to(tmp_path / "site/rlvr_cli/configs") for row in listed)
    assert "20 trials in runs/methods" in done.stdout[end:] and "finished: runs/tiny" in done.stdout
    manifest = json.loads((tmp_path / "work/runs/tiny/manifest.json").read_text(encoding="utf-8"))
    assert manifest["status"] == "finished" and manifest["git"] is None


def inherited() -> dict[str, str]:
    """The environment without what points to a checkout or a folder of data."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RLVR_"))}
