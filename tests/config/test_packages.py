"""Tasks and methods that installed packages offer by entry points, with real metadata on the path."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr_cli.cli.templates import files_of

ROOT = Path(__file__).parents[2]
SMALL = ("rollout.prompts=2", "rollout.group_size=2", "rollout.max_new_tokens=8", "train.rollouts=1")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder like site-packages with the package `island` 1.0: a task, a method, and two that are broken."""
    site, package = tmp_path / "site", tmp_path / "site" / "island"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "words.py").write_text('POWER = "The power of the ratio."\n')
    (package / "riddle.py").write_text(files_of("task", "riddle")["riddle.py"])
    method = files_of("method", "power")["power.py"].replace(
        'description="The power of the ratio."', "description=POWER"
    )
    (package / "method.py").write_text(method.replace("\n\nclass", "\nfrom .words import POWER\n\n\nclass", 1))
    (package / "broken.py").write_text("import no_such_module\n")
    metadata = site / "island-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: island\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[rlvr.tasks]\nriddle = island.riddle\nkk = island.riddle\nverse = island.riddle\n\n"
        "[rlvr.methods]\npower = island.method\nbroken = island.broken\ngone = island.gone\nother = island.method\n"
    )
    return site


def rlvr(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{site}"}
    command = [sys.executable, "-m", "rlvr_cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=site.parent, check=False)


def test_a_package_gives_tasks_and_methods(site: Path) -> None:
    listed = rlvr(site, "methods")
    assert "power (island 1.0)" in listed.stdout, listed.stderr
    assert "kk (island 1.0: hidden by the built-in one)" in " ".join(rlvr(site, "tasks").stdout.split())
    trained = rlvr(site, "train", "--task", "riddle", "--method", "power+lopti", *SMALL, "run.name=one")
    assert trained.returncode == 0, trained.stderr
    kept = json.loads((site.parent / "runs/one/manifest.json").read_text())["own_files"]
    assert [(one["of"], one["package"]) for one in kept] == [("task", "island 1.0"), ("method", "island 1.0")]
    evaluated = rlvr(site, "eval", "one", "eval.problems=4", "--samples", "2", "--pass-at", "2")
    assert evaluated.returncode == 0, evaluated.stderr
    with (site / "island" / "method.py").open("a") as file:
        file.write("# edited\n")
    edited = rlvr(site, "train", "--resume", "one", "train.rollouts=2")
    assert edited.returncode == 2 and "island 1.0" in edited.stderr, edited.stderr


def test_a_broken_package_is_named(site: Path) -> None:
    for name, said in (
        ("verse", "island 1.0 offers a task verse, and it is called riddle"),
        ("broken", "island 1.0.*no_such_module"),
        ("gone", "island 1.0.*no module island.gone"),
        ("other", "island 1.0.*it is called power"),
        ("none", 'unknown method "none"'),
    ):
        found = rlvr(site, "config", "show", "--task" if name == "verse" else "--method", name)
        assert found.returncode == 2 and re.search(said, found.stderr), found.stderr


def test_commands_that_name_nothing_unknown_look_for_no_package(site: Path) -> None:
    code = (
        "import importlib.metadata as found, sys\n"
        "found.entry_points = lambda group='', **_: 1 / 0 if group.startswith('rlvr.') else ()\n"
        "from rlvr_cli.cli.app import run\n"
        "assert run(['config', 'show', '--method', 'dgpo+lopti', '--task', 'math']) == 0\n"
        "assert 'island' not in sys.modules\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{site}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
