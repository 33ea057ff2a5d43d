"""`rlvr analyze ratio`: spread of the importance ratio, clipped tokens, and whose gradient is large (ACPO).

"What are key factors for updates in RL for LLM reasoning?" (ACPO), figure 2, lemma 1, proposition 1, remark 1 and
appendix C. Probabilities and entropies are those of the policy that sampled, but for the factor 1 - pi of a gradient,
which is the current policy's.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from rlvr_cli.analyses.base import (
    Analysis,
    AnalysisInput,
    Frames,
    frames_of,
    mean_of,
    minus,
    over,
    records,
    rising,
    summary_of,
)
from rlvr_cli.analyses.expected_gradient import expected_gradient, lemma_spread, log_ratio, reversal_kappas
from rlvr_cli.analyses.method_step import MethodStep, thinned
from rlvr_cli.analyses.replay import Replay, ReplayedUpdates
from rlvr_cli.analyses.saved_rollout import SavedRollout
from rlvr_cli.analyses.scoring import LoadedPolicy, load_policy, score_rollout
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Count, FromList, Section
from rlvr_cli.methods.base import quantile

if TYPE_CHECKING:
    import altair as alt

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


def measure(inputs: AnalysisInput, options: RatioOptions) -> Frames:
    """Make the run's updates on a saved rollout again, and measure the ratios after some of them.

    Raises:
        UserError: no rollout or policy, a method whose updates cannot be made again, or nothing to learn from.
    """
    saved = inputs.saved()
    config = load_config([saved.run.config_path]).method.policy
    if config is None:
        raise UserError(f"{saved.run.path}: {saved.config.method.name} has no importance ratio.")
    how = _replay(saved, options)
    method = config.bound(saved.config.rollout.max_new_tokens)
    dtype = getattr(torch, options.dtype or ("float32" if torch.cuda.is_available() else "float64"))
    policy = load_policy(saved, saved.old, dtype=dtype)
    run = score_rollout(saved, [method], policy)
    kept = MethodStep.of(method, run.scored)
    entropies = run.scored.rollout.entropies
    assert entropies is not None
    start = kept.at(run.scored.old_log_probs, entropies)
    if not bool((start.tokens.mask.bool() & (start.tokens.advantages != 0)).any()):
        raise UserError(
            f"{saved.run.path}: no token of rollout {saved.number} has an advantage: all completions of each problem "
            "have the same reward. Choose another --rollout."
        )
    replay = ReplayedUpdates(policy, saved, start, how)
    before = measure_updates(0, start, entropies, bins=options.bins, groups=options.groups)
    after, last = _follow(policy, replay, start, options)
    updates = saved.current.step - saved.sampled_after
    at_checkpoint = measure_updates(updates, kept, entropies, bins=options.bins, groups=options.groups)
    context = {
        "rollout": saved.number,
        "policy": saved.old.step,
        "method": method.name,
        "split": how.split,
        "kept_optimizer_state": replay.has_state,
        "sampling_gap": run.sampling_gap,
        "checkpoint": saved.current.step,
    }
    return ratio_frames(
        {**_summary(before, after, _analytic(start, options.bins)), **context},
        [("replayed", of) for of in (before, *after)] + [("checkpoint", at_checkpoint)],
        last,
        policy.model.config.vocab_size,
        (*run.notes, *_notes(saved, how, replay)),
    )


def ratio_frames(
    summary: Mapping[str, Any],
    every: Sequence[tuple[str, Ratios]],
    tokens: Sequence[tuple[float, float, bool]],
    vocabulary: int,
    notes: Sequence[str] = (),
) -> Frames:
    """Return the frames of the ratios after some updates, each with the policy that made them."""
    line = torch.linspace(0.005, 0.995, 100, dtype=torch.float64)
    bounds = (line, *entropy_bounds(line, vocabulary))
    return frames_of(
        summary,
        notes,
        updates=[{"policy": policy, **_update_row(of)} for policy, of in every],
        bins=[{"policy": policy, "updates": of.updates, **row} for policy, of in every for row in _bin_rows(of)],
        spreads=[
            {"policy": policy, "updates": of.updates, "rest": rest, "spread": spread}
            for policy, of in every
            for rest, spread in zip(of.exponent.rest, of.exponent.spread, strict=True)
        ],
        tokens=[dict(zip(("old_prob", "entropy", "clipped"), token, strict=True)) for token in tokens],
        bounds=[
            {"old_prob": probability, "least": least, "most": most}
            for probability, least, most in zip(*(values.tolist() for values in bounds), strict=True)
        ],
    )


def _update_row(of: Ratios) -> dict[str, Any]:
    sides = {
        which: log_ratio(getattr(of.bins[0], which), getattr(of.bins[-1], which))
        for which in ("magnitude", "signed", "expected_magnitude", "expected_signed")
    }
    return {
        "updates": of.updates,
        "kappa": of.kappa,
        "exponent": of.exponent.exponent,
        "fit": of.exponent.fit,
        **{f"clipped_{name}": value for name, value in dataclasses.asdict(of.clipped).items()},
        **{f"dominance_{which}": value for which, value in sides.items()},
    }


def _bin_rows(of: Ratios) -> Iterator[dict[str, Any]]:
    for part in of.bins:
        row: Mapping[str, Any] = dataclasses.asdict(part)
        quantiles = zip(QUANTILES, row["quantiles"] or (), strict=False)
        yield {
            "bin": f"{part.low:.2g} to {part.high:.2g}",
            **{name: value for name, value in row.items() if name != "quantiles"},
            **{f"q{100 * share:.0f}": value for share, value in quantiles},
        }


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
) -> tuple[list[Ratios], list[tuple[float, float, bool]]]:
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


def headline(frames: Frames) -> str:
    """Give the spread of low tokens relative to high ones, and when the dominance changes sides."""
    numbers = summary_of(frames)
    updates = [row for row in records(frames["updates"]) if row["policy"] == "replayed" and row["updates"]]
    bins = records(frames["bins"])
    first, last = updates[0]["updates"], updates[-1]["updates"]
    low, high = f"tokens below p {bins[0]['high']:.2g}", f"tokens above {bins[-1]['low']:.2g}"
    times, reversal = numbers["spread_low_over_high"], numbers["reversal_at"]
    if times is None or all(row["dominance_magnitude"] is None for row in updates):
        return f"After {last} updates on the rollout, {low} and {high} cannot be compared."
    dominance = (
        "low-probability tokens have the larger gradients throughout"
        if reversal is None
        else f"high-probability tokens have the larger gradients from {int(reversal)} on"
    )
    return (
        f"After {last} updates on the rollout the ratio of {low} spreads {times:.3g} times as far as that of {high}; "
        f"over {first} to {last} updates, {dominance}."
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


def plane(now: MethodStep, old_entropies: Tensor) -> list[tuple[float, float, bool]]:
    """Return probability, entropy (nats) and whether it is clipped of the tokens to draw (figure 2c)."""
    learned, cut = now.tokens.mask.bool() & (now.tokens.advantages != 0), clipped_tokens(now)
    shown = thinned(learned & cut) | thinned(learned & ~cut)
    columns = (now.tokens.old_probs, old_entropies, cut)
    return list(zip(*(values[shown].tolist() for values in columns), strict=True))


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


def plot(frames: Frames) -> alt.TopLevelMixin:
    """Draw the ratio's spread, the clipped tokens, the gradients by probability, and who dominates."""
    import altair as alt

    def replayed(name: str) -> alt.Chart:
        rows = frames[name]
        return alt.Chart(rows if rows.empty else rows.query("policy == 'replayed' and updates > 0"))

    logarithmic, updates = alt.Scale(type="log"), alt.Color("updates:O")
    spreads = (
        replayed("spreads")
        .mark_line(point=True)
        .encode(
            x=alt.X("rest:Q", title="1 - p", scale=logarithmic),
            y=alt.Y("spread:Q", title="standard deviation of the ratio", scale=logarithmic),
            color=updates,
        )
    )
    made = frames["updates"]
    replayed_last = made.loc[made["policy"] == "replayed", "updates"].max()
    by_bin = replayed("bins").transform_filter(f"datum.updates == {replayed_last}")
    inner = by_bin.mark_bar(size=12).encode(x=alt.X("bin:N", sort=None), y=alt.Y("q25:Q", title="ratio"), y2="q75:Q")
    outer = by_bin.mark_rule().encode(x=alt.X("bin:N", sort=None), y="q1:Q", y2="q99:Q")
    clipped = by_bin.mark_bar().encode(
        x=alt.X("bin:N", sort=None), y=alt.Y("clipped:Q", title="clipped tokens", axis=alt.Axis(format="%"))
    )
    tokens = (
        alt.Chart(frames["tokens"])
        .mark_circle(opacity=0.5)
        .encode(x=alt.X("old_prob:Q"), y=alt.Y("entropy:Q", title="entropy (nats)"), color="clipped:N")
    )
    bounds = alt.Chart(frames["bounds"]).mark_line(strokeWidth=0.9).encode(x=alt.X("old_prob:Q"))
    least, most = (bounds.encode(y=alt.Y(f"{end}:Q", title="entropy (nats)")) for end in ("least", "most"))
    tokens = least + most + tokens
    bins = replayed("bins").encode(x=alt.X("bin:N", sort=None, title="old probability"), color=updates)
    measured = bins.mark_line(point=True).encode(y=alt.Y("magnitude:Q", title="mean |G|"))
    expected = bins.mark_line(strokeDash=[4, 3]).encode(y=alt.Y("expected_magnitude:Q", title="mean |G|"))
    dominance = (
        replayed("updates")
        .transform_fold(["dominance_magnitude", "dominance_expected_magnitude"], as_=["of", "log ratio"])
        .mark_line(point=True)
        .encode(x=alt.X("updates:Q"), y=alt.Y("log ratio:Q", title="log ratio, low over high"), color="of:N")
    )
    above, below = alt.hconcat(inner + outer, spreads, tokens), alt.hconcat(measured + expected, clipped, dominance)
    return alt.vconcat(above.resolve_scale(color="independent"), below.resolve_scale(color="independent"))


ANALYSIS = Analysis(
    "spread of the importance ratio, what is clipped, and who dominates the gradient",
    paper="ACPO",
    options=RatioOptions,
    measure=measure,
    plot=plot,
    headline=headline,
)
