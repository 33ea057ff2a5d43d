"""`rlvr analyze ratio`: spread of the importance ratio, clipped tokens, and gradients by probability (ACPO).

"What are key factors for updates in RL for LLM reasoning?" (ACPO), figure 2, lemma 1, proposition 1, remark 1 and
appendix C. Probabilities and entropies are under the sampling policy, except the factor 1 - pi of a gradient.
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
    check_increasing,
    divide,
    make_frames,
    mean_of,
    records,
    subtract,
    summary_of,
)
from rlvr_cli.analyses.expected_gradient import expected_gradient, lemma_spread, log_ratio, reversal_kappas
from rlvr_cli.analyses.method_step import MethodStep, iter_rows, thin
from rlvr_cli.analyses.replay import ReplayedUpdates
from rlvr_cli.analyses.scoring import load_policy, parse_dtype, score_rollout
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.lazy import Tensor, alt, torch
from rlvr_cli.core.section import Count, FromList, Section
from rlvr_cli.methods.base import quantile

Row = dict[str, Any]
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
# Unclipped tokens on either side in probability to compare a clipped token's entropy with.
NEIGHBOURS = 5
Updates = Annotated[tuple[Count, ...], FromList, Field(min_length=1, max_length=16), AfterValidator(check_increasing)]


class RatioOptions(Section):
    updates: Updates = Field((1, 2, 4, 8, 16), description="Numbers of updates on the rollout after which to measure.")
    split: Count | None = Field(
        None, description="Mini-batches per rollout, one per update; null = the run's update.mini_batches."
    )
    optimizer: Literal["adamw", "sgd"] = Field(
        "adamw", description="adamw: as in the run, with the checkpoint's optimizer state if saved; or plain sgd."
    )
    lr: Annotated[float, Field(gt=0.0, le=1e6)] | None = Field(
        None, description="Learning rate; null = the run's schedule. Required with sgd."
    )
    bins: Annotated[int, Field(ge=2, le=100)] = Field(
        5, description="Bins of old probability, of equal width; the first and the last are compared."
    )
    groups: Annotated[int, Field(ge=3, le=200)] = Field(
        20, description="Groups of equal size by 1 - p, for the fit of the spread's exponent."
    )
    dtype: Dtype = None


def measure(inputs: AnalysisInput, options: RatioOptions) -> Frames:
    """Replay the run's updates on a saved rollout, and measure the ratios after ``options.updates``."""
    saved = inputs.find_rollout()
    config = saved.config.method.policy
    if config is None:
        raise UserError(f"{saved.run.path}: {saved.config.method.name} has no importance ratio.")
    split = options.split or saved.config.update.mini_batches
    problems = []
    if options.optimizer == "sgd" and options.lr is None:
        problems.append("optimizer=sgd: requires lr; the run's is scaled for AdamW. Set lr=RATE.")
    if split > len(saved.rows):
        problems.append(f"split: must be at most the rollout's {len(saved.rows)} completions; got {split}.")
    if problems:
        raise UserError(problems)
    method = config.with_max_length(saved.config.rollout.max_new_tokens)
    policy = load_policy(saved, saved.old, dtype=parse_dtype(options.dtype))
    run = score_rollout(saved, [method], policy)
    at_current = MethodStep.of(method, run.scored)
    entropies = run.scored.rollout.entropies
    assert entropies is not None
    start = at_current.at(run.scored.old_log_probs, entropies)
    if not bool(start.learned.any()):
        raise UserError(
            f"{saved.run.path}: no token of rollout {saved.number} has an advantage: all rewards within each group are "
            "equal. Use another --rollout."
        )

    def measure_at(updates: int, step: MethodStep) -> Ratios:
        return measure_updates(updates, step, entropies, bins=options.bins, groups=options.groups)

    replay = ReplayedUpdates(policy, saved, start, options.optimizer, options.lr, split)
    replayed, last = [measure_at(0, start)], start
    for update in itertools.islice(replay, options.updates[-1]):
        if update in options.updates:
            last = start.at(*policy.score(saved.rows))
            replayed.append(measure_at(update, last))
    at_checkpoint = measure_at(saved.current.step - saved.sampled_after, at_current)
    notes = list(run.notes)
    if options.optimizer == "adamw" and saved.old.step and not replay.has_state:
        notes.append(
            f"No matching AdamW state at step {saved.old.step}: it starts at zero, so the first steps are larger than "
            "the run's."
        )
    if saved.config.rollout.active_correction is not None:
        notes.append("The run's correction for its sampler (rollout.correction) is not applied.")
    policies = [*(("replayed", ratios) for ratios in replayed), ("checkpoint", at_checkpoint)]
    line = torch.linspace(0.005, 0.995, 100, dtype=torch.float64)
    bounds = torch.stack([line, *entropy_bounds(line, policy.model.config.vocab_size)])
    return make_frames(
        {
            **_summarize(replayed, _reversals(start, options.bins)),
            "rollout": saved.number,
            "policy": saved.old.step,
            "method": method.name,
            "split": split,
            "kept_optimizer_state": replay.has_state,
            "sampling_gap": run.sampling_gap,
            "checkpoint": saved.current.step,
        },
        notes,
        updates=[{"policy": policy, **ratios.row} for policy, ratios in policies],
        bins=[{"policy": name, "updates": at.row["updates"], **row} for name, at in policies for row in at.bins],
        spreads=[
            {"policy": policy, "updates": ratios.row["updates"], "rest": rest, "spread": spread}
            for policy, ratios in policies
            for rest, spread in ratios.spreads
        ],
        tokens=entropy_rows(last, entropies),
        bounds=[dict(zip(("old_prob", "least", "most"), row, strict=True)) for row in bounds.T.tolist()],
    )


def _reversals(start: MethodStep, bins: int) -> dict[str, float | None]:
    """Return the first kappa at which proposition 1 reverses, signed and of magnitudes; None if never."""
    low, high = (float(torch.as_tensor(bound, dtype=torch.float64).mean()) for bound in start.bounds())
    kappas: tuple[list[float], list[float]] = ([], [])
    if math.isfinite(low) and math.isfinite(high):
        kappas = reversal_kappas(low, high, p_low=1 / bins, p_high=1 - 1 / bins)
    return {
        "reversal_kappa_signed": next(iter(kappas[0]), None),
        "reversal_kappa_magnitude": next(iter(kappas[1]), None),
    }


def _summarize(replayed: Sequence[Ratios], reversals: dict[str, float | None]) -> Row:
    before, first, last = replayed[0].row, replayed[1].row, replayed[-1].row
    (low_first, *_, high_first), (low, *_, high) = replayed[1].bins, replayed[-1].bins
    reversed_at = (ratios.row["updates"] for ratios in replayed[1:] if (ratios.row["dominance_magnitude"] or 0) < 0)
    return {
        "spread_low": low["spread"],
        "spread_high": high["spread"],
        "spread_low_over_high": divide(low["spread"], high["spread"]),
        "spread_low_over_high_first": divide(low_first["spread"], high_first["spread"]),
        "spread_exponent": first["exponent"],
        "spread_exponent_fit": first["fit"],
        "spread_exponent_last": last["exponent"],
        "spread_growth": divide(_pooled_spread(replayed[-1].bins), _pooled_spread(replayed[1].bins)),
        "kappa_first": first["kappa"],
        "kappa_last": last["kappa"],
        "dominance_on_policy": before["dominance_magnitude"],
        "dominance_first": first["dominance_magnitude"],
        "dominance_last": last["dominance_magnitude"],
        "dominance_change": subtract(last["dominance_magnitude"], first["dominance_magnitude"]),
        "dominance_signed_first": first["dominance_signed"],
        "dominance_signed_last": last["dominance_signed"],
        "reversal_at": next(reversed_at, None),
        **reversals,
        "clipped_share": last["clipped_share"],
        "clipped_low_share": last["clipped_low_share"],
        "clipped_low_excess": subtract(last["clipped_low_share"], last["clipped_low_share_of_all"]),
        "clipped_entropy_difference": last["clipped_entropy_difference"],
        "clipped_entropy_difference_plain": subtract(last["clipped_entropy"], last["clipped_entropy_of_others"]),
    }


def headline(frames: Frames) -> str:
    numbers = summary_of(frames)
    updates = [row for row in records(frames["updates"]) if row["policy"] == "replayed" and row["updates"]]
    bins = records(frames["bins"])
    first, last = updates[0]["updates"], updates[-1]["updates"]
    low, high = f"p < {bins[0]['high']:.2g}", f"p > {bins[-1]['low']:.2g}"
    times, reversal = numbers["spread_low_over_high"], numbers["reversal_at"]
    if times is None or all(row["dominance_magnitude"] is None for row in updates):
        return f"After {last} updates on the rollout, tokens with {low} and {high} cannot be compared."
    dominance = (
        "low-probability tokens have the larger gradients throughout"
        if reversal is None
        else f"high-probability tokens have the larger gradients from {int(reversal)} on"
    )
    return (
        f"After {last} updates on the rollout, the standard deviation of the ratio of tokens with {low} is {times:.3g} "
        f"times that of tokens with {high}; over {first} to {last} updates, {dominance}."
    )


def _pooled_spread(bins: Sequence[Row]) -> float | None:
    rows = [(row["tokens"], row["mean"], row["spread"]) for row in bins if row["mean"] is not None]
    total = sum(count for count, _, _ in rows)
    if not total:
        return None
    mean = sum(count * bin_mean for count, bin_mean, _ in rows) / total
    return math.sqrt(sum(count * (spread**2 + (bin_mean - mean) ** 2) for count, bin_mean, spread in rows) / total)


@dataclass(frozen=True)
class Ratios:
    """The ratios of a rollout's tokens after some updates; undefined values are None.

    Attributes:
        row: over all tokens. `kappa` fits lemma 1: kappa^2 = mean (r - 1)^2 / mean (1 - pi)^4. `exponent`, `fit`: slope
            and R^2 of log spread over log(1 - pi). `clipped_*`: clipped tokens (regions LN and HP) among those with an
            advantage: count and share; `low_share`, `low_share_of_all`: share in the first bin, of clipped and of all
            tokens; mean entropies, nats; `entropy_difference`: mean over the clipped tokens of their entropy minus that
            of the ``NEIGHBOURS`` others nearest in probability on either side. `dominance_*`: log ratio of the means of
            the lowest and the highest bin.
        bins: by old probability, [low, high). `spread`, `mean`, quantiles: of the ratio. `clipped`: share of the tokens
            with an advantage. `magnitude`, `signed`: mean |G| and |mean G|, G = (1 - pi) F A; `expected_*`: the same by
            proposition 1, with the rollout's kappa.
        spreads: mean of 1 - pi and standard deviation of the ratio in groups of equal size.
    """

    row: Row
    bins: list[Row]
    spreads: list[tuple[float, float]]


def measure_updates(updates: int, step: MethodStep, old_entropies: Tensor, *, bins: int, groups: int) -> Ratios:
    """Measure the ratios after ``updates``, in ``bins`` of equal width; ``groups`` of equal size fit the exponent."""
    tokens, valid = step.tokens, step.tokens.mask.bool()
    distance = torch.expm1(tokens.log_probs - tokens.old_log_probs)
    # By rounding, probabilities may exceed 1.
    rest = -torch.expm1(tokens.old_log_probs).clamp(max=0)
    learned, cut = step.learned, clipped_tokens(step)
    bin_index = (tokens.old_probs * bins).long().clamp(max=bins - 1)
    fourth = float(rest[valid].pow(4).mean())
    kappa = math.sqrt(float(distance[valid].square().mean()) / fourth) if fourth else 0.0
    gradients = -torch.expm1(tokens.log_probs) * step.full_values()
    sigma = float(tokens.advantages[learned].square().mean().sqrt()) if bool(learned.any()) else 0.0
    expected = expected_gradient(rest, lemma_spread(rest, kappa), *step.bounds(), sigma)
    rows: list[Row] = []
    for index in range(bins):
        low, high, mask = index / bins, (index + 1) / bins, valid & (bin_index == index)
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
    spreads = _spread_points(distance[valid], rest[valid], groups)
    exponent, fit = _fit_exponent(spreads)
    clipped, others, lowest = learned & cut, learned & ~cut, valid & (bin_index == 0)
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
        "clipped_entropy_difference": _neighbour_difference(clipped, others, tokens.old_probs, old_entropies),
        **{
            f"dominance_{name}": log_ratio(rows[0][name], rows[-1][name])
            for name in ("magnitude", "signed", "expected_magnitude", "expected_signed")
        },
    }
    return Ratios(row, rows, spreads)


def entropy_rows(step: MethodStep, old_entropies: Tensor) -> list[Row]:
    """Return probability, entropy (nats) and clipping of sampled tokens (figure 2c)."""
    learned, cut = step.learned, clipped_tokens(step)
    columns = {"old_prob": step.tokens.old_probs, "entropy": old_entropies, "clipped": cut}
    return list(iter_rows(columns, thin(learned & cut) | thin(learned & ~cut)))


def entropy_bounds(probabilities: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return the bounds of the entropy (nats) of distributions over ``vocabulary`` tokens with pi in (0, 1) on one.

    H_min: the remaining mass on a single token; H_max: uniform over the others. ACPO, appendix C.
    """
    p, q = probabilities.double(), 1 - probabilities.double()
    least = -p * p.log() - q * q.log()
    return least, least + q * math.log(vocabulary - 1)


def clipped_tokens(step: MethodStep) -> Tensor:
    """Return the (N, T) mask of tokens clipped by a hard clip at the method's bounds: regions LN and HP."""
    regions = step.regions()
    return regions.LN | regions.HP


def _spread_points(distance: Tensor, rest: Tensor, count: int) -> list[tuple[float, float]]:
    groups = torch.sort(rest, stable=True).indices.tensor_split(count)
    points = ((float(rest[rows].mean()), float(distance[rows].std(correction=0))) for rows in groups if len(rows) > 1)
    # Both are 0 in a group of probability 1.
    return [(x, y) for x, y in points if x > 0 and y > 0]


def _fit_exponent(points: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
    """Return slope and R^2 of log y over log x by least squares; None for fewer than three points."""
    if len(points) < 3:
        return None, None
    logs = torch.tensor(points, dtype=torch.float64).log().T
    x, y = logs - logs.mean(dim=1, keepdim=True)
    if not float(x @ x) or not float(y @ y):
        return None, None
    return float(x @ y / (x @ x)), float((x @ y) ** 2 / ((x @ x) * (y @ y)))


def _neighbour_difference(clipped: Tensor, others: Tensor, old_probs: Tensor, values: Tensor) -> float | None:
    """Return the mean difference between clipped tokens and their neighbours; None if either is empty.

    Neighbours, not bins: even in a narrow bin near 1 most others have a far lower entropy than the clipped tokens.
    """
    if not bool(clipped.any()) or not bool(others.any()):
        return None
    probabilities, order = old_probs[others].sort()
    sums = torch.cat([torch.zeros(1, dtype=torch.float64), values[others][order].double().cumsum(dim=0)])
    index = torch.searchsorted(probabilities, old_probs[clipped])
    first, end = (index - NEIGHBOURS).clamp(min=0), (index + NEIGHBOURS).clamp(max=len(probabilities))
    nearby = (sums[end] - sums[first]) / (end - first)
    return float((values[clipped] - nearby).mean())


def plot(frames: Frames) -> alt.TopLevelMixin:
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
    rows = frames["updates"]
    replayed_last = rows.loc[rows["policy"] == "replayed", "updates"].max()
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
    "spread of the importance ratio, clipped tokens, and gradients by probability",
    "ACPO",
    RatioOptions,
    measure,
    plot,
    headline,
)
