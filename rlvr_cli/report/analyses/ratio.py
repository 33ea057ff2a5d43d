"""`rlvr analyze ratio`: spread of the importance ratio, clipped tokens, and whose gradient is large (ACPO)."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import torch

from rlvr_cli.analysis.gradient_expectation import log_ratio, reversal_kappas
from rlvr_cli.analysis.loaded_policy import LoadedPolicy, load_policy
from rlvr_cli.analysis.method_step import MethodStep
from rlvr_cli.analysis.ratio import Plane, Ratios, measure, plane
from rlvr_cli.analysis.replayed_updates import Replay, ReplayedUpdates
from rlvr_cli.analysis.saved_rollout import SavedRollout
from rlvr_cli.analysis.scoring import score
from rlvr_cli.config.analysis_kinds import RatioOptions
from rlvr_cli.core.errors import UserError
from rlvr_cli.methods.method import Method
from rlvr_cli.report.analyses.absent import difference, over, shown
from rlvr_cli.report.analyses.findings import Findings, Subject, Table
from rlvr_cli.report.analyses.ratio_figure import ratio_figure
from rlvr_cli.report.policy_notes import policy_notes

READING = (
    "Above, from the left: the ratio by probability after the last update (box: half of the tokens, whiskers: 98%); "
    "its standard deviation against 1 - p after each number of updates, with the slope 2 of ACPO's lemma 1 dotted; the "
    "tokens in the plane of probability and entropy between the theoretical bounds, clipped ones crossed: the paper "
    "has them where both are low. Below: mean |G|, G = (1 - p) F A, by probability, measured (solid) and by "
    "proposition 1 (dashed); the share of clipped tokens by probability; and the log ratio of mean |G| of low and high "
    "tokens over the updates, also with signs: above 0 low-probability tokens dominate, and the paper has it fall "
    "below."
)


def analyze(subject: Subject, options: RatioOptions) -> Findings:
    """Make the run's updates on a saved rollout again, and measure the ratios after some of them.

    Raises:
        UserError: no rollout or policy, a method whose updates cannot be made again, or nothing to learn from.
    """
    saved = subject.saved()
    config = saved.config.method
    if not isinstance(config, Method):
        raise UserError(f"{saved.run.path}: {config.name} has no importance ratio.")
    how = _replay(saved, options)
    method = config.bound(saved.config.rollout.max_new_tokens)
    dtype = getattr(torch, options.dtype or ("float32" if torch.cuda.is_available() else "float64"))
    policy = load_policy(saved, saved.old, dtype=dtype)
    run = score(saved, [method], policy)
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
    before = measure(0, start, entropies, bins=options.bins, groups=options.groups)
    after, last = _follow(policy, replay, start, options)
    at_checkpoint = measure(
        saved.current.step - saved.sampled_after, kept, entropies, bins=options.bins, groups=options.groups
    )
    kappas = _analytic(start, options.bins)
    numbers: dict[str, Any] = {
        "summary": summary(before, after, kappas),
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
        headline=headline(after, numbers["summary"]),
        numbers=numbers,
        tables=tables(before, after),
        reading=READING,
        draw=functools.partial(ratio_figure, before, after, last, vocabulary),
        notes=(*policy_notes(saved, run.sampling_gap), *_notes(saved, how, replay)),
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
        after.append(measure(made, now, entropies, bins=options.bins, groups=options.groups))
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


def summary(
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
        "dominance_change": difference(dominances[last.updates], dominances[first.updates]),
        "dominance_signed_first": _dominance(first, "signed"),
        "dominance_signed_last": _dominance(last, "signed"),
        "reversal_at": next(reversed_at, None),
        "reversal_kappa_signed": kappas[0],
        "reversal_kappa_magnitude": kappas[1],
        "clipped_share": clipped.share,
        "clipped_low_share": clipped.low_share,
        "clipped_low_excess": difference(clipped.low_share, clipped.low_share_of_all),
        "clipped_entropy_difference": clipped.entropy_difference,
        "clipped_entropy_difference_plain": difference(clipped.entropy, clipped.entropy_of_others),
    }


def headline(after: list[Ratios], numbers: dict[str, Any]) -> str:
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


def tables(before: Ratios, after: list[Ratios]) -> tuple[Table, ...]:
    """By probability after the last update, and over the updates."""
    last = after[-1]
    bins = [
        (
            f"p {of.low:.2g} to {of.high:.2g}",
            f"{of.tokens:,}",
            shown(of.mean, ".4f"),
            shown(of.spread, ".3g"),
            shown(of.clipped, ".2%"),
            shown(of.magnitude, ".3g"),
            shown(of.expected_magnitude, ".3g"),
            shown(of.signed, ".3g"),
            shown(of.expected_signed, ".3g"),
        )
        for of in last.bins
    ]
    header = ("", "tokens", "mean r", "std r", "clipped", "E|G|", "by prop. 1", "|E G|", "by prop. 1")
    updates = [
        (
            str(of.updates),
            f"{of.kappa:.3g}",
            shown(of.bins[0].spread, ".3g"),
            shown(of.bins[-1].spread, ".3g"),
            shown(of.exponent.exponent, ".2f"),
            shown(of.exponent.fit, ".2f"),
            shown(of.clipped.share, ".2%"),
            shown(_dominance(of, "magnitude"), "+.2f"),
            shown(_dominance(of, "signed"), "+.2f"),
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
            f"No state of AdamW that fits was kept at step {saved.old.step}: it begins anew, with larger first steps "
            "than the run's."
        )
    if saved.config.rollout.tis_cap is not None:
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
