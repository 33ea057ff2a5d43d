"""`rlvr analyze ratio`: spread of the importance ratio, clipped tokens, and whose gradient is large (ACPO).

"What are key factors for updates in RL for LLM reasoning?" (ACPO), figure 2, lemma 1, proposition 1, remark 1 and
appendix C. Probabilities and entropies are those of the policy that sampled, but for the factor 1 - pi of a gradient,
which is the current policy's.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from rlvr_cli.analyses.base import AnalysisInput, Findings, analysis, mean_of, minus, number_text, over, rising
from rlvr_cli.analyses.expected_gradient import expected_gradient, lemma_spread, log_ratio, reversal_kappas
from rlvr_cli.analyses.method_step import MethodStep
from rlvr_cli.analyses.replay import Replay, ReplayedUpdates
from rlvr_cli.analyses.saved_rollout import SavedRollout
from rlvr_cli.analyses.scoring import LoadedPolicy, load_policy, score_rollout
from rlvr_cli.charts.figure import COLOURS
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Count, FromList, Section
from rlvr_cli.core.table import Table
from rlvr_cli.methods.base import quantile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

READING = (
    "Above, from the left: the ratio by probability after the last update (box: half of the tokens, whiskers: 98%); "
    "its standard deviation against 1 - p after each number of updates, with the slope 2 of ACPO's lemma 1 dotted; the "
    "tokens in the plane of probability and entropy between the theoretical bounds, clipped ones crossed: the paper "
    "has them where both are low. Below: mean |G|, G = (1 - p) F A, by probability, measured (solid) and by "
    "proposition 1 (dashed); the share of clipped tokens by probability; and the log ratio of mean |G| of low and high "
    "tokens over the updates, also with signs: above 0 low-probability tokens dominate, and the paper has it fall "
    "below."
)
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
# A clipped token's entropy is compared with that of so many others on either side of it in probability.
NEIGHBOURS = 5


class RatioOptions(Section):
    """Keys of `rlvr analyze ratio`."""

    updates: Annotated[tuple[Count, ...], FromList, Field(min_length=1, max_length=16), AfterValidator(rising)] = Field(
        (1, 2, 4, 8, 16), description="Updates on the rollout after which the ratios are looked at."
    )
    split: Count | None = Field(
        None, description="Parts that the rollout is split into, one for each update; null = as many as in the run."
    )
    optimizer: Literal["adamw", "sgd"] = Field(
        "adamw", description="adamw: as the run's, with its state at that point where it was kept; or plain sgd."
    )
    lr: Annotated[float, Field(gt=0.0, le=1e6)] | None = Field(
        None, description="Learning rate; null = the run's at that point. With sgd it must be given."
    )
    bins: Annotated[int, Field(ge=2, le=100)] = Field(
        5, description="Bins of old probability of one width; the first are the low tokens, the last the high ones."
    )
    groups: Annotated[int, Field(ge=3, le=200)] = Field(
        20, description="Groups of as many tokens each, by 1 - p, to which the exponent of the spread is fitted."
    )
    dtype: Literal["float32", "float64"] | None = Field(
        None, description="Of the weights; null = float64 on a CPU, float32 on a GPU."
    )


@analysis(
    "spread of the importance ratio, what is clipped, and who dominates the gradient",
    paper="ACPO",
    options=RatioOptions,
)
def ratio(subject: AnalysisInput, options: RatioOptions) -> Findings:
    """Make the run's updates on a saved rollout again, and measure the ratios after some of them.

    Raises:
        UserError: no rollout or policy, a method whose updates cannot be made again, or nothing to learn from.
    """
    saved = subject.saved()
    config = load_config([saved.run.config_path]).method.policy
    if config is None:
        raise UserError(f"{saved.run.path}: {saved.config.method.name} has no importance ratio.")
    how = _replay(saved, options)
    method = config.bound(saved.config.rollout.max_new_tokens)
    dtype = getattr(torch, options.dtype or ("float32" if torch.cuda.is_available() else "float64"))
    policy = load_policy(saved, saved.old, dtype=dtype)
    run = score_rollout(saved, [method], policy)
    kept = MethodStep.of(method, run.scored)
    tokens = dataclasses.replace(
        kept.tokens, log_probs=run.scored.old_log_probs, entropies=run.scored.rollout.entropies
    )
    start = dataclasses.replace(kept, tokens=tokens)
    if not bool((start.tokens.mask.bool() & (start.tokens.advantages != 0)).any()):
        raise UserError(
            f"{saved.run.path}: no token of rollout {saved.number} has an advantage: all completions of each problem "
            "have the same reward. Choose another --rollout."
        )
    replay = ReplayedUpdates(policy, saved, start, how)
    entropies = run.scored.rollout.entropies
    assert entropies is not None
    before = measure_updates(0, start, entropies, bins=options.bins, groups=options.groups)
    after, last = _follow(policy, replay, start, options)
    at_checkpoint = measure_updates(
        saved.current.step - saved.sampled_after, kept, entropies, bins=options.bins, groups=options.groups
    )
    kappas = _analytic(start, options.bins)
    numbers: dict[str, Any] = {
        "summary": _summary(before, after, kappas),
        "rollout": saved.number,
        "policy": saved.old.step,
        "method": method.name,
        "split": how.split,
        "kept_optimizer_state": replay.has_state,
        "sampling_gap": run.sampling_gap,
        "before": dataclasses.asdict(before),
        "updates": [dataclasses.asdict(of) for of in after],
        "checkpoint": {"step": saved.current.step, **dataclasses.asdict(at_checkpoint)},
    }
    vocabulary = int(policy.model.config.vocab_size)
    return Findings(
        headline=_headline(after, numbers["summary"]),
        numbers=numbers,
        tables=_tables(before, after),
        reading=READING,
        draw=functools.partial(ratio_figure, before, after, last, vocabulary),
        notes=(*run.notes, *_notes(saved, how, replay)),
    )


def _replay(saved: SavedRollout, options: RatioOptions) -> Replay:
    split = options.split or saved.config.update.mini_batches
    problems = []
    if options.optimizer == "sgd" and options.lr is None:
        problems.append("optimizer=sgd: needs lr; the run's own rate is AdamW's, whose steps are of another size.")
    if split > len(saved.rows):
        problems.append(f"split={split}: rollout {saved.number} has {len(saved.rows)} completions.")
    if problems:
        raise UserError(problems)
    return Replay(options.optimizer, options.lr, split)


def _follow(
    policy: LoadedPolicy, replay: ReplayedUpdates, start: MethodStep, options: RatioOptions
) -> tuple[list[Ratios], Plane]:
    """The ratios after each of ``options.updates``, and the plane after the last."""
    entropies = start.tokens.entropies
    assert entropies is not None
    after = []
    for made in replay:
        if made not in options.updates:
            continue
        now = start.at(*policy.score(replay.saved.rows))
        after.append(measure_updates(made, now, entropies, bins=options.bins, groups=options.groups))
        if made == options.updates[-1]:
            return after, plane(now, entropies)
    raise AssertionError("the updates never end")


def _analytic(start: MethodStep, bins: int) -> tuple[float | None, float | None]:
    """The first kappa at which proposition 1 reverses, signed and of magnitudes; None where it never does."""
    low, high = (float(torch.as_tensor(of, dtype=torch.float64).mean()) for of in start.bounds())
    if not (math.isfinite(low) and math.isfinite(high)):
        return None, None
    signed, magnitude = reversal_kappas(low, high, p_low=1 / bins, p_high=1 - 1 / bins)
    return (signed[0] if signed else None), (magnitude[0] if magnitude else None)


def _summary(
    before: Ratios, after: list[Ratios], kappas: tuple[float | None, float | None]
) -> dict[str, float | int | None]:
    """The scalars by which runs are compared."""
    first, last = after[0], after[-1]
    low, high = last.bins[0], last.bins[-1]
    clipped = last.clipped
    dominances = {of.updates: _dominance(of, "magnitude") for of in after}
    reversed_at = (updates for updates, value in dominances.items() if value is not None and value < 0)
    spread_all = [_pooled(of) for of in (first, last)]
    return {
        "spread_low": low.spread,
        "spread_high": high.spread,
        "spread_low_over_high": over(low.spread, high.spread),
        "spread_low_over_high_first": over(first.bins[0].spread, first.bins[-1].spread),
        "spread_exponent": first.exponent.exponent,
        "spread_exponent_fit": first.exponent.fit,
        "spread_exponent_last": last.exponent.exponent,
        "spread_growth": over(spread_all[1], spread_all[0]),
        "kappa_first": first.kappa,
        "kappa_last": last.kappa,
        "dominance_on_policy": _dominance(before, "magnitude"),
        "dominance_first": dominances[first.updates],
        "dominance_last": dominances[last.updates],
        "dominance_change": minus(dominances[last.updates], dominances[first.updates]),
        "dominance_signed_first": _dominance(first, "signed"),
        "dominance_signed_last": _dominance(last, "signed"),
        "reversal_at": next(reversed_at, None),
        "reversal_kappa_signed": kappas[0],
        "reversal_kappa_magnitude": kappas[1],
        "clipped_share": clipped.share,
        "clipped_low_share": clipped.low_share,
        "clipped_low_excess": minus(clipped.low_share, clipped.low_share_of_all),
        "clipped_entropy_difference": clipped.entropy_difference,
        "clipped_entropy_difference_plain": minus(clipped.entropy, clipped.entropy_of_others),
    }


def _headline(after: list[Ratios], numbers: dict[str, Any]) -> str:
    """One sentence."""
    first, last = after[0], after[-1]
    times, reversal = numbers["spread_low_over_high"], numbers["reversal_at"]
    low, high = f"tokens below p {last.bins[0].high:.2g}", f"tokens above {last.bins[-1].low:.2g}"
    if times is None or all(_dominance(of, "magnitude") is None for of in after):
        return f"After {last.updates} updates on the rollout, {low} and {high} cannot be compared."
    dominance = (
        "low-probability tokens have the larger gradients throughout"
        if reversal is None
        else f"high-probability tokens have the larger gradients from {reversal} on"
    )
    return (
        f"After {last.updates} updates on the rollout the ratio of {low} spreads {times:.3g} times as far as that of "
        f"{high}; over {first.updates} to {last.updates} updates, {dominance}."
    )


def _tables(before: Ratios, after: list[Ratios]) -> tuple[Table, ...]:
    """By probability after the last update, and over the updates."""
    last = after[-1]
    bins = [
        (
            f"p {of.low:.2g} to {of.high:.2g}",
            f"{of.tokens:,}",
            number_text(of.mean, ".4f"),
            number_text(of.spread, ".3g"),
            number_text(of.clipped, ".2%"),
            number_text(of.magnitude, ".3g"),
            number_text(of.expected_magnitude, ".3g"),
            number_text(of.signed, ".3g"),
            number_text(of.expected_signed, ".3g"),
        )
        for of in last.bins
    ]
    header = ("", "tokens", "mean r", "std r", "clipped", "E|G|", "by prop. 1", "|E G|", "by prop. 1")
    updates = [
        (
            str(of.updates),
            f"{of.kappa:.3g}",
            number_text(of.bins[0].spread, ".3g"),
            number_text(of.bins[-1].spread, ".3g"),
            number_text(of.exponent.exponent, ".2f"),
            number_text(of.exponent.fit, ".2f"),
            number_text(of.clipped.share, ".2%"),
            number_text(_dominance(of, "magnitude"), "+.2f"),
            number_text(_dominance(of, "signed"), "+.2f"),
        )
        for of in (before, *after)
    ]
    over = ("updates", "kappa", "std low", "std high", "exponent", "R2", "clipped", "dominance", "signed")
    return (
        Table(f"By old probability, after {last.updates} updates", header, bins),
        Table("By updates since the rollout (dominance: log ratio of low and high)", over, updates),
    )


def _notes(saved: SavedRollout, how: Replay, replay: ReplayedUpdates) -> tuple[str, ...]:
    lines = []
    if how.optimizer == "adamw" and saved.old.step and not replay.has_state:
        lines.append(
            f"There is no matching AdamW state at step {saved.old.step}: it starts from zero, so its first steps are "
            "larger than the run's."
        )
    if saved.config.rollout.largest_weight is not None:
        lines.append("The run's weights for another sampler (rollout.tis_cap) are left out.")
    return tuple(lines)


def _dominance(of: Ratios, which: str) -> float | None:
    """log of mean |G| (or |mean G|) of the lowest bin over that of the highest."""
    return log_ratio(getattr(of.bins[0], which), getattr(of.bins[-1], which))


def _pooled(of: Ratios) -> float | None:
    """Standard deviation of the ratio over all tokens."""
    known = [(part.tokens, part.mean, part.spread) for part in of.bins if part.mean is not None]
    total = sum(count for count, _, _ in known)
    if not total:
        return None
    mean = sum(count * middle for count, middle, _ in known) / total
    return math.sqrt(
        sum(count * ((spread or 0.0) ** 2 + (middle - mean) ** 2) for count, middle, spread in known) / total
    )


@dataclass(frozen=True)
class Bin:
    """Tokens whose old probability is in [low, high); None where there are none, or none with an advantage.

    Attributes:
        spread: standard deviation of the ratio. mean: of the ratio. quantiles: of the ratio, at ``QUANTILES``.
        clipped: share of the tokens with an advantage that are clipped.
        magnitude: mean |G|, G = (1 - pi) F A. signed: |mean G|.
        expected_magnitude, expected_signed: the same by proposition 1, with the kappa of the whole rollout.
    """

    low: float
    high: float
    tokens: int
    spread: float | None
    mean: float | None
    quantiles: tuple[float, ...] | None
    clipped: float | None
    magnitude: float | None
    signed: float | None
    expected_magnitude: float | None
    expected_signed: float | None


@dataclass(frozen=True)
class Exponent:
    """log spread = exponent * log(1 - pi) + constant, by least squares over groups of as many tokens.

    Attributes:
        rest, spread: of each group: mean of 1 - pi, standard deviation of the ratio.
        exponent, fit: slope and R^2; None where fewer than three groups have a spread.
    """

    rest: tuple[float, ...]
    spread: tuple[float, ...]
    exponent: float | None
    fit: float | None


@dataclass(frozen=True)
class Clipped:
    """The clipped tokens (regions LN and HP) among those with an advantage; None where there are none of either.

    Attributes:
        tokens, share: how many are clipped, and of how many.
        low_share, low_share_of_all: how many of the clipped, and of all, are in the first bin.
        entropy, entropy_of_others: mean entropy, nats.
        entropy_difference: mean over the clipped tokens of their entropy minus that of the others next to them in
            probability, ``NEIGHBOURS`` on either side.
    """

    tokens: int
    share: float | None
    low_share: float | None
    low_share_of_all: float | None
    entropy: float | None
    entropy_of_others: float | None
    entropy_difference: float | None


@dataclass(frozen=True)
class Ratios:
    """The ratios after some updates; ``kappa`` fits lemma 1: kappa^2 = mean (r - 1)^2 / mean (1 - pi)^4."""

    updates: int
    bins: tuple[Bin, ...]
    exponent: Exponent
    clipped: Clipped
    kappa: float


@dataclass(frozen=True)
class Plane:
    """Tokens with an advantage in the plane of probability and entropy (nats), and which are clipped."""

    probabilities: tuple[float, ...]
    entropies: tuple[float, ...]
    clipped: tuple[bool, ...]


def measure_updates(updates: int, now: MethodStep, old_entropies: Tensor, *, bins: int, groups: int) -> Ratios:
    """The ratios of a rollout's tokens after ``updates``.

    Args:
        now: the rollout at the current policy. old_entropies: (N, T) of the policy that sampled, nats.
        bins: of one width. groups: of as many tokens each, for the exponent.
    """
    tokens, valid = now.tokens, now.tokens.mask.bool()
    distance = torch.expm1(tokens.log_probs - tokens.old_log_probs)
    # Rounding may leave a probability just above 1.
    rest = -torch.expm1(tokens.old_log_probs).clamp(max=0)
    learned, cut = valid & (tokens.advantages != 0), clipped_tokens(now)
    masks = bin_masks(tokens.old_probs, valid, bins)
    fourth = float(rest[valid].pow(4).mean())
    kappa = math.sqrt(float(distance[valid].square().mean()) / fourth) if fourth else 0.0
    gradients = -torch.expm1(tokens.log_probs) * now.full_values()
    expected = _expected(now, rest, kappa, learned)
    edges = [index / bins for index in range(bins + 1)]
    return Ratios(
        updates=updates,
        bins=tuple(
            _bin(low, high, mask, mask & learned, distance, cut, gradients, *expected)
            for (low, high), mask in zip(itertools.pairwise(edges), masks, strict=True)
        ),
        exponent=_exponent(distance[valid], rest[valid], groups),
        clipped=_clipped(cut, learned, old_entropies, tokens.old_probs, masks[0]),
        kappa=kappa,
    )


def plane(now: MethodStep, old_entropies: Tensor) -> Plane:
    """Where the clipped tokens lie (figure 2c)."""
    learned = now.tokens.mask.bool() & (now.tokens.advantages != 0)
    of = (now.tokens.old_probs, old_entropies, clipped_tokens(now))
    return Plane(*(tuple(values[learned].tolist()) for values in of))


def entropy_bounds(probabilities: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Least and largest entropy (nats) of a distribution over ``vocabulary`` tokens that gives one of them pi.

    H_min: the rest on a single token; H_max: the rest evenly on all others. ACPO, appendix C. Probabilities inside
    (0, 1).
    """
    p, q = probabilities.double(), 1 - probabilities.double()
    least = -p * p.log() - q * q.log()
    return least, least + q * math.log(vocabulary - 1)


def clipped_tokens(now: MethodStep) -> Tensor:
    """(N, T) the tokens whose gradient a hard clip at the method's bounds removes: regions LN and HP."""
    regions = now.regions()
    return regions.LN | regions.HP


def bin_masks(old_probs: Tensor, valid: Tensor, bins: int) -> list[Tensor]:
    """The tokens of each of ``bins`` bins of one width; rounding may leave a probability just above 1."""
    which = (old_probs * bins).long().clamp(max=bins - 1)
    return [valid & (which == index) for index in range(bins)]


def _expected(now: MethodStep, rest: Tensor, kappa: float, learned: Tensor) -> tuple[Tensor, Tensor]:
    advantages = now.tokens.advantages
    sigma = float(advantages[learned].square().mean().sqrt()) if bool(learned.any()) else 0.0
    eps_low, eps_high = now.bounds()
    found = expected_gradient(rest, lemma_spread(rest, kappa), eps_low, eps_high, sigma)
    return found.magnitude, found.signed


def _bin(
    low: float,
    high: float,
    mask: Tensor,
    learned: Tensor,
    distance: Tensor,
    cut: Tensor,
    gradients: Tensor,
    magnitude: Tensor,
    signed: Tensor,
) -> Bin:
    ratios, mean, expected = 1 + distance[mask], mean_of(gradients[learned]), mean_of(signed[learned])
    return Bin(
        low=low,
        high=high,
        tokens=len(ratios),
        spread=_spread(distance[mask]),
        mean=mean_of(ratios),
        quantiles=tuple(float(quantile(ratios, share)) for share in QUANTILES) if len(ratios) else None,
        clipped=mean_of(cut[learned]),
        magnitude=mean_of(gradients[learned].abs()),
        signed=None if mean is None else abs(mean),
        expected_magnitude=mean_of(magnitude[learned]),
        expected_signed=None if expected is None else abs(expected),
    )


def _spread(distance: Tensor) -> float | None:
    return float(distance.std(correction=0)) if distance.numel() else None


def _exponent(distance: Tensor, rest: Tensor, groups: int) -> Exponent:
    parts = torch.sort(rest, stable=True).indices.tensor_split(groups)
    points = [(float(rest[part].mean()), float(distance[part].std(correction=0))) for part in parts if len(part) > 1]
    # A group whose tokens all have probability 1 to the last digit has neither.
    points = [(x, y) for x, y in points if x > 0 and y > 0]
    logs = torch.tensor(points, dtype=torch.float64).reshape(-1, 2).log().T
    exponent = fit = None
    if len(points) >= 3:
        x, y = logs - logs.mean(dim=1, keepdim=True)
        if float(x @ x) and float(y @ y):
            exponent, fit = float(x @ y / (x @ x)), float((x @ y) ** 2 / ((x @ x) * (y @ y)))
    return Exponent(tuple(x for x, _ in points), tuple(y for _, y in points), exponent, fit)


def _clipped(cut: Tensor, learned: Tensor, entropies: Tensor, old_probs: Tensor, lowest: Tensor) -> Clipped:
    clipped, others = learned & cut, learned & ~cut
    return Clipped(
        tokens=int(clipped.sum()),
        share=mean_of(cut[learned]),
        low_share=mean_of(lowest[clipped]),
        low_share_of_all=mean_of(lowest[learned]),
        entropy=mean_of(entropies[clipped]),
        entropy_of_others=mean_of(entropies[others]),
        entropy_difference=_at_equal_probability(clipped, others, old_probs, entropies),
    )


def _at_equal_probability(clipped: Tensor, others: Tensor, old_probs: Tensor, values: Tensor) -> float | None:
    """Mean over the clipped of their value minus that of their neighbours; None where there are none of either.

    Neighbours and not bins: even in a narrow bin near 1 most others are much more certain than the clipped tokens.
    """
    if not bool(clipped.any()) or not bool(others.any()):
        return None
    probabilities, order = old_probs[others].sort()
    sums = torch.cat([torch.zeros(1, dtype=torch.float64), values[others][order].double().cumsum(dim=0)])
    place = torch.searchsorted(probabilities, old_probs[clipped])
    first, end = (place - NEIGHBOURS).clamp(min=0), (place + NEIGHBOURS).clamp(max=len(probabilities))
    nearby = (sums[end] - sums[first]) / (end - first)
    return float((values[clipped] - nearby).mean())


def ratio_figure(before: Ratios, after: Sequence[Ratios], where: Plane, vocabulary: int) -> Figure:
    """Six panels. Must be called inside ``charts.figure.style()``."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14.0, 7.6), layout="constrained")
    (boxes, spreads, clipped), (gradients, shares, dominance) = figure.subplots(2, 3)
    shades = [colormaps["viridis_r"](0.15 + 0.8 * index / max(len(after) - 1, 1)) for index in range(len(after))]
    names = [f"{of.low:.2g} to {of.high:.2g}" for of in after[-1].bins]
    _draw_boxes(boxes, after[-1], names)
    _draw_spreads(spreads, after, shades)
    _draw_plane(clipped, where, vocabulary, after[-1].updates)
    _draw_bins(gradients, after, shades, names)
    _draw_shares(shares, after, shades, names)
    _draw_dominance(dominance, before, after)
    return figure


def _draw_boxes(axes: Any, last: Ratios, names: list[str]) -> None:
    at = {share: index for index, share in enumerate(QUANTILES)}
    boxes = [
        {
            "med": of.quantiles[at[0.5]],
            "q1": of.quantiles[at[0.25]],
            "q3": of.quantiles[at[0.75]],
            "whislo": of.quantiles[at[0.01]],
            "whishi": of.quantiles[at[0.99]],
        }
        for of in last.bins
        if of.quantiles is not None
    ]
    places = [index for index, of in enumerate(last.bins) if of.quantiles is not None]
    axes.bxp(boxes, positions=places, showfliers=False, medianprops={"color": COLOURS[1]})
    axes.set_yscale("log")
    axes.set_xticks(range(len(names)), names)
    axes.set_xlabel(r"$\pi_{\mathrm{old}}$")
    axes.set_ylabel(r"ratio  $r = \pi\,/\,\pi_{\mathrm{old}}$")
    axes.set_title(f"the ratio after {last.updates} updates")


def _draw_spreads(axes: Any, after: Sequence[Ratios], shades: Sequence[Any]) -> None:
    for of, shade in zip(after, shades, strict=True):
        slope = "" if of.exponent.exponent is None else f" (slope {of.exponent.exponent:.2f})"
        axes.plot(
            of.exponent.rest, of.exponent.spread, marker="o", markersize=3, color=shade, label=f"{of.updates}{slope}"
        )
    last = after[-1].exponent
    if last.rest:
        start, end = min(last.rest), max(last.rest)
        top = max(last.spread)
        axes.plot([start, end], [top * (start / end) ** 2, top], ":", color="#7F7F7F")
        axes.set_ylim(min(min(of.exponent.spread, default=top) for of in after) / 2, 2 * top)
    # Without a point there is nothing that a logarithmic scale could show.
    if any(of.exponent.rest for of in after):
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlabel(r"$1 - \pi_{\mathrm{old}}$")
    axes.set_ylabel("standard deviation of the ratio")
    axes.set_title("spread, and lemma 1 (dotted)")
    axes.legend(title="updates")


def _draw_plane(axes: Any, where: Plane, vocabulary: int, updates: int) -> None:
    line = torch.linspace(0.002, 0.998, 300, dtype=torch.float64)
    for bound in entropy_bounds(line, vocabulary):
        axes.plot(line, bound, color="#7F7F7F", linewidth=0.9)
    probabilities, entropies = torch.tensor(where.probabilities), torch.tensor(where.entropies)
    cut = torch.tensor(where.clipped, dtype=torch.bool)
    look: dict[str, Any] = {"rasterized": True}
    axes.scatter(
        probabilities[~cut], entropies[~cut], s=6, alpha=0.4, linewidths=0, color=COLOURS[0], label="kept", **look
    )
    axes.scatter(
        probabilities[cut], entropies[cut], s=18, marker="x", linewidths=0.9, color=COLOURS[1], label="clipped", **look
    )
    axes.set_xlabel(r"$\pi_{\mathrm{old}}$")
    axes.set_ylabel("entropy (nats)")
    axes.set_title(f"clipped after {updates} updates")
    axes.legend()


def _draw_bins(axes: Any, after: Sequence[Ratios], shades: Sequence[Any], names: list[str]) -> None:
    for of, shade in zip(after, shades, strict=True):
        for which, look in (("magnitude", "-o"), ("expected_magnitude", "--")):
            known = [(index, getattr(part, which)) for index, part in enumerate(of.bins) if getattr(part, which)]
            label = str(of.updates) if which == "magnitude" else None
            axes.plot([x for x, _ in known], [y for _, y in known], look, markersize=3, color=shade, label=label)
    axes.set_yscale("log")
    axes.set_xticks(range(len(names)), names)
    axes.set_xlabel(r"$\pi_{\mathrm{old}}$")
    axes.set_ylabel(r"mean $|G|$")
    axes.set_title("gradient, measured and by proposition 1 (dashed)")
    axes.legend(title="updates")


def _draw_shares(axes: Any, after: Sequence[Ratios], shades: Sequence[Any], names: list[str]) -> None:
    width = 0.8 / len(after)
    for index, (of, shade) in enumerate(zip(after, shades, strict=True)):
        places = [place - 0.4 + (index + 0.5) * width for place in range(len(names))]
        axes.bar(places, [100 * (part.clipped or 0.0) for part in of.bins], 0.9 * width, color=shade, label=of.updates)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlabel(r"$\pi_{\mathrm{old}}$")
    axes.set_ylabel("of the tokens with an advantage (%)")
    axes.set_title("clipped tokens")
    axes.legend(title="updates")


def _draw_dominance(axes: Any, before: Ratios, after: Sequence[Ratios]) -> None:
    looks = {
        "magnitude": ("mean |G|", "-o", COLOURS[0]),
        "expected_magnitude": ("mean |G|, proposition 1", "--", COLOURS[0]),
        "signed": ("|mean G|", "-s", COLOURS[1]),
        "expected_signed": ("|mean G|, proposition 1", "--", COLOURS[1]),
    }
    highest = 0.0
    for which, (label, look, colour) in looks.items():
        values = [
            (of.updates, log_ratio(getattr(of.bins[0], which), getattr(of.bins[-1], which))) for of in (before, *after)
        ]
        known = [(updates, value) for updates, value in values if value is not None]
        axes.plot([x for x, _ in known], [y for _, y in known], look, markersize=4, color=colour, label=label)
        if which != "expected_signed":
            highest = max([highest, *(value for _, value in known)])
    # Where nothing is clipped, what is left of the signed expectation is nothing over still less.
    axes.set_ylim(top=2 * highest + 1)
    axes.axhline(0, color="#7F7F7F", linewidth=0.8)
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xticks([0, *(of.updates for of in after)], ["0", *(str(of.updates) for of in after)])
    axes.set_xlabel("updates since the rollout")
    axes.set_ylabel("log ratio, low over high")
    axes.set_title("who dominates")
    axes.legend()
