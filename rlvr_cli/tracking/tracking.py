"""Send steps, tables of completions and evaluations of a run to its trackers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import read_jsonl, write_json
from rlvr_cli.core.nested import flatten
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.trials import is_sweep
from rlvr_cli.tracking.trackers import TRACKERS, Row, TrackedRun, Tracker, find_unusable

FILE = "trackers.json"
Say = Callable[[str], None]
# Columns of the table of completions, each of a single type as trackers require.
_TEXTS = ("problem", "prompt", "completion", "reason", "answer")
_COLUMNS = (*_TEXTS[:3], "reward", "correct", *_TEXTS[3:], "advantage", "tokens", "truncated")


class _Trackers:
    """The trackers of `track.to`. One that fails is dropped with a warning, which ends with ``loss``."""

    def __init__(self, config: Config, run: RunDir | None, say: Say, loss: str) -> None:
        self.config, self.run, self.say, self._loss = config, run, say, loss
        self._trackers: dict[str, Tracker] = {}

    def end(self) -> None:
        for name, tracker in list(self._trackers.items()):
            self._guard(name, tracker.finish)

    def _start(self, name: str, tracked: TrackedRun, state: dict[str, Any], step: int) -> None:
        self._trackers[name] = TRACKERS[name](tracked, state, step)
        self.say(f"{name}: {self._trackers[name].where}")

    def _guard(self, name: str, work: Callable[[], Any], failure: str = "failed") -> bool:
        """Run ``work``; if it fails, drop the tracker and return False."""
        try:
            work()
        except Exception as error:
            self._trackers.pop(name, None)
            self.say(f"WARNING: track.to={name}: {name} {failure}: {_format_error(error)}. {self._loss}")
            return False
        return True

    def _tracked(self, name: str, folder: Path, job_type: str) -> TrackedRun:
        """Return the run for trackers; its group is `track.group`, by default the name of the run's sweep."""
        group = self.config.track.group
        if group is None and self.run is not None and is_sweep(self.run.path.parent):
            group = self.run.path.parent.resolve().name
        return TrackedRun(name, folder, job_type, self.config, group)


class RunTracking(_Trackers):
    """The trackers of a training, in rank 0.

    A tracker that cannot start at step 0 ends the run. One that fails later, or cannot start for a resumed run, is
    dropped with a warning: the run's files have all metrics, and a later resume sends the missed steps.
    """

    run: RunDir

    def __init__(self, config: Config, run: RunDir, say: Say) -> None:
        loss = f"The training continues without it; {run.metrics_path} has all metrics, and a later --resume sends the "
        super().__init__(config, run, say, f"{loss}missing steps.")
        self._file = run.path / FILE
        # By tracker: its persistent state, with the last step that was sent.
        self._states: dict[str, dict[str, Any]] = {}

    def begin(self, step: int) -> None:
        """Start or resume the trackers at the optimizer step ``step``. Raises RunError for a failure at step 0."""
        if self._file.exists():
            self._states = json.loads(self._file.read_text(encoding="utf-8"))
        job_type = "sweep" if is_sweep(self.run.path.parent) else "train"
        tracked = self._tracked(self.config.track.name or self.run.name, self.run.path, job_type)
        for name in self.config.track.to:
            start = partial(self._start, name, tracked, self._states.setdefault(name, {"sent": 0}), step)
            if step > 0:
                self._guard(name, start, "cannot be started again")
                continue
            try:
                start()
            except Exception as error:
                raise RunError(
                    f"track.to={name}: {name} cannot be started: {_format_error(error)}. Nothing was trained. Fix it, "
                    f"or remove {name} from track.to."
                ) from error
        missed = [row for row in read_jsonl(self.run.metrics_path) if row["step"] <= step] if self._trackers else []
        for row in missed:
            self._send(row)
        self._save()

    def step(self, row: Mapping[str, Any]) -> None:
        self._send(row)
        self._save()

    def _send(self, row: Mapping[str, Any]) -> None:
        step = int(row["step"])
        waiting = [name for name in self._trackers if step > self._states[name]["sent"]]
        if not waiting:
            return
        values, completions = flatten_metrics(row), self._completions(row)
        for name in waiting:
            tracker = self._trackers[name]
            if self._guard(name, partial(tracker.log, values, step, completions)):
                self._states[name]["sent"] = step

    def _completions(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the table for a line: at the last step of every `track.completions_every`-th rollout."""
        every, rollout = self.config.track.completions_every, int(row["rollout"])
        last = row["update"] + 1 == self.config.batch.steps_per_rollout
        path = self.run.rollouts_dir / f"rollout-{rollout:06d}.jsonl"
        if not every or not last or (rollout + 1) % every or not path.exists():
            return []
        position = {"step": row["step"], "rollout": rollout}
        return [{**position, **cells} for cells in completion_rows(read_jsonl(path), self.config.track.completions)]

    def _save(self) -> None:
        write_json(self._file, self._states)


class EvaluationTracking(_Trackers):
    """The run of one `rlvr eval`, separate from the training's but on its step axis. No failure ends an evaluation."""

    def __init__(self, config: Config, name: str, run: RunDir | None, step: int, say: Say) -> None:
        super().__init__(config, run, say, "The results are not sent to it.")
        self.name, self.step, self._started = name, step, False

    def add(self, result: Mapping[str, Any], folder: Path) -> None:
        """Send an evaluation's means, as `eval/BENCHMARK/SPLIT/METRIC`."""
        if not self._started:
            self._begin(self.run.path if self.run else folder)
        # Of a file's path, the last component.
        benchmark = re.sub(r"\s+", "-", Path(result["benchmark"]).name) or "own"
        prefix = f"eval/{benchmark}/{result['split']}"
        values = {
            f"{prefix}/{name}": metric["value"]
            for name, metric in result["metrics"].items()
            if _is_number(metric["value"])
        }
        for name, tracker in list(self._trackers.items()):
            self._guard(name, partial(tracker.log, values, self.step))

    def _begin(self, folder: Path) -> None:
        self._started = True
        unusable = find_unusable(self.config.track.to)
        for name, reason in unusable.items():
            self.say(f"WARNING: track.to={name}: {reason}. {self._loss}")
        tracked = self._tracked(f"{self.config.track.name or self.name} eval", folder, "eval")
        for name in self.config.track.to:
            if name not in unusable:
                self._guard(name, partial(self._start, name, tracked, {}, self.step))


def flatten_metrics(row: Mapping[str, Any]) -> dict[str, float]:
    """Return a line's finite numbers as `train/...`, held-out results as `eval/...`, without the step."""
    training = {name: value for name, value in row.items() if name not in ("step", "eval")}
    values = {"train": training, "eval": row.get("eval") or {}}
    return {
        name: float(value) if isinstance(value, float) else int(value)
        for name, value in flatten(values, separator="/").items()
        if _is_number(value)
    }


def completion_rows(records: Sequence[Row], most: int) -> list[dict[str, Any]]:
    """Return the rows of a tracker's table: ``most`` completions of a rollout, evenly spread over its problems."""
    count = min(most, len(records))
    rows = [records[index * len(records) // count] for index in range(count)]
    return [{name: str(row[name] or "") if name in _TEXTS else row[name] for name in _COLUMNS} for row in rows]


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float) and math.isfinite(value)


def _format_error(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rstrip(".")[:500]
