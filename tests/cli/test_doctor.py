"""`rlvr doctor`: what is here, what is missing, and the command that fixes it."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rlvr_cli.cli import doctor
from rlvr_cli.cli.app import run
from rlvr_cli.cli.doctor import Finding, check_package, read_tested_versions

REPOSITORY = Path(__file__).parents[2]


def canonical(name: str) -> str:
    return name.lower().replace("_", "-")


@pytest.fixture
def constraints() -> dict[str, str]:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonical(name): version for name, version in pairs}


@pytest.fixture
def dependencies() -> list[Requirement]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return [Requirement(text) for text in project["dependencies"]]


def test_the_tested_set_is_the_one_of_the_constraints(
    constraints: dict[str, str], dependencies: list[Requirement]
) -> None:
    assert read_tested_versions() == {
        name: constraints[name] for name in (canonical(dependency.name) for dependency in dependencies)
    }


def test_the_tested_versions_lie_in_the_allowed_ranges(
    constraints: dict[str, str], dependencies: list[Requirement]
) -> None:
    for dependency in dependencies:
        assert dependency.specifier.contains(constraints[canonical(dependency.name)]), dependency.name


@pytest.mark.parametrize(
    ("installed", "status"),
    [("1.16.0", "ok"), ("1.16.0+cpu", "ok"), ("1.16.2", "note"), ("1.17.0", "problem"), (None, "problem")],
)
def test_a_version_against_the_range_and_the_tested_set(
    installed: str | None, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(_: str) -> str:
        if installed is None:
            raise importlib.metadata.PackageNotFoundError
        return installed

    monkeypatch.setattr(importlib.metadata, "version", version)
    finding = check_package(Requirement("trl>=1.16,<1.17"), "1.16.0")
    assert finding.status == status
    fix = f"{sys.executable} -m pip install 'trl==1.16.0'"
    assert finding.fix == ("" if status == "ok" else fix)


def test_something_missing_is_an_exit_code_and_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Finding("python", "ok", "3.11"), Finding("trl", "problem", "not installed", "pip install trl")]
    monkeypatch.setattr(doctor, "run_checks", lambda: found)
    assert run(["doctor"]) == 1
    assert "  pip install trl\n" in capsys.readouterr().out
    assert run(["doctor", "--format=json"]) == 1
    assert json.loads(capsys.readouterr().out)[1] == {
        "name": "trl",
        "status": "problem",
        "detail": "not installed",
        "fix": "pip install trl",
    }


def test_a_lab_without_weights_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rlvr_cli.models.source.PRESETS", {"lab": tmp_path})
    finding = doctor.check_lab()
    assert finding.status == "problem"
    assert finding.fix.startswith("install rlvr again")


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every check answers here, and the environment that runs the tests lacks no package."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    findings = doctor.run_checks()
    names = {finding.name for finding in findings}
    assert {"python", "trl", "torch", "cores", "memory", "disk", "lab model", "hub"} <= names
    assert not [finding for finding in doctor.check_packages() if finding.status == "problem"]
