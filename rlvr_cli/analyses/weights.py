"""`rlvr analyze weights`: weights of real tokens on grad log pi and grad pi, and their bias, by region and method.

With advantage A, a token's part of a method's gradient is F A grad log pi = W A grad pi, W = F / pi. The true policy
gradient has F = r. DGPO paper, arXiv:2603.14389: table 1 (regions), section 4.2 (W), appendix A.3 (bias); figure 4
shows W relative to 1 / pi_old, which is F / r.

The bias in a region X is ||grad J_method^X - grad J_PG^X|| (appendix A.3.2), here relative to ||grad J_PG^X||.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from rlvr_cli.analyses.base import AnalysisInput, Findings, Methods, Share, analysis, number_text
from rlvr_cli.analyses.gradients import gradient, norm
from rlvr_cli.analyses.method_step import REGIONS, ScoredTokens, apply_method, differs, quarters
from rlvr_cli.analyses.saved_rollout import SavedRollout, drawn_rows
from rlvr_cli.analyses.scoring import ScoredRun, load_policy, score_rollout
from rlvr_cli.charts.figure import COLOURS
from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Count, Section
from rlvr_cli.core.table import Table
from rlvr_cli.describe.named import replayed_configs
from rlvr_cli.describe.weights import effective_weight, far_slope, left_bias
from rlvr_cli.methods.base import Regions, Tokens, quantile, regions
from rlvr_cli.methods.method import Method

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CORNERS = ("LN", "HP", "LP", "HN")
READING = (
    "Upper left: where the tokens lie; the dashed lines are the bounds of the regions. Upper right and lower left: the "
    "weight on grad pi relative to 1 / pi_old, which is 1 for the true policy gradient; a dot is a token, a line the "
    "formula; the scale is linear up to 1 and logarithmic above. Where A < 0 and the ratio is low (LN), CISPO and GPPO "
    "rise without end as the token vanishes, GRPO and ASPO drop to 0, and DGPO falls steadily: the paper's figure "
    "4(b). Lower right: length of the method's gradient less the true one, relative to the true one, in each region; 1 "
    "is a region whose gradient is lost whole, more than 1 is worse than no gradient at all. The paper (table 2) has "
    "GRPO and ASPO highest in LN and HP, and CISPO and ASPO alone above 0 in LP and HN."
)
ALL = "all"
NormOf = Callable[[Tensor], float]
_BOUND: dict[str, Any] = {"color": "#7F7F7F", "linewidth": 0.8, "linestyle": (0, (4, 3)), "zorder": 0.9}
# An SVG with an element for every token would be larger than the rollout.
_DOTS: dict[str, Any] = {"linewidths": 0, "rasterized": True}
_POINTS = 400
# Most tokens drawn inside the bounds, and as many outside: there may be millions.
_MOST = 10_000


class WeightsOptions(Section):
    """Keys of `rlvr analyze weights`."""

    methods: Methods = Field(
        ("grpo", "cispo", "gppo", "ce-gppo", "aspo", "dgpo"), description="Methods whose weights are compared."
    )
    eps_low: Share = Field(0.2, description="Regions: a ratio below 1 - this is low.")
    eps_high: Annotated[float, Field(gt=0.0)] = Field(0.2, description="Regions: a ratio above 1 + this is high.")
    gradients: bool = Field(True, description="Measure the bias on gradients too, not on the coefficients alone.")
    rows: Count = Field(256, description="Completions in those gradients; of more, as many are drawn at random.")


@analysis("weights of real tokens on grad pi, and their bias, by region", paper="DGPO", options=WeightsOptions)
def weights(subject: AnalysisInput, options: WeightsOptions) -> Findings:
    """The weights of ``options.methods`` on the subject's rollout at its policy.

    Raises:
        UserError: an unknown method, or one that cannot be applied to a saved rollout; no such rollout or checkpoint.
    """
    configs = {config.name: config for config in replayed_configs(options.methods)}
    saved = subject.saved()

    length = saved.config.rollout.max_new_tokens
    methods = [config.bound(length) for config in configs.values()]
    # No weight has the KL term in it, and without one the model before training need not be run.
    plain = [method.model_copy(update={"kl": method.kl.replace(beta=0.0)}) for method in methods]
    run = score_rollout(saved, plain)
    weights = [
        method_weights(method, run.scored, eps_low=options.eps_low, eps_high=options.eps_high) for method in plain
    ]
    biases = _gradient_biases(saved, weights, options.rows) if options.gradients else [None] * len(methods)
    gamma = decay_of_ratios(weights[0].ratio[weights[0].region("LN")], 1 - options.eps_low)
    found = [
        MethodFound(
            method,
            of,
            tuple(by_region(of)),
            tuple(by_old_prob(of)),
            bias,
            _limits(method, of, gamma, 1 - options.eps_low),
        )
        for method, of, bias in zip(methods, weights, biases, strict=True)
    ]
    numbers = _numbers(run, found, gamma)
    return Findings(
        headline=_headline(numbers["summary"], run.place, found),
        numbers=numbers,
        tables=(region_table(found), limit_table(found)),
        reading=READING,
        draw=lambda: weights_figure(found, run.scored, options.eps_low, options.eps_high),
        notes=tuple(_notes(run, found, options)),
    )


def _gradient_biases(
    saved: SavedRollout, weights: Sequence[MethodWeights], most: int
) -> list[dict[str, float | None] | None]:
    policy = load_policy(saved, saved.current)
    chosen = drawn_rows(saved, most)

    def norm_of(coefficients: Tensor) -> float:
        kept = coefficients.new_zeros(coefficients.shape)
        kept[chosen] = coefficients[chosen]
        return norm(gradient(policy, saved.rows, kept))

    norms = Norms(norm_of)
    return [gradient_bias(of, norms) for of in weights]


def _limits(method: Method, weights: MethodWeights, gamma: float | None, lowest: float) -> dict[str, float | None]:
    old_prob = median_old_prob(weights, ["LN"])
    return {
        "slope_LN": far_slope(method, "LN"),
        "slope_HP": far_slope(method, "HP"),
        "bias_LN": None if gamma is None or old_prob is None else left_bias(method, gamma, lowest, old_prob),
    }


@dataclasses.dataclass(frozen=True)
class MethodFound:
    """What was found of one method: ``gradient`` is its bias by region, ``limits`` what the formulas say."""

    method: Method
    weights: MethodWeights
    regions: tuple[GroupWeights, ...]
    old_probs: tuple[GroupWeights, ...]
    gradient: dict[str, float | None] | None
    limits: dict[str, float | None]

    @property
    def key(self) -> str:
        """The name as part of a summary number's name."""
        return self.method.name.replace("-", "_").replace("+", "_")

    def bias(self, region: str) -> float | None:
        """On gradients where they were measured, else on coefficients."""
        if self.gradient is not None:
            return self.gradient[region]
        return next(group.bias for group in self.regions if group.name == region)


def _numbers(run: ScoredRun, found: Sequence[MethodFound], gamma: float | None) -> dict[str, Any]:
    """All that was computed; ``gamma`` is that of `decay_of_ratios`."""
    return {
        **run.numbers,
        "methods": {
            of.method.name: {
                "regions": {group.name: dataclasses.asdict(group) for group in of.regions},
                "old_probs": {group.name: dataclasses.asdict(group) for group in of.old_probs},
                "gradient_bias": of.gradient,
                "limits": of.limits,
            }
            for of in found
        },
        "summary": dict(_summary(run, found, gamma)),
    }


def _summary(
    run: ScoredRun, found: Sequence[MethodFound], gamma: float | None
) -> Iterator[tuple[str, float | int | None]]:
    first = found[0]
    counts = {group.name: group.tokens for group in first.regions}
    total = counts.pop(ALL)
    yield "tokens", int(run.scored.rollout.mask.sum())
    yield "tokens_with_advantage", total
    yield "updates_since", run.saved.current.step - run.saved.sampled_after
    for name, count in counts.items():
        yield f"tokens_{name}", count
        yield f"share_{name}", count / total if total else None
        yield f"old_prob_{name}", median_old_prob(first.weights, [name])
    yield "share_outside", sum(counts[name] for name in CORNERS) / total if total else None
    yield "old_prob_outside", median_old_prob(first.weights, CORNERS)
    yield "gamma_LN", gamma
    for of in found:
        for group in of.regions:
            suffix = of.key if group.name == ALL else f"{of.key}_{group.name}"
            if of.gradient is not None:
                yield f"bias_{suffix}", of.gradient[group.name]
            yield f"decoupled_bias_{suffix}", group.bias
        yield f"analytic_bias_{of.key}_LN", of.limits["bias_LN"]
        for name in ("LN", "HP"):
            group = next(group for group in of.regions if group.name == name)
            yield f"slope_{of.key}_{name}", of.limits[f"slope_{name}"]
            yield f"token_slope_{of.key}_{name}", group.slope
            yield f"largest_{of.key}_{name}", group.largest


def _headline(summary: Mapping[str, Any], where: str, found: Sequence[MethodFound]) -> str:
    """One sentence; ``where`` the tokens are from."""
    if not summary["tokens_with_advantage"]:
        return f"No token of {where} has an advantage, so no method has a weight."
    if not summary["share_outside"]:
        return f"No token of {where} left the regions' bounds: the methods' clips have nothing to act on."
    diverging = [of.method.name for of in found if (of.limits["slope_LN"] or 0) < 0]
    who = f"the weight on grad pi of {', '.join(diverging)} diverges" if diverging else "no weight on grad pi diverges"
    shares = ", ".join(f"{summary[f'share_{name}']:.2%} {name}" for name in CORNERS)
    return f"{who[0].upper()}{who[1:]} as a token with A < 0 vanishes. Tokens of {where}: {shares}."


def region_table(found: Sequence[MethodFound]) -> Table:
    """Weights and biases of each method; an empty region is left out."""
    rows = [
        (
            of.method.name if group is of.regions[0] else "",
            group.name,
            f"{group.tokens:,}",
            *(number_text(value, ".4g") for value in (group.on_log_prob, group.relative, group.largest, group.bias)),
            number_text(of.gradient[group.name] if of.gradient is not None else None, ".4g"),
        )
        for of in found
        for group in of.regions
        if group.tokens
    ]
    header = ("method", "region", "tokens", "mean F", "mean F/r", "largest F/r", "bias of F", "bias of gradient")
    return Table(
        "By region: weight on grad log pi (F), on grad pi relative to 1/pi_old (F/r), relative bias", header, rows
    )


def limit_table(found: Sequence[MethodFound]) -> Table:
    """What the formulas say of each method."""
    rows = [
        (
            of.method.name,
            *(_far(of.limits[f"slope_{name}"], of.method, name) for name in ("LN", "HP")),
            number_text(of.limits["bias_LN"], ".4g"),
        )
        for of in found
    ]
    header = ("method", "LN: W ~ r^", "HP: W ~ r^", "analytic bias in LN")
    return Table("From the formulas: exponent of the weight W on grad pi far out, and bias in LN", header, rows)


def _notes(run: ScoredRun, found: Sequence[MethodFound], options: WeightsOptions) -> Iterator[str]:
    """What weakens the numbers."""
    yield from run.notes
    saved, first = run.saved, found[0]
    counts = {group.name: group.tokens for group in first.regions}
    drift = (run.scored.log_probs - run.scored.old_log_probs)[first.weights.learned]
    if drift.numel() and not any(counts[name] for name in CORNERS):
        steps = saved.current.step - saved.sampled_after
        yield (
            f"No token left the bounds {1 - options.eps_low:g} to {1 + options.eps_high:g}: the ratio that is farthest "
            f"from 1 is {math.exp(float(drift[drift.abs().argmax()])):.3g}, {steps} updates after the sampling. Choose "
            "a later --step, an earlier --rollout, or a run with more updates per rollout "
            "(update.mini_batches)."
        )
    empty = [name for name in CORNERS if not counts[name]]
    if empty and len(empty) < len(CORNERS):
        yield f"No token in {', '.join(empty)}; there is no bias to measure there."
    if options.gradients and len(saved.rows) > options.rows:
        yield f"Bias of gradients: on {options.rows} of {len(saved.rows)} completions, drawn at random."
    several = [of.method.name for of in found if len(of.method.passes.names) > 1]
    if several:
        yield f"{' and '.join(several)}: the passes are added up at the current policy."
    penalised = [of.method.name for of in found if of.method.kl.beta > 0]
    if penalised:
        yield f"{' and '.join(penalised)}: the KL penalty is left out of weight and bias."


def _far(slope: float | None, method: Method, region: str) -> str:
    if slope is not None:
        return f"{slope:+.2f}".replace("-0.00", "+0.00")
    return "0 (cut)" if {"LN": -1, "HP": 1}[region] in method.advantage.signs else "-"


@dataclass(frozen=True)
class MethodWeights:
    """What one method makes of a rollout's tokens; all (N, T), 0 on padding and where the advantage is 0.

    Attributes:
        method: the name.
        learned: the tokens with an advantage; nothing else has a weight.
        ratio: r = pi / pi_old; 0 where no weight is.
        old_probs: probability under the policy that sampled.
        on_log_prob: F, with the factors of shaping: what multiplies A grad log pi.
        true: coefficient r A / Z of grad log pi in the true policy gradient, up to a factor common to all tokens.
        coefficients: F A / Z, up to the same factor; a KL term has no part in it.
        regions: by bounds that all methods share, and the signs of this method's advantages.
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
        """(N, T) the coefficients of the method's gradient less those of the true one: (F - r) A / Z."""
        return torch.where(differs(self.coefficients, self.true), self.coefficients - self.true, 0.0)

    def region(self, name: str) -> Tensor:
        """(N, T) the tokens of a region, or of ``ALL``, that have an advantage."""
        if name == ALL:
            return self.learned
        chosen: Tensor = getattr(self.regions, name)
        return chosen & self.learned


@dataclass(frozen=True)
class GroupWeights:
    """Some tokens of a method; each number is None where there is none.

    Attributes:
        tokens: how many with an advantage.
        on_log_prob: mean F.
        on_prob: mean W = F / pi.
        relative, largest: mean and largest F / r.
        slope: of log(F / r) over log r, by least squares over the tokens whose weight is not 0.
        bias: sum |F - r| |A| / Z over sum r |A| / Z: the bias relative to the true gradient of these tokens if all
            their grad log pi were of one length and none cancelled (the decoupling assumption of appendix A.3.4).
    """

    name: str
    tokens: int
    on_log_prob: float | None
    on_prob: float | None
    relative: float | None
    largest: float | None
    slope: float | None
    bias: float | None


def method_weights(method: Method, scored: ScoredTokens, *, eps_low: float, eps_high: float) -> MethodWeights:
    """The weights of ``method`` on a rollout that a later policy has scored.

    Args:
        eps_low, eps_high: bounds of the regions, 1 - eps_low and 1 + eps_high, whatever the method's own are.
    """
    applied = apply_method(method, scored)
    mask, advantages = scored.rollout.mask, applied.advantages
    tokens = Tokens(scored.log_probs, scored.old_log_probs, advantages, mask)
    learned = mask.bool() & (advantages != 0)
    ratio = torch.where(learned, tokens.ratio, 0.0)
    # What a step's normaliser counts is one number, which leaves every relation between tokens as it is.
    normaliser = method.aggregation.coefficients(mask, torch.ones((), dtype=torch.float64))
    return MethodWeights(
        method=method.name,
        learned=learned,
        ratio=ratio,
        old_probs=tokens.old_probs,
        # No weight is -0, which would be printed.
        on_log_prob=applied.weights + 0.0,
        true=ratio * advantages * normaliser,
        coefficients=applied.weights * advantages * normaliser,
        regions=regions(tokens, eps_low, eps_high),
    )


def by_region(weights: MethodWeights) -> Iterator[GroupWeights]:
    """All tokens, then each region."""
    for name in (ALL, *REGIONS):
        yield _group(name, weights.region(name), weights)


def by_old_prob(weights: MethodWeights) -> Iterator[GroupWeights]:
    """The tokens by quarters of the old probability."""
    for name, chosen in quarters(weights.old_probs):
        yield _group(name, chosen & weights.learned, weights)


def decay_of_ratios(ratios: Tensor, lowest: float) -> float | None:
    """gamma of the density k r^gamma on (0, lowest) that makes ``ratios`` most likely; None without a ratio in there.

    The density is that of appendix A.3.4; the estimate is gamma + 1 = n / sum log(lowest / r).
    """
    inside = ratios[(ratios > 0) & (ratios < lowest)]
    total = float((lowest / inside).log().sum())
    return inside.numel() / total - 1 if total > 0 else None


def median_old_prob(weights: MethodWeights, names: Sequence[str]) -> float | None:
    """Median old probability of the tokens in the regions ``names``; None where there are none."""
    chosen = torch.stack([weights.region(name) for name in names]).any(dim=0)
    return float(quantile(weights.old_probs[chosen], 0.5)) if bool(chosen.any()) else None


def _group(name: str, chosen: Tensor, weights: MethodWeights) -> GroupWeights:
    count = int(chosen.sum())
    if not count:
        return GroupWeights(name, 0, None, None, None, None, None, None)
    ratio, old = weights.ratio[chosen], weights.old_probs[chosen]
    on_log_prob, relative = weights.on_log_prob[chosen], weights.relative[chosen]
    true = float(weights.true[chosen].abs().sum())
    return GroupWeights(
        name=name,
        tokens=count,
        on_log_prob=float(on_log_prob.mean()),
        on_prob=float((on_log_prob / (ratio * old)).mean()),
        relative=float(relative.mean()),
        largest=float(relative.max()),
        slope=_slope(ratio, relative),
        bias=float(weights.difference[chosen].abs().sum()) / true if true else None,
    )


def _slope(ratio: Tensor, relative: Tensor) -> float | None:
    weighted = relative > 0
    x, y = ratio[weighted].log(), relative[weighted].log()
    if x.numel() < 2:
        return None
    x, y = x - x.mean(), y - y.mean()
    spread = float(x @ x)
    return float(x @ y) / spread if spread > 0 else None


def gradient_bias(weights: MethodWeights, norm_of: NormOf) -> dict[str, float | None]:
    """Bias over all tokens and in each region, relative to the true gradient there; None where that is 0.

    Args:
        norm_of: the norm of sum c grad log pi for (N, T) coefficients c, as :class:`Norms`.
    """
    return dict(_biases(weights, norm_of))


class Norms:
    """Norms by coefficients: ``norm_of`` is asked once for each set of them up to its sign, and never for zeros."""

    def __init__(self, norm_of: NormOf) -> None:
        self._norm_of = norm_of
        self._known: list[tuple[Tensor, float]] = []

    def __call__(self, coefficients: Tensor) -> float:
        if not bool(coefficients.any()):
            return 0.0
        for known, value in self._known:
            if torch.equal(known, coefficients) or torch.equal(known, -coefficients):
                return value
        value = self._norm_of(coefficients)
        self._known.append((coefficients, value))
        return value


def _biases(weights: MethodWeights, norm_of: NormOf) -> Iterable[tuple[str, float | None]]:
    for name in (ALL, *REGIONS):
        chosen = weights.region(name)
        true = norm_of(torch.where(chosen, weights.true, 0.0))
        yield name, norm_of(torch.where(chosen, weights.difference, 0.0)) / true if true else None


def weights_figure(found: Sequence[MethodFound], scored: ScoredTokens, eps_low: float, eps_high: float) -> Figure:
    """Four panels. Must be called inside ``charts.figure.style()``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 7.4), layout="constrained")
    (tokens, negative), (positive, bias) = figure.subplots(2, 2)
    bounds = (1 - eps_low, 1 + eps_high)
    span = _span(scored, bounds)
    shown = _thinned(found[0])
    _draw_tokens(tokens, found[0], shown, bounds)
    _draw_weights(negative, found, shown, -1, span, bounds)
    _draw_weights(positive, found, shown, 1, span, bounds)
    _draw_bias(bias, found)
    handles, labels = bias.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 8))
    return figure


def _span(scored: ScoredTokens, bounds: tuple[float, float]) -> tuple[float, float]:
    """Ratios to draw: those of the tokens, and both bounds with some room."""
    valid = scored.rollout.mask.bool()
    ratios = (scored.log_probs - scored.old_log_probs)[valid].exp()
    low, high = (float(ratios.min()), float(ratios.max())) if ratios.numel() else bounds
    return min(low, bounds[0] / 1.5) / 1.05, max(high, bounds[1] * 1.5) * 1.05


def _thinned(first: MethodFound) -> Tensor:
    """(N, T) the tokens to draw."""
    inside = first.weights.region("M")
    shown = torch.zeros_like(inside)
    for chosen in (inside, first.weights.learned & ~inside):
        places = chosen.nonzero()
        kept = places[:: max(1, math.ceil(len(places) / _MOST))]
        shown[kept[:, 0], kept[:, 1]] = True
    return shown


def _draw_tokens(axes: Any, first: MethodFound, shown: Tensor, bounds: tuple[float, float]) -> None:
    of = first.weights
    axes.set_title("tokens with an advantage")
    if not bool(of.learned.any()):
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color="#777777")
        return
    for sign, colour, name in ((1, COLOURS[7], "A > 0"), (-1, COLOURS[6], "A < 0")):
        chosen = shown & of.learned & ((of.true > 0) if sign > 0 else (of.true < 0))
        axes.scatter(of.old_probs[chosen], of.ratio[chosen], s=7, alpha=0.6, color=colour, label=name, **_DOTS)
    for bound in bounds:
        axes.axhline(bound, **_BOUND)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(r"old probability  $\pi_{\mathrm{old}}$")
    axes.set_ylabel(r"ratio  $r = \pi\,/\,\pi_{\mathrm{old}}$")
    axes.legend(loc="upper left", markerscale=2)


def _draw_weights(
    axes: Any,
    found: Sequence[MethodFound],
    shown: Tensor,
    sign: int,
    span: tuple[float, float],
    bounds: tuple[float, float],
) -> None:
    grid = torch.logspace(math.log10(span[0]), math.log10(span[1]), _POINTS, dtype=torch.float64)
    for place, of in enumerate(found):
        weights, colour = of.weights, COLOURS[place]
        if sign in of.method.advantage.signs:
            # So unlikely a token that its probability stays below 1 at every ratio drawn.
            line = effective_weight(of.method, grid, min(0.1, 0.9 / span[1]), sign)[0] / grid
            # Earlier lines are wider: where several coincide, each still shows at the edges of the next.
            width = 1.2 + 3.0 * (len(found) - 1 - place) / max(len(found) - 1, 1)
            axes.plot(grid, line, color=colour, linewidth=width, alpha=0.55, zorder=2 + place / 100)
        chosen = shown & weights.learned & ((weights.true > 0) if sign > 0 else (weights.true < 0))
        axes.scatter(
            weights.ratio[chosen], weights.relative[chosen], s=9, color=colour, zorder=3 + place / 100, **_DOTS
        )
    for bound in bounds:
        axes.axvline(bound, **_BOUND)
    axes.set_xscale("log")
    axes.set_xlim(*span)
    _linear_to_1(axes)
    axes.set_xlabel(r"ratio  $r = \pi\,/\,\pi_{\mathrm{old}}$")
    axes.set_ylabel(r"weight on $\nabla\pi$ times $\pi_{\mathrm{old}}$  $= F / r$")
    axes.set_title(f"A {'<' if sign < 0 else '>'} 0")


def _draw_bias(axes: Any, found: Sequence[MethodFound]) -> None:
    width = 0.8 / len(found)
    for place, of in enumerate(found):
        at = [column - 0.4 + (place + 0.5) * width for column in range(len(REGIONS))]
        values = [of.bias(name) for name in REGIONS]
        heights = [0.0 if value is None else value for value in values]
        axes.bar(at, heights, width, color=COLOURS[place], label=of.method.name)
        # A bar of height 0 is a finding; where no token lies there is none.
        for x, value in zip(at, values, strict=True):
            if value is not None:
                axes.plot([x - width / 2, x + width / 2], [value, value], color=COLOURS[place], linewidth=1.5)
    for column, name in enumerate(REGIONS):
        if all(of.bias(name) is None for of in found):
            axes.text(column, 0.02, "no\ntokens", ha="center", va="bottom", color="#777777", fontsize=8)
    axes.set_xticks(range(len(REGIONS)), REGIONS)
    axes.grid(axis="x", visible=False)
    _linear_to_1(axes)
    axes.set_ylabel("relative to the true gradient there")
    measured = "gradients" if found[0].gradient is not None else "coefficients"
    axes.set_title(f"bias to the true policy gradient ({measured})")


def _linear_to_1(axes: Any) -> None:
    """Both are to be seen: what lies between 0 and 1, and how far up a divergence goes."""
    top = max(axes.get_ylim()[1], 1.5)
    decades = int(math.log10(top))
    # The linear part keeps a third of the height.
    axes.set_yscale("symlog", linthresh=1.0, linscale=max(1.0, decades / 2))
    powers = range(1, decades + 1, max(1, math.ceil(decades / 5)))
    ticks = {0.0: "0", 0.25: "0.25", 0.5: "0.5", 0.75: "0.75", 1.0: "1"}
    if decades < 2:
        ticks |= {2.0: "2", 5.0: "5"}
    ticks |= {10.0**power: "10" if power == 1 else f"$10^{{{power}}}$" for power in powers}
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()
    axes.set_ylim(-0.05, top)
