"""`rlvr analyze probability`: gradients and changes by the tokens' probability (AR-Lopti, figures 1 and 3)."""

from __future__ import annotations

import dataclasses
import functools
import re

import torch

from rlvr_cli.analysis.drawn_rows import drawn_rows
from rlvr_cli.analysis.loaded_policy import load_policy
from rlvr_cli.analysis.method_step import MethodStep
from rlvr_cli.analysis.probability import ByProbability, by_probability
from rlvr_cli.analysis.scoring import score
from rlvr_cli.config.analysis_kinds import ProbabilityOptions
from rlvr_cli.core.errors import UserError
from rlvr_cli.report.analyses.absent import over, shown
from rlvr_cli.report.analyses.findings import Findings, Subject, Table
from rlvr_cli.report.analyses.probability_figure import probability_figure
from rlvr_cli.report.named_methods import replayed_configs
from rlvr_cli.report.policy_notes import policy_notes

READING = (
    "Left above: the gradient of single tokens against 1 - p, over all parameters and, in grey, at the logits, where "
    "AR-Lopti's proposition 4.2 has it between the two lines; the paper finds it roughly proportional over all "
    "parameters too. Right above: the norm of each group's part of the update, beside the group's share. Left below: "
    "how far one step of plain SGD moves the probabilities of each group when all tokens make it, the lowest group "
    "alone, or the highest alone; in the paper the lowest group's step looks like the whole one, and moves the highest "
    "group more than its own does. Right below: the share of tokens with a positive advantage that rise; in the paper "
    "it falls with the probability to about one half, and Advantage Reweighting and Lopti lift it."
)


def analyze(subject: Subject, options: ProbabilityOptions) -> Findings:
    """Measure a saved rollout at the policy that sampled it.

    Raises:
        UserError: an unknown method, no rollout or policy, or no token that has an advantage.
    """
    configs = replayed_configs(options.methods)
    saved = subject.saved()
    methods = [config.bound(saved.config.rollout.max_new_tokens) for config in configs]
    dtype = None if options.dtype is None else getattr(torch, options.dtype)
    policy = load_policy(
        saved, saved.old, dtype=dtype or (torch.float32 if torch.cuda.is_available() else torch.float64)
    )
    run = score(dataclasses.replace(saved, current=saved.old), methods, policy)
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
    numbers = {
        "summary": summary(found),
        "rollout": saved.number,
        "policy": saved.old.step,
        "sampling_gap": run.sampling_gap,
        "rows": len(chosen),
        "tokens": sum(group.tokens for group in found.groups),
        **dataclasses.asdict(found),
    }
    # Thousands of values, one a token, which the figure alone shows.
    numbers["at_logits"] = {key: getattr(found.at_logits, key) for key in ("pearson", "spearman")}
    return Findings(
        headline=headline(found),
        numbers=numbers,
        tables=tables(found),
        reading=READING,
        draw=functools.partial(probability_figure, found),
        notes=tuple(policy_notes(saved, run.sampling_gap)),
    )


def summary(found: ByProbability) -> dict[str, float | None]:
    """The scalars by which runs are compared."""
    low, high = found.groups[0], found.groups[-1]
    by = {change.by: change for change in found.changes}
    shares = {f"share_{index}": group.share for index, group in enumerate(found.groups, 1)}
    right: dict[str, float | None] = {}
    first = found.directions[0].method
    for direction in found.directions:
        # `grpo+lopti` beside `grpo` is told apart by what it adds.
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


def headline(found: ByProbability) -> str:
    """One sentence."""
    numbers = summary(found)
    low, high = found.groups[0], found.groups[-1]
    per_token, moved = numbers["norm_low_over_high"], numbers["change_high_by_low_over_by_high"]
    first = (
        f"Tokens {_name(low.low, low.high)} are {low.share:.1%} of all and have {_times(per_token)} the gradient of "
        f"those {_name(high.low, high.high)}, token for token"
    )
    return f"{first}; a step on them alone moves the latter {_times(moved)} as far as their own step does."


def tables(found: ByProbability) -> tuple[Table, ...]:
    """Groups, changes, directions."""
    names = [_name(group.low, group.high) for group in found.groups]
    groups = [
        (
            name,
            f"{group.tokens:,}",
            f"{group.share:.1%}",
            f"{group.positive:.0%}",
            shown(group.positive_advantage, "+.2f"),
            f"{group.negative:.0%}",
            shown(group.negative_advantage, "+.2f"),
            f"{group.norm:.3g}",
            shown(group.norm_per_token, ".3g"),
            shown(group.norm_at_logits, ".3g"),
        )
        for name, group in zip(names, found.groups, strict=True)
    ]
    header = ("", "tokens", "share", "A > 0", "mean", "A < 0", "mean", "norm", "norm a token", "at the logits")
    changes = [
        (change.by, *(shown(value, ".2e") for value in change.size), shown(change.match, ".3f"))
        for change in found.changes
    ]
    directions = [
        (of.method, *(shown(value, ".1%") for value in of.positive), shown(of.positive_all, ".1%"))
        for of in found.directions
    ]
    return (
        Table("Groups by old probability", header, groups),
        Table("Mean |change of probability| in one step made by", ("", *names, "match with all"), changes),
        Table("Tokens with A > 0 that rise in one step", ("", *names, "all"), directions),
    )


def _name(low: float, high: float) -> str:
    return f"p {low:.2g} to {high:.2g}"


def _times(value: float | None) -> str:
    return "an unknown number of times" if value is None else f"{value:.3g} times"
