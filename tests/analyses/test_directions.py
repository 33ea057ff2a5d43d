"""Subspaces and angles of gradients against a singular value decomposition made elsewhere, and groups that add up."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

from rlvr_cli.analyses.directions import (
    Reference,
    clipping_variants,
    layer_matrices,
    principal_angles,
    token_groups,
    top_directions,
)
from rlvr_cli.analyses.gradients import gradient, norm
from rlvr_cli.analyses.method_step import MethodStep, ScoredTokens
from rlvr_cli.analyses.scoring import LoadedPolicy
from rlvr_cli.config.load import load_config
from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.method import Method
from tests.analyses.lab_rows import LENGTHS, lab_policy, lab_rows

# The weights are float64; the norms and rotations inside the model are float32 whatever its weights are.
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


def method(name: str) -> Method:
    return load_config(method=name).method.with_max_length(9)  # type: ignore[arg-type]


def matrix(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(9, 9), (5, 14), (14, 5)])
@pytest.mark.parametrize("side", ["right", "left"])
def test_angles_are_those_of_an_independent_decomposition(shape: tuple[int, int], side: str) -> None:
    """scipy's angles between subspaces that numpy's singular value decomposition spans."""
    first, second, k = matrix(*shape), matrix(*shape, seed=1), 3
    bases = []
    for of in (first, second):
        u, _, vt = np.linalg.svd(of.numpy())
        bases.append(vt[:k].T if side == "right" else u[:, :k])
    expected = np.rad2deg(np.sort(scipy.linalg.subspace_angles(*bases)))
    found = principal_angles(top_directions(first, k, side), top_directions(second, k, side))
    # The arccosine of what is nearly 1 has half the digits.
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-5)


def test_limits_of_the_angle() -> None:
    of = matrix(8, 6)
    basis = top_directions(of, 2, "right")
    assert principal_angles(basis, top_directions(-3 * of, 2, "right")).tolist() == pytest.approx([0, 0], abs=1e-5)
    # A rotation within the subspace is no other subspace.
    turned = basis @ torch.linalg.qr(matrix(2, 2)).Q
    assert principal_angles(basis, turned).tolist() == pytest.approx([0, 0], abs=1e-5)
    identity = torch.eye(6, dtype=torch.float64)
    assert principal_angles(identity[:, :2], identity[:, 2:4]).tolist() == pytest.approx([90, 90])
    halfway = (identity[:, :1] + identity[:, 1:2]) / math.sqrt(2)
    assert principal_angles(identity[:, :1], halfway).tolist() == pytest.approx([45])


@pytest.fixture(scope="module")
def policy() -> LoadedPolicy:
    return lab_policy()


@pytest.fixture(scope="module")
def scored(policy: LoadedPolicy) -> ScoredTokens:
    """The rows of the lab as two groups of three, with an old policy that makes ratios from 0.4 to 2.7."""
    rows, width = lab_rows(policy), max(LENGTHS)
    log_probs, entropies = policy.score(rows)
    mask = (torch.arange(width) < torch.tensor(LENGTHS).unsqueeze(1)).long()
    shift = torch.rand(len(rows), width, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 2 - 1
    old = torch.minimum(log_probs + shift, torch.tensor(-1e-3)) * mask
    rollout = Rollout(
        rewards=torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64),
        group_size=3,
        token_ids=torch.zeros_like(mask),
        mask=mask,
        old_log_probs=old,
        entropies=entropies,
    )
    return ScoredTokens(rollout, old, log_probs, entropies)


def test_parts_of_an_update_add_up_to_it(policy: LoadedPolicy, scored: ScoredTokens) -> None:
    rows, step = lab_rows(policy), MethodStep.of(method("grpo"), scored)
    groups = {group.name: group for group in token_groups(step, scored, low=0.3, high=0.3, entropy=0.2)}
    full = gradient(policy, rows, step.full_coefficients())
    for pair in (("low", "high"), ("positive", "negative")):
        assert all(bool(groups[name].members.any()) for name in pair)
        parts = [gradient(policy, rows, groups[name].coefficients) for name in pair]
        for name, whole in full.items():
            torch.testing.assert_close(parts[0][name] + parts[1][name], whole, **CLOSE)
    by_norm = Reference(full, layer_matrices(policy.model, None), None, "right").compare(parts[0])
    assert by_norm is not None
    assert by_norm[0] == pytest.approx(norm(parts[0]) / norm(full))


def test_ways_of_clipping_by_hand(scored: ScoredTokens) -> None:
    step = MethodStep.of(method("grpo"), scored)
    weights = {name: method(name).policy_loss for name in ("cispo", "dapo", "acpo")}
    groups = {group.name: group.coefficients for group in clipping_variants(step, weights, scored)}
    tokens = int(scored.rollout.mask.sum())
    for row in range(len(LENGTHS)):
        advantage = float(step.tokens.advantages.expand_as(step.tokens.log_probs)[row, 0])
        for position in range(LENGTHS[row]):
            at = (row, position)
            ratio = math.exp(float(scored.log_probs[at] - scored.old_log_probs[at]))
            cut = (ratio > 1.28 and advantage > 0) or (ratio < 0.8 and advantage < 0)
            expected = {
                "noclip": ratio,
                "cispo": min(max(ratio, 0.8), 1.2),
                "dapo": 0.0 if cut else ratio,
                "onpolicy": 1.0,
                "old": 1.0,
            }
            for name, weight in expected.items():
                assert float(groups[name][at]) == pytest.approx(weight * advantage / tokens)
