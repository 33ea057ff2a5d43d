"""The learning curves of a report: what is read, and how it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlvr_cli.report.charts.series import Read, Recorded, evaluated, evaluated_names, held_out_ends, key
from rlvr_cli.report.report_table import capital
from rlvr_cli.results.lines import YAxis
from rlvr_cli.results.metrics import accuracy_of, held_out_accuracy
from rlvr_cli.runs.numbers import number
from rlvr_cli.stats.intervals import student_quantile

# By rollout from 0.
Ends = Mapping[int, tuple[float, float]]
REGIONS = {
    "clip_frac/low": "LN: ratio fell, A < 0",
    "clip_frac/high": "HP: ratio rose, A > 0",
    "outside/low": "LP: ratio fell, A > 0",
    "outside/high": "HN: ratio rose, A < 0",
}


@dataclass(frozen=True)
class Metric:
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


def metrics(runs: Sequence[Recorded]) -> list[Metric]:
    """Every figure that these runs may have, in the order of a report."""
    return [
        _plain("reward", "Reward", YAxis("mean reward of a completion", floor=False), "reward"),
        _plain(
            "clean-reward",
            "Reward of the verifier",
            YAxis("mean reward of a completion", floor=False),
            "clean_reward",
            "Training used noisy rewards; these are the verifier's own.",
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
        _plain("loss", "Loss", YAxis("nats a token"), "loss", applies=lambda run: run.config.method.name == "sft"),
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
        Metric(
            "clip-share",
            "Tokens beyond the trust region",
            YAxis("share of tokens", share=True),
            {title: key(name) for name, title in REGIONS.items()},
            "Share of tokens whose ratio left the trust region of the run's own method, by direction and sign of the "
            "advantage A. In LN and HP the policy has gone where the advantage pushes, and PPO's clip drops the token. "
            "With one update a rollout the ratio is 1 and every share is 0.",
        ),
        _plain("grad-norm", "Gradient norm", YAxis("norm before clipping", wide=True), "grad_norm"),
        _plain(
            "kl",
            "KL to the sampling policy",
            YAxis("nats a token", wide=True),
            "kl",
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


def _plain(name: str, title: str, axis: YAxis, read: str, note: str = "", **more: Any) -> Metric:
    return Metric(name, title, axis, {"": key(read)}, note, **more)


def _held_out(runs: Sequence[Recorded]) -> list[Metric]:
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
            Metric(
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
                Metric(
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
    """Student's interval from the standard error of a line, over the prompts of its rollout."""

    def ends(run: Recorded, _: str) -> Ends:
        quantile = student_quantile(max(1, run.config.rollout.prompts - 1))
        found = {}
        for row in run.rows:
            value, error = number(row.get(name)), number(row.get(f"{name}/se"))
            if value is not None and error is not None:
                found[row["rollout"]] = (value - error * quantile, value + error * quantile)
        return found

    return ends
