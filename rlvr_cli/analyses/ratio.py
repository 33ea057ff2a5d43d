"""`rlvr analyze ratio`: spread of the importance ratio, clipped tokens, and whose gradient is large (ACPO).

"What are key factors for updates in RL for LLM reasoning?" (ACPO), figure 2, lemma 1, proposition 1, remark 1 and
appendix C. Probabilities and entropies are those of the policy that sampled, but for the factor 1 - pi of a gradient,
which is the current policy's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from rlvr_cli.analyses.base import (
    Analysis,
    AnalysisInput,
    Dtype,
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
from rlvr_cli.analyses.method_step import MethodStep, rows_of, thinned
from rlvr_cli.analyses.replay import ReplayedUpdates
from rlvr_cli.analyses.scoring import load_policy, precise_dtype, score_rollout
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.lazy import Tensor, alt, torch
from rlvr_cli.core.section import Count, FromList, Section
from rlvr_cli.methods.base import quantile

Row = dict[str, Any]
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
    dtype: Dtype = None


def measure(inputs: AnalysisInput, options: RatioOptions) -> Frames:
    """Make the run's updates on a saved rollout again, and measure the ratios after some of them.

    Raises:
        UserError: no rollout or policy, a method whose updates cannot be made again, or nothing to learn from.
    """
    saved = inputs.saved()
    config = load_config([saved.run.config_path]).method.policy
    if config is None:
        raise UserError(f"{saved.run.path}: {saved.config.method.name} has no importance ratio.")
    split = options.split or saved.config.update.mini_batches
    problems = []
    if options.optimizer == "sgd" and options.lr is None:
        problems.append("optimizer=sgd: needs lr; the run's own rate is AdamW's, whose steps are of another size.")
    if split > len(saved.rows):
        problems.append(f"split={split}: rollout {saved.number} has {len(saved.rows)} completions.")
    if problems:
        raise UserError(problems)
    method = config.bound(saved.config.rollout.max_new_tokens)
    policy = load_policy(saved, saved.old, dtype=precise_dtype(options.dtype))
    run = score_rollout(saved, [method], policy)
    kept = MethodStep.of(method, run.scored)
    entropies = run.scored.rollout.entropies
    assert entropies is not None
    start = kept.at(run.scored.old_log_probs, entropies)
    if not bool(start.learned.any()):
        raise UserError(
            f"{saved.run.path}: no token of rollout {saved.number} has an advantage: all completions of each problem "
            "have the same reward. Choose another --rollout."
        )

    def measured(updates: int, now: MethodStep) -> Ratios:
        return measure_updates(updates, now, entropies, bins=options.bins, groups=options.groups)

    replay = ReplayedUpdates(policy, saved, start, options.optimizer, options.lr, split)
    replayed, last = [measured(0, start)], start
    for made in itertools.islice(replay, options.updates[-1]):
        if made in options.updates:
            last = start.at(*policy.score(saved.rows))
            replayed.append(measured(made, last))
    at_checkpoint = measured(saved.current.step - saved.sampled_after, kept)
    notes = list(run.notes)
    if options.optimizer == "adamw" and saved.old.step and not replay.has_state:
        notes.append(
            f"There is no matching AdamW state at step {saved.old.step}: it starts from zero, so its first steps are "
            "larger than the run's."
        )
    if saved.config.rollout.largest_weight is not None:
        notes.append("The run's weights for another sampler (rollout.tis_cap) are left out.")
    every = [*(("replayed", of) for of in replayed), ("checkpoint", at_checkpoint)]
    line = torch.linspace(0.005, 0.995, 100, dtype=torch.float64)
    bounds = torch.stack([line, *entropy_bounds(line, policy.model.config.vocab_size)])
    return frames_of(
        {
            **_summary(replayed, _reversals(start, options.bins)),
            "rollout": saved.number,
            "policy": saved.old.step,
            "method": method.name,
            "split": split,
            "kept_optimizer_state": replay.has_state,
            "sampling_gap": run.sampling_gap,
            "checkpoint": saved.current.step,
        },
        notes,
        updates=[{"policy": policy, **of.row} for policy, of in every],
        bins=[{"policy": policy, "updates": of.row["updates"], **row} for policy, of in every for row in of.bins],
        spreads=[
            {"policy": policy, "updates": of.row["updates"], "rest": rest, "spread": spread}
            for policy, of in every
            for rest, spread in of.spreads
        ],
        tokens=plane(last, entropies),
        bounds=[dict(zip(("old_prob", "least", "most"), row, strict=True)) for row in bounds.T.tolist()],
    )


def _reversals(start: MethodStep, bins: int) -> dict[str, float | None]:
    """The first kappa at which proposition 1 reverses, signed and of magnitudes; None where it never does."""
    low, high = (float(torch.as_tensor(of, dtype=torch.float64).mean()) for of in start.bounds())
    kappas: tuple[list[float], list[float]] = ([], [])
    if math.isfinite(low) and math.isfinite(high):
        kappas = reversal_kappas(low, high, p_low=1 / bins, p_high=1 - 1 / bins)
    return {
        f"reversal_kappa_{name}": next(iter(of), None) for name, of in zip(("signed", "magnitude"), kappas, strict=True)
    }


def _summary(replayed: Sequence[Ratios], reversals: dict[str, float | None]) -> Row:
    """Return the numbers by which runs are compared; ``replayed`` begins with the policy that sampled."""
    before, first, last = replayed[0].row, replayed[1].row, replayed[-1].row
    (low_first, *_, high_first), (low, *_, high) = replayed[1].bins, replayed[-1].bins
    reversed_at = (of.row["updates"] for of in replayed[1:] if (of.row["dominance_magnitude"] or 0) < 0)
    return {
        "spread_low": low["spread"],
        "spread_high": high["spread"],
        "spread_low_over_high": over(low["spread"], high["spread"]),
        "spread_low_over_high_first": over(low_first["spread"], high_first["spread"]),
        "spread_exponent": first["exponent"],
        "spread_exponent_fit": first["fit"],
        "spread_exponent_last": last["exponent"],
        "spread_growth": over(_pooled(replayed[-1].bins), _pooled(replayed[1].bins)),
        "kappa_first": first["kappa"],
        "kappa_last": last["kappa"],
        "dominance_on_policy": before["dominance_magnitude"],
        "dominance_first": first["dominance_magnitude"],
        "dominance_last": last["dominance_magnitude"],
        "dominance_change": minus(last["dominance_magnitude"], first["dominance_magnitude"]),
        "dominance_signed_first": first["dominance_signed"],
        "dominance_signed_last": last["dominance_signed"],
        "reversal_at": next(reversed_at, None),
        **reversals,
        "clipped_share": last["clipped_share"],
        "clipped_low_share": last["clipped_low_share"],
        "clipped_low_excess": minus(last["clipped_low_share"], last["clipped_low_share_of_all"]),
        "clipped_entropy_difference": last["clipped_entropy_difference"],
        "clipped_entropy_difference_plain": minus(last["clipped_entropy"], last["clipped_entropy_of_others"]),
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


def _pooled(bins: Sequence[Row]) -> float | None:
    """Standard deviation of the ratio over all tokens."""
    known = [(row["tokens"], row["mean"], row["spread"]) for row in bins if row["mean"] is not None]
    total = sum(count for count, _, _ in known)
    if not total:
        return None
    mean = sum(count * middle for count, middle, _ in known) / total
    return math.sqrt(sum(count * (spread**2 + (middle - mean) ** 2) for count, middle, spread in known) / total)


@dataclass(frozen=True)
class Ratios:
    """The ratios of a rollout's tokens after some updates; what does not exist is None.

    Attributes:
        row: of all tokens. `kappa` fits lemma 1: kappa^2 = mean (r - 1)^2 / mean (1 - pi)^4. `exponent`, `fit`: slope
            and R^2 of log spread over log(1 - pi). `clipped_*`: of the clipped tokens (regions LN and HP) among those
            with an advantage: how many, and of how many; `low_share`, `low_share_of_all`: how many of the clipped, and
            of all, are in the first bin; mean entropies, nats; `entropy_difference`: mean over the clipped tokens of
            their entropy minus that of the others next to them in probability, ``NEIGHBOURS`` on either side.
            `dominance_*`: log of the lowest bin's mean over the highest one's.
        bins: tokens whose old probability is in [low, high). `spread`, `mean`, quantiles: of the ratio. `clipped`:
            share of the tokens with an advantage. `magnitude`, `signed`: mean |G| and |mean G|, G = (1 - pi) F A;
            `expected_*`: the same by proposition 1, with the kappa of the whole rollout.
        spreads: of each group of as many tokens: mean of 1 - pi, standard deviation of the ratio.
    """

    row: Row
    bins: list[Row]
    spreads: list[tuple[float, float]]


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
    learned, cut = now.learned, clipped_tokens(now)
    which = (tokens.old_probs * bins).long().clamp(max=bins - 1)
    fourth = float(rest[valid].pow(4).mean())
    kappa = math.sqrt(float(distance[valid].square().mean()) / fourth) if fourth else 0.0
    gradients = -torch.expm1(tokens.log_probs) * now.full_values()
    sigma = float(tokens.advantages[learned].square().mean().sqrt()) if bool(learned.any()) else 0.0
    expected = expected_gradient(rest, lemma_spread(rest, kappa), *now.bounds(), sigma)
    rows: list[Row] = []
    for index in range(bins):
        low, high, mask = index / bins, (index + 1) / bins, valid & (which == index)
        ratios, inside = 1 + distance[mask], mask & learned
        signed, expected_signed = mean_of(gradients[inside]), mean_of(expected.signed[inside])
        rows.append(
            {
                "bin": f"{low:.2g} to {high:.2g}",
                "low": low,
                "high": high,
                "tokens": len(ratios),
                "spread": float(distance[mask].std(correction=0)) if len(ratios) else None,
                "mean": mean_of(ratios),
                "clipped": mean_of(cut[inside]),
                "magnitude": mean_of(gradients[inside].abs()),
                "signed": None if signed is None else abs(signed),
                "expected_magnitude": mean_of(expected.magnitude[inside]),
                "expected_signed": None if expected_signed is None else abs(expected_signed),
                **{f"q{100 * at:.0f}": float(quantile(ratios, at)) for at in (QUANTILES if len(ratios) else ())},
            }
        )
    spreads = _spreads(distance[valid], rest[valid], groups)
    exponent, fit = _exponent(spreads)
    clipped, others, lowest = learned & cut, learned & ~cut, valid & (which == 0)
    row = {
        "updates": updates,
        "kappa": kappa,
        "exponent": exponent,
        "fit": fit,
        "clipped_tokens": int(clipped.sum()),
        "clipped_share": mean_of(cut[learned]),
        "clipped_low_share": mean_of(lowest[clipped]),
        "clipped_low_share_of_all": mean_of(lowest[learned]),
        "clipped_entropy": mean_of(old_entropies[clipped]),
        "clipped_entropy_of_others": mean_of(old_entropies[others]),
        "clipped_entropy_difference": _at_equal_probability(clipped, others, tokens.old_probs, old_entropies),
        **{
            f"dominance_{name}": log_ratio(rows[0][name], rows[-1][name])
            for name in ("magnitude", "signed", "expected_magnitude", "expected_signed")
        },
    }
    return Ratios(row, rows, spreads)


def plane(now: MethodStep, old_entropies: Tensor) -> list[Row]:
    """Return probability, entropy (nats) and whether it is clipped of the tokens to draw (figure 2c)."""
    learned, cut = now.learned, clipped_tokens(now)
    columns = {"old_prob": now.tokens.old_probs, "entropy": old_entropies, "clipped": cut}
    return list(rows_of(columns, thinned(learned & cut) | thinned(learned & ~cut)))


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


def _spreads(distance: Tensor, rest: Tensor, groups: int) -> list[tuple[float, float]]:
    parts = torch.sort(rest, stable=True).indices.tensor_split(groups)
    points = ((float(rest[part].mean()), float(distance[part].std(correction=0))) for part in parts if len(part) > 1)
    # A group whose tokens all have probability 1 to the last digit has neither.
    return [(x, y) for x, y in points if x > 0 and y > 0]


def _exponent(points: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
    """Slope and R^2 of log y over log x by least squares; None of fewer than three points."""
    if len(points) < 3:
        return None, None
    logs = torch.tensor(points, dtype=torch.float64).log().T
    x, y = logs - logs.mean(dim=1, keepdim=True)
    if not float(x @ x) or not float(y @ y):
        return None, None
    return float(x @ y / (x @ x)), float((x @ y) ** 2 / ((x @ x) * (y @ y)))


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
    "ACPO",
    RatioOptions,
    measure,
    plot,
    headline,
)
