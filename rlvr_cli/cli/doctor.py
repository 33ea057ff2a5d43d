"""`rlvr doctor`: is everything here that rlvr needs, and how to fix what is missing."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rlvr_cli.core.text import without_secrets

if TYPE_CHECKING:
    from packaging.requirements import Requirement
from typing import TYPE_CHECKING

import typer

from rlvr_cli.cli.output import Format, echo, print_json, print_table, waiting
from rlvr_cli.core.terminal import Marked

PACKAGE = Path(__file__).parents[1]
TESTED = PACKAGE / "tested.txt"
LOWEST_PYTHON = (3, 11)
LOW_MEMORY = 2 * 2**30
LOW_DISK = 2 * 2**30
HUB_TIMEOUT = 3.0


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `fix` is a command or a sentence, empty where there is nothing to do."""

    name: str
    status: Literal["ok", "note", "problem"]
    found: str
    fix: str = ""


def all_findings() -> list[Finding]:
    """Every finding, in the order of the report."""
    return [python_version(), *packages(), *devices(), processor(), memory(), disk(), check_lab(), hub()]


def python_version() -> Finding:
    """Python itself."""
    found = platform.python_version()
    if sys.version_info < LOWEST_PYTHON:
        wanted = ".".join(map(str, LOWEST_PYTHON))
        return Finding(
            "python", "problem", found, f"install Python {wanted} or later, then: make PYTHON=python{wanted}"
        )
    return Finding("python", "ok", f"{found} ({sys.executable})")


def packages() -> list[Finding]:
    """Every direct dependency against its allowed range and the version that the tests ran with."""
    import importlib.metadata  # every command imports this module

    try:
        required = importlib.metadata.requires("rlvr") or []
    except importlib.metadata.PackageNotFoundError:
        return [Finding("rlvr", "problem", "not installed", f"{_pip()} -c constraints.txt -e .")]
    from packaging.requirements import Requirement

    requirements = [Requirement(text) for text in required]
    tested = versions_tested()
    wanted = [item for item in requirements if item.marker is None or item.marker.evaluate({"extra": ""})]
    return [package(item, tested.get(_canonical(item.name))) for item in wanted]


def package(requirement: Requirement, tested: str | None) -> Finding:
    """One dependency. `tested` is the version of the tested set."""
    import importlib.metadata

    name = requirement.name
    fix = f"{_pip()} '{name}=={tested}'" if tested else f"{_pip()} '{name}{requirement.specifier}'"
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "problem", f"not installed (needs {requirement.specifier})", fix)
    if not requirement.specifier.contains(found, prereleases=True):
        return Finding(name, "problem", f"{found} is outside {requirement.specifier}", fix)
    # 2.13.0+cpu and 2.13.0 are the same release in two builds.
    from packaging.version import Version

    if tested and Version(found).public != tested:
        return Finding(name, "note", f"{found}; the tests ran with {tested}", fix)
    return Finding(name, "ok", found)


def versions_tested() -> dict[str, str]:
    """Canonical name -> version of the tested set."""
    lines = TESTED.read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {_canonical(name): version for name, version in pairs}


def devices() -> Iterator[Finding]:
    """The accelerators that torch sees."""
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Finding("device", "problem", f"torch cannot be loaded: {error}", f"{_pip()} --force-reinstall torch")
        return
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            size = _gigabytes(properties.total_memory)
            yield Finding(f"device cuda:{index}", "ok", f"{properties.name}, {size}")
    elif torch.backends.mps.is_available():
        yield Finding("device", "ok", "Apple GPU (mps)")
    elif shutil.which("nvidia-smi"):
        found = f"nvidia-smi is here, but torch {torch.__version__} sees no GPU; rlvr runs on the CPU"
        yield Finding("device", "note", found, "install a CUDA build of torch: https://pytorch.org/get-started")
    else:
        yield Finding("device", "ok", "CPU only: enough for the lab model")


def processor() -> Finding:
    """CPU cores that this process may use."""
    from rlvr_cli.runs.environment import usable_cores

    return Finding("cores", "ok", f"{usable_cores()} ({platform.machine()})")


def memory() -> Finding:
    """Main memory."""
    import psutil

    size = psutil.virtual_memory()
    found = f"{_gigabytes(size.available)} free of {_gigabytes(size.total)}"
    if size.available < LOW_MEMORY:
        return Finding("memory", "note", found, f"close other programs: the lab needs {_gigabytes(LOW_MEMORY)}")
    return Finding("memory", "ok", found)


def disk() -> Finding:
    """Room for runs, below the current folder."""
    here = Path.cwd()
    free = shutil.disk_usage(here).free
    found = f"{_gigabytes(free)} free in {here}"
    if not os.access(here, os.W_OK):
        return Finding("disk", "note", f"{here} is read-only", "set run.dir=FOLDER to a folder you can write to")
    if free < LOW_DISK:
        return Finding("disk", "note", found, "free some space, or set run.dir=FOLDER to a larger disk")
    return Finding("disk", "ok", found)


def check_lab() -> Finding:
    """The lab's bases, which ship with the package."""
    from rlvr_cli.models.source import PRESETS

    for base in PRESETS.values():
        if not ((base / "model.safetensors").is_file() and (base / "config.json").is_file()):
            return Finding("lab model", "problem", f"no model in {base}", "install rlvr again: it ships the lab")
    return Finding("lab model", "ok", ", ".join(map(str, PRESETS.values())))


def hub() -> Finding:
    """Whether models and data can be fetched from the Hugging Face hub; the lab needs no network."""
    import urllib.error
    import urllib.request

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return Finding("hub", "note", "HF_HUB_OFFLINE is set: only cached models and data", "unset HF_HUB_OFFLINE")
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    shown = without_secrets(address)
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=HUB_TIMEOUT):
            return Finding("hub", "ok", f"{shown} answers")
    except urllib.error.HTTPError as error:
        return Finding("hub", "ok", f"{shown} answers (status {error.code})")
    except (OSError, ValueError) as error:
        return Finding("hub", "note", f"{shown} does not answer ({error}): only cached models and data")


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-")


def _pip() -> str:
    return f"{sys.executable} -m pip install"


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


STYLE = {"ok": "good", "note": "warn", "problem": "bad"}


def command(form: Format = "table") -> None:
    """Check versions, devices, memory, disk and network; exit code 1 when something required is missing or unfit."""
    waiting("checking")
    findings = all_findings()
    if form == "json":
        print_json([vars(finding) for finding in findings])
    else:
        _print(findings)
    if any(finding.status == "problem" for finding in findings):
        raise typer.Exit(1)


def _print(findings: list[Finding]) -> None:
    print_table(("", "", ""), [(one.name, Marked(one.status, STYLE[one.status]), one.found) for one in findings])
    fixes = [finding for finding in findings if finding.fix]
    for finding in fixes:
        echo(f"\n{finding.name}: {finding.found}\n  {finding.fix}")
    problems = sum(finding.status == "problem" for finding in findings)
    summary = f"{problems} problem{'' if problems == 1 else 's'}; fix with the commands above."
    echo("\n" + (summary if problems else "Nothing required is missing."))
