"""`rlvr analyze difference`: differences between two methods' gradients, token by token.

Both methods are applied to the same rollout, old policy and current policy. A token's coefficient multiplies its grad
log pi in one optimizer step over the whole rollout: equal coefficients give equal gradients for any model.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from rlvr_cli.analyses.base import Analysis, AnalysisInput, Frames, make_frames, records, summary_of
from rlvr_cli.analyses.method_step import REGIONS, ScoredTokens, apply_method, differ, iter_quarters, iter_rows, thin
from rlvr_cli.analyses.scoring import ScoredRun, score_rollout
from rlvr_cli.core.lazy import Tensor, alt, torch
from rlvr_cli.core.section import CountOrZero, FromList, Section, Text
from rlvr_cli.core.text import escape_control
from rlvr_cli.describe.named import replayed_configs
from rlvr_cli.methods.method import Method

Row = dict[str, Any]
BEFORE, AFTER = 8, 4


class DifferenceOptions(Section):
    methods: Annotated[tuple[Text, Text], FromList] = Field(
        ("dgpo", "grpo"), description="The two methods; regions use the bounds of the first."
    )
    top: CountOrZero = Field(10, description="Tokens listed, by largest difference.")


def measure(inputs: AnalysisInput, options: DifferenceOptions) -> Frames:
    """Compare ``options.methods`` on a rollout at a policy."""
    configs = replayed_configs(options.methods)
    saved = inputs.find_rollout()
    first, second = (config.with_max_length(saved.config.rollout.max_new_tokens) for config in configs)
    run = score_rollout(saved, [first, second])
    tables = method_difference(first, second, run.scored, top=options.top)
    total, *groups = tables["groups"]
    drift = run.scored.largest_drift
    return make_frames(
        {
            **run.numbers,
            "tokens": total["tokens"],
            "differing": total["differing"],
            "cosine": total["cosine"],
            "norm_ratio": total["norm_ratio"],
            "largest_log_ratio": drift,
            **{
                f"differing_{row['name']}": row["differing"]
                for row in groups
                if row["tokens"] and row["name"] in REGIONS
            },
        },
        _make_notes(first, second, run, drift),
        methods=[{"method": "a", "name": first.name}, {"method": "b", "name": second.name}],
        groups=[group for group in tables["groups"] if group["tokens"]],
        largest=[
            {**token, "problem": saved.rows[token["row"]]["problem"], **_context(token, run)}
            for token in tables["largest"]
        ],
        tokens=tables["tokens"],
    )


def method_difference(first: Method, second: Method, scored: ScoredTokens, *, top: int = 10) -> dict[str, list[Row]]:
    """Compare the coefficients a of ``first`` with b of ``second``; regions use the bounds of the first.

    Returns:
        groups: for all tokens, each region and each quarter of probability: the number of tokens, the share whose
            coefficients differ, sums of |a|, |b|, |a - b|; ratio of norms a / b and cosine, None if a norm is 0.
        largest: the ``top`` tokens by difference; position from 0 within the completion; weight None for advantage 0.
        tokens: sampled tokens, by region.
    """
    a, b = apply_method(first, scored), apply_method(second, scored)
    regions = {name: getattr(a.regions, name) for name in REGIONS}
    valid, ratios = scored.rollout.mask.bool(), (scored.log_probs - scored.old_log_probs).exp()
    old_probs = scored.old_log_probs.exp()
    quarter = {name: chosen & valid for name, chosen in iter_quarters(old_probs)}
    groups = {"all tokens": valid, **regions, **quarter}
    columns = {"ratio": ratios, "a": a.coefficients, "b": b.coefficients, "difference": a.coefficients - b.coefficients}
    distance = torch.where(differ(a.coefficients, b.coefficients), columns["difference"].abs(), 0.0)
    order = torch.sort(distance.flatten(), descending=True, stable=True).indices[:top]
    largest: list[Row] = []
    for row, position in (divmod(flat, distance.shape[1]) for flat in order.tolist()):
        at = (row, position)
        if not distance[at]:
            break
        largest.append(
            {
                "row": row,
                "position": position,
                "region": next(name for name, chosen in regions.items() if bool(chosen[at])),
                "old_prob": float(old_probs[at]),
                "ratio": float(ratios[at]),
                "advantage_a": float(a.advantages[at]),
                "advantage_b": float(b.advantages[at]),
                "weight_a": float(a.weights[at]) if a.advantages[at] else None,
                "weight_b": float(b.weights[at]) if b.advantages[at] else None,
                "coefficient_a": float(a.coefficients[at]),
                "coefficient_b": float(b.coefficients[at]),
            }
        )
    return {
        "groups": [_group_row(name, a.coefficients[chosen], b.coefficients[chosen]) for name, chosen in groups.items()],
        "largest": largest,
        "tokens": [
            {"region": name, **token} for name, chosen in regions.items() for token in iter_rows(columns, thin(chosen))
        ],
    }


def _group_row(name: str, a: Tensor, b: Tensor) -> Row:
    norm_a, norm_b = float(a.norm()), float(b.norm())
    return {
        "name": name,
        "tokens": a.numel(),
        "differing": float(differ(a, b).double().mean()) if a.numel() else 0.0,
        "sum_a": float(a.abs().sum()),
        "sum_b": float(b.abs().sum()),
        "sum_difference": float((a - b).abs().sum()),
        "norm_ratio": norm_a / norm_b if norm_b else None,
        # Normalised first: products of tiny coefficients underflow.
        "cosine": float((a / norm_a) @ (b / norm_b)) if norm_a and norm_b else None,
    }


def _make_notes(first: Method, second: Method, run: ScoredRun, largest_drift: float) -> list[str]:
    lines = []
    if largest_drift == 0:
        lines.append(
            "All ratios are 1: the current policy is the old one, so nothing is clipped. Differences come from "
            "advantages, shaping, normalisers, or weights other than 1 at ratio 1."
        )
    lines += run.notes
    several = [method.name for method in (first, second) if len(method.passes.names) > 1]
    if several:
        lines.append(f"{' and '.join(several)}: passes are summed at the current policy.")
    kinds = {(method.aggregation.kind, method.aggregation.sequences) for method in (first, second)}
    if len(kinds) > 1:
        lines.append("The methods have different normalisers, so all tokens may differ. Compare the cosine.")
    return lines


def headline(frames: Frames) -> str:
    summary, (total, *groups) = summary_of(frames), records(frames["groups"]) or [{}]
    pair = " and ".join(f"{name} ({letter})" for letter, name in frames["methods"].to_numpy().tolist())
    if not summary["differing"]:
        return f"{pair} have the same coefficient on all {summary['tokens']:,} tokens: the same gradient."
    shares = {group["name"]: group["sum_difference"] / total["sum_difference"] for group in groups}
    regions = sorted((name for name in REGIONS if shares.get(name, 0) >= 0.005), key=lambda name: -shares[name])
    labels = [f"{shares[name]:.0%} in {name}" for name in regions]
    angle = "" if total["cosine"] is None else f"; cosine {total['cosine']:.6f}"
    size = "" if total["norm_ratio"] is None else f", norm of a / b {total['norm_ratio']:.4f}"
    share = f"{total['differing']:.2%} of {total['tokens']:,} tokens"
    return f"{pair} differ on {share}{angle}{size}. Of the difference: {', '.join(labels)}."


def _context(token: Row, run: ScoredRun) -> dict[str, str]:
    ids, position = run.saved.rows[token["row"]]["token_ids"], token["position"]
    spans = {"before": slice(max(0, position - BEFORE), position), "token": slice(position, position + 1)}
    spans["after"] = slice(position + 1, position + 1 + AFTER)
    return {name: _decode(run.tokenizer, ids[span]) for name, span in spans.items()}


def _decode(tokenizer: Any, ids: list[int]) -> str:
    return escape_control(str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)))


def plot(frames: Frames) -> alt.TopLevelMixin:
    a, b = frames["methods"]["name"]
    base = alt.Chart(frames["tokens"]).mark_circle(opacity=0.6)
    colour = alt.Color("region:N", title=f"region of {a}")
    both = base.encode(x=alt.X("b:Q", title=f"coefficient of {b}"), y=alt.Y("a:Q", title=f"coefficient of {a}"))
    difference = base.encode(
        x=alt.X("ratio:Q", title="ratio", scale=alt.Scale(type="log")), y=alt.Y("difference:Q", title=f"{a} minus {b}")
    )
    return alt.hconcat(both.encode(color=colour), difference.encode(color=colour))


ANALYSIS = Analysis(
    "differences between two methods' gradients, by token", "any", DifferenceOptions, measure, plot, headline
)
