"""Shapings and passes: their limits, GTPO's masks against a brute-force oracle, and Lopti's passes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rlvr_cli.methods.aggregation import SequenceMean
from rlvr_cli.methods.base import Rollout, RolloutShaping, Tokens, quantile
from rlvr_cli.methods.gtpo import ConflictMask, EntropyFilter, EntropyPenalty
from rlvr_cli.methods.high_entropy import HighEntropy
from rlvr_cli.methods.likelihood import LikelihoodAdvantage
from rlvr_cli.methods.lopti import ByProbability
from rlvr_cli.methods.reweight import Reweight
from rlvr_cli.methods.unclipped import NoImportanceSampling
from tests.methods.samples import KL, WEIGHTS, coefficients, method, random_rollout, random_tokens


def shaped(rollout: Rollout, *shapings: RolloutShaping) -> Tensor:
    """(N, T) advantages after ``shapings``."""
    return method(shapings=shapings).rollout_advantages(rollout)[1].expand_as(rollout.mask)


# --- GTPO --------------------------------------------------------------------------------------------------------


def conflict_by_brute_force(rows: list[list[int]], signs: list[float], *, from_end: bool) -> list[list[bool]]:
    """The paper's definition, token by token, for the rows of one group."""
    rows = [row[::-1] if from_end else row for row in rows]
    result = []
    for row, sign in zip(rows, signs, strict=True):
        run, broken = [], sign == 0
        for offset, token in enumerate(row):
            sides = {
                side > 0
                for other, side in zip(rows, signs, strict=True)
                if side != 0 and offset < len(other) and other[offset] == token
            }
            broken = broken or len(sides) < 2
            run.append(not broken)
        result.append(run[::-1] if from_end else run)
    return result


@pytest.mark.parametrize("seed", range(6))
def test_conflict_masks_are_those_of_the_definition(seed: int) -> None:
    rollout = random_rollout(groups=40, group_size=2 + seed % 6, length=9, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    token_ids = torch.randint(0, 2 + seed % 3, rollout.token_ids.shape, generator=generator) * 10**5
    rollout = replace(rollout, token_ids=token_ids)
    advantages = torch.randint(-1, 2, (len(token_ids), 1), generator=generator).double()
    forward, backward = ConflictMask(ends="both").conflict_masks(rollout, advantages)
    lengths = rollout.mask.sum(1).long().tolist()
    seen = 0
    for start in range(0, len(lengths), rollout.group_size):
        group = range(start, start + rollout.group_size)
        rows = [token_ids[row, : lengths[row]].tolist() for row in group]
        signs = advantages[group, 0].tolist()
        for mask, from_end in ((forward, False), (backward, True)):
            for row, expected in zip(group, conflict_by_brute_force(rows, signs, from_end=from_end), strict=True):
                assert mask[row, : lengths[row]].tolist() == expected
                assert not mask[row, lengths[row] :].any()
                seen += sum(expected)
    assert seen > 0


@pytest.mark.parametrize("rows", ["all", "negative"])
@pytest.mark.parametrize("when", ["initially_below", "always"])
@pytest.mark.parametrize("initial", [0.1, 0.9])
def test_entropy_filter_as_in_equation_10_and_its_ablations(rows: str, when: str, initial: float) -> None:
    rollout = replace(random_rollout(), initial_entropy=initial)
    assert rollout.entropies is not None
    plain, ours = shaped(rollout), shaped(rollout, EntropyFilter(threshold=0.7, sequences=rows, when=when))
    out = rollout.row_mean(rollout.entropies).unsqueeze(1) > 0.7
    if rows == "negative":
        out = out & (plain < 0)
    if when == "initially_below" and initial >= 0.7:
        out = torch.zeros_like(out)
    torch.testing.assert_close(ours, torch.where(out, 0.0, plain))
    assert EntropyFilter(threshold=0.7, sequences=rows, when=when).needs_initial_entropy == (when == "initially_below")


def test_no_shaping_gives_a_row_without_a_reward_an_advantage() -> None:
    rollout = random_rollout()
    rollout = replace(rollout, rewards=rollout.rewards.index_fill(0, torch.tensor([0, 5]), math.nan))
    every = (
        EntropyPenalty(gamma=0.1),
        EntropyFilter(threshold=0.7, sequences="negative", when="always"),
        ConflictMask(ends="both"),
    )
    ours = shaped(rollout, *every, HighEntropy(share=0.5))
    assert ours.isfinite().all() and not ours[[0, 5]].any() and ours.any()


# --- entropy, probability ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.01, 0.2, 1.0])
def test_high_entropy_keeps_its_share(share: float) -> None:
    rollout = random_rollout(groups=16)
    assert rollout.entropies is not None
    kept, valid = HighEntropy(share=share).select(rollout), rollout.mask.bool()
    assert abs(int(kept.sum()) - share * int(valid.sum())) <= 1
    assert rollout.entropies[kept].min() >= rollout.entropies[valid & ~kept].max() if share < 1 else kept.equal(valid)
    equal = replace(rollout, entropies=torch.ones_like(rollout.mask))
    assert HighEntropy(share=share).select(equal).equal(valid)
    assert not HighEntropy(share=share).select(replace(rollout, mask=torch.zeros_like(rollout.mask))).any()


@pytest.mark.parametrize("count", [1, 2, 36])
def test_quantile_is_that_of_torch(count: int) -> None:
    values = torch.randn(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    for share in (0.0, 0.2, 1 - 0.2, 0.35, 0.999, 1.0):
        torch.testing.assert_close(quantile(values, share), torch.quantile(values, share))


def test_reweighting_at_its_ends_and_between() -> None:
    tokens = random_tokens()
    plain = coefficients(method(), tokens)
    torch.testing.assert_close(coefficients(method(shapings=(Reweight(alpha=0.0),)), tokens), plain)
    probability = tokens.old_log_probs.exp()
    torch.testing.assert_close(coefficients(method(shapings=(Reweight(alpha=1.0),)), tokens), plain * probability)
    factor = Reweight(alpha=0.3).factor(tokens)
    torch.testing.assert_close(factor, 0.3 * probability + 0.7)
    assert not torch.allclose(coefficients(method(shapings=(Reweight(alpha=0.3),)), tokens), plain)


def test_lopti_passes_share_out_the_tokens_of_one_pass() -> None:
    """At eta 0 the high pass is the whole method, at eta 1 the low pass, KL included; the divisor stays the same."""
    for eta in [0.0, 0.3, 1.0]:
        # The covariances are those of the pass, in which other tokens have no advantage.
        for weight in WEIGHTS.keys() - {"clip-cov", "kl-cov"}:
            tokens = random_tokens()
            tokens = replace(tokens, old_log_probs=tokens.old_log_probs - 1e-9)
            once = coefficients(method(WEIGHTS[weight], kl=KL), tokens)
            of = method(WEIGHTS[weight], kl=KL, passes=ByProbability(order="low_first", eta=eta, rule="probability"))
            passes = [coefficients(of, tokens, which) for which in of.passes.names]
            torch.testing.assert_close(passes[0] + passes[1], once)
            assert not (passes[0] * passes[1]).any(), (eta, weight)
            low = (tokens.old_log_probs.exp() < eta) & tokens.mask.bool()
            assert not passes[0][~low].any() and not passes[1][low].any(), (eta, weight)
            if eta in (0.0, 1.0):
                torch.testing.assert_close(passes[int(eta == 0.0)], once)


def test_a_token_at_the_threshold_is_high() -> None:
    old = torch.tensor([[0.0, -1e-3, -9.0]])
    tokens = Tokens(old, old, torch.ones(1, 1), torch.ones(1, 3))
    assert ByProbability(order="low_first", eta=1.0, rule="probability").selected(tokens, "low").tolist() == [
        [False, True, True]
    ]


def test_a_quantile_threshold_is_that_of_the_rollout() -> None:
    rollout = random_rollout(groups=32)
    passes = ByProbability(order="low_first", eta=0.25, rule="quantile")
    assert passes.needs_rollout_log_probs and rollout.old_log_probs is not None
    threshold = passes.threshold(rollout)
    assert threshold is not None
    column = torch.full((len(rollout.mask), 1), threshold, dtype=torch.float64)
    tokens = Tokens(rollout.old_log_probs, rollout.old_log_probs, column, rollout.mask, low_threshold=column)
    low, high = passes.selected(tokens, "low"), passes.selected(tokens, "high")
    assert (low ^ high).equal(rollout.mask.bool())
    assert int(low.sum()) == pytest.approx(0.25 * int(rollout.mask.sum()), abs=1)
    assert passes.threshold(replace(rollout, mask=torch.zeros_like(rollout.mask))) == 0.25


def test_leaving_rows_out_does_not_make_the_others_weigh_more() -> None:
    """The landscape paper divides by the rows of a side, GTPO's filter by the whole group: both before shaping."""
    likelihood = LikelihoodAdvantage(side="positive")
    aggregation = SequenceMean(sequences="trained")
    rollout = replace(random_rollout(), initial_entropy=0.0)
    assert rollout.entropies is not None
    median = float(rollout.row_mean(rollout.entropies).median())
    plain = method(advantage=likelihood, aggregation=aggregation)
    filtered = method(
        advantage=likelihood, aggregation=aggregation, shapings=(EntropyFilter(threshold=median, when="always"),)
    )
    estimated, trained = plain.rollout_advantages(rollout)
    same, fewer = filtered.rollout_advantages(rollout)
    assert int((fewer != 0).sum()) < int((trained != 0).sum())
    assert aggregation.count(rollout.mask, same) == aggregation.count(rollout.mask, estimated) > 0


def test_a_divisor_of_each_prompt_makes_prompts_weigh_the_same() -> None:
    """Landscape paper, equation 8, to the gradient: the mean over prompts of 1/|A+| sum over its rows of 1/|a| sum."""
    size = 4
    rollout = random_rollout(groups=4, group_size=size)
    right = torch.tensor([1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1]).bool()
    rollout = replace(rollout, correct=right, mask=torch.ones_like(rollout.mask))
    rollout.mask[5, 3:] = 0
    of = method(
        weight=NoImportanceSampling(),
        advantage=LikelihoodAdvantage(side="positive"),
        aggregation=SequenceMean(sequences="trained_per_prompt"),
    )
    estimated, shaped = of.rollout_advantages(rollout)
    old = rollout.old_log_probs
    assert old is not None
    tokens = Tokens(old, old, shaped, rollout.mask)
    found = of.coefficients(tokens, of.aggregation.count(rollout.mask, estimated))
    expected = torch.zeros_like(found)
    for row in right.nonzero().flatten().tolist():
        group = right[row // size * size :][:size]
        expected[row] = rollout.mask[row] / rollout.mask[row].sum() / group.sum() / 3
    torch.testing.assert_close(found, expected)
    assert (of.rollout_advantages(replace(rollout, correct=torch.zeros(16).bool()))[1] == 0).all()
