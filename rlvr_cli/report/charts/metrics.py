"""The learning curves of a report: what is read, and how it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rlvr_cli.charts.lines import Band, Points, YAxis
from rlvr_cli.compare.results import arm_mean
from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import number, read_jsonl
from rlvr_cli.core.text import capital
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.records import read_record
from rlvr_cli.stats.intervals import share_of_error
from rlvr_cli.store.evaluation import read_result
from rlvr_cli.store.find import Run
from rlvr_cli.store.metrics import accuracy_of, bounds, held_out_accuracy
from rlvr_cli.store.training import by_rollout, last_steps, spending, whole_rows
from rlvr_cli.store.values import HeldOut, read_held_out

# By rollout from 0.
Ends = Mapping[int, tuple[float, float]]
REGIONS = {
    "clip_frac/low": "LN: ratio fell, A < 0",
    "clip_frac/high": "HP: ratio rose, A > 0",
    "outside/low": "LP: ratio fell, A > 0",
    "outside/high": "HN: ratio rose, A < 0",
}
ABSENT = object()
Read = Callable[[Mapping[str, Any]], Any]
# Beyond any number of training; sums of larger ones may not be finite.
_MOST = 1e100


@dataclass(frozen=True)
class MetricFigure:
    """One figure.

    Attributes:
        panels: a title and what is read, for each panel.
        note: what the caption begins with.
        interval: of a run alone: the ends of the 95% interval over problems at each rollout, by a panel's title.
        evaluated: by a panel's title, the metric of the held-out evaluations that it is of, if it is.
        marked: whether values are few enough for markers. applies: to which runs.
    """

    key: str
    title: str
    axis: YAxis
    panels: Mapping[str, Read]
    note: str
    interval: Callable[[Recorded, str], Ends] | None = None
    evaluated: Mapping[str, str] = field(default_factory=dict)
    marked: bool = False
    applies: Callable[[Recorded], bool] = field(default=lambda run: True)


def metrics(runs: Sequence[Recorded]) -> list[MetricFigure]:
    """Every figure that these runs may have, in the order of a report."""
    return [
        _plain("reward", "Reward", YAxis("mean reward of a completion", floor=False), "reward"),
        _plain(
            "clean-reward",
            "Reward of the verifier",
            YAxis("mean reward of a completion", floor=False),
            "clean_reward",
            "Training used other rewards, by the method's noise or entropy; these are the verifier's own.",
            applies=lambda run: run.config.method.policy is not None and bool(run.config.method.policy.reward.terms),
        ),
        _plain(
            "accuracy",
            "Accuracy in training",
            YAxis("right completions", share=True),
            "accuracy",
            interval=_in_training("accuracy"),
        ),
        *_held_out(runs),
        _plain(
            "format",
            "Format in training",
            YAxis("format reward, share of its range", share=True),
            "format",
            interval=_in_training("format"),
        ),
        _plain("loss", "Loss", YAxis("nats a token"), "loss", applies=lambda run: not run.config.method.samples),
        _plain("token-accuracy", "Token accuracy", YAxis("tokens predicted", share=True), "token_accuracy"),
        _plain(
            "entropy",
            "Entropy",
            YAxis("nats a token", wide=True),
            "entropy",
            "Mean over the tokens of a rollout's updates.",
        ),
        _plain("length", "Length", YAxis("tokens a completion"), "length"),
        _plain("truncated", "Truncated completions", YAxis("cut at the limit", share=True), "truncated"),
        _plain(
            "diversity",
            "Diversity",
            YAxis("distinct completions", share=True),
            "diversity",
            "Completions that differ, as text, from those before them of the same problem.",
        ),
        MetricFigure(
            "clip-share",
            "Tokens beyond the trust region",
            YAxis("share of tokens", share=True),
            {title: row_value(name) for name, title in REGIONS.items()},
            "Share of tokens whose ratio left the trust region of the run's own method, by direction and sign of the "
            "advantage A. In LN and HP the policy has gone where the advantage pushes, and PPO's clip drops the token. "
            "With one update a rollout the ratio is 1 and every share is 0.",
        ),
        _plain("grad-norm", "Gradient norm", YAxis("norm before clipping", wide=True), "grad_norm"),
        _plain(
            "kl-old",
            "KL to the sampling policy",
            YAxis("nats a token", wide=True),
            "kl_old",
            "k3 estimate of KL(sampling policy || policy) over the tokens trained on; 0 with one update a rollout.",
        ),
        _plain(
            "kl-reference",
            "KL to the reference",
            YAxis("nats a token", wide=True),
            "kl_reference",
            "k3 estimate of KL(policy || reference), of the runs that have a reference.",
            applies=lambda run: run.config.method.needs_reference,
        ),
    ]


def _plain(name: str, title: str, axis: YAxis, read: str, note: str = "", **more: Any) -> MetricFigure:
    return MetricFigure(name, title, axis, {"": row_value(read)}, note, **more)


def _held_out(runs: Sequence[Recorded]) -> list[MetricFigure]:
    """Accuracy, as `rlvr compare` takes it: avg@n where every evaluation has it, else greedy; then pass@k and maj@k."""
    names = [found for run in runs if (found := evaluated_names(run))]
    common = [name for name in names[0] if all(name in found for found in names)] if names else []
    metrics = []
    accuracy = accuracy_of(common)
    what = "Evaluations on held-out problems in the course of training"
    if accuracy is not None:
        of = "of the greedy completion" if accuracy == "greedy" else f"{accuracy}: the share of right samples"
        axis = YAxis("right answers", share=True)
        metrics.append(
            MetricFigure(
                "held-out-accuracy",
                capital(held_out_accuracy(accuracy)),
                axis,
                {"": evaluated(accuracy)},
                f"{what}, {of}.",
                marked=True,
                interval=lambda run, _: held_out_ends(run, accuracy),
                evaluated={"": accuracy},
            )
        )
    for kind, meaning in (("pass", "at least one of k samples is right"), ("maj", "the most frequent of k answers")):
        ranked = sorted((k, name) for name in common if (k := _k(name, kind)) > 1)
        if ranked:
            metrics.append(
                MetricFigure(
                    f"held-out-{kind}-at-k",
                    f"{kind}@k in training",
                    YAxis(f"{kind}@k", share=True),
                    {name: evaluated(name) for _, name in ranked},
                    f"{what}; {kind}@k: {meaning}{' is right' if kind == 'maj' else ''}.",
                    marked=True,
                    interval=held_out_ends,
                    evaluated={name: name for _, name in ranked},
                )
            )
    return metrics


def _k(name: str, kind: str) -> int:
    head, _, k = name.partition("@")
    return int(k) if head == kind and k.isdecimal() else 0


def _in_training(name: str) -> Callable[[Recorded, str], Ends]:
    """The interval of a share from the standard error of a line, over the prompts of its rollout."""

    def ends(run: Recorded, _: str) -> Ends:
        found = {}
        for row in run.rows:
            value, error = number(row.get(name)), number(row.get(f"{name}/se"))
            if value is not None and error is not None:
                one = share_of_error(value, error, max(2, run.config.rollout.prompts))
                if one.low is not None and one.high is not None:
                    found[row["rollout"]] = (one.low, one.high)
        return found

    return ends


@dataclass(frozen=True)
class Recorded:
    """A run's lines of metrics.jsonl, and what of the budget was spent at the end of each rollout from 0."""

    run: RunDir
    config: Config
    rows: tuple[dict[str, Any], ...]
    spent: Mapping[int, float]

    @cached_property
    def held_out(self) -> HeldOut | None:
        """Return its held-out evaluations, problem by problem; None without any. Raises RunError for damaged ones."""
        if not any(self.run.held_out_dir.glob("rollout-*/metrics.json")):
            return None
        run = Run(self.run, self.config, {}, self.run.read_manifest(), 0)
        try:
            return read_held_out(run)
        except RunError:
            if run.manifest.get("status") == "finished":
                raise
            return None

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
    spent = spending(Run(run, config, {}, run.read_manifest(), 0))
    at = {done - 1: float(spent[budget][step - 1]) for done, step in last_steps(spent).items()}
    return Recorded(run, config, rows, at)


def row_value(name: str) -> Read:
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
            result = read_result(path)
            estimate, rollouts = result["metrics"].get(name, {}), int(result["rollouts"])
            low, high = number(estimate.get("low")), number(estimate.get("high"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{path}: the evaluation cannot be read ({error!r}). The file was altered.") from error
        if low is not None and high is not None:
            found[rollouts - 1] = (low, high)
    return found


def evaluated_names(records: Recorded) -> list[str]:
    """The metrics of the run's held-out evaluations, those that each of them has."""
    found = [row["eval"] for row in records.rows if isinstance(row.get("eval"), dict)]
    return [name for name in found[0] if all(name in one for one in found)] if found else []


def crossed_band(runs: Sequence[Recorded], budget: str, metric: str, at: np.ndarray) -> Band | None:
    """The ends of the 95% interval of the mean over runs and problems at each budget of ``at``, NaN where none is.

    A problem's values are joined by straight lines, as in `rlvr compare --match`. None where the evaluations are not
    all on disk, or not of the same problems: then there are only the runs' means.
    """
    curves = [run.held_out for run in runs]
    whole = [curve for curve in curves if curve is not None]
    if len(whole) < len(curves):
        return None
    every = [one for curve in whole for one in curve.evaluations]
    ids = [row.id for row in every[0].rows]
    if any({row.id for row in one.rows} != set(ids) or metric not in one.rows[0].values for one in every):
        return None
    samples = int(every[0].result["samples"])
    scores = np.stack([curve.curve(budget, metric, samples, ids).at(at) for curve in whole])
    means = [arm_mean(scores[:, place], bounds(metric, *(one.result for one in every))) for place in range(len(at))]
    ends = np.array([[np.nan if end is None else end for end in (one.low, one.high)] for one in means])
    return ends[:, 0], ends[:, 1]
