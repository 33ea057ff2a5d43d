"""`rlvr analyze probability`: gradients and updates by token probability.

AR-Lopti (Yang et al., arXiv:2505.12929), figures 1 and 3 and proposition 4.2. Everything is measured at the policy that
sampled the rollout, where every ratio is 1; a step is plain SGD: theta + lr * grad J.
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
    divide,
    make_frames,
    mean_of,
    records,
    summary_of,
)
from rlvr_cli.analyses.gradients import Gradient, gradient, logit_gradients, norm, sgd_step, token_norms
from rlvr_cli.analyses.method_step import MethodStep
from rlvr_cli.analyses.saved_rollout import draw_rows
from rlvr_cli.analyses.scoring import LoadedPolicy, Rows, load_policy, parse_dtype, score_rollout
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.lazy import Tensor, alt, torch
from rlvr_cli.core.section import Count, CountOrZero, Section
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.describe.named import replayed_configs
from rlvr_cli.methods.base import quantile
from rlvr_cli.stats.correlation import pearson, spearman

# Relative tolerance of a bound, for rounding in float64.
ROUNDING = 1e-9
Row = dict[str, Any]
QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)


class ProbabilityOptions(Section):
    methods: Methods = Field(
        ("grpo", "grpo+reweight", "grpo+lopti"),
        description="Methods whose step to measure, with optional overrides of their keys, e.g. "
        "lopti:passes.order=high_first; the gradients of groups are those of the first.",
    )
    bounds: Bounds = Field((0.25, 0.5, 0.75), description="Boundaries between the groups of tokens.")
    groups: Literal["probability", "quantile"] = Field(
        "probability", description="Unit of `bounds`: the tokens' old probability, or its quantiles."
    )
    lr: Annotated[float, Field(gt=0.0, le=1e6)] = Field(
        0.1, description="Learning rate of the plain SGD step; AR-Lopti uses 1e-3 on 7 billion weights."
    )
    rows: Count = Field(256, description="Maximum number of completions, sampled at random.")
    tokens: CountOrZero = Field(200, description="Tokens per group whose gradients are measured individually.")
    dtype: Dtype = None
    seed: CountOrZero = Field(0, description="Seed for sampling those tokens.")


def measure(inputs: AnalysisInput, options: ProbabilityOptions) -> Frames:
    """Measure a saved rollout at the policy that sampled it."""
    configs = replayed_configs(options.methods)
    saved = inputs.find_rollout()
    methods = [config.with_max_length(saved.config.rollout.max_new_tokens) for config in configs]
    policy = load_policy(saved, saved.old, dtype=parse_dtype(options.dtype))
    run = score_rollout(dataclasses.replace(saved, current=saved.old), methods, policy)
    indices = draw_rows(saved, options.rows)
    steps = [MethodStep.of(method, run.scored).select(torch.tensor(indices)) for method in methods]
    if not bool(steps[0].full_coefficients().any()):
        raise UserError(
            f"{saved.run.path}: {methods[0].name} has no gradient on rollout {saved.number}: all rewards within each "
            "group are equal. Use another --rollout."
        )
    summary, tables = measure_by_probability(policy, [saved.rows[index] for index in indices], steps, options)
    context = {
        "rollout": saved.number,
        "policy": saved.old.step,
        "sampling_gap": run.sampling_gap,
        "rows": len(indices),
        "tokens": sum(group["tokens"] for group in tables["groups"]),
    }
    return make_frames({**summary, **context}, run.notes, **tables)


def headline(frames: Frames) -> str:
    numbers, groups = summary_of(frames), records(frames["groups"])
    low, high = groups[0], groups[-1]
    return (
        f"Tokens of {low['group']} ({low['share']:.1%} of all) have {_format_ratio(numbers['norm_low_over_high'])} the "
        f"gradient norm of tokens of {high['group']}. A step on them alone changes the probabilities of the latter "
        f"{_format_ratio(numbers['change_high_by_low_over_by_high'])} as much as a step on the latter."
    )


def _format_ratio(value: float | None) -> str:
    return "(unknown) times" if value is None else f"{value:.3g} times"


def measure_by_probability(
    policy: LoadedPolicy, rows: Rows, steps: Sequence[MethodStep], options: ProbabilityOptions
) -> tuple[Row, dict[str, list[Row]]]:
    """Measure the gradient of the first of ``steps`` by group of tokens, and the changes caused by each group.

    Args:
        policy: the policy that sampled.
        steps: ``rows`` in the steps of several methods, at that policy.

    Returns:
        summary: scalars to compare runs by.
        tables: `groups`: number of tokens, shares with a positive and a negative advantage and their means, norm of the
            group's term of grad J, mean norm of grad log pi of the individually measured tokens (None without any) and
            of e_k - p at the logits. `changes`: mean change of each group's probabilities, mean |change| and quantiles
            in a step by all tokens, the low and the high group; `match`: correlation over all tokens with the step by
            all. `directions`: shares of the changed tokens that follow the sign of their advantage, by that sign; None
            without any. `tokens`: those measured individually.
    """
    first = steps[0]
    old, valid, advantages = first.tokens.old_log_probs, first.tokens.mask.bool(), first.tokens.advantages
    bounds = list(options.bounds)
    if options.groups == "quantile":
        bounds = [float(quantile(old.exp()[valid], bound)) for bound in bounds]
    # Rounding may leave a probability just above 1.
    edges = list(itertools.pairwise([0.0, *bounds, math.inf]))
    names = [f"p {low:.2g} to {min(high, 1.0):.2g}" for low, high in edges]
    masks = [valid & (old.exp() >= low) & (old.exp() < high) for low, high in edges]
    group_norms, changes = _apply_group_steps(policy, rows, first.full_coefficients(), masks, old, options.lr)
    logits = logit_gradients(policy, rows, old.shape[1])
    positions = _draw_tokens(masks, options)
    norms = token_norms(policy, rows, list(itertools.chain(*positions)))
    groups = []
    for name, mask, (low, high), group_norm, token_norm in zip(
        names, masks, edges, group_norms, norms.split(list(map(len, positions))), strict=True
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
                "norm": group_norm,
                "norm_per_token": mean_of(token_norm),
                "norm_at_logits": mean_of(logits.norms[mask]),
            }
        )
    drawn = torch.tensor(list(itertools.chain(*positions)), dtype=torch.int64).reshape(-1, 2).T
    columns = [logits.rest[drawn[0], drawn[1]], norms, logits.norms[drawn[0], drawn[1]]]
    rest, sizes, at_logits = (column.tolist() for column in columns)
    tables = {
        "groups": groups,
        "changes": list(_change_rows(names, changes, masks, valid)),
        "directions": [row for step in steps for row in _direction_rows(policy, rows, step, names, masks, options.lr)],
        "tokens": [
            dict(zip(("rest", "norm", "norm_at_logits"), row, strict=True))
            for row in zip(rest, sizes, at_logits, strict=True)
        ],
    }
    all_tokens = (logits.rest[valid].tolist(), logits.norms[valid].tolist())
    correlations = {
        "norm_correlation_pearson": pearson(rest, sizes),
        "norm_correlation_spearman": spearman(rest, sizes),
        "logit_norm_correlation_pearson": pearson(*all_tokens),
        "logit_norm_correlation_spearman": spearman(*all_tokens),
        "bounds_violated": _violation_share(logits.rest[valid], logits.norms[valid], logits.vocabulary),
    }
    return _summarize(tables, correlations), tables


def _summarize(tables: dict[str, list[Row]], correlations: Row) -> Row:
    groups, directions = tables["groups"], tables["directions"]
    low, high = groups[0], groups[-1]
    changes = {(row["by"], row["group"]): row for row in tables["changes"]}
    by_low, by_high = (changes[by, high["group"]] for by in ("low", "high"))
    summary = {
        **{f"share_{index}": group["share"] for index, group in enumerate(groups, 1)},
        "norm_per_token_low": low["norm_per_token"],
        "norm_per_token_high": high["norm_per_token"],
        "norm_low_over_high": divide(low["norm_per_token"], high["norm_per_token"]),
        "norm_at_logits_low_over_high": divide(low["norm_at_logits"], high["norm_at_logits"]),
        "group_norm_low_over_high": divide(low["norm"], high["norm"]),
        **correlations,
        "change_low": changes["all", low["group"]]["size"],
        "change_high": changes["all", high["group"]]["size"],
        "change_high_by_low_over_by_high": divide(by_low["size"], by_high["size"]),
        "match_low": by_low["match"],
        "match_high": by_high["match"],
    }
    for row in directions:
        name = re.sub(r"[^a-z0-9]+", "_", row["method"].removeprefix(f"{directions[0]['method']}+").lower())
        for end, group in (("low", low["group"]), ("high", high["group"]), ("all", "all")):
            if row["group"] == group:
                summary[f"right_{end}_{name}"] = row["positive"]
    return summary


def score_after_steps(policy: LoadedPolicy, rows: Rows, step: MethodStep, lr: float) -> Tensor:
    """Return the (N, T) log-probs after one SGD step per pass of the method, each from the policy after the last."""

    def score_after(passes: Sequence[str], current: MethodStep) -> Tensor:
        if not passes:
            return current.tokens.log_probs
        direction = gradient(policy, rows, current.coefficients(passes[0]))
        with sgd_step(policy, direction, lr):
            return score_after(passes[1:], current.at(*policy.score(rows, step.tokens.mask.shape[1])))

    return score_after(step.method.passes.names, step)


def _draw_tokens(masks: Sequence[Tensor], options: ProbabilityOptions) -> list[list[tuple[int, int]]]:
    """Sample ``options.tokens`` (row, position) per group, in the order of rows."""
    drawn = []
    for index, mask in enumerate(masks):
        positions = [(int(row), int(position)) for row, position in mask.nonzero().tolist()]
        generator = random.Random(stream_seed(options.seed, "probability-tokens", index))
        drawn.append(sorted(generator.sample(positions, min(options.tokens, len(positions)))))
    return drawn


def _violation_share(rest: Tensor, norms: Tensor, vocabulary: int) -> float:
    """Return the share of tokens outside sqrt(N / (N - 1)) (1 - p) <= ||e_k - p|| <= sqrt(2) (1 - p), eq. 16 and 18."""
    below = norms < math.sqrt(vocabulary / (vocabulary - 1)) * rest * (1 - ROUNDING)
    above = norms > math.sqrt(2) * rest * (1 + ROUNDING)
    return float((below | above).double().mean())


def _apply_group_steps(
    policy: LoadedPolicy, rows: Rows, coefficients: Tensor, masks: Sequence[Tensor], old: Tensor, lr: float
) -> tuple[list[float], dict[str, Tensor]]:
    """Return each group's gradient norm, and (N, T) changes of probability in a step by all, low and high tokens.

    Two gradients are in memory: a group's and the running sum.
    """

    def measure_changes(direction: Gradient) -> Tensor:
        with sgd_step(policy, direction, lr):
            # expm1 of log-probs is precise near probability 1.
            return old.exp() * torch.expm1(policy.score(rows, old.shape[1])[0] - old)

    norms, changes, total = list[float](), dict[str, Tensor](), Gradient()
    for index, mask in enumerate(masks):
        group_gradient = gradient(policy, rows, torch.where(mask, coefficients, 0.0))
        norms.append(norm(group_gradient))
        for by, group in (("low", 0), ("high", len(masks) - 1)):
            if index == group:
                changes[by] = measure_changes(group_gradient)
        for name, value in group_gradient.items():
            total[name] = total[name].add_(value) if name in total else value.clone()
    return norms, {"all": measure_changes(total), **changes}


def _change_rows(
    names: Sequence[str], changes: dict[str, Tensor], masks: Sequence[Tensor], valid: Tensor
) -> Iterator[Row]:
    by_all = changes["all"][valid].tolist()
    for by, change in changes.items():
        match = pearson(change[valid].tolist(), by_all)
        for name, mask in zip(names, masks, strict=True):
            values = change[mask]
            row = {"by": by, "group": name, "mean": mean_of(values), "size": mean_of(values.abs()), "match": match}
            shares = QUANTILES if values.numel() else ()
            yield row | {f"q{100 * share:.0f}": float(quantile(values, share)) for share in shares}


def _direction_rows(
    policy: LoadedPolicy, rows: Rows, step: MethodStep, names: Sequence[str], masks: Sequence[Tensor], lr: float
) -> Iterator[Row]:
    changes = score_after_steps(policy, rows, step, lr) - step.tokens.old_log_probs
    advantages = step.tokens.advantages
    learned = step.tokens.mask.bool() & (changes != 0)

    def share(chosen: Tensor, sign: int) -> float | None:
        return mean_of((changes[chosen & learned & (advantages * sign > 0)] * sign > 0).double())

    for name, mask in zip((*names, "all"), (*masks, torch.ones_like(learned)), strict=True):
        yield {"method": step.method.name, "group": name, "positive": share(mask, 1), "negative": share(mask, -1)}


def plot(frames: Frames) -> alt.TopLevelMixin:
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
            y=alt.Y("size:Q", title="mean |Δp|", scale=alt.Scale(type="log")),
            color=alt.Color("by:N", title="step by", sort=None),
        )
    )
    directions = (
        alt.Chart(frames["directions"])
        .mark_line(point=True)
        .encode(
            x=group,
            y=alt.Y("positive:Q", title="A > 0 with rising p", axis=alt.Axis(format="%")),
            color=alt.Color("method:N", sort=None),
        )
    )
    return alt.vconcat(tokens | groups, (changes | directions).resolve_scale(color="independent"))


ANALYSIS = Analysis(
    "gradient norms and updates by token probability",
    "AR-Lopti",
    ProbabilityOptions,
    measure,
    plot,
    headline,
)
