"""Gradients of a rollout's tokens against a loop over single tokens.

The weights are float64; the norms and rotations inside the model are float32 whatever its weights are, hence CLOSE.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr_cli.analyses.gradients import gradient, logit_gradients, norm, sgd_step, token_norms
from rlvr_cli.analyses.scoring import LoadedPolicy
from rlvr_cli.training import log_probs
from tests.analyses.lab_rows import LENGTHS, lab_policy, lab_rows, log_prob

Rows = list[dict[str, Any]]
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
PLACES = [(row, position) for row, length in enumerate(LENGTHS) for position in range(length)]


@pytest.fixture(scope="module")
def policy() -> LoadedPolicy:
    return lab_policy()


@pytest.fixture(scope="module")
def rows(policy: LoadedPolicy) -> Rows:
    return lab_rows(policy)


@pytest.fixture(scope="module")
def single(policy: LoadedPolicy, rows: Rows) -> dict[tuple[int, int], dict[str, Tensor]]:
    """grad log pi of every token by itself."""
    found = {}
    for row, position in PLACES:
        policy.model.zero_grad()
        log_prob(policy, rows[row], position).backward()
        found[row, position] = {name: of.grad.clone() for name, of in policy.model.named_parameters()}
    policy.model.zero_grad()
    return found


@pytest.fixture(scope="module")
def coefficients() -> Tensor:
    values = torch.randn(len(LENGTHS), max(LENGTHS), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return torch.where(torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(1), values, 0.0)


def test_the_gradient_is_the_sum_over_single_tokens(
    policy: LoadedPolicy,
    rows: Rows,
    single: dict[tuple[int, int], dict[str, Tensor]],
    coefficients: Tensor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coefficients = coefficients.clone()
    coefficients[1] = 0
    whole = gradient(policy, rows, coefficients)
    assert whole.keys() == dict(policy.model.named_parameters()).keys()
    for name, value in whole.items():
        expected = sum(coefficients[place] * single[place][name] for place in PLACES)
        torch.testing.assert_close(value, expected, **CLOSE)
    monkeypatch.setattr(log_probs, "MAX_LOGITS", 1)
    one_by_one = gradient(policy, rows, coefficients)
    for name, value in whole.items():
        torch.testing.assert_close(one_by_one[name], value, **CLOSE)


def test_norms_of_single_tokens(
    policy: LoadedPolicy, rows: Rows, single: dict[tuple[int, int], dict[str, Tensor]]
) -> None:
    chosen = [PLACES[index] for index in (11, 0, 3, 25, 12)]
    found = token_norms(policy, rows, chosen)
    assert found.tolist() == pytest.approx([norm(single[place]) for place in chosen], rel=1e-4)


def test_the_gradient_at_the_logits(policy: LoadedPolicy, rows: Rows) -> None:
    found = logit_gradients(policy, rows, max(LENGTHS))
    assert found.vocabulary == policy.model.config.vocab_size
    log_probs, _ = policy.score(rows)
    for row, position in PLACES:
        prompt = list(policy.tokenizer(rows[row]["prompt"], add_special_tokens=False)["input_ids"])
        ids = rows[row]["token_ids"]
        logits = policy.model(torch.tensor([[*prompt, *ids[:position]]])).logits[0, -1].detach() / policy.temperature
        logits.requires_grad_()
        (at_logits,) = torch.autograd.grad(logits.log_softmax(dim=-1)[ids[position]], logits)
        assert float(found.norms[row, position]) == pytest.approx(float(at_logits.norm()), rel=1e-4, abs=1e-6)
        assert float(found.rest[row, position]) == pytest.approx(
            -float(torch.expm1(log_probs[row, position])), abs=1e-6
        )
    assert not found.norms[1, LENGTHS[1] :].any()


def test_a_step_moves_each_token_by_its_product_with_the_gradient_and_is_taken_back(
    policy: LoadedPolicy, rows: Rows, single: dict[tuple[int, int], dict[str, Tensor]], coefficients: Tensor
) -> None:
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    direction = gradient(policy, rows, coefficients)
    rate = 1e-5
    with sgd_step(policy, direction, rate):
        uphill, _ = policy.score(rows)
    with sgd_step(policy, direction, -rate):
        downhill, _ = policy.score(rows)
    moved = (uphill - downhill) / (2 * rate)
    for place in PLACES:
        product = sum(float((single[place][name] * value).sum()) for name, value in direction.items())
        assert float(moved[place]) == pytest.approx(product, rel=0.01, abs=0.05)
    with pytest.raises(KeyError), sgd_step(policy, direction, 1.0):
        raise KeyError
    assert all(torch.equal(value, before[name]) for name, value in policy.model.state_dict().items())
