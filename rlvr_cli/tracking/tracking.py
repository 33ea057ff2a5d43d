"""What is sent to the trackers of a run: its steps, tables of completions, and evaluations of it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import read_jsonl, write_json
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.trials import is_sweep
from rlvr_cli.tracking.trackers import TRACKERS, Row, TrackedRun, Tracker, faults

FILE = "trackers.json"
Say = Callable[[str], None]
# Columns of the table of completions; one type each: a tracker refuses others, or shows nothing.
_TEXTS = ("problem", "prompt", "completion", "reason", "answer")
_COLUMNS = (*_TEXTS[:3], "reward", "correct", *_TEXTS[3:], "advantage", "tokens", "truncated")


class RunTracking:
    """The trackers of a training, in rank 0.

    A tracker that cannot start at the first step ends the run, which has lost nothing yet. One that fails later, or
    cannot start when a run goes on, is left out with a message: the run's own files have every number, and the steps
    that it missed are sent when the run is resumed.
    """

    def __init__(self, config: Config, run: RunDir, say: Say) -> None:
        self.config, self.run, self.say = config, run, say
        self._file = run.path / FILE
        # By tracker: what it needs to go on with its run, and the last step that it was sent.
        self._known: dict[str, dict[str, Any]] = {}
        self._trackers: dict[str, Tracker] = {}

    def begin(self, step: int) -> None:
        """Start the trackers, or go on with theirs, at the optimizer step ``step``. Raises RunError at step 0."""
        if self._file.exists():
            self._known = json.loads(self._file.read_text(encoding="utf-8"))
        group = group_of(self.config, self.run)
        job_type = "sweep" if is_sweep(self.run.path.parent) else "train"
        tracked = TrackedRun(self.config.track.name or self.run.name, self.run.path, job_type, self.config, group)
        for name in self.config.track.to:
            known = self._known.setdefault(name, {"sent": 0})
            try:
                self._trackers[name] = TRACKERS[name](tracked, known, step)
            except Exception as error:
                if step == 0:
                    raise RunError(
                        f"track.to={name}: {name} cannot be started: {_said(error)}. Nothing was trained. Fix it, or "
                        f"start a run that leaves {name} out of track.to."
                    ) from error
                self._lost(name, "cannot be started again", error)
                continue
            self.say(f"{name}: {self._trackers[name].where}")
        missed = [row for row in read_jsonl(self.run.metrics_path) if row["step"] <= step] if self._trackers else []
        for row in missed:
            self._send(row)
        self._keep()

    def step(self, row: Mapping[str, Any]) -> None:
        """Send a line of metrics.jsonl."""
        self._send(row)
        self._keep()

    def end(self) -> None:
        """The training, or this start of it, has ended."""
        for name, tracker in list(self._trackers.items()):
            self._guard(name, tracker.finish)

    def _send(self, row: Mapping[str, Any]) -> None:
        step = int(row["step"])
        waiting = [name for name in self._trackers if step > self._known[name]["sent"]]
        if not waiting:
            return
        values, completions = numbers(row), self._completions(row)
        for name in waiting:
            tracker = self._trackers[name]
            if self._guard(name, partial(tracker.log, values, step, completions)):
                self._known[name]["sent"] = step

    def _completions(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The table that goes with a line: after every so many rollouts, at the rollout's last step."""
        every, rollout = self.config.track.completions_every, int(row["rollout"])
        last = row["update"] + 1 == self.config.batch.steps_per_rollout
        path = self.run.rollouts_dir / f"rollout-{rollout:06d}.jsonl"
        if not every or not last or (rollout + 1) % every or not path.exists():
            return []
        place = {"step": row["step"], "rollout": rollout}
        return [{**place, **cells} for cells in table(read_jsonl(path), self.config.track.completions)]

    def _keep(self) -> None:
        write_json(self._file, self._known)

    def _guard(self, name: str, work: Callable[[], Any]) -> bool:
        """A tracker is not worth a training: True where the work was done."""
        try:
            work()
        except Exception as error:
            del self._trackers[name]
            self._lost(name, "failed", error)
            return False
        return True

    def _lost(self, name: str, how: str, error: Exception) -> None:
        self.say(
            f"WARNING: track.to={name}: {name} {how}: {_said(error)}. The training goes on without it; "
            f"{self.run.metrics_path} has every number, and a later --resume sends what is missing."
        )


class EvaluationTracking:
    """The trackers of one `rlvr eval`: a run of their own, next to that of the training, on the same step axis.

    It begins with the first result. No failure ends an evaluation, whose results are on disk by then.

    Args:
        name: what was evaluated. run: the run that it is of, if any. step: the optimizer step of its weights.
    """

    def __init__(self, config: Config, name: str, run: RunDir | None, step: int, say: Say) -> None:
        self.config, self.name, self.run, self.step, self.say = config, name, run, step, say
        self._trackers: dict[str, Tracker] | None = None

    def add(self, result: Mapping[str, Any], folder: Path) -> None:
        """Send an evaluation's means, as `eval/BENCHMARK/SPLIT/METRIC`."""
        if self._trackers is None:
            self._trackers = {}
            self._begin(self.run.path if self.run else folder)
        place = f"eval/{_part(result['benchmark'])}/{result['split']}"
        values = {
            f"{place}/{name}": value["value"] for name, value in result["metrics"].items() if _is_number(value["value"])
        }
        for name, tracker in list(self._trackers.items()):
            self._guard(name, partial(tracker.log, values, self.step))

    def end(self) -> None:
        for name, tracker in list((self._trackers or {}).items()):
            self._guard(name, tracker.finish)

    def _begin(self, folder: Path) -> None:
        assert self._trackers is not None
        unusable = faults(self.config.track.to)
        for name, text in unusable.items():
            self.say(f"WARNING: track.to={name}: {text}. The results are not sent to it.")
        tracked = TrackedRun(
            f"{self.config.track.name or self.name} eval", folder, "eval", self.config, group_of(self.config, self.run)
        )
        for name in self.config.track.to:
            if name not in unusable:
                self._guard(name, partial(self._start, name, tracked))

    def _start(self, name: str, tracked: TrackedRun) -> None:
        assert self._trackers is not None
        self._trackers[name] = TRACKERS[name](tracked, {}, self.step)
        self.say(f"{name}: {self._trackers[name].where}")

    def _guard(self, name: str, work: Callable[[], Any]) -> None:
        try:
            work()
        except Exception as error:
            if self._trackers is not None:
                self._trackers.pop(name, None)
            self.say(f"WARNING: track.to={name}: {name} failed: {_said(error)}. The results are not sent to it.")


def group_of(config: Config, run: RunDir | None) -> str | None:
    """`track.group`; where it is null, the name of the sweep that the run is a trial of."""
    if config.track.group is not None or run is None or not is_sweep(run.path.parent):
        return config.track.group
    return run.path.parent.resolve().name


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """A line of metrics.jsonl as finite numbers, without its step, which is the axis.

    Held-out results, nested under `eval`, are `eval/...`; all else is `train/...`.
    """
    training = {name: value for name, value in row.items() if name not in ("step", "eval")}
    return {**dict(_flat(training, "train")), **dict(_flat(row.get("eval") or {}, "eval"))}


def table(records: Sequence[Row], most: int) -> list[dict[str, Any]]:
    """Rows for a tracker's table: ``most`` completions of a rollout, evenly spread over its problems."""
    count = min(most, len(records))
    chosen = [records[place * len(records) // count] for place in range(count)]
    return [{name: str(row[name] or "") if name in _TEXTS else row[name] for name in _COLUMNS} for row in chosen]


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        name = f"{prefix}/{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, name)
        elif _is_number(value):
            yield name, float(value) if isinstance(value, float) else int(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float) and math.isfinite(value)


def _part(name: str) -> str:
    """A benchmark's name as one part of a metric's name: a file of one's own is its last part."""
    return re.sub(r"\s+", "-", Path(name).name) or "own"


def _said(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rstrip(".")[:500]
