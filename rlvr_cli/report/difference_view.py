"""The difference of two methods, for people and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from rlvr_cli.analysis.method_difference import Group, TokenDifference
from rlvr_cli.report.compare_methods import Outcome
from rlvr_cli.report.policy_notes import policy_notes

BEFORE, AFTER = 8, 4
GROUP_HEADER = ("", "tokens", "differ", "sum |a|", "sum |b|", "sum |a - b|", "|a| / |b|", "cosine")
TOKEN_HEADER = ("row:token", "region", "p_old", "ratio", "A of a", "A of b", "w of a", "w of b", "a - b", "text")


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """Everything, for `--json`."""
    first, second, saved, found = outcome.first, outcome.second, outcome.saved, outcome.found
    return {
        "a": first.name,
        "b": second.name,
        "run": str(saved.run.path),
        "rollout": saved.number,
        "old_policy": saved.old.step,
        "sampled_after_step": saved.sampled_after,
        "current_policy": saved.current.step,
        "sampling_gap": outcome.run.sampling_gap,
        "largest_log_ratio": found.largest_drift,
        "total": dataclasses.asdict(found.total),
        "by_region": [dataclasses.asdict(group) for group in found.by_region],
        "by_old_prob": [dataclasses.asdict(group) for group in found.by_old_prob],
        "largest": [
            {**dataclasses.asdict(token), "problem": saved.rows[token.row]["problem"], **_context(token, outcome)}
            for token in found.largest
        ],
        "notes": notes(outcome),
    }


def headline(outcome: Outcome) -> str:
    """One sentence."""
    first, second, found = outcome.first, outcome.second, outcome.found
    total = found.total
    pair = f"{first.name} (a) and {second.name} (b)"
    if not total.differing:
        return f"{pair} have the same coefficient on all {total.tokens:,} tokens: the same gradient."
    where = [
        f"{group.sum_difference / total.sum_difference:.0%} in {group.name}"
        for group in sorted(found.by_region, key=lambda group: -group.sum_difference)
        if group.sum_difference >= 0.005 * total.sum_difference
    ]
    angle = "" if total.cosine is None else f"; cosine {total.cosine:.6f}"
    size = "" if total.norm_ratio is None else f", norm of a / b {total.norm_ratio:.4f}"
    share = f"{total.differing:.2%}" if total.differing >= 0.0001 else f"{total.differing:.1e} (share)"
    return f"{pair} differ on {share} of {total.tokens:,} tokens{angle}{size}. Of the difference: {', '.join(where)}."


def notes(outcome: Outcome) -> list[str]:
    """What a reader must know to trust the numbers."""
    first, second, saved, run = outcome.first, outcome.second, outcome.saved, outcome.run
    lines = []
    if outcome.found.largest_drift == 0:
        lines.append(
            "Every ratio is 1: the current policy is the old one. Token weights cannot differ there by their clipping; "
            "what differs comes from advantages, shaping, normalisers, or weights that are not 1 at ratio 1."
        )
    lines += policy_notes(saved, run.sampling_gap)
    several = [method.name for method in (first, second) if len(method.schedule.passes) > 1]
    if several:
        lines.append(
            f"{' and '.join(several)}: the passes are added up at the current policy; that the policy moves between "
            "them is not seen here."
        )
    kinds = {(method.aggregation.kind, method.aggregation.rows) for method in (first, second)}
    if len(kinds) > 1:
        lines.append("The methods divide by different normalisers, which alone makes tokens differ; see the cosine.")
    return lines


def group_rows(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    """Rows of the table of groups; an empty group is left out."""
    found = outcome.found
    for group in (found.total, *found.by_region, *found.by_old_prob):
        if group.tokens:
            yield _group_row(group)


def token_rows(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    """Rows of the table of tokens."""
    for token in outcome.found.largest:
        context = _context(token, outcome)
        yield (
            f"{token.row}:{token.position}",
            token.region,
            f"{token.old_prob:.4f}",
            f"{token.ratio:.3f}",
            f"{token.advantage_a:+.2f}",
            f"{token.advantage_b:+.2f}",
            _number(token.weight_a),
            _number(token.weight_b),
            f"{token.coefficient_a - token.coefficient_b:+.2e}",
            f"{context['before']}[{context['token']}]{context['after']}",
        )


def _group_row(group: Group) -> tuple[str, ...]:
    return (
        group.name,
        f"{group.tokens:,}",
        f"{group.differing:.2%}",
        f"{group.sum_a:.3e}",
        f"{group.sum_b:.3e}",
        f"{group.sum_difference:.3e}",
        "-" if group.norm_ratio is None else f"{group.norm_ratio:.4f}",
        "-" if group.cosine is None else f"{group.cosine:.6f}",
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}".replace("-0.000", "0.000")


def _context(token: TokenDifference, outcome: Outcome) -> dict[str, str]:
    ids, tokenizer = outcome.saved.rows[token.row]["token_ids"], outcome.run.tokenizer
    start, place = max(0, token.position - BEFORE), token.position
    return {
        "before": _text(tokenizer, ids[start:place]),
        "token": _text(tokenizer, ids[place : place + 1]),
        "after": _text(tokenizer, ids[place + 1 : place + 1 + AFTER]),
    }


def _text(tokenizer: Any, ids: list[int]) -> str:
    """What a terminal can show: a model's control characters are written as escapes."""
    text = str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
