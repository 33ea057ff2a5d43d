"""GTPO's conflict tokens in a rollout: how many, in which spans, and where GRPO's gradient pushes them.

    c_i = A_i / |o_i|                                                 what multiplies grad log pi of row i's tokens
    net of a token    = sum of c_i over the rows of the group that have it at the same offset
    net of a shared prefix = sum of c_i over the rows that begin with it          (Delta_pref of equation 6)

Simoni et al., arXiv:2508.03772, sections 4.1 and 5.1. A is GRPO's advantage of the rewards that training used, whatever
method trained. Conflict tokens are those of `methods.gtpo.ConflictMask`: offsets are counted from the start in a row's
first run of them and from the end in its last. A shared prefix is stricter: rows that agree on every token from the
start, so that their log-probs are the same function and their coefficients do add up, as equation 6 has it.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.grpo import group_advantage
from rlvr_cli.methods.gtpo import ConflictMask, mirrored

# A sum this small beside the sum of the sizes of its terms is 0 but for rounding, whose sign means nothing.
ROUNDING = 1e-12
# Equation 9: nothing on conflict tokens of rows with A < 0, twice on those of rows with A > 0.
GTPO = ConflictMask(ends="both", positive=2.0, negative=0.0)


@dataclass(frozen=True)
class Span:
    """Tokens ``start`` to ``start + length`` of a prefix that exactly ``rows``, of both signs, share.

    ``net``: the sum of the rows' A / |o|.
    """

    rows: tuple[int, ...]
    start: int
    length: int
    net: float


@dataclass(frozen=True)
class Tally:
    """Counts of a rollout, which add up over rollouts.

    Attributes:
        tokens: that are learned from. mixed: those of groups with advantages of both signs.
        conflict: in conflict. prefix, suffix: in a row's first and in its last run of them; a token may be in both.
        groups, groups_in_conflict: all, and those with a conflict token.
        up, down: sum of |c_i| over the conflict tokens that GRPO pushes up, and down. gtpo_up, gtpo_down: the same
            times lambda.
        penalised: conflict tokens whose net is negative.
        shared, shared_negative: spans of shared prefixes, and those whose net is negative. shared_tokens,
            shared_negative_tokens: their tokens, each prefix counted once.
        prefix_spans, suffix_spans: how many runs of conflict tokens have which length.
        prefix_ids, suffix_ids, penalised_ids: how often which token is in conflict, and with a negative net.
    """

    tokens: int = 0
    mixed: int = 0
    conflict: int = 0
    prefix: int = 0
    suffix: int = 0
    groups: int = 0
    groups_in_conflict: int = 0
    up: float = 0.0
    down: float = 0.0
    gtpo_up: float = 0.0
    gtpo_down: float = 0.0
    penalised: int = 0
    shared: int = 0
    shared_negative: int = 0
    shared_tokens: int = 0
    shared_negative_tokens: int = 0
    prefix_spans: Counter[int] = field(default_factory=Counter)
    suffix_spans: Counter[int] = field(default_factory=Counter)
    prefix_ids: Counter[int] = field(default_factory=Counter)
    suffix_ids: Counter[int] = field(default_factory=Counter)
    penalised_ids: Counter[int] = field(default_factory=Counter)

    def __add__(self, other: Tally) -> Tally:
        names = [part.name for part in dataclasses.fields(self)]
        return Tally(**{name: getattr(self, name) + getattr(other, name) for name in names})


def tally(rollout: Rollout) -> Tally:
    """The conflicts of a rollout; rows of reward NaN have no part in them.

    Args:
        rollout: rewards (N,), token_ids and mask (N, T), groups contiguous.
    """
    mask = rollout.mask.bool()
    lengths = mask.sum(dim=1)
    advantages = group_advantage(rollout.rewards.double(), rollout.group_size, divide_by_std=True).unsqueeze(1)
    coefficients = advantages / lengths.clamp(min=1).unsqueeze(1)
    forward, backward = GTPO.masks(rollout, advantages)
    conflict = forward | backward
    net = net_coefficients(rollout, coefficients, forward, backward)
    penalised = conflict & (net < 0)
    weighed = coefficients * GTPO.weights(rollout, advantages)
    groups = advantages.reshape(-1, rollout.group_size)
    is_mixed = (groups > 0).any(dim=1) & (groups < 0).any(dim=1)
    rows_mixed = is_mixed.repeat_interleave(rollout.group_size).unsqueeze(1)
    spans = [span for one in range(len(groups)) for span in _spans_of_group(rollout, coefficients, one)]
    negative = [span for span in spans if span.net < 0]
    return Tally(
        tokens=int(mask.sum()),
        mixed=int((mask & rows_mixed).sum()),
        conflict=int(conflict.sum()),
        prefix=int(forward.sum()),
        suffix=int(backward.sum()),
        groups=len(groups),
        groups_in_conflict=int(conflict.reshape(len(groups), -1).any(dim=1).sum()),
        up=_sum(conflict, coefficients.clamp(min=0)),
        down=_sum(conflict, (-coefficients).clamp(min=0)),
        gtpo_up=_sum(conflict, weighed.clamp(min=0)),
        gtpo_down=_sum(conflict, (-weighed).clamp(min=0)),
        penalised=int(penalised.sum()),
        shared=len(spans),
        shared_negative=len(negative),
        shared_tokens=sum(span.length for span in spans),
        shared_negative_tokens=sum(span.length for span in negative),
        prefix_spans=_lengths(forward),
        suffix_spans=_lengths(backward),
        prefix_ids=Counter(rollout.token_ids[forward].tolist()),
        suffix_ids=Counter(rollout.token_ids[backward].tolist()),
        penalised_ids=Counter(rollout.token_ids[penalised].tolist()),
    )


def net_coefficients(rollout: Rollout, coefficients: Tensor, forward: Tensor, backward: Tensor) -> Tensor:
    """(N, T) net of each conflict token; 0 elsewhere. One that is in both runs is counted from the start.

    Args:
        coefficients: (N, 1) c_i. forward, backward: (N, T) the runs from the start and from the end.
    """
    ids, mask = rollout.token_ids, rollout.mask.bool()
    from_start = _net_by_offset(ids, mask, coefficients, rollout.group_size)
    from_end = mirrored(_net_by_offset(mirrored(ids, mask), mask, coefficients, rollout.group_size), mask)
    return torch.where(forward, from_start, torch.where(backward, from_end, 0.0))


def shared_spans(rows: Sequence[Sequence[int]], coefficients: Sequence[float]) -> list[Span]:
    """The prefixes that rows of both signs share, cut where a row leaves: on a span the net is constant.

    Args:
        rows: token ids of one group. coefficients: c_i of each; a row of 0 has no part.
    """
    found = []
    waiting = [(tuple(row for row in range(len(rows)) if coefficients[row]), 0)]
    while waiting:
        members, start = waiting.pop()
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
            found.append(Span(tuple(branch), start, end - start, _net(values)))
            waiting.append((tuple(branch), end))
    return found


def pooled(tallies: Iterable[Tally]) -> Tally:
    """All of them together."""
    return sum(tallies, Tally())


def summary(of: Tally) -> dict[str, float | None]:
    """Shares and means, None where there is nothing that they would be of."""
    spans = of.prefix_spans + of.suffix_spans
    return {
        "conflict_share": _share(of.conflict, of.tokens),
        "conflict_mixed_share": _share(of.conflict, of.mixed),
        "conflict_prefix_share": _share(of.prefix, of.tokens),
        "conflict_suffix_share": _share(of.suffix, of.tokens),
        "groups_share": _share(of.groups_in_conflict, of.groups),
        "span_mean": _mean(spans),
        "span_prefix_mean": _mean(of.prefix_spans),
        "span_suffix_mean": _mean(of.suffix_spans),
        "span_largest": max(spans, default=None),
        "negative_net_share": _share(of.shared_negative, of.shared),
        "negative_net_token_share": _share(of.shared_negative_tokens, of.shared_tokens),
        "negative_push_share": _share(of.down, of.up + of.down),
        "negative_push_share_gtpo": _share(of.gtpo_down, of.gtpo_up + of.gtpo_down),
        "push_gtpo_over_grpo": _share(of.gtpo_up + of.gtpo_down, of.up + of.down),
        "penalised_correct_share": _share(of.penalised, of.conflict),
    }


def _net_by_offset(ids: Tensor, mask: Tensor, coefficients: Tensor, group_size: int) -> Tensor:
    """(N, T) sum of the coefficients of the group's rows with the same token at the same place; 0 on padding."""
    rows, width = ids.shape
    if not mask.any():
        return torch.zeros(rows, width, dtype=coefficients.dtype)
    places = (torch.arange(rows) // group_size).unsqueeze(1) * width + torch.arange(width)
    keys = places * (int(ids.max()) + 1) + ids
    which = torch.unique(keys[mask], return_inverse=True)[1]
    values = coefficients.expand(rows, width)[mask]
    nothing = torch.zeros(int(which.max()) + 1, dtype=values.dtype)
    sums, sizes = (nothing.scatter_add(0, which, terms) for terms in (values, values.abs()))
    sums = torch.where(sums.abs() > ROUNDING * sizes, sums, 0.0)
    net = torch.zeros(rows, width, dtype=values.dtype)
    net[mask] = sums[which]
    return net


def _spans_of_group(rollout: Rollout, coefficients: Tensor, group: int) -> list[Span]:
    first = group * rollout.group_size
    rows = range(first, first + rollout.group_size)
    ids = [rollout.token_ids[row][rollout.mask[row].bool()].tolist() for row in rows]
    return shared_spans(ids, [float(coefficients[row, 0]) for row in rows])


def _net(values: Sequence[float]) -> float:
    total = math.fsum(values)
    return total if abs(total) > ROUNDING * math.fsum(map(abs, values)) else 0.0


def _lengths(run: Tensor) -> Counter[int]:
    """How many rows have a run of which length; none of length 0."""
    return Counter(length for length in run.sum(dim=1).tolist() if length)


def _sum(where: Tensor, values: Tensor) -> float:
    return float(torch.where(where, values, 0.0).sum())


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(lengths: Counter[int]) -> float | None:
    return _share(sum(length * count for length, count in lengths.items()), lengths.total())
