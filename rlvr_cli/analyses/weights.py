"""`rlvr analyze weights`: token weights on grad log pi and grad pi, and their bias, by region and method.

A token's term of a method's gradient is F A grad log pi = W A grad pi, W = F / pi; the true policy gradient has F = r.
DGPO, arXiv:2603.14389: table 1 (regions), section 4.2 (W), appendix A.3 (bias); figure 4 shows W relative to 1 /
pi_old, which is F / r.

The bias in a region X is ||grad J_method^X - grad J_PG^X|| (appendix A.3.2), here relative to ||grad J_PG^X||.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from rlvr_cli.analyses.base import (
    Analysis,
    AnalysisInput,
    Frames,
    Methods,
    Share,
    divide,
    make_frames,
    mean_of,
    records,
    summary_of,
)
from rlvr_cli.analyses.gradients import gradient, norm
from rlvr_cli.analyses.method_step import REGIONS, ScoredTokens, apply_method, differ, iter_quarters, iter_rows, thin
from rlvr_cli.analyses.saved_rollout import draw_rows
from rlvr_cli.analyses.scoring import ScoredRun, load_policy, score_rollout
from rlvr_cli.core.lazy import Tensor, alt, torch
from rlvr_cli.core.section import Count, Section
from rlvr_cli.describe.named import replayed_configs
from rlvr_cli.describe.weights import far_slope, left_bias
from rlvr_cli.methods.base import Regions, Tokens, quantile, regions
from rlvr_cli.methods.method import Method

CORNERS = ("LN", "HP", "LP", "HN")
ALL = "all"
Row = dict[str, Any]
NormOf = Callable[[Tensor], float]


class WeightsOptions(Section):
    methods: Methods = Field(("grpo", "cispo", "gppo", "ce-gppo", "aspo", "dgpo"), description="Methods to compare.")
    eps_low: Share = Field(0.2, description="Regions: low ratios are below 1 - eps_low.")
    eps_high: Annotated[float, Field(gt=0.0)] = Field(0.2, description="Regions: high ratios are above 1 + eps_high.")
    gradients: bool = Field(True, description="Measure the bias on gradients in addition to coefficients.")
    rows: Count = Field(256, description="Maximum number of completions in those gradients, sampled at random.")


def measure(inputs: AnalysisInput, options: WeightsOptions) -> Frames:
    """Measure the weights of ``options.methods`` on a rollout at a policy."""
    configs = {config.name: config for config in replayed_configs(options.methods)}
    saved = inputs.find_rollout()
    methods = [config.with_max_length(saved.config.rollout.max_new_tokens) for config in configs.values()]
    # Weights exclude the KL term, so no reference policy is loaded.
    plain = [method.model_copy(update={"kl": method.kl.replace(beta=0.0)}) for method in methods]
    run = score_rollout(saved, plain)
    weights = [
        compute_weights(method, run.scored, eps_low=options.eps_low, eps_high=options.eps_high) for method in plain
    ]
    lowest = 1 - options.eps_low
    gamma = fit_ratio_decay(weights[0].ratio[weights[0].region("LN")], lowest)
    limits = []
    for method, entry in zip(methods, weights, strict=True):
        slopes = {f"slope_{name}": far_slope(method, name) for name in ("LN", "HP")}
        old = median_old_prob(entry, ["LN"])
        bias = None if gamma is None or old is None else left_bias(method, gamma, lowest, old)
        limits.append({"method": entry.method, **slopes, "bias_LN": bias})
    biases: list[dict[str, float | None]] = [{} for _ in methods]
    if options.gradients:
        policy, drawn = load_policy(saved, saved.current), torch.zeros(len(saved.rows), 1, dtype=torch.bool)
        drawn[draw_rows(saved, options.rows)] = True
        norms = NormCache(
            lambda coefficients: norm(gradient(policy, saved.rows, torch.where(drawn, coefficients, 0.0)))
        )
        biases = [gradient_bias(entry, norms) for entry in weights]
    groups = [
        {"method": entry.method, **row, "gradient_bias": bias.get(row["name"]) if row["by"] == "region" else None}
        for entry, bias in zip(weights, biases, strict=True)
        for row in iter_group_rows(entry)
    ]
    return make_frames(
        dict(_summarize(run, weights[0], groups, limits, gamma, measured=options.gradients)),
        _make_notes(run, methods, weights[0], options),
        weights=groups,
        limits=limits,
        tokens=_sample_tokens(weights),
    )


def _summarize(
    run: ScoredRun,
    first: MethodWeights,
    groups: Sequence[Mapping[str, Any]],
    limits: Sequence[Mapping[str, Any]],
    gamma: float | None,
    *,
    measured: bool,
) -> Iterator[tuple[str, float | int | None]]:
    counts = {name: int(first.region(name).sum()) for name in REGIONS}
    total = int(first.learned.sum())
    yield from run.numbers.items()
    yield "tokens", int(run.scored.rollout.mask.sum())
    yield "tokens_with_advantage", total
    yield "updates_since", run.saved.current.step - run.saved.sampled_after
    for name, count in counts.items():
        yield f"tokens_{name}", count
        yield f"share_{name}", count / total if total else None
        yield f"old_prob_{name}", median_old_prob(first, [name])
    yield "share_outside", sum(counts[name] for name in CORNERS) / total if total else None
    yield "old_prob_outside", median_old_prob(first, CORNERS)
    yield "gamma_LN", gamma
    slopes = {limit["method"]: limit for limit in limits}
    for group in groups:
        if group["by"] != "region":
            continue
        name, limit = group["name"], slopes[group["method"]]
        key = group["method"].replace("-", "_").replace("+", "_")
        suffix = key if name == ALL else f"{key}_{name}"
        if name == ALL:
            yield f"analytic_bias_{key}_LN", limit["bias_LN"]
        if measured:
            yield f"bias_{suffix}", group["gradient_bias"]
        yield f"decoupled_bias_{suffix}", group["bias"]
        if name in ("LN", "HP"):
            yield f"slope_{suffix}", limit[f"slope_{name}"]
            yield f"token_slope_{suffix}", group["slope"]
            yield f"largest_{suffix}", group["largest"]


def _sample_tokens(weights: Sequence[MethodWeights]) -> Iterator[dict[str, Any]]:
    inside = weights[0].region("M")
    drawn = thin(inside) | thin(weights[0].learned & ~inside)
    for entry in weights:
        columns = {"up": entry.true > 0, "old_prob": entry.old_probs, "ratio": entry.ratio, "relative": entry.relative}
        for token in iter_rows(columns, drawn & entry.learned):
            yield {"method": entry.method, "advantage": "A > 0" if token.pop("up") else "A < 0", **token}


def _make_notes(
    run: ScoredRun, methods: Sequence[Method], first: MethodWeights, options: WeightsOptions
) -> Iterator[str]:
    yield from run.notes
    saved = run.saved
    empty = [name for name in CORNERS if not bool(first.region(name).any())]
    drift = (run.scored.log_probs - run.scored.old_log_probs)[first.learned]
    if drift.numel() and len(empty) == len(CORNERS):
        yield (
            f"No token is outside {1 - options.eps_low:g} to {1 + options.eps_high:g}: the ratio farthest from 1 is "
            f"{math.exp(float(drift[drift.abs().argmax()])):.3g}, {saved.current.step - saved.sampled_after} updates "
            "after sampling. Use a later --step, an earlier --rollout, or a run with more updates per rollout "
            "(update.mini_batches)."
        )
    elif empty and len(empty) < len(CORNERS):
        yield f"No token in {', '.join(empty)}, so no bias is measured there."
    if options.gradients and len(saved.rows) > options.rows:
        yield f"Gradient bias: on {options.rows} of {len(saved.rows)} completions, sampled at random."
    several = [method.name for method in methods if len(method.passes.names) > 1]
    if several:
        yield f"{' and '.join(several)}: passes are summed at the current policy."
    penalised = [method.name for method in methods if method.kl.beta > 0]
    if penalised:
        yield f"{' and '.join(penalised)}: weight and bias exclude the KL penalty."


def headline(frames: Frames) -> str:
    summary = summary_of(frames)
    label = f"rollout {summary['rollout']} under the policy of step {summary['current_policy']}"
    if not summary["tokens_with_advantage"]:
        return f"No token of {label} has an advantage, so no method has a weight."
    if not summary["share_outside"]:
        return f"No token of {label} is outside the regions' bounds: nothing is clipped."
    diverging = [row["method"] for row in records(frames["limits"]) if (row["slope_LN"] or 0) < 0]
    claim = (
        f"The weight on grad pi of {', '.join(diverging)} diverges" if diverging else "No weight on grad pi diverges"
    )
    shares = ", ".join(f"{summary[f'share_{name}']:.2%} {name}" for name in CORNERS)
    return f"{claim} as a token with A < 0 vanishes. Tokens of {label}: {shares}."


@dataclass(frozen=True)
class MethodWeights:
    """A method's weights on the tokens of a rollout; all (N, T), 0 on padding and for advantages of 0.

    Attributes:
        method: the name.
        learned: mask of the tokens with an advantage.
        ratio: r = pi / pi_old.
        old_probs: probability under the sampling policy.
        on_log_prob: F, including shaping: the factor of A grad log pi.
        true: coefficient r A / Z of grad log pi in the true policy gradient, up to a factor common to all tokens.
        coefficients: F A / Z, up to the same factor, without the KL term.
        regions: by bounds common to all methods, and the signs of this method's advantages.
    """

    method: str
    learned: Tensor
    ratio: Tensor
    old_probs: Tensor
    on_log_prob: Tensor
    true: Tensor
    coefficients: Tensor
    regions: Regions

    @property
    def relative(self) -> Tensor:
        """(N, T) F / r = W pi_old: the weight on grad pi relative to that of the true policy gradient, 1 / pi_old."""
        return torch.where(self.learned, self.on_log_prob / self.ratio, 0.0)

    @property
    def difference(self) -> Tensor:
        """(N, T) coefficients of the method's gradient minus those of the true gradient: (F - r) A / Z."""
        return torch.where(differ(self.coefficients, self.true), self.coefficients - self.true, 0.0)

    def region(self, name: str) -> Tensor:
        """Return the (N, T) mask of the tokens with an advantage in a region, or in ``ALL``."""
        if name == ALL:
            return self.learned
        chosen: Tensor = getattr(self.regions, name)
        return chosen & self.learned


def compute_weights(method: Method, scored: ScoredTokens, *, eps_low: float, eps_high: float) -> MethodWeights:
    """Return the weights of ``method``; ``eps_low``, ``eps_high``: bounds of the regions, not the method's."""
    applied = apply_method(method, scored)
    mask, advantages = scored.rollout.mask, applied.advantages
    tokens = Tokens(scored.log_probs, scored.old_log_probs, advantages, mask)
    learned = mask.bool() & (advantages != 0)
    ratio = torch.where(learned, tokens.ratio, 0.0)
    # A step's count is a factor common to all tokens.
    normaliser = method.aggregation.coefficients(mask, torch.ones((), dtype=torch.float64))
    return MethodWeights(
        method=method.name,
        learned=learned,
        ratio=ratio,
        old_probs=tokens.old_probs,
        # + 0.0 turns -0 into 0.
        on_log_prob=applied.weights + 0.0,
        true=ratio * advantages * normaliser,
        coefficients=applied.weights * advantages * normaliser,
        regions=regions(tokens, eps_low, eps_high),
    )


def iter_group_rows(weights: MethodWeights) -> Iterator[Row]:
    """Yield rows for all tokens, each region and each quarter of old probability; values are None without tokens.

    `on_log_prob`: mean F; `on_prob`: mean W = F / pi; `relative`, `largest`: mean and largest F / r; `slope`: of
    log(F / r) over log r, by least squares over the tokens with non-zero weight; `bias`: sum |F - r| |A| / Z over
    sum r |A| / Z, the bias relative to the true gradient if all their grad log pi had the same norm and none cancelled
    (the decoupling assumption of appendix A.3.4).
    """
    groups = [("region", name, weights.region(name)) for name in (ALL, *REGIONS)]
    groups += [("old_prob", name, chosen & weights.learned) for name, chosen in iter_quarters(weights.old_probs)]
    for by, name, chosen in groups:
        ratio, old = weights.ratio[chosen], weights.old_probs[chosen]
        on_log_prob, relative = weights.on_log_prob[chosen], weights.relative[chosen]
        yield {
            "by": by,
            "name": name,
            "tokens": ratio.numel(),
            "on_log_prob": mean_of(on_log_prob),
            "on_prob": mean_of(on_log_prob / (ratio * old)),
            "relative": mean_of(relative),
            "largest": float(relative.max()) if ratio.numel() else None,
            "slope": _fit_slope(ratio, relative),
            "bias": divide(float(weights.difference[chosen].abs().sum()), float(weights.true[chosen].abs().sum())),
        }


def fit_ratio_decay(ratios: Tensor, lowest: float) -> float | None:
    """Return the maximum-likelihood gamma of k r^gamma on (0, lowest), n / sum log(lowest / r) - 1, or None."""
    inside = ratios[(ratios > 0) & (ratios < lowest)]
    total = float((lowest / inside).log().sum())
    return inside.numel() / total - 1 if total > 0 else None


def median_old_prob(weights: MethodWeights, names: Sequence[str]) -> float | None:
    """Return the median old probability of the tokens in the regions ``names``; None without tokens."""
    chosen = torch.stack([weights.region(name) for name in names]).any(dim=0)
    return float(quantile(weights.old_probs[chosen], 0.5)) if bool(chosen.any()) else None


def _fit_slope(ratio: Tensor, relative: Tensor) -> float | None:
    weighted = relative > 0
    x, y = ratio[weighted].log(), relative[weighted].log()
    if x.numel() < 2:
        return None
    x, y = x - x.mean(), y - y.mean()
    spread = float(x @ x)
    return float(x @ y) / spread if spread > 0 else None


def gradient_bias(weights: MethodWeights, norm_of: NormOf) -> dict[str, float | None]:
    """Return the bias over all tokens and by region, relative to the true gradient; None if that is 0."""

    def region_norm(coefficients: Tensor, name: str) -> float:
        return norm_of(torch.where(weights.region(name), coefficients, 0.0))

    return {
        name: divide(region_norm(weights.difference, name), region_norm(weights.true, name)) for name in (ALL, *REGIONS)
    }


class NormCache:
    def __init__(self, norm_of: NormOf) -> None:
        self._norm_of = norm_of
        self._cache: list[tuple[Tensor, float]] = []

    def __call__(self, coefficients: Tensor) -> float:
        if not bool(coefficients.any()):
            return 0.0
        for cached, value in self._cache:
            if torch.equal(cached, coefficients) or torch.equal(cached, -coefficients):
                return value
        value = self._norm_of(coefficients)
        self._cache.append((coefficients, value))
        return value


def plot(frames: Frames) -> alt.TopLevelMixin:
    measured = "bias" if frames["weights"]["gradient_bias"].isna().all() else "gradient_bias"
    groups = frames["weights"].query("by == 'region' and name != @ALL")
    linear = alt.Scale(type="symlog", constant=1)
    tokens = (
        alt.Chart(frames["tokens"])
        .mark_circle(opacity=0.6)
        .encode(
            x=alt.X("ratio:Q", title="ratio", scale=alt.Scale(type="log")),
            y=alt.Y("relative:Q", title="weight on grad pi times pi_old (F / r)", scale=linear),
            color="method:N",
            column=alt.Column("advantage:N", title=None),
        )
    )
    bias = (
        alt.Chart(groups)
        .mark_bar()
        .encode(
            x=alt.X("name:N", title="region", sort=list(REGIONS)),
            xOffset="method:N",
            y=alt.Y(f"{measured}:Q", title="bias relative to the true gradient", scale=linear),
            color="method:N",
        )
    )
    ratios = (
        alt.Chart(frames["tokens"])
        .mark_circle(opacity=0.6)
        .encode(
            x=alt.X("old_prob:Q", title="old probability", scale=alt.Scale(type="log")),
            y=alt.Y("ratio:Q", scale=alt.Scale(type="log")),
            color="advantage:N",
        )
    )
    return alt.vconcat(alt.hconcat(ratios, bias).resolve_scale(color="independent"), tokens)


ANALYSIS = Analysis(
    "token weights on grad pi, and their bias, by region", "DGPO", WeightsOptions, measure, plot, headline
)
