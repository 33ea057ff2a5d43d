"""The curves of `rlvr methods plot` are the weights that training uses."""

from __future__ import annotations

import math

import pytest
import torch

from rlvr_cli.config.load import load_config
from rlvr_cli.describe.named import policy_config
from rlvr_cli.describe.weights import effective_weight, weight_curves
from rlvr_cli.methods.base import Tokens
from rlvr_cli.methods.kl import KLPenalty
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.names import BASES, MODIFIERS

METHODS = [name for name in BASES if name != "sft"]
COMPOSED = [*METHODS, *(f"grpo+{modifier}" for modifier in MODIFIERS), "dgpo+lopti", "reinforce-pp+reweight+lopti"]


def method(name: str, *overrides: str) -> Method:
    config = load_config(method=name, overrides=overrides).method if overrides else policy_config(name)
    return config.with_max_length(10)  # type: ignore[arg-type]


def at(name: str, ratio: float, sign: int, old_prob: float = 0.1, *overrides: str) -> float:
    weights, _ = effective_weight(method(name, *overrides), torch.tensor([ratio], dtype=torch.float64), old_prob, sign)
    return float(weights)


def test_a_point_of_a_curve() -> None:
    for name, sign, ratio, expected in [
        # the four corners, LN HP LP HN, at a ratio of 1/2 or 2
        ("grpo", -1, 0.5, 0.0),
        ("grpo", +1, 2.0, 0.0),
        ("grpo", +1, 0.5, 0.5),
        ("grpo", -1, 2.0, 2.0),
        ("dapo", +1, 1.27, 1.27),
        ("dapo", +1, 1.29, 0.0),
        ("cispo", -1, 0.5, 0.8),
        ("cispo", +1, 2.0, 1.2),
        ("cispo", +1, 0.5, 0.8),
        ("cispo", -1, 2.0, 1.2),
        ("gppo", -1, 0.5, 0.8),
        ("gppo", +1, 2.0, 1.2),
        ("gppo", +1, 0.5, 0.5),
        ("gppo", -1, 2.0, 2.0),
        ("ce-gppo", -1, 0.5, 0.75 * 0.8),
        ("ce-gppo", +1, 2.0, 1.2),
        ("aspo", +1, 0.5, 2.0),
        ("aspo", +1, 0.25, 3.0),
        ("aspo", -1, 3.5, 3.0),
        ("aspo", +1, 2.0, 0.0),
        ("dgpo", -1, 0.5, 0.5**2 / 0.8),
        ("dgpo", +1, 2.0, math.sqrt(1.2 * 2.0)),
        ("dgpo", +1, 0.5, 0.5),
        ("dgpo", -1, 2.0, 2.0),
        ("pl", +1, 3.0, 3.0),
        ("nl", -1, 0.3, 0.3),
        ("raft-pp", +1, 1.3, 0.0),
        ("gtpo", -1, 0.3, 1.0),
        ("gspo", +1, 1.0003, 1.0003),
        ("gspo", +1, 1.001, 0.0),
    ]:
        assert at(name, ratio, sign) == pytest.approx(expected, abs=1e-12), (name, sign, ratio, expected)


def test_a_curve_is_what_training_multiplies_grad_log_pi_by() -> None:
    """`Method.coefficients` of one token with advantage +-1 and normaliser 1, its passes added up."""
    for old_prob in [0.05, 0.7]:
        for name in [name for name in COMPOSED if not method(name).policy_loss.needs_statistics]:
            chosen = method(name).model_copy(update={"kl": KLPenalty(beta=0.0)})
            ratios = torch.tensor([0.3, 0.79, 0.81, 1.0, 1.19, 1.21, 1.3], dtype=torch.float64)
            for sign in chosen.advantage.signs:
                weights, _ = effective_weight(chosen, ratios, old_prob, sign)
                for ratio, weight in zip(ratios, weights, strict=True):
                    old = torch.full((1, 1), old_prob, dtype=torch.float64).log()
                    tokens = Tokens(old + ratio.log(), old, torch.full_like(old, sign), torch.ones_like(old))
                    count = chosen.aggregation.count(tokens.mask, tokens.advantages)
                    normaliser = chosen.aggregation.coefficients(tokens.mask, count)
                    total = sum(chosen.coefficients(tokens, count, which) for which in chosen.passes.names)
                    assert float(total / normaliser) == pytest.approx(sign * float(weight), abs=1e-12)


def test_every_method_and_every_modifier_has_curves() -> None:
    for name in COMPOSED:
        drawn = weight_curves([method(name)], [0.1, 0.9])
        assert {curve.label.split(" ")[0] for curve in drawn.curves} == {method(name).name}, name
        for curve in drawn.curves:
            assert torch.isfinite(curve.on_log_prob).all() and (curve.on_log_prob >= 0).all(), name
            assert (curve.ratios.diff() >= 0).all(), name
            assert float(curve.ratios[-1]) * curve.old_prob <= 1 + 1e-12, name
            torch.testing.assert_close(curve.on_prob * curve.ratios * curve.old_prob, curve.on_log_prob)


def test_at_ratio_1_the_methods_that_differ_by_clipping_alone_are_one() -> None:
    for name in ("grpo", "dapo", "cispo", "gppo", "ce-gppo", "aspo", "dgpo", "acpo", "gspo", "rloo", "ppo"):
        assert at(name, 1.0, +1) == at(name, 1.0, -1) == 1.0


def test_reweighting_shows_its_factor_at_the_old_probability() -> None:
    for old_prob in (0.1, 0.5, 0.9):
        factor = 0.3 * old_prob + 0.7
        assert at("dgpo+reweight", 0.5, -1, old_prob) == pytest.approx(factor * at("dgpo", 0.5, -1, old_prob))


@pytest.mark.parametrize("old_prob", [0.1, 0.5, 0.95])
def test_acpo_is_drawn_with_the_bounds_of_the_stated_spread(old_prob: float) -> None:
    spread = 0.2
    _, region = effective_weight(method("acpo"), torch.tensor([1.0]), old_prob, 1, spread=spread)
    # sigma^2 of a bin is the mean of (spread (1 - p)^2)^2 over its probabilities; the mean ratio is 1 everywhere.
    low = int(old_prob * 5) / 5
    probabilities = low + (torch.arange(10_000, dtype=torch.float64) + 0.5) / 50_000
    sigma = (spread * (1 - probabilities) ** 2).square().mean().sqrt()
    assert region[1] == pytest.approx(1 + 3 * float(sigma) + 0.1, abs=1e-4)
    assert region[0] == pytest.approx(2 - region[1])


def test_a_weight_that_depends_on_entropy_has_a_curve_for_each_kind_of_token() -> None:
    split = method("aspo", "method.policy_loss.eps_high_entropy=0.4")
    curves = {curve.label: curve for curve in weight_curves([split], [0.1]).curves if curve.sign == 1}
    assert curves["aspo (low entropy)"].region == pytest.approx((0.8, 1.2))
    assert curves["aspo (high entropy)"].region == pytest.approx((0.6, 1.4))
