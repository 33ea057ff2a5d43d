"""Searches for tests: begun in a folder, their trials ended as a training would leave them, without training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.core.files import write_json
from rlvr_cli.store.evaluation import FORMAT, sealed
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
    """The trial as it is after its training, which a worker watched."""
    run = place.run_dir(entry)
    run.path.mkdir(exist_ok=True)
    config = load_config([Path(file) for file in entry.base], entry.option, overrides=entry.overrides)
    run.config_path.write_text(dump_yaml(config))
    place.record(entry, "start", worker=0, pid=0, step=0)
    watch = search.watch(entry)
    pruned_at = None
    for rollout, value in enumerate(values, start=1):
        folder = run.held_out_dir / f"rollout-{rollout:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        result = {"format": FORMAT, "rollouts": rollout, "metrics": {"avg@32": {"value": value}}}
        write_json(folder / "metrics.json", sealed(result, ""))
        pruned_at = watch() if watch is not None else None
        if pruned_at is not None:
            break
    run.update_manifest(status="finished" if pruned_at is None else "interrupted")
    if watch is not None and pruned_at is not None:
        place.record(entry, "end", outcome="pruned", reason=watch.evidence(), rollout=pruned_at)
    else:
        place.record(entry, "end", outcome="finished", reason=None)


def go_on(place: SweepDir, curve: Curve, most: int = 1000, search: Search | None = None) -> SweepPlan:
    """Work as one worker does, until the search or ``most`` trials have ended; each step as another process."""
    for _ in range(most):
        one = search or Search(place, place.read_plan())
        plan = one.advance()
        waiting = [status.entry for status in place.statuses(plan) if status.state in OPEN]
        if not waiting:
            return plan
        end(place, one, waiting[0], curve(waiting[0].varies))
    return place.read_plan()
