"""Searches for tests: begun in a folder, their trials ended as a training would leave them, without training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.core.files import write_json
from rlvr_cli.store.evaluation import FORMAT, add_hashes
from rlvr_cli.sweeps.folder import OPEN, Entry, SweepDir, SweepPlan
from rlvr_cli.sweeps.prepare import prepare_sweep, write_sweep
from rlvr_cli.sweeps.search import Search
from tests.sweeps.files import sweep

# The held-out accuracy after each rollout, by what varies in a trial.
Curve = Callable[[Mapping[str, Any]], list[float]]

HEAD = "set: {train.rollouts: 4, validation.every: 1}\nobjective: accuracy\n"


def begin(folder: Path, text: str, *overrides: str) -> SweepDir:
    """What `rlvr sweep` writes before its first worker is started."""
    folder.mkdir(exist_ok=True)
    made = sweep(folder, text, *overrides)
    place = SweepDir(made.folder)
    place.path.mkdir(parents=True, exist_ok=True)
    write_sweep(made, place, prepare_sweep(made, place).plan)
    return place


def end(place: SweepDir, search: Search, entry: Entry, values: list[float]) -> None:
    """The trial as it is after its training, which the search watched."""
    run = place.run_dir(entry)
    run.path.mkdir(exist_ok=True)
    config = load_config([Path(file) for file in entry.base], entry.option, overrides=entry.overrides)
    run.config_path.write_text(dump_yaml(config))
    place.record(entry, "start", worker=0, pid=0, step=0)
    pruned = search.prune_decision(entry)
    for rollout, value in enumerate(values, start=1):
        if pruned is not None:
            break
        folder = run.held_out_dir / f"rollout-{rollout:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        result = {"format": FORMAT, "rollouts": rollout, "metrics": {"avg@32": {"value": value}}}
        write_json(folder / "metrics.json", add_hashes(result, ""))
        pruned = search.prune_decision(entry)
    run.update_manifest(status="finished" if pruned is None else "interrupted")
    if pruned is not None:
        place.record(entry, "end", outcome="pruned", **pruned)
    else:
        place.record(entry, "end", outcome="finished", reason=None)


def go_on(place: SweepDir, curve: Curve, most: int = 1000, search: Search | None = None) -> SweepPlan:
    """Work as a driver with one worker does, until the search or ``most`` trials have ended; each step as a new one."""
    for _ in range(most):
        one = search or Search(place, place.read_plan())
        plan = one.advance(place.read_plan())
        waiting = [status.entry for status in place.statuses(plan) if status.state in OPEN]
        if not waiting:
            return plan
        end(place, one, waiting[0], curve(waiting[0].varies))
    return place.read_plan()
