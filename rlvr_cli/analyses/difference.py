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

from rlvr_cli.analyses.base import AnalysisInput, Findings, analysis
from rlvr_cli.analyses.method_step import REGIONS, Applied, ScoredTokens, apply_method, differs, quarters
from rlvr_cli.analyses.scoring import ScoredRun, score_rollout
from rlvr_cli.charts.figure import COLOURS
from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import CountOrZero, FromList, Section, Text
from rlvr_cli.core.table import Table
from rlvr_cli.describe.named import replayed_configs
from rlvr_cli.methods.method import Method

if TYPE_CHECKING:
    from matplotlib.figure import Figure


READING = (
    "A dot is a token, in the colour and shape of its region by the bounds of the first method. Left: what multiplies "
    "its grad log pi in the gradient of each method; on the line both give it the same. Right: the difference of the "
    "two over the ratio. Coefficients include the KL term and the normaliser."
)
BEFORE, AFTER = 8, 4
GROUP_HEADER = ("", "tokens", "differ", "sum |a|", "sum |b|", "sum |a - b|", "|a| / |b|", "cosine")
TOKEN_HEADER = ("row:token", "region", "p_old", "ratio", "A of a", "A of b", "w of a", "w of b", "a - b", "text")
# Told apart by shape too, where they lie on one another.
_LOOKS = {
    "LN": (COLOURS[0], "v", 22),
    "HP": (COLOURS[1], "^", 22),
    "LP": (COLOURS[2], "<", 22),
    "HN": (COLOURS[3], ">", 22),
    "M": ("#8C8C8C", "o", 6),
}


class DifferenceOptions(Section):
    """Keys of `rlvr analyze difference`."""

    methods: Annotated[tuple[Text, Text], FromList] = Field(
        ("dgpo", "grpo"), description="The two methods; regions are by the bounds of the first."
    )
    top: CountOrZero = Field(10, description="Tokens listed: those of the largest difference.")


@dataclass(frozen=True)
class MethodDifference:
    """Two methods, the rollout they were compared on, and what came out."""

    first: Method
    second: Method
    run: ScoredRun
    found: CoefficientDifference


@analysis("on which tokens two methods' gradients differ, and by how much", paper="any", options=DifferenceOptions)
def difference(subject: AnalysisInput, options: DifferenceOptions) -> Findings:
    """The difference of ``options.methods`` on the subject's rollout at its policy.

    Raises:
        UserError: an unknown method, or one that cannot be applied to a saved rollout; no such rollout or checkpoint.
    """
    configs = replayed_configs(options.methods)
    saved = subject.saved()
    first, second = (config.bound(saved.config.rollout.max_new_tokens) for config in configs)
    run = score_rollout(saved, [first, second])
    outcome = MethodDifference(first, second, run, method_difference(first, second, run.scored, top=options.top))
    tokens = list(_token_rows(outcome))
    return Findings(
        headline=_headline(outcome),
        numbers=_numbers(outcome),
        tables=(
            Table("by region and by old probability", GROUP_HEADER, list(group_rows(outcome))),
            *([Table("the tokens that differ most", TOKEN_HEADER, tokens)] if tokens else []),
        ),
        reading=READING,
        draw=lambda: difference_figure(first, second, run.scored),
        notes=tuple(_notes(outcome)),
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


def _numbers(outcome: MethodDifference) -> dict[str, Any]:
    """All that was computed."""
    first, second, saved, found = outcome.first, outcome.second, outcome.run.saved, outcome.found
    total = found.total
    return {
        "summary": {
            "tokens": total.tokens,
            "differing": total.differing,
            "cosine": total.cosine,
            "norm_ratio": total.norm_ratio,
            "largest_log_ratio": found.largest_drift,
            **{f"differing_{group.name}": group.differing for group in found.by_region if group.tokens},
        },
        "a": first.name,
        "b": second.name,
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
    }


def _headline(outcome: MethodDifference) -> str:
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


def _notes(outcome: MethodDifference) -> list[str]:
    """What a reader must know to trust the numbers."""
    first, second, run = outcome.first, outcome.second, outcome.run
    lines = []
    if outcome.found.largest_drift == 0:
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


def group_rows(outcome: MethodDifference) -> Iterator[tuple[str, ...]]:
    """Rows of the table of groups; an empty group is left out."""
    found = outcome.found
    for group in (found.total, *found.by_region, *found.by_old_prob):
        if group.tokens:
            yield _group_row(group)


def _token_rows(outcome: MethodDifference) -> Iterator[tuple[str, ...]]:
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


def _group_row(group: GroupDifference) -> tuple[str, ...]:
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


def _context(token: TokenDifference, outcome: MethodDifference) -> dict[str, str]:
    ids, tokenizer = outcome.run.saved.rows[token.row]["token_ids"], outcome.run.tokenizer
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


def difference_figure(first: Method, second: Method, scored: ScoredTokens) -> Figure:
    """One dot a token, by region. Must be called inside ``charts.figure.style()``."""
    from matplotlib.figure import Figure

    a, b = apply_method(first, scored), apply_method(second, scored)
    ratios = (scored.log_probs - scored.old_log_probs).exp()
    figure = Figure(figsize=(10.0, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    # The many tokens inside the region go below the few outside.
    for region in reversed(REGIONS):
        chosen = getattr(a.regions, region)
        if not bool(chosen.any()):
            continue
        colour, marker, size = _LOOKS[region]
        look: dict[str, Any] = {"color": colour, "marker": marker, "s": size, "alpha": 0.7, "linewidths": 0}
        # An SVG with an element for every token would be larger than the rollout.
        look["rasterized"] = True
        left.scatter(b.coefficients[chosen], a.coefficients[chosen], label=region, **look)
        right.scatter(ratios[chosen], (a.coefficients - b.coefficients)[chosen], label=region, **look)
    ends = torch.stack([a.coefficients, b.coefficients])
    span = [float(ends.min()), float(ends.max())]
    left.plot(span, span, color="#7F7F7F", linewidth=0.8, zorder=0.9)
    left.set_xlabel(f"coefficient of {second.name}")
    left.set_ylabel(f"coefficient of {first.name}")
    left.set_title("what multiplies grad log π of each token")
    right.set_xscale("log")
    right.set_xlabel(r"ratio  $r = \pi\,/\,\pi_{\mathrm{old}}$")
    right.set_ylabel(f"{first.name} minus {second.name}")
    right.set_title("their difference over the ratio")
    handles, labels = right.get_legend_handles_labels()
    figure.legend(
        handles[::-1], labels[::-1], loc="outside lower center", ncols=len(labels), title=f"region of {first.name}"
    )
    return figure
