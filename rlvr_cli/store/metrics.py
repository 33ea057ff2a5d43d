"""The declarations of all metrics: label, unit, direction, value of a sample, curve and figure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from rlvr_cli.core.text import capitalize
from rlvr_cli.stats.intervals import UNBOUNDED, Bounds
from rlvr_cli.stats.passk import majority_at_k, pass_at_k

if TYPE_CHECKING:
    from rlvr_cli.methods.method import AnyMethod

Better = Literal["higher", "lower"]
Sample = Mapping[str, Any]  # a line of samples.jsonl
RL, SFT = "rl", "sft"
ACCURACY, GREEDY, HELD_OUT = "accuracy", "greedy", "held-out accuracy"
# In metrics.json of an evaluation: the task's lowest and highest reward, where all its rewards lie between them.
REWARD_RANGE = "reward_range"


@dataclass(frozen=True)
class Metric:
    """The declaration of a metric.

    Attributes:
        label: its display name. share: whether its values lie in [0, 1]. lowest: its lower bound.
        unit: of a difference (percentage points for shares); "" = without a unit.
        decimals: of a value in a table; difference_decimals: of a difference in its unit.
        better: None if neither direction is, as for lengths.
        of_sample: its value in a sample of an evaluation, None if unknown; a problem's value is the mean over samples.
        training: the kinds of training whose metrics.jsonl has it in every step.
        curve: the name of its curve in `rlvr runs show`; "" = none.
        axis: the y axis of its figure in a report, for runs whose metrics.jsonl has it; "" = no figure. A share has a
            95% interval over a rollout's problems if `NAME/se` is recorded.
        title: of the figure, by default the label. note: the beginning of the figure's caption.
        log_scale: whether its values may grow by orders of magnitude.
        figure: the key of a figure with a panel per metric; these metrics are adjacent in METRICS.
        of_method: whether it is defined for a training by the method.
    """

    label: str
    share: bool = False
    lowest: float = -inf
    unit: str = ""
    decimals: int = 3
    difference_decimals: int = 3
    better: Better | None = None
    of_sample: Callable[[Sample], float | None] | None = None
    training: tuple[str, ...] = ()
    curve: str = ""
    axis: str = ""
    title: str = ""
    note: str = ""
    log_scale: bool = False
    figure: str = ""
    of_method: Callable[[AnyMethod], bool] = lambda method: True

    @property
    def heading(self) -> str:
        return self.title or capitalize(self.label)

    def applies(self, method: AnyMethod) -> bool:
        return method.training in (self.training or (RL, SFT)) and self.of_method(method)

    @property
    def factor(self) -> float:
        """Return the factor of a difference in ``unit``: 100 for a share."""
        return 100.0 if self.share else 1.0

    @property
    def higher_is_better(self) -> bool | None:
        return None if self.better is None else self.better == "higher"


def _share(label: str, better: Better | None = None, **more: Any) -> Metric:
    return Metric(label, share=True, lowest=0.0, unit="points", difference_decimals=1, better=better, **more)


def _reward(label: str, **more: Any) -> Metric:
    return Metric(label, unit="of reward", better="higher", **more)


def _kl(label: str, note: str, **more: Any) -> Metric:
    return Metric(label, lowest=0.0, unit="nats", axis="nats per token", note=note, log_scale=True, **more)


def _region(label: str) -> Metric:
    return _share(
        label,
        figure="clip-share",
        title="Tokens beyond the trust region",
        axis="share of tokens",
        note="Share of tokens whose ratio left the trust region of the run's own method, by direction and sign of the "
        "advantage A. In LN and HP the policy has gone where the advantage pushes, and PPO's clip drops the token. "
        "With one update a rollout the ratio is 1 and every share is 0.",
    )


def _mismatch(label: str) -> Metric:
    return Metric(
        label,
        lowest=0.0,
        unit="nats",
        figure="mismatch",
        title="Mismatch by position and length",
        axis="nats per token",
        note="Mean |log π_old - log π_sampler| in the first and last quarter of each completion's tokens, and in the "
        "shortest and longest quarter of a rollout's completions.",
        log_scale=True,
    )


def _cut(label: str) -> Metric:
    return _share(
        label,
        figure="cut-share",
        title="Weights cut by the correction",
        axis="share",
        note="Completions whose weights rollout.correction has all set to 0, and the mean share of a completion's "
        "weights that it has capped or set to 0, in the shortest and longest quarter of a rollout's completions: a "
        "correction that cuts long ones alone is a length filter.",
    )


# In the order of a report's figures.
METRICS: dict[str, Metric] = {
    "reward": _reward(
        "mean reward",
        of_sample=lambda sample: sample["reward"],
        training=(RL,),
        curve="reward",
        title="Reward",
        axis="mean reward per completion",
    ),
    "clean_reward": _reward(
        "reward of the verifier",
        axis="mean reward per completion",
        note="The verifier's rewards; training used others, with the method's noise, entropy, control or length term.",
        of_method=lambda method: method.policy is not None and bool(method.policy.reward.terms),
    ),
    "length_reward": _reward(
        "length reward",
        axis="mean term of the reward for the length",
        note="The part of the mean reward that depends on the length of the completion alone (method.reward.length).",
        of_method=lambda method: method.policy is not None and method.policy.reward.length.kind != "none",
    ),
    ACCURACY: _share(
        "accuracy",
        "higher",
        training=(RL,),
        curve="accuracy",
        title="Accuracy in training",
        axis="correct completions",
    ),
    GREEDY: _share("greedy accuracy", "higher", of_sample=lambda sample: float(sample["correct"])),
    # The accuracy of the held-out evaluations in training: `eval/avg@4`, `eval/greedy`.
    "eval": _share(HELD_OUT, "higher", curve=HELD_OUT, axis="correct answers"),
    "format": _share("format", "higher", title="Format in training", axis="format reward, share of its range"),
    "loss": Metric(
        "loss", lowest=0.0, unit="nats", better="lower", training=(SFT,), curve="loss", axis="nats per token"
    ),
    "token_accuracy": _share(
        "token accuracy", "higher", training=(SFT,), curve="token accuracy", axis="tokens predicted"
    ),
    "entropy": Metric(
        "entropy",
        lowest=0.0,
        unit="nats",
        training=(RL, SFT),
        curve="entropy",
        axis="nats per token",
        note="Mean over the tokens of a rollout's updates.",
        log_scale=True,
    ),
    "length": Metric(
        "mean length (tokens)",
        lowest=0.0,
        unit="tokens",
        decimals=1,
        difference_decimals=1,
        of_sample=lambda sample: sample["tokens"],
        training=(RL,),
        curve="length",
        title="Length",
        axis="tokens per completion",
    ),
    "truncated": _share(
        "truncated share",
        "lower",
        of_sample=lambda sample: sample["truncated"],
        training=(RL,),
        title="Truncated completions",
        axis="truncated",
    ),
    "diversity": _share(
        "diversity",
        training=(RL,),
        axis="distinct completions",
        note="Completions that differ, as text, from those before them of the same problem.",
    ),
    "clip_frac/low": _region("LN: ratio fell, A < 0"),
    "clip_frac/high": _region("HP: ratio rose, A > 0"),
    "outside/low": _region("LP: ratio fell, A > 0"),
    "outside/high": _region("HN: ratio rose, A < 0"),
    "grad_norm": Metric(
        "gradient norm", lowest=0.0, curve="gradient norm", axis="norm before clipping", log_scale=True
    ),
    "kl_old": _kl(
        "KL to the sampling policy",
        "k3 estimate of KL(sampling policy || policy) over the tokens trained on; 0 with one update a rollout.",
    ),
    "kl_reference": _kl(
        "KL to the reference",
        "k3 estimate of KL(policy || reference), of the runs that have a reference.",
        of_method=lambda method: method.needs_reference,
    ),
    "entropy_coef": Metric(
        "weight of the entropy bonus",
        of_method=lambda method: method.policy is not None and method.policy.entropy_bonus.is_on,
        decimals=4,
        axis="weight",
        note="Of an entropy bonus (method.entropy_bonus); 0 while an adaptive one is off.",
    ),
    "kl_teacher": Metric(
        "KL to the teacher",
        unit="nats",
        better="lower",
        axis="nats per token",
        note="Mean of log π_old - log π_teacher over a rollout's tokens: the reverse KL divergence, without clipping.",
        of_method=lambda method: method.teacher is not None,
    ),
    "teacher_clipped": _share("tokens with a clipped log ratio to the teacher"),
    "mismatch/log_prob": Metric(
        "mean |log π_old - log π_sampler|",
        lowest=0.0,
        unit="nats",
        title="Mismatch of sampler and trainer",
        axis="nats per token",
        note="Of runs with an inexact sampler: stale weights, or different rounding.",
        log_scale=True,
    ),
    "mismatch/first_quarter": _mismatch("first quarter of a completion"),
    "mismatch/last_quarter": _mismatch("last quarter of a completion"),
    "mismatch/short": _mismatch("shortest quarter of the completions"),
    "mismatch/long": _mismatch("longest quarter of the completions"),
    "mismatch/kl": Metric("KL of sampler and trainer", lowest=0.0, unit="nats"),
    "mismatch/above_2": _share("tokens with π_old / π_sampler > 2"),
    "mismatch/below_half": _share("tokens with π_old / π_sampler < 1/2"),
    "importance/weight": Metric("mean weight for the sampler", lowest=0.0),
    "importance/capped": _share("weights at the cap of rollout.correction"),
    "importance/dropped": _share("weights set to 0 by rollout.correction"),
    "importance/rows_dropped": _cut("completions without a weight above 0"),
    "importance/cut_short": _cut("weights cut, shortest quarter"),
    "importance/cut_long": _cut("weights cut, longest quarter"),
    "prob_distance": Metric("mean |π - π_old|", lowest=0.0),
    "value/correct": Metric("value if right", title="Predicted value"),
    "value/incorrect": Metric("value if wrong", title="Predicted value"),
}
# Metrics of k samples of a problem: functions of the samples and k.
AT_K: dict[str, Callable[[Sequence[Sample], int], float]] = {
    "avg": lambda samples, k: sum(bool(sample["correct"]) for sample in samples[:k]) / k,
    "pass": lambda samples, k: pass_at_k(len(samples), sum(bool(sample["correct"]) for sample in samples), k),
    "maj": lambda samples, k: majority_at_k(
        [sample["answer"] for sample in samples], [bool(sample["correct"]) for sample in samples], k
    ),
}
_AT = re.compile(rf"({'|'.join(AT_K)})@(n|k|\d+)")
FORMS = ("avg@n", "pass@K", "maj@K")


def metric(name: str) -> Metric:
    """Return the declaration of ``name``; an undeclared metric has no unit or direction."""
    if name in METRICS:
        return METRICS[name]
    if _AT.fullmatch(name):
        return _share(name, "higher")
    head, _, suffix = name.partition("/")
    if head == "reason" and suffix:
        return _share(
            f"judged {suffix}",
            "higher" if suffix == "correct" else None,
            of_sample=lambda sample: float(sample["reason"] == suffix),
        )
    if head == "reward" and suffix:
        return _reward(f"  {suffix} part", of_sample=lambda sample: sample["parts"].get(suffix, 0.0))
    return Metric(name)


def bounds(name: str, *results: Mapping[str, Any]) -> Bounds:
    """Return the smallest and largest possible mean of the metric; for the reward, as recorded in all ``results``."""
    if name == "reward":
        ranges = [tuple(result.get(REWARD_RANGE) or UNBOUNDED) for result in results]
        return ranges[0] if len(set(ranges)) == 1 else UNBOUNDED
    declaration = metric(name)
    return declaration.lowest, 1.0 if declaration.share else inf


def at_k(name: str) -> tuple[str, str] | None:
    """Split ``pass@8`` into ("pass", "8"); None for a metric without k. k is "n" for all samples."""
    match = _AT.fullmatch(name)
    return None if match is None or match[2] == "k" else (match[1], match[2])


def problem_value(name: str, samples: Sequence[Sample]) -> float | None:
    """Return a problem's metric; None if unknown, as a server's token count. Raises KeyError if a sample lacks it."""
    if (form := at_k(name)) is not None:
        return AT_K[form[0]](samples, int(form[1]))
    of_sample = metric(name).of_sample
    if of_sample is None:
        raise KeyError(name)
    values = [value for sample in samples if (value := of_sample(sample)) is not None]
    return sum(values) / len(samples) if len(values) == len(samples) else None


def sample_metrics() -> tuple[str, ...]:
    """Return the metrics of every evaluation, besides the accuracies and the parts of the reward."""
    return tuple(name for name, each in METRICS.items() if each.of_sample is not None and name != GREEDY)


def training_metrics(kind: str) -> tuple[str, ...]:
    return tuple(name for name, each in METRICS.items() if kind in each.training)


def accuracy_of(names: Iterable[str]) -> str | None:
    """Return the metric among ``names`` that is the accuracy: avg@n, else the greedy accuracy."""
    candidates = list(names)
    return next((name for name in candidates if name.startswith("avg@")), GREEDY if GREEDY in candidates else None)


def held_out_accuracy(name: str) -> str:
    """Return the name of a held-out evaluation's accuracy: `held-out accuracy (avg@4)`, or `(greedy)`."""
    return f"{HELD_OUT} ({name})"
