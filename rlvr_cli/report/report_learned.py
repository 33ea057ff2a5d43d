"""Before and after: held-out evaluations at two times of each arm, with the difference and its interval."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlvr_cli.compare.means import arm_mean, possible
from rlvr_cli.core.errors import RunError
from rlvr_cli.core.text import count
from rlvr_cli.evaluation.tables import metric_name, with_interval
from rlvr_cli.report.report_table import Table, capital, table
from rlvr_cli.results.arms import Arm
from rlvr_cli.results.evaluations import SETTINGS, Evaluation, read_checked, steps_of
from rlvr_cli.results.find import Run
from rlvr_cli.results.metrics import held_out_accuracy
from rlvr_cli.results.values import metric_of, problem_values
from rlvr_cli.runs.curves import whole_rows
from rlvr_cli.runs.seals import read_record
from rlvr_cli.stats.clustered import CrossedEstimate, paired_crossed_interval

BASE = "before training"


@dataclass(frozen=True)
class Change:
    """One arm's metric at two times, over the same runs and problems.

    Attributes:
        of: benchmark, split and size of the evaluations.
        first, last: when: `before training`, `after 20 rollouts`.
    """

    arm: str
    metric: str
    of: str
    first: str
    last: str
    before: CrossedEstimate
    after: CrossedEstimate
    difference: CrossedEstimate

    @property
    def said_of(self) -> str:
        """`avg@4 on kk-gen, dev, 24 problems x 4 samples`."""
        return f"{metric_name(self.metric)} on {self.of}"

    @property
    def seen(self) -> bool:
        """Whether the interval of the difference leaves out 0; a difference without one counts as seen."""
        low, high = self.difference.low, self.difference.high
        return low is None or high is None or low > 0 or high < 0

    @property
    def verb(self) -> str:
        """How it moved: `went` where no difference can be seen."""
        if not self.seen or not self.difference.value:
            return "went"
        return "rose" if self.difference.value > 0 else "fell"


@dataclass(frozen=True)
class Moment:
    """An evaluation, and when it was made."""

    when: str
    evaluation: Evaluation


def change_of(arm: Arm, root: Path, problems: list[str]) -> Change | None:
    """How an arm's accuracy changed; None where no two evaluations of the same problems are of two times.

    From the untrained model to the final checkpoint, where `rlvr eval RUN --against MODEL` has evaluated both under the
    same settings; else from the first to the last held-out evaluation of training.

    Args:
        root: the folder of runs; the evaluations of models are beside it. problems: gets a line for each damaged one.
    """
    every = list(arm.runs.values())
    runs = [run for run in every if run.manifest.get("status") == "finished"] or every
    pairs = [_with_base(run, root, problems) for run in runs]
    if not all(pairs):
        pairs = [_in_training(run, problems) for run in runs]
    whole = [pair for pair in pairs if pair is not None]
    if not whole:
        return None
    try:
        return _change(arm, [first for first, _ in whole], [last for _, last in whole])
    except RunError as error:
        problems.append(str(error))
        return None


def in_short(change: Change) -> str:
    """`Held-out accuracy (avg@4) rose from 0.314 before training to 0.919 after 60 rollouts.`"""
    start, end = (f"{one.value:.3f}" for one in (change.before, change.after))
    what = held_out_accuracy(change.metric)
    if not change.seen:
        return f"No change of {what} can be seen: {start} {change.first}, {end} {change.last}."
    return f"{capital(what)} {change.verb} from {start} {change.first} to {end} {change.last}."


def in_words(change: Change) -> str:
    """`Accuracy (avg@4 on kk-gen, dev, 24 problems x 4 samples) rose from 0.314 [...] before training to ...`"""
    start, end = (_figure(change.metric, one) for one in (change.before, change.after))
    difference = _figure(change.metric, change.difference, signed=True)
    doubt = "" if change.seen else ", so no difference can be seen"
    seeds = change.difference.seeds
    lone = " The interval is over problems alone: another seed may say otherwise." if seeds == 1 else ""
    return (
        f"Accuracy ({change.said_of}) {change.verb} from {start} {change.first} to {end} {change.last}: {difference}, "
        f"{count(seeds, 'seed')} x {count(change.difference.problems, 'problem')}{doubt}.{lone}"
    )


def changes_table(changes: Mapping[str, Change]) -> Table | None:
    """A row for each arm; None without arms. What all share stands in the caption and the header."""
    if not changes:
        return None
    own = list(changes.values())
    of, first, last = ({getattr(one, part) for one in own} for part in ("said_of", "first", "last"))
    rows = []
    for name, one in changes.items():
        before, after = _figure(one.metric, one.before), _figure(one.metric, one.after)
        rows.append(
            (
                name,
                *((one.said_of,) if len(of) > 1 else ()),
                before if len(first) == 1 else f"{before} {one.first}",
                after if len(last) == 1 else f"{after} {one.last}",
                _figure(one.metric, one.difference, signed=True),
            )
        )
    header = (
        "arm",
        *(("measured",) if len(of) > 1 else ()),
        f"{own[0].first if len(first) == 1 else 'before'} [95%]",
        f"{own[0].last if len(last) == 1 else 'after'} [95%]",
        "difference [95%]",
    )
    caption = f"In the course of training: {own[0].said_of}" if len(of) == 1 else "In the course of training"
    seeds = "; ".join(f"{name}: {count(one.difference.seeds, 'run')}" for name, one in changes.items())
    return table(caption, header, rows, texts=(1,) if len(of) > 1 else (), note=seeds)


def _figure(metric: str, estimate: CrossedEstimate, *, signed: bool = False) -> str:
    return with_interval(metric, {"value": estimate.value, "low": estimate.low, "high": estimate.high}, signed=signed)


def _change(arm: Arm, first: Sequence[Moment], last: Sequence[Moment]) -> Change | None:
    evaluations = {f"{number} {one.evaluation.folder}": one.evaluation for number, one in enumerate([*first, *last])}
    metric = metric_of(None, evaluations, [])
    common = frozenset.intersection(*(frozenset(row.id for row in one.rows) for one in evaluations.values()))
    if metric is None or not common:
        return None
    ids = sorted(common)
    before, after = (
        np.array(
            [[values[name] for name in ids] for values in (problem_values(one.evaluation, *metric) for one in row)]
        )
        for row in (first, last)
    )
    result = last[0].evaluation.result
    samples = f" x {count(metric[1], 'sample')}" if metric[1] else ", greedy"
    return Change(
        arm=arm.name,
        metric=metric[0],
        of=f"{result['benchmark']}, {result['split']}, {count(len(ids), 'problem')}{samples}",
        first=_when(one.when for one in first),
        last=_when(one.when for one in last),
        before=arm_mean(before, metric[0]),
        after=arm_mean(after, metric[0]),
        difference=possible(paired_crossed_interval(after, before), metric[0]),
    )


def _when(moments: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(moments))
    return distinct[0] if len(distinct) == 1 else " or ".join(sorted(distinct))


def _in_training(run: Run, problems: list[str]) -> tuple[Moment, Moment] | None:
    folders = sorted(path.parent for path in run.dir.held_out_dir.glob("rollout-*/metrics.json"))
    if len(folders) < 2:
        return None
    first, last = (read_checked(folder, problems) for folder in (folders[0], folders[-1]))
    if first is None or last is None:
        return None
    return Moment(_rollouts(folders[0]), first), Moment(_rollouts(folders[-1]), last)


def _rollouts(folder: Path) -> str:
    return f"after {count(int(folder.name.removeprefix('rollout-')), 'rollout')}"


def _with_base(run: Run, root: Path, problems: list[str]) -> tuple[Moment, Moment] | None:
    """The evaluations of the untrained model and of the run's newest checkpoint under the same settings."""
    finals = sorted(run.dir.eval_dir.glob("*/metrics.json"), key=_step, reverse=True)
    places = dict.fromkeys([root / "evals", run.dir.path.parent / "evals", run.dir.path.parent.parent / "evals"])
    bases = [path for place in places for path in sorted(place.glob("*/metrics.json"))]
    for final in finals if bases else ():
        wanted = _settings(final)
        names = (run.config.model.name, Path(run.config.model.name).name)
        match = next((path for path in bases if _settings(path) == wanted and _label(path) in names), None)
        if match is None:
            continue
        before, after = read_checked(match.parent, problems), read_checked(final.parent, problems)
        if before is not None and after is not None:
            return Moment(BASE, before), Moment(f"after {count(_trained(run, after), 'rollout')}", after)
    return None


def _trained(run: Run, evaluation: Evaluation) -> int:
    """The rollouts until the checkpoint that was evaluated, which need not be the last."""
    steps = steps_of(evaluation)
    ends = [
        row["rollout"] + 1 for row in whole_rows(read_record(run.dir, run.dir.metrics_path)) if row.get("step") in steps
    ]
    return int(max(ends, default=run.manifest["rollout"]))


def _step(path: Path) -> tuple[int, str]:
    found = re.search(r"-step-(\d+)", path.parent.name)
    return int(found[1]) if found else -1, path.parent.name


def _settings(path: Path) -> object:
    result = _result(path)
    return [result.get(key) for key in (*SETTINGS, "problems")]


def _label(path: Path) -> object:
    return _result(path).get("label")


def _result(path: Path) -> dict[str, object]:
    """What an evaluation says of itself; nothing where it cannot be read, which :func:`read` tells of the chosen."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return result if isinstance(result, dict) else {}
