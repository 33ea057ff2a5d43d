"""`rlvr analyze conflicts`: tokens shared by correct and wrong completions of a problem, over the rollouts of a run.

    c_i = A_i / |o_i|                                                 coefficient of grad log pi of row i's tokens
    net of a token         = sum of c_i over the group's rows with that token at that offset
    net of a shared prefix = sum of c_i over the rows that begin with it          (Delta_pref of equation 6)

Simoni et al., arXiv:2508.03772, sections 4.1 and 5.1. A is GRPO's advantage of the training rewards, for any method.
Conflict tokens are those of `methods.gtpo.ConflictMask`: offsets count from the start in a row's first span of them,
and from the end in its last. A shared prefix is stricter: its rows agree on every token from the start, so their
log-probs are the same function and the coefficients add up, as in equation 6.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from rlvr_cli.analyses.base import Analysis, AnalysisInput, Frames, divide, make_frames, records, summary_of
from rlvr_cli.analyses.saved_rollout import newest_rollouts, read_groups
from rlvr_cli.analyses.scoring import learned_mask, pad
from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.lazy import Tensor, alt, torch
from rlvr_cli.core.section import Count, Section
from rlvr_cli.core.text import escape_control
from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.grpo import group_advantage
from rlvr_cli.methods.gtpo import ConflictMask, reverse_rows
from rlvr_cli.models.load import load_tokenizer
from rlvr_cli.runs.folder import RunDir

# Sums below this share of the sum of their terms' magnitudes are rounding errors.
ROUNDING = 1e-12
# Equation 9: weight 0 on conflict tokens of rows with A < 0, 2 on those of rows with A > 0.
GTPO = ConflictMask(ends="both", positive=2.0, negative=0.0)
# Counts (added over rollouts), and lists of lengths and ids (concatenated).
Tally = dict[str, Any]
_SHARES = {"conflict_share": "all", "conflict_prefix_share": "in prefixes", "conflict_suffix_share": "in suffixes"}
_PUSHES = {
    "negative_push_share": "of pushes",
    "penalised_correct_share": "of tokens, net",
    "negative_net_share": "of shared prefixes, net",
}


class ConflictsOptions(Section):
    rollouts: Count = Field(10, description="Number of saved rollouts to analyze, up to --rollout.")
    top: Count = Field(12, description="Tokens listed, by frequency in conflicts.")


def measure(inputs: AnalysisInput, options: ConflictsOptions) -> Frames:
    """Count the conflicts in the last ``options.rollouts`` saved rollouts up to ``inputs.rollout``."""
    run = inputs.run
    config = load_config([run.config_path], from_start=True)
    numbers = newest_rollouts(run, inputs.rollout, options.rollouts)
    tallies = {number: count_conflicts(_read_rollout(run, number, config)) for number in numbers}
    total = add_tallies(list(tallies.values()))
    return make_frames(
        summarize_conflicts(total),
        _make_notes(total, config),
        rollouts=[{"rollout": number, **summarize_conflicts(tally)} for number, tally in tallies.items()],
        counts=[{"count": name, "value": value} for name, value in total.items() if not isinstance(value, list)],
        tokens=_token_rows(total, config, options.top),
    )


def _read_rollout(run: RunDir, number: int, config: Config) -> Rollout:
    rows = read_groups(run, number, config.rollout.group_size)
    ids, mask = pad([row["token_ids"] for row in rows])
    rewards = [math.nan if row["reward"] is None else row["reward"] for row in rows]
    return Rollout(
        rewards=torch.tensor(rewards, dtype=torch.float64),
        group_size=config.rollout.group_size,
        token_ids=ids,
        mask=mask * learned_mask(rows, config),
    )


def _token_rows(total: Tally, config: Config, top: int) -> list[dict[str, Any]]:
    """Return the most frequent conflict tokens; a token in both spans of a row counts twice."""
    prefix, suffix = Counter[int](total["prefix_ids"]), Counter[int](total["suffix_ids"])
    counts, penalised = prefix + suffix, Counter[int](total["penalised_ids"])
    # Ties by id, so that equal runs give equal tables.
    chosen = sorted(counts, key=lambda token: (-counts[token], token))[:top]
    if not chosen:
        return []
    tokenizer = load_tokenizer(config.model.name, revision=config.model.revision)
    return [
        {
            "id": token,
            "text": escape_control(str(tokenizer.decode([token], skip_special_tokens=False))),
            "prefix": prefix[token],
            "suffix": suffix[token],
            "share": counts[token] / counts.total(),
            "penalised": penalised[token],
        }
        for token in chosen
    ]


def _make_notes(total: Tally, config: Config) -> list[str]:
    notes = []
    if not total["mixed"]:
        notes.append("No group has advantages of both signs: GRPO has no gradient there, and nothing can conflict.")
    if config.method.name != "grpo":
        notes.append(f"The run was trained with {config.method.name}; the pushes are GRPO's on its rollouts.")
    return notes


def headline(frames: Frames) -> str:
    numbers = frames["rollouts"]["rollout"].tolist()
    counts = {row["count"]: row["value"] for row in records(frames["counts"])}
    label = f"rollout {numbers[0]}" if len(numbers) == 1 else f"rollouts {numbers[0]} to {numbers[-1]}"
    if not counts["conflict"]:
        return f"No token of {label} is in conflict."
    share = {name: f"{value:.1%}" for name, value in summary_of(frames).items() if name.endswith("_share")}
    return (
        f"{share['conflict_share']} of the {int(counts['tokens']):,} tokens of {label} are in conflict "
        f"({share['conflict_prefix_share']} in prefixes, {share['conflict_suffix_share']} in suffixes), in "
        f"{share['groups_share']} of the groups. {share['negative_push_share']} of GRPO's push on them is downwards; "
        f"{share['penalised_correct_share']} have a negative net push."
    )


def plot(frames: Frames) -> alt.TopLevelMixin:
    return alt.hconcat(
        *(
            alt.Chart(frames["rollouts"].rename(columns=names), title=title)
            .transform_fold(list(names.values()), as_=["of", "share"])
            .mark_line(point=True)
            .encode(x=alt.X("rollout:Q"), y=alt.Y("share:Q", axis=alt.Axis(format="%")), color="of:N")
            for names, title in ((_SHARES, "tokens in conflict"), (_PUSHES, "GRPO's downward pushes (GTPO: none)"))
        )
    ).properties(resolve={"scale": {"color": "independent"}})


@dataclass(frozen=True)
class SharedSpan:
    """Tokens ``start`` to ``start + length`` of a prefix shared by exactly ``rows``, with advantages of both signs.

    ``net``: sum of the rows' A / |o|.
    """

    rows: tuple[int, ...]
    start: int
    length: int
    net: float


def count_conflicts(rollout: Rollout) -> Tally:
    """Count the conflicts of a rollout whose groups are contiguous; rows of reward NaN are skipped.

    Returns:
        tokens: trained tokens. mixed: those of groups with advantages of both signs.
        conflict: conflict tokens. prefix, suffix: those in a row's first and last span; a token may be in both.
        groups, groups_in_conflict: all groups, and those with a conflict token.
        up, down: sum of |c_i| over the conflict tokens that GRPO pushes up, and down. gtpo_up, gtpo_down: the same
            times lambda.
        penalised: conflict tokens with a negative net.
        shared, shared_negative: spans of shared prefixes, and those with a negative net. shared_tokens,
            shared_negative_tokens: their tokens, each prefix counted once.
        prefix_spans, suffix_spans: lengths of the spans of conflict tokens.
        prefix_ids, suffix_ids, penalised_ids: ids of conflict tokens, and of those with a negative net.
    """
    mask = rollout.mask.bool()
    lengths = mask.sum(dim=1)
    advantages = group_advantage(rollout.rewards.double(), rollout.group_size, divide_by_std=True).unsqueeze(1)
    coefficients = advantages / lengths.clamp(min=1).unsqueeze(1)
    forward, backward = GTPO.conflict_masks(rollout, advantages)
    conflict = forward | backward
    net = sum_net_coefficients(rollout, coefficients, forward, backward)
    penalised = conflict & (net < 0)
    weighted = coefficients * GTPO.weights(rollout, advantages)
    groups = advantages.reshape(-1, rollout.group_size)
    is_mixed = (groups > 0).any(dim=1) & (groups < 0).any(dim=1)
    rows_mixed = is_mixed.repeat_interleave(rollout.group_size).unsqueeze(1)
    ids = [row[valid].tolist() for row, valid in zip(rollout.token_ids, mask, strict=True)]
    row_coefficients, size = coefficients[:, 0].tolist(), rollout.group_size
    starts = range(0, len(ids), size)
    spans = [span for at in starts for span in find_shared_spans(ids[at : at + size], row_coefficients[at : at + size])]
    negative = [span for span in spans if span.net < 0]

    def total(values: Tensor) -> float:
        return float(torch.where(conflict, values, 0.0).sum())

    return {
        "tokens": int(mask.sum()),
        "mixed": int((mask & rows_mixed).sum()),
        "conflict": int(conflict.sum()),
        "prefix": int(forward.sum()),
        "suffix": int(backward.sum()),
        "groups": len(groups),
        "groups_in_conflict": int(conflict.reshape(len(groups), -1).any(dim=1).sum()),
        "up": total(coefficients.clamp(min=0)),
        "down": total((-coefficients).clamp(min=0)),
        "gtpo_up": total(weighted.clamp(min=0)),
        "gtpo_down": total((-weighted).clamp(min=0)),
        "penalised": int(penalised.sum()),
        "shared": len(spans),
        "shared_negative": len(negative),
        "shared_tokens": sum(span.length for span in spans),
        "shared_negative_tokens": sum(span.length for span in negative),
        "prefix_spans": [length for length in forward.sum(dim=1).tolist() if length],
        "suffix_spans": [length for length in backward.sum(dim=1).tolist() if length],
        "prefix_ids": rollout.token_ids[forward].tolist(),
        "suffix_ids": rollout.token_ids[backward].tolist(),
        "penalised_ids": rollout.token_ids[penalised].tolist(),
    }


def add_tallies(tallies: Sequence[Tally]) -> Tally:
    return {name: functools.reduce(operator.add, [tally[name] for tally in tallies]) for name in tallies[0]}


def sum_net_coefficients(rollout: Rollout, coefficients: Tensor, forward: Tensor, backward: Tensor) -> Tensor:
    """Return the (N, T) net of each conflict token, 0 elsewhere; tokens in both spans are counted from the start.

    Args:
        coefficients: (N, 1) c_i. forward, backward: (N, T) masks of the spans from the start and from the end.
    """
    ids, mask = rollout.token_ids, rollout.mask.bool()
    from_start = _sum_by_offset(ids, mask, coefficients, rollout.group_size)
    from_end = reverse_rows(_sum_by_offset(reverse_rows(ids, mask), mask, coefficients, rollout.group_size), mask)
    return torch.where(forward, from_start, torch.where(backward, from_end, 0.0))


def find_shared_spans(rows: Sequence[Sequence[int]], coefficients: Sequence[float]) -> list[SharedSpan]:
    """Return the prefixes shared by rows of both signs, split where a row diverges; rows with c_i = 0 are skipped."""
    spans = []
    pending = [(tuple(row for row in range(len(rows)) if coefficients[row]), 0)]
    while pending:
        members, start = pending.pop()
        branches: dict[int, list[int]] = {}
        for row in members:
            if len(rows[row]) > start:
                branches.setdefault(rows[row][start], []).append(row)
        for branch in branches.values():
            values = [coefficients[row] for row in branch]
            if min(values) >= 0 or max(values) <= 0:
                continue
            end, shortest = start + 1, min(len(rows[row]) for row in branch)
            while end < shortest and len({rows[row][end] for row in branch}) == 1:
                end += 1
            spans.append(SharedSpan(tuple(branch), start, end - start, _exact_sum(values)))
            pending.append((tuple(branch), end))
    return spans


def summarize_conflicts(tally: Tally) -> dict[str, float | None]:
    """Return shares and means; None for a denominator of 0."""
    spans = tally["prefix_spans"] + tally["suffix_spans"]
    return {
        "conflict_share": divide(tally["conflict"], tally["tokens"]),
        "conflict_mixed_share": divide(tally["conflict"], tally["mixed"]),
        "conflict_prefix_share": divide(tally["prefix"], tally["tokens"]),
        "conflict_suffix_share": divide(tally["suffix"], tally["tokens"]),
        "groups_share": divide(tally["groups_in_conflict"], tally["groups"]),
        "span_mean": _mean(spans),
        "span_prefix_mean": _mean(tally["prefix_spans"]),
        "span_suffix_mean": _mean(tally["suffix_spans"]),
        "span_largest": max(spans, default=None),
        "negative_net_share": divide(tally["shared_negative"], tally["shared"]),
        "negative_net_token_share": divide(tally["shared_negative_tokens"], tally["shared_tokens"]),
        "negative_push_share": divide(tally["down"], tally["up"] + tally["down"]),
        "negative_push_share_gtpo": divide(tally["gtpo_down"], tally["gtpo_up"] + tally["gtpo_down"]),
        "push_gtpo_over_grpo": divide(tally["gtpo_up"] + tally["gtpo_down"], tally["up"] + tally["down"]),
        "penalised_correct_share": divide(tally["penalised"], tally["conflict"]),
    }


def _sum_by_offset(ids: Tensor, mask: Tensor, coefficients: Tensor, group_size: int) -> Tensor:
    """Return (N, T) sums of coefficients over the group's rows with the same token at the offset; 0 on padding."""
    rows, width = ids.shape
    if not mask.any():
        return torch.zeros(rows, width, dtype=coefficients.dtype)
    offsets = (torch.arange(rows) // group_size).unsqueeze(1) * width + torch.arange(width)
    keys = offsets * (int(ids.max()) + 1) + ids
    inverse = torch.unique(keys[mask], return_inverse=True)[1]
    values = coefficients.expand(rows, width)[mask]
    zeros = torch.zeros(int(inverse.max()) + 1, dtype=values.dtype)
    sums, sizes = (zeros.scatter_add(0, inverse, terms) for terms in (values, values.abs()))
    sums = torch.where(sums.abs() > ROUNDING * sizes, sums, 0.0)
    net = torch.zeros(rows, width, dtype=values.dtype)
    net[mask] = sums[inverse]
    return net


def _exact_sum(values: Sequence[float]) -> float:
    total = math.fsum(values)
    return total if abs(total) > ROUNDING * math.fsum(map(abs, values)) else 0.0


def _mean(lengths: Sequence[int]) -> float | None:
    return divide(sum(lengths), len(lengths))


ANALYSIS = Analysis(
    "tokens shared by correct and wrong completions of a problem",
    "GTPO",
    ConflictsOptions,
    measure,
    plot,
    headline,
    takes_step=False,
)
