"""Two methods on one rollout: where their coefficients differ, by hand-made log-probs."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from rlvr_cli.analyses.difference import method_difference
from rlvr_cli.analyses.method_step import ScoredTokens, apply_method
from rlvr_cli.config.load import load_config
from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.names import BASES, MODIFIERS

ROWS, LENGTH, GROUP = 12, 9, 4
NEEDS_VALUES = {"ppo", "sft"}
NAMES = [name for name in BASES if name not in NEEDS_VALUES] + [f"grpo+{name}" for name in MODIFIERS]


def method(name: str, *overrides: str) -> Method:
    # Of pass@k's default k = 4 completions, each group has one set, without an advantage.
    smaller = ("method.advantage.k=2",) if name == "pass-at-k" else ()
    return load_config(method=name, overrides=(*smaller, *overrides)).method.with_max_length(LENGTH)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def scored() -> ScoredTokens:
    """Three groups of four rows, ratios from 0.3 to 3, everything that any method needs."""
    generator = torch.Generator().manual_seed(7)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.randint(3, LENGTH + 1, (ROWS, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).long()
    old = torch.log(0.02 + 0.97 * uniform(ROWS, LENGTH)) * mask
    new = torch.minimum(old + (uniform(ROWS, LENGTH) - 0.5) * 2, torch.zeros(())) * mask
    rollout = Rollout(
        rewards=torch.tensor([3.0, -3.0, -0.5, 3.0] * 3, dtype=torch.float64),
        group_size=GROUP,
        token_ids=torch.randint(3, 6, (ROWS, LENGTH), generator=generator) * mask,
        mask=mask,
        entropies=uniform(ROWS, LENGTH) * mask,
        ref_log_probs=old - 0.1 * mask,
        teacher_log_probs=old + 0.1 * mask,
        correct=torch.tensor([True, False, False, True] * 3),
        parts=torch.tensor([[1.0, 2.0], [-1.0, -2.0], [1.0, -1.5], [1.0, 2.0]] * 3, dtype=torch.float64),
        greedy_rewards=torch.tensor([3.0, -3.0, 3.0], dtype=torch.float64).repeat_interleave(GROUP),
        initial_entropy=0.3,
    )
    return ScoredTokens(rollout, old, new, uniform(ROWS, LENGTH) * mask)


def test_a_method_does_not_differ_from_itself(scored: ScoredTokens) -> None:
    for name in NAMES:
        found = method_difference(method(name), method(name), scored)
        assert found["groups"][0]["differing"] == found["groups"][0]["sum_difference"] == 0, name
        assert found["groups"][0]["norm_ratio"] == 1, name
        assert found["groups"][0]["cosine"] == pytest.approx(1), name
        assert found["largest"] == [], name


def test_the_numbers_of_a_token(scored: ScoredTokens) -> None:
    """F A / number of tokens, with DGPO's F by hand."""
    found = method_difference(method("dgpo"), method("grpo"), scored, top=1000)
    tokens = int(scored.rollout.mask.sum())
    assert found["largest"]
    for token in found["largest"]:
        at = (token["row"], token["position"])
        ratio = math.exp(float(scored.log_probs[at] - scored.old_log_probs[at]))
        weight = ratio**2 / 0.8 if token["region"] == "LN" else math.sqrt(1.2 * ratio)
        assert token["ratio"] == pytest.approx(ratio)
        assert token["old_prob"] == pytest.approx(math.exp(float(scored.old_log_probs[at])))
        assert token["weight_a"] == pytest.approx(weight)
        assert token["weight_b"] == 0
        assert token["coefficient_a"] == pytest.approx(weight * token["advantage_a"] / tokens)
        assert (token["advantage_a"] < 0) == (token["region"] == "LN")


def test_norms_and_cosine(scored: ScoredTokens) -> None:
    halved = method_difference(method("grpo"), method("grpo", "method.aggregation=constant_length"), scored)
    a = apply_method(method("grpo"), scored).coefficients
    b = apply_method(method("grpo", "method.aggregation=constant_length"), scored).coefficients
    assert halved["groups"][0]["cosine"] == pytest.approx(1)
    assert halved["groups"][0]["norm_ratio"] == pytest.approx(float(a.norm() / b.norm()))
    opposite = method_difference(method("pl"), method("nl"), scored)
    assert opposite["groups"][0]["cosine"] == pytest.approx(0)


def test_at_ratio_1_the_clip_makes_no_difference(scored: ScoredTokens) -> None:
    still = dataclasses.replace(scored, log_probs=scored.old_log_probs)
    for name in ("dapo", "cispo", "gppo", "ce-gppo", "dgpo"):
        found = method_difference(method(name), method("grpo"), still)
        assert found["groups"][0]["sum_difference"] == 0
        assert still.largest_drift == 0
    assert method_difference(method("grpo+reweight"), method("grpo"), still)["groups"][0]["differing"] > 0


def test_the_kl_term_is_part_of_the_coefficient(scored: ScoredTokens) -> None:
    with_kl = apply_method(method("grpo", "method.kl.beta=0.5"), scored)
    without = apply_method(method("grpo"), scored)
    assert scored.rollout.ref_log_probs is not None
    penalty = 0.5 * torch.expm1(scored.rollout.ref_log_probs - scored.log_probs) / scored.rollout.mask.sum()
    difference = with_kl.coefficients - without.coefficients
    torch.testing.assert_close(difference, torch.where(scored.rollout.mask.bool(), penalty, 0.0))
    torch.testing.assert_close(with_kl.weights, without.weights)


def test_a_row_without_a_reward_and_a_masked_row_have_no_part(scored: ScoredTokens) -> None:
    rewards = scored.rollout.rewards.clone()
    rewards[1] = math.nan
    mask = scored.rollout.mask.clone()
    mask[5] = 0
    holed = dataclasses.replace(scored, rollout=dataclasses.replace(scored.rollout, rewards=rewards, mask=mask))
    coefficients = apply_method(method("dgpo"), holed).coefficients
    assert torch.isfinite(coefficients).all()
    assert (coefficients[1] == 0).all() and (coefficients[5] == 0).all()
