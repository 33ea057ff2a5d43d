"""`rlvr doctor`: check the installation and print fixes."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rlvr_cli.core.text import redact_secrets

if TYPE_CHECKING:
    from packaging.requirements import Requirement

import typer

from rlvr_cli.cli.output import Format, echo, print_json, print_table, print_waiting
from rlvr_cli.core.terminal import Marked

PACKAGE = Path(__file__).parents[1]
TESTED = PACKAGE / "tested.txt"
LOWEST_PYTHON = (3, 11)
LOW_MEMORY = 2 * 2**30
LOW_DISK = 2 * 2**30
HUB_TIMEOUT = 3.0


@dataclass(frozen=True)
class Finding:
    """Result of a check; `fix` is a command or a sentence, empty if nothing is to be done."""

    name: str
    status: Literal["ok", "note", "problem"]
    detail: str
    fix: str = ""


def run_checks() -> list[Finding]:
    machine = [*check_accelerators(), check_cores(), check_memory(), check_disk()]
    return [check_python(), *check_packages(), *machine, check_lab(), check_hub()]


def check_python() -> Finding:
    version = platform.python_version()
    if sys.version_info < LOWEST_PYTHON:
        lowest = ".".join(map(str, LOWEST_PYTHON))
        return Finding(
            "python", "problem", version, f"install Python {lowest} or later, then: make PYTHON=python{lowest}"
        )
    return Finding("python", "ok", f"{version} ({sys.executable})")


def check_packages() -> list[Finding]:
    import importlib.metadata  # every command imports this module

    try:
        required = importlib.metadata.requires("rlvr") or []
    except importlib.metadata.PackageNotFoundError:
        return [Finding("rlvr", "problem", "not installed", f"{_install_command()} -c constraints.txt -e .")]
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    requirements = [Requirement(text) for text in required]
    tested = read_tested_versions()
    return [
        check_package(requirement, tested.get(canonicalize_name(requirement.name)))
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]


def check_package(requirement: Requirement, tested: str | None) -> Finding:
    import importlib.metadata

    name = requirement.name
    fix = f"{_install_command()} '{name}{f'=={tested}' if tested else requirement.specifier}'"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "problem", f"not installed (needs {requirement.specifier})", fix)
    if not requirement.specifier.contains(version, prereleases=True):
        return Finding(name, "problem", f"{version} is outside {requirement.specifier}", fix)
    # 2.13.0+cpu and 2.13.0 are the same release in two builds.
    from packaging.version import Version

    if tested and Version(version).public != tested:
        return Finding(name, "note", f"{version}; the tests ran with {tested}", fix)
    return Finding(name, "ok", version)


def read_tested_versions() -> dict[str, str]:
    from packaging.utils import canonicalize_name

    lines = TESTED.read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def check_accelerators() -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:
        fix = f"{_install_command()} --force-reinstall torch"
        yield Finding("device", "problem", f"torch cannot be loaded: {error}", fix)
        return
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            size = _format_size(properties.total_memory)
            yield Finding(f"device cuda:{index}", "ok", f"{properties.name}, {size}")
    elif torch.backends.mps.is_available():
        yield Finding("device", "ok", "Apple GPU (mps)")
    elif shutil.which("nvidia-smi"):
        detail = f"nvidia-smi is installed, but torch {torch.__version__} detects no GPU; rlvr runs on the CPU"
        yield Finding("device", "note", detail, "install a CUDA build of torch: https://pytorch.org/get-started")
    else:
        yield Finding("device", "ok", "CPU only: enough for the lab model")


def check_cores() -> Finding:
    from rlvr_cli.runs.environment import usable_cores

    return Finding("cores", "ok", f"{usable_cores()} ({platform.machine()})")


def check_memory() -> Finding:
    import psutil

    size = psutil.virtual_memory()
    detail = f"{_format_size(size.available)} free of {_format_size(size.total)}"
    if size.available < LOW_MEMORY:
        return Finding("memory", "note", detail, f"close other programs: the lab needs {_format_size(LOW_MEMORY)}")
    return Finding("memory", "ok", detail)


def check_disk() -> Finding:
    here = Path.cwd()
    free = shutil.disk_usage(here).free
    detail = f"{_format_size(free)} free in {here}"
    if not os.access(here, os.W_OK):
        return Finding("disk", "note", f"{here} is read-only", "set run.dir=FOLDER to a folder you can write to")
    if free < LOW_DISK:
        return Finding("disk", "note", detail, "free some space, or set run.dir=FOLDER to a larger disk")
    return Finding("disk", "ok", detail)


def check_lab() -> Finding:
    from rlvr_cli.models.source import PRESETS

    for base in PRESETS.values():
        if not ((base / "model.safetensors").is_file() and (base / "config.json").is_file()):
            return Finding("lab model", "problem", f"no model in {base}", "install rlvr again: it ships the lab")
    return Finding("lab model", "ok", ", ".join(map(str, PRESETS.values())))


def check_hub() -> Finding:
    """Check that the Hugging Face hub is reachable; the lab needs no network."""
    import http.client
    import urllib.error
    import urllib.request

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return Finding("hub", "note", "HF_HUB_OFFLINE is set: only cached models and data", "unset HF_HUB_OFFLINE")
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    safe_address = redact_secrets(address)
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=HUB_TIMEOUT):
            return Finding("hub", "ok", f"{safe_address} answers")
    except urllib.error.HTTPError as error:
        return Finding("hub", "ok", f"{safe_address} answers (status {error.code})")
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = redact_secrets(str(error))
        return Finding("hub", "note", f"{safe_address} does not answer ({reason}): only cached models and data")


def _install_command() -> str:
    return f"{sys.executable} -m pip install"


def _format_size(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


STYLE = {"ok": "good", "note": "warn", "problem": "bad"}


def command(form: Format = "table") -> None:
    """Check versions, devices, memory, disk and network; exit code 1 if a requirement is not met."""
    print_waiting("checking")
    findings = run_checks()
    if form == "json":
        print_json([vars(finding) for finding in findings])
    else:
        _print_findings(findings)
    if any(finding.status == "problem" for finding in findings):
        raise typer.Exit(1)


def _print_findings(findings: list[Finding]) -> None:
    rows = [(finding.name, Marked(finding.status, STYLE[finding.status]), finding.detail) for finding in findings]
    print_table(("", "", ""), rows)
    for finding in findings:
        if finding.fix:
            echo(f"\n{finding.name}: {finding.detail}\n  {finding.fix}")
    problems = sum(finding.status == "problem" for finding in findings)
    summary = f"{problems} problem{'' if problems == 1 else 's'}; see the fixes above."
    echo("\n" + (summary if problems else "Nothing required is missing."))
