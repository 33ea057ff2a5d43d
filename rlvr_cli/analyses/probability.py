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
from typing import Annotated, Any, Literal

from pydantic import Field

from rlvr_cli.analyses.base import (
    Analysis,
    AnalysisInput,
    Bounds,
    Dtype,
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
from rlvr_cli.analyses.scoring import LoadedPolicy, Rows, load_policy, precise_dtype, score_rollout
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.lazy import Tensor, alt, torch
from rlvr_cli.core.section import Count, CountOrZero, Section
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.describe.named import replayed_configs
from rlvr_cli.methods.base import quantile
from rlvr_cli.stats.correlation import pearson, spearman

# Of the two sides of a bound, for what float64 rounds.
ROUNDING = 1e-9
Row = dict[str, Any]
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
    dtype: Dtype = None
    seed: CountOrZero = Field(0, description="Of the draw of those tokens.")


def measure(inputs: AnalysisInput, options: ProbabilityOptions) -> Frames:
    """Measure a saved rollout at the policy that sampled it.

    Raises:
        UserError: an unknown method, no rollout or policy, or no token that has an advantage.
    """
    configs = replayed_configs(options.methods)
    saved = inputs.saved()
    methods = [config.bound(saved.config.rollout.max_new_tokens) for config in configs]
    policy = load_policy(saved, saved.old, dtype=precise_dtype(options.dtype))
    run = score_rollout(dataclasses.replace(saved, current=saved.old), methods, policy)
    chosen = drawn_rows(saved, options.rows)
    steps = [MethodStep.of(method, run.scored).part(torch.tensor(chosen)) for method in methods]
    if not bool(steps[0].full_coefficients().any()):
        raise UserError(
            f"{saved.run.path}: {methods[0].name} has no gradient on rollout {saved.number}: all completions of each "
            "problem have the same reward. Choose another --rollout."
        )
    summary, tables = by_probability(policy, [saved.rows[index] for index in chosen], steps, options)
    context = {
        "rollout": saved.number,
        "policy": saved.old.step,
        "sampling_gap": run.sampling_gap,
        "rows": len(chosen),
        "tokens": sum(group["tokens"] for group in tables["groups"]),
    }
    return frames_of({**summary, **context}, run.notes, **tables)


def headline(frames: Frames) -> str:
    """Compare the lowest group of tokens with the highest."""
    numbers, groups = summary_of(frames), records(frames["groups"])
    low, high = groups[0], groups[-1]
    return (
        f"Tokens {low['group']} are {low['share']:.1%} of all and have {_times(numbers['norm_low_over_high'])} the "
        f"gradient of those {high['group']}, token for token; a step on them alone moves the latter "
        f"{_times(numbers['change_high_by_low_over_by_high'])} as far as their own step does."
    )


def _times(value: float | None) -> str:
    return "an unknown number of times" if value is None else f"{value:.3g} times"


def by_probability(
    policy: LoadedPolicy, rows: Rows, steps: Sequence[MethodStep], options: ProbabilityOptions
) -> tuple[Row, dict[str, list[Row]]]:
    """Measure the gradient of the first of ``steps`` by groups of tokens, and what each of them moves.

    Args:
        policy: the one that sampled.
        steps: ``rows`` as several methods see them, at that policy.

    Returns:
        summary: the numbers by which runs are compared.
        tables: `groups`: of each its tokens, the share of them with a positive and a negative advantage and the mean of
            it there, the norm of its part of grad J, the mean norm of grad log pi of the tokens measured one at a time
            (None without any), that of e_k - p at the logits. `changes`: mean change of each group's probabilities, of
            its size and quantiles of it in a step by all tokens, the low and the high group; `match`: correlation over
            all tokens with the step by all. `directions`: shares of the tokens that a method's step moves as their
            advantage says, by its sign; None where none moves. `tokens`: those measured one at a time.
    """
    first = steps[0]
    old, valid, advantages = first.tokens.old_log_probs, first.tokens.mask.bool(), first.tokens.advantages
    edges = list(itertools.pairwise(_edges(old.exp()[valid], options)))
    names = [f"p {low:.2g} to {min(high, 1.0):.2g}" for low, high in edges]
    masks = [valid & (old.exp() >= low) & (old.exp() < high) for low, high in edges]
    part_norms, moved = _steps_of_groups(policy, rows, first.full_coefficients(), masks, old, options.lr)
    logits = logit_gradients(policy, rows, old.shape[1])
    places = _drawn(masks, options)
    norms = token_norms(policy, rows, list(itertools.chain(*places)))
    groups = []
    for name, mask, (low, high), part_norm, single in zip(
        names, masks, edges, part_norms, norms.split(list(map(len, places))), strict=True
    ):
        count, positive, negative = int(mask.sum()), mask & (advantages > 0), mask & (advantages < 0)
        groups.append(
            {
                "group": name,
                "low": low,
                "high": min(high, 1.0),
                "tokens": count,
                "share": count / max(int(valid.sum()), 1),
                "positive": int(positive.sum()) / max(count, 1),
                "negative": int(negative.sum()) / max(count, 1),
                "positive_advantage": mean_of(advantages[positive]),
                "negative_advantage": mean_of(advantages[negative]),
                "norm": part_norm,
                "norm_per_token": mean_of(single),
                "norm_at_logits": mean_of(logits.norms[mask]),
            }
        )
    drawn = torch.tensor(list(itertools.chain(*places)), dtype=torch.int64).reshape(-1, 2).T
    columns = [logits.rest[drawn[0], drawn[1]], norms, logits.norms[drawn[0], drawn[1]]]
    rest, sizes, at_logits = (column.tolist() for column in columns)
    tables = {
        "groups": groups,
        "changes": list(_changes(names, moved, masks, valid)),
        "directions": [row for step in steps for row in _directions(policy, rows, step, names, masks, options.lr)],
        "tokens": [
            dict(zip(("rest", "norm", "norm_at_logits"), row, strict=True))
            for row in zip(rest, sizes, at_logits, strict=True)
        ],
    }
    every = (logits.rest[valid].tolist(), logits.norms[valid].tolist())
    correlations = {
        "norm_correlation_pearson": pearson(rest, sizes),
        "norm_correlation_spearman": spearman(rest, sizes),
        "logit_norm_correlation_pearson": pearson(*every),
        "logit_norm_correlation_spearman": spearman(*every),
        "bounds_violated": _violated(logits.rest[valid], logits.norms[valid], logits.vocabulary),
    }
    return _summary(tables, correlations), tables


def _summary(tables: dict[str, list[Row]], correlations: Row) -> Row:
    groups, directions = tables["groups"], tables["directions"]
    low, high = groups[0], groups[-1]
    changes = {(row["by"], row["group"]): row for row in tables["changes"]}
    by_low, by_high = (changes[by, high["group"]] for by in ("low", "high"))
    summary = {
        **{f"share_{index}": group["share"] for index, group in enumerate(groups, 1)},
        "norm_per_token_low": low["norm_per_token"],
        "norm_per_token_high": high["norm_per_token"],
        "norm_low_over_high": over(low["norm_per_token"], high["norm_per_token"]),
        "norm_at_logits_low_over_high": over(low["norm_at_logits"], high["norm_at_logits"]),
        "group_norm_low_over_high": over(low["norm"], high["norm"]),
        **correlations,
        "change_low": changes["all", low["group"]]["size"],
        "change_high": changes["all", high["group"]]["size"],
        "change_high_by_low_over_by_high": over(by_low["size"], by_high["size"]),
        "match_low": by_low["match"],
        "match_high": by_high["match"],
    }
    for row in directions:
        # The label of `grpo+lopti` next to `grpo` is its modifier.
        name = re.sub(r"[^a-z0-9]+", "_", row["method"].removeprefix(f"{directions[0]['method']}+").lower())
        for end, group in (("low", low["group"]), ("high", high["group"]), ("all", "all")):
            if row["group"] == group:
                summary[f"right_{end}_{name}"] = row["positive"]
    return summary


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


def _edges(probabilities: Tensor, options: ProbabilityOptions) -> list[float]:
    bounds = list(options.bounds)
    between = [float(quantile(probabilities, bound)) for bound in bounds] if options.groups == "quantile" else bounds
    # Rounding may leave a probability just above 1.
    return [0.0, *between, math.inf]


def _drawn(masks: Sequence[Tensor], options: ProbabilityOptions) -> list[list[tuple[int, int]]]:
    """Of each group as many tokens, in the order of rows, so that the rare ones are seen as well as the frequent."""
    drawn = []
    for index, mask in enumerate(masks):
        places = [(int(row), int(position)) for row, position in mask.nonzero().tolist()]
        generator = random.Random(stream_seed(options.seed, "probability-tokens", index))
        drawn.append(sorted(generator.sample(places, min(options.tokens, len(places)))))
    return drawn


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


def _changes(names: Sequence[str], moved: dict[str, Tensor], masks: Sequence[Tensor], valid: Tensor) -> Iterator[Row]:
    whole = moved["all"][valid].tolist()
    for by, change in moved.items():
        match = pearson(change[valid].tolist(), whole)
        for name, mask in zip(names, masks, strict=True):
            values = change[mask]
            row = {"by": by, "group": name, "mean": mean_of(values), "size": mean_of(values.abs()), "match": match}
            shares = QUANTILES if values.numel() else ()
            yield row | {f"q{100 * share:.0f}": float(quantile(values, share)) for share in shares}


def _directions(
    policy: LoadedPolicy, rows: Rows, step: MethodStep, names: Sequence[str], masks: Sequence[Tensor], lr: float
) -> Iterator[Row]:
    moved = after_steps(policy, rows, step, lr) - step.tokens.old_log_probs
    advantages = step.tokens.advantages
    learned = step.tokens.mask.bool() & (moved != 0)

    def share(chosen: Tensor, sign: int) -> float | None:
        return mean_of((moved[chosen & learned & (advantages * sign > 0)] * sign > 0).double())

    for name, mask in zip((*names, "all"), (*masks, torch.ones_like(learned)), strict=True):
        yield {"method": step.method.name, "group": name, "positive": share(mask, 1), "negative": share(mask, -1)}


def plot(frames: Frames) -> alt.TopLevelMixin:
    """Draw single tokens, the groups' gradients, what a step moves, and the tokens that rise."""
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
    "AR-Lopti",
    ProbabilityOptions,
    measure,
    plot,
    headline,
)
