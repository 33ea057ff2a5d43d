"""The records of a run as curves over a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError
from rlvr_cli.results.evaluations import read_result
from rlvr_cli.results.find import Run
from rlvr_cli.results.lines import Points
from rlvr_cli.results.spending import Curve, read_curve, spending_by_rollout
from rlvr_cli.runs.curves import by_rollout, whole_rows
from rlvr_cli.runs.directory import RunDir
from rlvr_cli.runs.numbers import number
from rlvr_cli.runs.records import read_jsonl
from rlvr_cli.runs.seals import read_record

ABSENT = object()
Read = Callable[[Mapping[str, Any]], Any]
# Beyond any number of training; sums of larger ones may not be finite.
_MOST = 1e100


@dataclass(frozen=True)
class Recorded:
    """A run's lines of metrics.jsonl, and what of the budget was spent at the end of each rollout from 0."""

    run: RunDir
    config: Config
    rows: tuple[dict[str, Any], ...]
    spent: Mapping[int, float]

    @cached_property
    def held_out(self) -> Curve | None:
        """Its held-out evaluations, problem by problem; None where they are not all on disk and whole."""
        problems: list[str] = []
        return read_curve(Run(self.run, self.config, {}, {}, 0), problems)

    def curve(self, read: Read) -> tuple[Points, int] | None:
        """A value over the budget, one point a rollout, and in how many rollouts it was no finite number.

        None where no line has it. ``read`` gives ``ABSENT`` for such a line.
        """
        values = [(row["rollout"], value) for row in self.rows if (value := read(row)) is not ABSENT]
        if not values:
            return None
        found = {rollout: value for rollout, value in by_rollout(values) if abs(value) < _MOST}
        missing = len({rollout for rollout, _ in values}) - len(found)
        x = np.array([self.spent[rollout] for rollout in found])
        y = np.array(list(found.values()))
        x, y = x[np.isfinite(x)], y[np.isfinite(x)]
        # A budget that did not grow in a rollout, as a clock that stood still, has one point.
        grown = np.append(np.diff(x) > 0, True) if len(x) else np.zeros(0, bool)
        return (x[grown], y[grown]), missing


def recorded(run: RunDir, budget: str) -> Recorded:
    """The records of a run; without lines where no step is done.

    Raises UserError for a damaged config.yaml, RunError for other damaged records.
    """
    config = load_config([run.config_path])
    rows = tuple(whole_rows(read_record(run, run.metrics_path)))
    if len(read_jsonl(run.timings_path)) == len(rows) - 1:
        # The run is between a step and its time.
        rows = rows[:-1]
    if not rows:
        return Recorded(run, config, (), {})
    spent = spending_by_rollout(Run(run, config, {}, {}, 0))
    return Recorded(run, config, rows, {done - 1: one.of(budget) for done, one in spent.items()})


def key(name: str) -> Read:
    """Reads a key of a line."""
    return lambda row: row.get(name, ABSENT)


def evaluated(name: str) -> Read:
    """Reads a metric of the held-out evaluation of a line."""

    def read(row: Mapping[str, Any]) -> Any:
        evaluation = row.get("eval")
        return evaluation.get(name, ABSENT) if isinstance(evaluation, dict) else ABSENT

    return read


def held_out_ends(records: Recorded, name: str) -> dict[int, tuple[float, float]]:
    """The 95% interval over problems of a metric, by the rollout from 0 after which it was evaluated.

    Read from the evaluations' own files, as far as they are there. Raises RunError for a damaged one.
    """
    found = {}
    for path in sorted(records.run.held_out_dir.glob("rollout-*/metrics.json")):
        try:
            estimate = read_result(path)["metrics"].get(name, {})
            low, high = number(estimate.get("low")), number(estimate.get("high"))
            rollouts = int(path.parent.name.removeprefix("rollout-"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{path}: the evaluation cannot be read ({error!r}). The file was altered.") from error
        if low is not None and high is not None:
            found[rollouts - 1] = (low, high)
    return found


def evaluated_names(records: Recorded) -> list[str]:
    """The metrics of the run's held-out evaluations, those that each of them has."""
    found = [row["eval"] for row in records.rows if isinstance(row.get("eval"), dict)]
    return [name for name in found[0] if all(name in one for one in found)] if found else []
