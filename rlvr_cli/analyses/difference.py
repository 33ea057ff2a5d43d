"""`rlvr analyze difference`: on which tokens of a rollout two methods differ, and by how much.

Both methods see the same rollout, the same old policy and the same current policy. What is compared is the coefficient
of each token: what multiplies its grad log pi in the gradient of one optimizer step over the whole rollout. Equal
coefficients are equal gradients, whatever the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from rlvr_cli.analyses.base import Analysis, AnalysisInput, Frames, frames_of, records, summary_of
from rlvr_cli.analyses.method_step import REGIONS, Applied, ScoredTokens, apply_method, differs, quarters, thinned
from rlvr_cli.analyses.scoring import ScoredRun, score_rollout
from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import CountOrZero, FromList, Section, Text
from rlvr_cli.describe.named import replayed_configs
from rlvr_cli.methods.method import Method

if TYPE_CHECKING:
    import altair as alt

BEFORE, AFTER = 8, 4


class DifferenceOptions(Section):
    """Keys of `rlvr analyze difference`."""

    methods: Annotated[tuple[Text, Text], FromList] = Field(
        ("dgpo", "grpo"), description="The two methods; regions are by the bounds of the first."
    )
    top: CountOrZero = Field(10, description="Tokens listed: those of the largest difference.")


def measure(inputs: AnalysisInput, options: DifferenceOptions) -> Frames:
    """Compare ``options.methods`` on the rollout of ``inputs`` at its policy.

    Raises:
        UserError: an unknown method, or one that cannot be applied to a saved rollout; no such rollout or checkpoint.
    """
    configs = replayed_configs(options.methods)
    saved = inputs.saved()
    first, second = (config.bound(saved.config.rollout.max_new_tokens) for config in configs)
    run = score_rollout(saved, [first, second])
    found = method_difference(first, second, run.scored, top=options.top)
    total = found.total
    return frames_of(
        {
            **run.numbers,
            "tokens": total.tokens,
            "differing": total.differing,
            "cosine": total.cosine,
            "norm_ratio": total.norm_ratio,
            "largest_log_ratio": found.largest_drift,
            **{f"differing_{group.name}": group.differing for group in found.by_region if group.tokens},
        },
        _notes(first, second, run, found.largest_drift),
        methods=[{"method": "a", "name": first.name}, {"method": "b", "name": second.name}],
        groups=[dataclasses.asdict(group) for group in (total, *found.by_region, *found.by_old_prob) if group.tokens],
        largest=[
            {**dataclasses.asdict(token), "problem": saved.rows[token.row]["problem"], **_context(token, run)}
            for token in found.largest
        ],
        tokens=_tokens(first, second, run.scored),
    )


@dataclass(frozen=True)
class GroupDifference:
    """Some tokens, and how far the coefficients a and b of two methods lie apart on them.

    Attributes:
        tokens: how many.
        differing: share of them whose coefficients differ.
        sum_a, sum_b: sum of |a|, of |b|.
        sum_difference: sum of |a - b|.
        norm_ratio: |a| / |b|, Euclidean; None where b is 0.
        cosine: between a and b; None where one of them is 0.
    """

    name: str
    tokens: int
    differing: float
    sum_a: float
    sum_b: float
    sum_difference: float
    norm_ratio: float | None
    cosine: float | None


@dataclass(frozen=True)
class TokenDifference:
    """One token. ``position`` counts from 0 within the completion; ``weight_*`` is None where the advantage is 0."""

    row: int
    position: int
    region: str
    old_prob: float
    ratio: float
    advantage_a: float
    advantage_b: float
    weight_a: float | None
    weight_b: float | None
    coefficient_a: float
    coefficient_b: float


@dataclass(frozen=True)
class CoefficientDifference:
    """Two methods on one rollout; regions are by the bounds of the first."""

    total: GroupDifference
    by_region: tuple[GroupDifference, ...]
    by_old_prob: tuple[GroupDifference, ...]
    largest: tuple[TokenDifference, ...]
    largest_drift: float


def method_difference(first: Method, second: Method, scored: ScoredTokens, *, top: int = 10) -> CoefficientDifference:
    """Compare ``first`` with ``second``; ``top`` tokens of the largest difference are listed, none that are equal."""
    a, b = apply_method(first, scored), apply_method(second, scored)
    valid = scored.rollout.mask.bool()
    old_probs = scored.old_log_probs.exp()
    drift = (scored.log_probs - scored.old_log_probs)[valid]
    pair = (a.coefficients, b.coefficients)
    return CoefficientDifference(
        total=_group("all tokens", valid, *pair),
        by_region=tuple(_group(name, getattr(a.regions, name), *pair) for name in REGIONS),
        by_old_prob=tuple(_group(name, chosen & valid, *pair) for name, chosen in quarters(old_probs)),
        largest=tuple(_largest(a, b, scored, top)),
        largest_drift=float(drift.abs().max()) if drift.numel() else 0.0,
    )


def _group(name: str, chosen: Tensor, first: Tensor, second: Tensor) -> GroupDifference:
    a, b = first[chosen], second[chosen]
    count = int(chosen.sum())
    norm_a, norm_b = float(a.norm()), float(b.norm())
    return GroupDifference(
        name=name,
        tokens=count,
        differing=float(differs(a, b).double().mean()) if count else 0.0,
        sum_a=float(a.abs().sum()),
        sum_b=float(b.abs().sum()),
        sum_difference=float((a - b).abs().sum()),
        norm_ratio=norm_a / norm_b if norm_b else None,
        # Normed before they are multiplied: products of tiny coefficients would vanish.
        cosine=float((a / norm_a) @ (b / norm_b)) if norm_a and norm_b else None,
    )


def _largest(a: Applied, b: Applied, scored: ScoredTokens, top: int) -> Iterator[TokenDifference]:
    distance = torch.where(differs(a.coefficients, b.coefficients), (a.coefficients - b.coefficients).abs(), 0.0)
    width = distance.shape[1]
    order = torch.sort(distance.flatten(), descending=True, stable=True).indices[:top]
    for flat in order.tolist():
        row, position = divmod(flat, width)
        if not distance[row, position]:
            return
        at = (row, position)
        yield TokenDifference(
            row=row,
            position=position,
            region=next(name for name in REGIONS if bool(getattr(a.regions, name)[at])),
            old_prob=float(scored.old_log_probs[at].exp()),
            ratio=float((scored.log_probs[at] - scored.old_log_probs[at]).exp()),
            advantage_a=float(a.advantages[at]),
            advantage_b=float(b.advantages[at]),
            weight_a=float(a.weights[at]) if a.advantages[at] else None,
            weight_b=float(b.weights[at]) if b.advantages[at] else None,
            coefficient_a=float(a.coefficients[at]),
            coefficient_b=float(b.coefficients[at]),
        )


def _tokens(first: Method, second: Method, scored: ScoredTokens) -> Iterator[dict[str, Any]]:
    """Yield the tokens to draw, by region."""
    a, b = apply_method(first, scored), apply_method(second, scored)
    ratios = (scored.log_probs - scored.old_log_probs).exp()
    for region in REGIONS:
        chosen = thinned(getattr(a.regions, region))
        columns = (ratios[chosen], a.coefficients[chosen], b.coefficients[chosen])
        for ratio, of_a, of_b in zip(*(column.tolist() for column in columns), strict=True):
            yield {"region": region, "ratio": ratio, "a": of_a, "b": of_b, "difference": of_a - of_b}


def _notes(first: Method, second: Method, run: ScoredRun, largest_drift: float) -> list[str]:
    """What a reader must know to trust the numbers."""
    lines = []
    if largest_drift == 0:
        lines.append(
            "Every ratio is 1: the current policy is the old one. Token weights cannot differ there by their clipping; "
            "what differs comes from advantages, shaping, normalisers, or weights that are not 1 at ratio 1."
        )
    lines += run.notes
    several = [method.name for method in (first, second) if len(method.passes.names) > 1]
    if several:
        lines.append(
            f"{' and '.join(several)}: the passes are added up at the current policy; how the policy moves between "
            "them does not show here."
        )
    kinds = {(method.aggregation.kind, method.aggregation.sequences) for method in (first, second)}
    if len(kinds) > 1:
        lines.append("The methods divide by different normalisers, which alone makes tokens differ; see the cosine.")
    return lines


def headline(frames: Frames) -> str:
    """Give the share of tokens that differ, the angle, and the regions that the difference is in."""
    summary, (total, *groups) = summary_of(frames), records(frames["groups"]) or [{}]
    pair = " and ".join(f"{name} ({letter})" for letter, name in frames["methods"].to_numpy().tolist())
    if not summary["differing"]:
        return f"{pair} have the same coefficient on all {summary['tokens']:,} tokens: the same gradient."
    shares = {group["name"]: group["sum_difference"] / total["sum_difference"] for group in groups}
    regions = sorted((name for name in REGIONS if shares.get(name, 0) >= 0.005), key=lambda name: -shares[name])
    where = [f"{shares[name]:.0%} in {name}" for name in regions]
    angle = "" if total["cosine"] is None else f"; cosine {total['cosine']:.6f}"
    size = "" if total["norm_ratio"] is None else f", norm of a / b {total['norm_ratio']:.4f}"
    share = f"{total['differing']:.2%} of {total['tokens']:,} tokens"
    return f"{pair} differ on {share}{angle}{size}. Of the difference: {', '.join(where)}."


def _context(token: TokenDifference, run: ScoredRun) -> dict[str, str]:
    ids, tokenizer = run.saved.rows[token.row]["token_ids"], run.tokenizer
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


def plot(frames: Frames) -> alt.TopLevelMixin:
    """Draw a dot for each token: both coefficients, and their difference over the ratio."""
    import altair as alt

    a, b = frames["methods"]["name"]
    base = alt.Chart(frames["tokens"]).mark_circle(opacity=0.6)
    colour = alt.Color("region:N", title=f"region of {a}")
    both = base.encode(x=alt.X("b:Q", title=f"coefficient of {b}"), y=alt.Y("a:Q", title=f"coefficient of {a}"))
    difference = base.encode(
        x=alt.X("ratio:Q", title="ratio", scale=alt.Scale(type="log")),
        y=alt.Y("difference:Q", title=f"{a} minus {b}"),
    )
    return alt.hconcat(both.encode(color=colour), difference.encode(color=colour))


ANALYSIS = Analysis(
    "on which tokens two methods' gradients differ, and by how much",
    paper="any",
    options=DifferenceOptions,
    measure=measure,
    plot=plot,
    headline=headline,
)
