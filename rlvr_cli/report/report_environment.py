"""Where the runs were made: versions, git, hardware, and each run's own line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rlvr_cli.core.text import count, listed, some
from rlvr_cli.report.report_subject import Subject
from rlvr_cli.report.report_table import NONE, Table, clock, table
from rlvr_cli.results.arms import Arm
from rlvr_cli.results.find import Run

Manifest = Mapping[str, Any]
SHOWN = 3


def environment_table(subject: Subject) -> Table:
    """What the manifests say of the place; what differs between runs is said with the runs it is of."""
    runs = subject.runs
    packages = dict.fromkeys(name for run in runs for name in _part(run.manifest, "versions"))
    readers: dict[str, Callable[[Manifest], str]] = {
        **{name: lambda manifest, name=name: _said(_part(manifest, "versions").get(name)) for name in packages},  # type: ignore[misc]
        "git commit": _commit,
        "processor": lambda manifest: _said(_part(manifest, "hardware").get("processor")),
        "cores": lambda manifest: _said(_part(manifest, "hardware").get("cores")),
        "memory": lambda manifest: _gib(_part(manifest, "hardware").get("memory_bytes")),
        "system": lambda manifest: _said(_part(manifest, "hardware").get("system")),
        "threads": lambda manifest: _said(manifest.get("threads")),
        "processes": lambda manifest: _said(manifest.get("processes")),
        "sampler": lambda manifest: _said(manifest.get("sampler")),
    }
    rows, differing = [], []
    for name, read in readers.items():
        by_value: dict[str, list[Run]] = {}
        for run in runs:
            by_value.setdefault(read(run.manifest), []).append(run)
        if set(by_value) != {NONE}:
            rows.append((name, _shown(by_value)))
            differing += [name] if len(by_value) > 1 else []
    differing += [f"the method's code within {arm.name}" for arm in subject.arms if len(_codes(arm)) > 1]
    note = f"Not the same in all runs: {listed(differing)}." if differing else ""
    alike = f", the same in all {len(runs)} runs" if len(runs) > 1 and not differing else ""
    return table(f"Software and hardware{alike}", ("", "value"), rows, texts=(1,), note=note)


def runs_table(subject: Subject) -> Table:
    """A line for each run."""
    rows = []
    for arm in subject.arms:
        for replicate, run in arm.runs.items():
            manifest = run.manifest
            rows.append(
                (
                    run.path,
                    arm.name,
                    str(replicate.seed),
                    subject.statuses[run.path],
                    f"{_said(manifest.get('rollout'))} of {_said(manifest.get('rollouts_total'))}",
                    _said(manifest.get("created")),
                    _lasted(manifest.get("created"), manifest.get("finished")),
                    _said(manifest.get("config_sha256"))[:12],
                )
            )
    header = ("run", "arm", "seed", "status", "rollouts", "created", "took", "config")
    return table(
        count(len(rows), "run"), header, rows, texts=(1, 3, 5, 7), note="config: of its hash, the first 12 digits."
    )


def _shown(by_value: Mapping[str, Sequence[Run]]) -> str:
    if len(by_value) == 1:
        return next(iter(by_value))
    parts = (f"{value} ({some([run.dir.name for run in runs], SHOWN)})" for value, runs in by_value.items())
    return "; ".join(parts)


def _part(manifest: Manifest, name: str) -> Mapping[str, Any]:
    value = manifest.get(name)
    return value if isinstance(value, dict) else {}


def _codes(arm: Arm) -> set[str]:
    """The versions of the method's code that an arm's runs were made with."""
    return {_said(_part(run.manifest, "method_fingerprint").get("code_sha256")) for run in arm.runs.values()}


def _said(value: Any) -> str:
    return NONE if value is None or value in ("", []) else str(value)


def _commit(manifest: Manifest) -> str:
    git = _part(manifest, "git")
    if not git.get("commit"):
        return NONE
    return f"{str(git['commit'])[:12]}{', with uncommitted changes' if git.get('changed') else ''}"


def _gib(value: Any) -> str:
    return f"{value / 2**30:.0f} GiB" if isinstance(value, int | float) and not isinstance(value, bool) else NONE


def _lasted(created: Any, finished: Any) -> str:
    try:
        return clock((datetime.fromisoformat(finished) - datetime.fromisoformat(created)).total_seconds())
    except (TypeError, ValueError):
        return NONE
