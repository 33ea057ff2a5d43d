"""`rlvr analyze probability`: gradients and changes by the tokens' probability (AR-Lopti, figures 1 and 3).

Yang et al., arXiv:2505.12929 (AR-Lopti), figures 1 and 3 and proposition 4.2. Everything is at the policy that sampled
the rollout, where every ratio is 1, and a step is one of plain SGD: theta + lr * grad J.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from rlvr_cli.analyses.base import (
    Analysis,
    AnalysisInput,
    Bounds,
    Frames,
    Methods,
    frames_of,
    mean_of,
    over,
    records,
    summary_of,
)
from rlvr_cli.analyses.gradients import Gradient, gradient, logit_gradients, norm, stepped, token_norms
from rlvr_cli.analyses.method_step import MethodStep
from rlvr_cli.analyses.saved_rollout import drawn_rows
from rlvr_cli.analyses.scoring import LoadedPolicy, Rows, load_policy, score_rollout
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Count, CountOrZero, Section
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.describe.named import replayed_configs
from rlvr_cli.methods.base import quantile
from rlvr_cli.stats.correlation import pearson, spearman

if TYPE_CHECKING:
    import altair as alt

# Of the two sides of a bound, for what float64 rounds.
ROUNDING = 1e-9
QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)


class ProbabilityOptions(Section):
    """Keys of `rlvr analyze probability`."""

    methods: Methods = Field(
        ("grpo", "grpo+reweight", "grpo+lopti"),
        description="Methods whose step is followed, each with overrides of its keys if need be, as "
        "lopti:passes.order=high_first; the gradients of groups are those of the first.",
    )
    bounds: Bounds = Field((0.25, 0.5, 0.75), description="Where one group of tokens ends and the next begins.")
    groups: Literal["probability", "quantile"] = Field(
        "probability", description="What bounds divides: the tokens' old probability, or their number."
    )
    lr: Annotated[float, Field(gt=0.0, le=1e6)] = Field(
        0.1, description="Learning rate of the one step of plain SGD; AR-Lopti has 1e-3 on 7 billion weights."
    )
    rows: Count = Field(256, description="Completions that are looked at; of more, so many are drawn.")
    tokens: CountOrZero = Field(200, description="Tokens of each group whose gradient is measured one at a time.")
    dtype: Literal["float32", "float64"] | None = Field(
        None, description="Of the weights; null = float64 on a CPU, float32 on a GPU."
    )
    seed: CountOrZero = Field(0, description="Of the draw of those tokens.")


def measure(inputs: AnalysisInput, options: ProbabilityOptions) -> Frames:
    """Measure a saved rollout at the policy that sampled it.

    Raises:
        UserError: an unknown method, no rollout or policy, or no token that has an advantage.
    """
    configs = replayed_configs(options.methods)
    saved = inputs.saved()
    methods = [config.bound(saved.config.rollout.max_new_tokens) for config in configs]
    dtype = getattr(torch, options.dtype or ("float32" if torch.cuda.is_available() else "float64"))
    policy = load_policy(saved, saved.old, dtype=dtype)
    run = score_rollout(dataclasses.replace(saved, current=saved.old), methods, policy)
    chosen = drawn_rows(saved, options.rows)
    steps = [MethodStep.of(method, run.scored).part(torch.tensor(chosen)) for method in methods]
    if not bool(steps[0].full_coefficients().any()):
        raise UserError(
            f"{saved.run.path}: {methods[0].name} has no gradient on rollout {saved.number}: all completions of each "
            "problem have the same reward. Choose another --rollout."
        )
    found = by_probability(
        policy,
        [saved.rows[index] for index in chosen],
        steps,
        bounds=options.bounds,
        quantiles=options.groups == "quantile",
        lr=options.lr,
        sample=options.tokens,
        seed=options.seed,
    )
    context = {
        "rollout": saved.number,
        "policy": saved.old.step,
        "sampling_gap": run.sampling_gap,
        "rows": len(chosen),
        "tokens": sum(group.tokens for group in found.groups),
    }
    names = [_name(group.low, group.high) for group in found.groups]
    sampled = (found.sampled.rest, found.sampled.norms, found.sampled_at_logits.norms)
    return frames_of(
        {**_summary(found), **context},
        run.notes,
        groups=[{"group": name, **dataclasses.asdict(of)} for name, of in zip(names, found.groups, strict=True)],
        changes=_change_rows(names, found),
        directions=[
            {"method": of.method, "group": name, "positive": rising, "negative": falling}
            for of in found.directions
            for name, rising, falling in zip(
                (*names, "all"), (*of.positive, of.positive_all), (*of.negative, of.negative_all), strict=True
            )
        ],
        tokens=[
            {"rest": rest, "norm": size, "norm_at_logits": at_logits}
            for rest, size, at_logits in zip(*sampled, strict=True)
        ],
    )


def _change_rows(names: Sequence[str], found: ProbabilityFindings) -> Iterator[dict[str, Any]]:
    for change in found.changes:
        for name, mean, size, quantiles in zip(names, change.mean, change.size, change.quantiles, strict=True):
            row = {"by": change.by, "group": name, "mean": mean, "size": size, "match": change.match}
            yield row | {f"q{100 * share:.0f}": value for share, value in zip(QUANTILES, quantiles or (), strict=False)}


def _summary(found: ProbabilityFindings) -> dict[str, float | None]:
    """The scalars by which runs are compared."""
    low, high = found.groups[0], found.groups[-1]
    by = {change.by: change for change in found.changes}
    shares = {f"share_{index}": group.share for index, group in enumerate(found.groups, 1)}
    right: dict[str, float | None] = {}
    first = found.directions[0].method
    for direction in found.directions:
        # The label of `grpo+lopti` next to `grpo` is its modifier.
        added = direction.method.removeprefix(f"{first}+")
        name = re.sub(r"[^a-z0-9]+", "_", added.lower())
        right |= {
            f"right_low_{name}": direction.positive[0],
            f"right_high_{name}": direction.positive[-1],
            f"right_all_{name}": direction.positive_all,
        }
    return {
        **shares,
        "norm_per_token_low": low.norm_per_token,
        "norm_per_token_high": high.norm_per_token,
        "norm_low_over_high": over(low.norm_per_token, high.norm_per_token),
        "norm_at_logits_low_over_high": over(low.norm_at_logits, high.norm_at_logits),
        "group_norm_low_over_high": over(low.norm, high.norm),
        "norm_correlation_pearson": found.sampled.pearson,
        "norm_correlation_spearman": found.sampled.spearman,
        "logit_norm_correlation_pearson": found.at_logits.pearson,
        "logit_norm_correlation_spearman": found.at_logits.spearman,
        "bounds_violated": found.violated,
        "change_low": by["all"].size[0],
        "change_high": by["all"].size[-1],
        "change_high_by_low_over_by_high": over(by["low"].size[-1], by["high"].size[-1]),
        "match_low": by["low"].match,
        "match_high": by["high"].match,
        **right,
    }


def headline(frames: Frames) -> str:
    """Compare the lowest group of tokens with the highest."""
    numbers, groups = summary_of(frames), records(frames["groups"])
    low, high = groups[0], groups[-1]
    return (
        f"Tokens {low['group']} are {low['share']:.1%} of all and have {_times(numbers['norm_low_over_high'])} the "
        f"gradient of those {high['group']}, token for token; a step on them alone moves the latter "
        f"{_times(numbers['change_high_by_low_over_by_high'])} as far as their own step does."
    )


def _name(low: float, high: float) -> str:
    return f"p {low:.2g} to {high:.2g}"


def _times(value: float | None) -> str:
    return "an unknown number of times" if value is None else f"{value:.3g} times"


@dataclass(frozen=True)
class TokenGroup:
    """Tokens whose old probability is in [low, high).

    Attributes:
        share: of all tokens.
        positive, negative: share of the group with such an advantage, and the mean of it there (None without any).
        norm: of the group's part of grad J, over all parameters.
        norm_per_token: mean norm of grad log pi of a token; None where none was measured.
        norm_at_logits: mean of ||e_k - p||; None for an empty group.
    """

    low: float
    high: float
    tokens: int
    share: float
    positive: float
    negative: float
    positive_advantage: float | None
    negative_advantage: float | None
    norm: float
    norm_per_token: float | None
    norm_at_logits: float | None


@dataclass(frozen=True)
class ProbabilityChange:
    """What one step changes: of each group the mean change of probability, of its size, and quantiles of it.

    Attributes:
        by: whose tokens made the step: ``all``, ``low`` or ``high``.
        match: correlation over all tokens with the change by ``all``; None where one of them is 0.
    """

    by: str
    mean: tuple[float | None, ...]
    size: tuple[float | None, ...]
    quantiles: tuple[tuple[float, ...] | None, ...]
    match: float | None


@dataclass(frozen=True)
class Direction:
    """Shares of tokens that a method's step moves as their advantage says; None where no token moves.

    Attributes:
        positive: by group, of the tokens with A > 0 those that rise. negative: with A < 0 those that fall.
        positive_all, negative_all: over all groups.
    """

    method: str
    positive: tuple[float | None, ...]
    negative: tuple[float | None, ...]
    positive_all: float | None
    negative_all: float | None


@dataclass(frozen=True)
class TokenNorms:
    """1 - p of some tokens and the norm of grad log pi, over all parameters or at the logits; how they go together."""

    rest: tuple[float, ...]
    norms: tuple[float, ...]
    pearson: float | None
    spearman: float | None


@dataclass(frozen=True)
class ProbabilityFindings:
    """Everything.

    Attributes:
        sampled: some tokens of each group, measured one at a time over all parameters.
        sampled_at_logits: the same tokens at the logits. at_logits: all tokens there.
        violated: share of all tokens outside the bounds of proposition 4.2 at the logits.
    """

    groups: tuple[TokenGroup, ...]
    sampled: TokenNorms
    sampled_at_logits: TokenNorms
    at_logits: TokenNorms
    violated: float
    changes: tuple[ProbabilityChange, ...]
    directions: tuple[Direction, ...]


def by_probability(
    policy: LoadedPolicy,
    rows: Rows,
    steps: Sequence[MethodStep],
    *,
    bounds: Sequence[float],
    quantiles: bool,
    lr: float,
    sample: int,
    seed: int,
) -> ProbabilityFindings:
    """Measure the gradient of the first of ``steps`` by groups, and what each of them moves.

    Args:
        policy: the one that sampled.
        steps: ``rows`` as several methods see them, at that policy.
        bounds: between the groups; shares of the tokens where ``quantiles``, else probabilities.
        sample: tokens of each group that are measured one at a time; fewer where the group has fewer.
    """
    first = steps[0]
    old, valid = first.tokens.old_log_probs, first.tokens.mask.bool()
    edges = _edges(old.exp()[valid], bounds, quantiles)
    masks = [valid & (old.exp() >= low) & (old.exp() < high) for low, high in itertools.pairwise(edges)]
    part_norms, moved = _steps_of_groups(policy, rows, first.full_coefficients(), masks, old, lr)
    logits = logit_gradients(policy, rows, old.shape[1])
    places = _drawn(masks, sample, seed)
    norms = token_norms(policy, rows, [place for of_group in places for place in of_group])
    ends = list(itertools.accumulate((len(of_group) for of_group in places), initial=0))
    groups = []
    for mask, part_norm, (low, high), (start, end) in zip(
        masks, part_norms, itertools.pairwise(edges), itertools.pairwise(ends), strict=True
    ):
        per_token = float(norms[start:end].mean()) if end > start else None
        groups.append(_group(mask, valid, first.tokens.advantages, low, high, part_norm, per_token, logits.norms))
    drawn = torch.tensor([place for of_group in places for place in of_group], dtype=torch.int64).reshape(-1, 2).T
    rest, norms_at_logits = (of[drawn[0], drawn[1]] for of in (logits.rest, logits.norms))
    return ProbabilityFindings(
        groups=tuple(groups),
        sampled=_norms(rest, norms),
        sampled_at_logits=_norms(rest, norms_at_logits),
        at_logits=_norms(logits.rest[valid], logits.norms[valid]),
        violated=_violated(logits.rest[valid], logits.norms[valid], logits.vocabulary),
        changes=_changes(moved, masks, valid),
        directions=tuple(_direction(policy, rows, step, masks, lr) for step in steps),
    )


def after_steps(policy: LoadedPolicy, rows: Rows, step: MethodStep, lr: float) -> Tensor:
    """(N, T) log-probs after one SGD step for each pass of the method, in their order.

    The ratios of a later pass are those that the earlier ones have made.
    """

    def following(passes: Sequence[str], now: MethodStep) -> Tensor:
        if not passes:
            return now.tokens.log_probs
        direction = gradient(policy, rows, now.coefficients(passes[0]))
        with stepped(policy, direction, lr):
            return following(passes[1:], now.at(*policy.score(rows, step.tokens.mask.shape[1])))

    return following(step.method.passes.names, step)


def _edges(probabilities: Tensor, bounds: Sequence[float], quantiles: bool) -> list[float]:
    between = [float(quantile(probabilities, bound)) for bound in bounds] if quantiles else list(bounds)
    # Rounding may leave a probability just above 1.
    return [0.0, *between, math.inf]


def _drawn(masks: Sequence[Tensor], sample: int, seed: int) -> list[list[tuple[int, int]]]:
    """Of each group as many tokens, in the order of rows, so that the rare ones are seen as well as the frequent."""
    drawn = []
    for index, mask in enumerate(masks):
        places = [(int(row), int(position)) for row, position in mask.nonzero().tolist()]
        generator = random.Random(stream_seed(seed, "probability-tokens", index))
        drawn.append(sorted(generator.sample(places, min(sample, len(places)))))
    return drawn


def _group(
    mask: Tensor,
    valid: Tensor,
    advantages: Tensor,
    low: float,
    high: float,
    whole: float,
    per_token: float | None,
    at_logits: Tensor,
) -> TokenGroup:
    count = int(mask.sum())
    positive, negative = mask & (advantages > 0), mask & (advantages < 0)
    return TokenGroup(
        low=low,
        high=min(high, 1.0),
        tokens=count,
        share=count / max(int(valid.sum()), 1),
        positive=int(positive.sum()) / max(count, 1),
        negative=int(negative.sum()) / max(count, 1),
        positive_advantage=mean_of(advantages[positive]),
        negative_advantage=mean_of(advantages[negative]),
        norm=whole,
        norm_per_token=per_token,
        norm_at_logits=mean_of(at_logits[mask]),
    )


def _norms(rest: Tensor, norms: Tensor) -> TokenNorms:
    a, b = rest.tolist(), norms.tolist()
    return TokenNorms(tuple(a), tuple(b), pearson(a, b), spearman(a, b))


def _violated(rest: Tensor, norms: Tensor, vocabulary: int) -> float:
    """Share outside sqrt(N / (N - 1)) (1 - p) <= ||e_k - p|| <= sqrt(2) (1 - p): eq. 16 and 18, w = 1."""
    below = norms < math.sqrt(vocabulary / (vocabulary - 1)) * rest * (1 - ROUNDING)
    above = norms > math.sqrt(2) * rest * (1 + ROUNDING)
    return float((below | above).double().mean())


def _steps_of_groups(
    policy: LoadedPolicy, rows: Rows, coefficients: Tensor, masks: Sequence[Tensor], old: Tensor, lr: float
) -> tuple[list[float], dict[str, Tensor]]:
    """Norm of each group's gradient, and (N, T) changes of probability in a step by all, low and high tokens.

    Two gradients are held at a time: the sum so far, and one group's.
    """

    def moved_by(direction: Gradient) -> Tensor:
        with stepped(policy, direction, lr):
            # Of log-probs first: a probability near 1 has fewer digits left.
            return old.exp() * torch.expm1(policy.score(rows, old.shape[1])[0] - old)

    norms, moved, whole = list[float](), dict[str, Tensor](), Gradient()
    for index, mask in enumerate(masks):
        part = gradient(policy, rows, torch.where(mask, coefficients, 0.0))
        norms.append(norm(part))
        for by, of in (("low", 0), ("high", len(masks) - 1)):
            if index == of:
                moved[by] = moved_by(part)
        for name, value in part.items():
            whole[name] = whole[name].add_(value) if name in whole else value.clone()
    return norms, {"all": moved_by(whole), **moved}


def _changes(moved: dict[str, Tensor], masks: Sequence[Tensor], valid: Tensor) -> tuple[ProbabilityChange, ...]:
    whole = moved["all"][valid].tolist()
    return tuple(
        ProbabilityChange(
            by=by,
            mean=tuple(mean_of(change[mask]) for mask in masks),
            size=tuple(mean_of(change[mask].abs()) for mask in masks),
            quantiles=tuple(_quantiles(change[mask]) for mask in masks),
            match=pearson(change[valid].tolist(), whole),
        )
        for by, change in moved.items()
    )


def _direction(policy: LoadedPolicy, rows: Rows, step: MethodStep, masks: Sequence[Tensor], lr: float) -> Direction:
    moved = after_steps(policy, rows, step, lr) - step.tokens.old_log_probs
    advantages = step.tokens.advantages
    learned = step.tokens.mask.bool() & (moved != 0)

    def share(chosen: Tensor, sign: int) -> float | None:
        return mean_of((moved[chosen & learned & (advantages * sign > 0)] * sign > 0).double())

    everywhere = torch.ones_like(learned)
    return Direction(
        method=step.method.name,
        positive=tuple(share(mask, 1) for mask in masks),
        negative=tuple(share(mask, -1) for mask in masks),
        positive_all=share(everywhere, 1),
        negative_all=share(everywhere, -1),
    )


def _quantiles(values: Tensor) -> tuple[float, ...] | None:
    return tuple(float(quantile(values, share)) for share in QUANTILES) if values.numel() else None


def plot(frames: Frames) -> alt.TopLevelMixin:
    """Draw single tokens, the groups' gradients, what a step moves, and the tokens that rise."""
    import altair as alt

    group = alt.X("group:N", sort=None, title="old probability")
    tokens = (
        alt.Chart(frames["tokens"])
        .mark_circle(opacity=0.6)
        .encode(x=alt.X("rest:Q", title="1 - p"), y=alt.Y("norm:Q", title="norm of grad log p"))
    )
    groups = alt.Chart(frames["groups"]).mark_bar().encode(x=group, y=alt.Y("norm:Q", title="norm of the gradient"))
    changes = (
        alt.Chart(frames["changes"])
        .transform_filter("datum.size > 0")
        .mark_point(filled=True)
        .encode(
            x=group,
            y=alt.Y("size:Q", title="mean |change of p|", scale=alt.Scale(type="log")),
            color=alt.Color("by:N", title="step by", sort=None),
        )
    )
    directions = (
        alt.Chart(frames["directions"])
        .mark_line(point=True)
        .encode(
            x=group,
            y=alt.Y("positive:Q", title="tokens with A > 0 that rise", axis=alt.Axis(format="%")),
            color=alt.Color("method:N", sort=None),
        )
    )
    return alt.vconcat(tokens | groups, (changes | directions).resolve_scale(color="independent"))


ANALYSIS = Analysis(
    "gradient norms, and what an update moves, by the tokens' probability",
    paper="AR-Lopti",
    options=ProbabilityOptions,
    measure=measure,
    plot=plot,
    headline=headline,
)
