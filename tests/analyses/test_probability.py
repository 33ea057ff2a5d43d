"""`rlvr analyze probability` against direct computations on a few tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlvr_cli.analyses.gradients import norm
from rlvr_cli.analyses.method_step import MethodStep, ScoredTokens
from rlvr_cli.analyses.probability import ProbabilityOptions, measure_by_probability, score_after_steps
from rlvr_cli.analyses.scoring import LoadedPolicy, pad
from rlvr_cli.describe.named import variant_config
from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.method import Method
from rlvr_cli.stats.correlation import pearson
from tests.analyses.lab_rows import LENGTHS, lab_policy, lab_rows, log_prob

BOUNDS = (0.3, 0.6, 0.9)
LR = 1e-3
Found = tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]
NAMES = ("grpo", "grpo+reweight", "grpo+lopti")


def method(name: str) -> Method:
    return variant_config(name).with_max_length(8)


@pytest.fixture(scope="module")
def policy() -> LoadedPolicy:
    return lab_policy()


@pytest.fixture(scope="module")
def rows(policy: LoadedPolicy) -> list[dict[str, Any]]:
    return lab_rows(policy)


@pytest.fixture(scope="module")
def scored(policy: LoadedPolicy, rows: list[dict[str, Any]]) -> ScoredTokens:
    """Two groups of three, rewards that differ in both."""
    old, entropies = policy.score(rows)
    ids, mask = pad([row["token_ids"] for row in rows])
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    rollout = Rollout(rewards=rewards, group_size=3, token_ids=ids, mask=mask, old_log_probs=old, entropies=entropies)
    return ScoredTokens(rollout, old, old, entropies)


@pytest.fixture(scope="module")
def found(policy: LoadedPolicy, rows: list[dict[str, Any]], scored: ScoredTokens) -> Found:
    steps = [MethodStep.of(method(name), scored) for name in NAMES]
    # Every token is measured.
    return measure_by_probability(policy, rows, steps, ProbabilityOptions(bounds=BOUNDS, lr=LR, tokens=99))


def places() -> list[tuple[int, int]]:
    return [(row, position) for row, length in enumerate(LENGTHS) for position in range(length)]


def in_group(probability: float, index: int) -> bool:
    edges = (0.0, *BOUNDS, 2.0)
    return edges[index] <= probability < edges[index + 1]


def test_shares_advantages_and_norms_of_the_groups(
    policy: LoadedPolicy, rows: list[dict[str, Any]], scored: ScoredTokens, found: Found
) -> None:
    """With GRPO's coefficients A / (all tokens), by a loop over single tokens."""
    probabilities = {place: log_prob(policy, rows[place[0]], place[1]).exp().item() for place in places()}
    # Two of three and one of three are right: (r - mean) / std with ddof 1.
    advantages = [1.1547, -0.57735, -0.57735, 0.57735, 0.57735, -1.1547]
    assert sum(group["share"] for group in found[1]["groups"]) == pytest.approx(1)
    for index, group in enumerate(found[1]["groups"]):
        members = [place for place in places() if in_group(probabilities[place], index)]
        assert group["tokens"] == len(members)
        positive = [advantages[row] for row, _ in members if advantages[row] > 0]
        assert group["positive"] == pytest.approx(len(positive) / max(len(members), 1))
        assert group["positive_advantage"] == (
            pytest.approx(sum(positive) / len(positive), rel=1e-3) if positive else None
        )
        total = {name: torch.zeros_like(of) for name, of in policy.model.named_parameters()}
        single = []
        for row, position in members:
            policy.model.zero_grad()
            log_prob(policy, rows[row], position).backward()
            one = {name: of.grad.clone() for name, of in policy.model.named_parameters()}
            single.append(norm(one))
            for name, value in one.items():
                total[name] += advantages[row] / sum(LENGTHS) * value
        policy.model.zero_grad()
        assert group["norm"] == pytest.approx(norm(total), rel=1e-3, abs=1e-9)
        assert group["norm_per_token"] == (pytest.approx(sum(single) / len(single), rel=1e-3) if single else None)


def test_every_token_is_within_the_bounds_of_proposition_4_2(found: Found) -> None:
    summary, tables = found
    assert summary["bounds_violated"] == 0
    assert len(tables["tokens"]) == sum(LENGTHS)
    sampled = pearson(*([row[name] for row in tables["tokens"]] for name in ("rest", "norm_at_logits")))
    assert sampled == pytest.approx(summary["logit_norm_correlation_pearson"])


def test_changes_are_those_of_weights_moved_by_hand(
    policy: LoadedPolicy, rows: list[dict[str, Any]], scored: ScoredTokens, found: Found
) -> None:
    coefficients = MethodStep.of(method("grpo"), scored).coefficients("all")
    low = scored.old_log_probs.exp() < BOUNDS[0]
    other = lab_policy()
    loss = -sum(
        float(coefficients[place]) * log_prob(other, rows[place[0]], place[1]) for place in places() if low[place]
    )
    loss.backward()  # type: ignore[union-attr]
    torch.optim.SGD(other.model.parameters(), lr=LR).step()
    moved = other.score(rows)[0].exp() - scored.old_log_probs.exp()
    by_low = [change for change in found[1]["changes"] if change["by"] == "low"]
    for index, change in enumerate(by_low):
        members = [place for place in places() if in_group(float(scored.old_log_probs[place].exp()), index)]
        sizes = [abs(float(moved[place])) for place in members]
        expected = sum(sizes) / len(sizes) if sizes else None
        assert change["size"] == (None if expected is None else pytest.approx(expected, rel=0.02, abs=1e-9))
    assert found[1]["changes"][0]["match"] == pytest.approx(1)


def test_lopti_makes_two_steps_in_its_order(
    policy: LoadedPolicy, rows: list[dict[str, Any]], scored: ScoredTokens, found: Found
) -> None:
    """Its second pass is weighed by the ratios that the first has made; one pass after the other, by hand."""
    rate = 1.0
    lopti, reversed_order = method("grpo+lopti"), method("grpo+lopti:passes.order=high_first")
    ends = {}
    for which, of in (("low_first", lopti), ("high_first", reversed_order)):
        other, step = lab_policy(), MethodStep.of(of, scored)
        low = scored.old_log_probs.exp() < 0.5
        for masks in (low, ~low) if which == "low_first" else (~low, low):
            now, _ = other.score(rows)
            ratio = (now - scored.old_log_probs).exp()
            advantages = step.tokens.advantages
            clipped = ((advantages > 0) & (ratio > 1.2)) | ((advantages < 0) & (ratio < 0.8))
            weights = torch.where(masks & ~clipped & step.tokens.mask.bool(), ratio * advantages / sum(LENGTHS), 0.0)
            loss = -sum(float(weights[place]) * log_prob(other, rows[place[0]], place[1]) for place in places())
            other.model.zero_grad()
            loss.backward()  # type: ignore[union-attr]
            torch.optim.SGD(other.model.parameters(), lr=rate).step()
        ends[which] = other.score(rows)[0]
        torch.testing.assert_close(score_after_steps(policy, rows, step, rate), ends[which], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(ends["low_first"], ends["high_first"], atol=1e-3)
    assert list(dict.fromkeys(row["method"] for row in found[1]["directions"])) == list(NAMES)
