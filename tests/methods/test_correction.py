"""The weights of every correction: against plain Python, TRL's own code, and their limits."""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from trl import GRPOTrainer

from rlvr_cli.methods.base import Tokens
from rlvr_cli.methods.correction import (
    Correction,
    GeometricRejection,
    IcePop,
    MaskedSequence,
    OffPolicySequenceMask,
    SequenceCorrection,
    TokenCorrection,
)

ACTIVE = [
    TokenCorrection(),
    IcePop(),
    SequenceCorrection(),
    MaskedSequence(),
    GeometricRejection(low=0.9, high=1.1),
    OffPolicySequenceMask(delta=0.1),
]
KINDS = pytest.mark.parametrize("correction", ACTIVE, ids=lambda correction: correction.kind)


def rows(seed: int = 0, spread: float = 0.5, count: int = 40, width: int = 9) -> tuple[Tokens, Tensor]:
    """Rows of any length, padded; a sampler whose log-probs are ``spread`` away, some unknown."""
    generator = torch.Generator().manual_seed(seed)

    def normal(scale: float) -> Tensor:
        return scale * torch.randn(count, width, generator=generator, dtype=torch.float64)

    old = -normal(1.0).abs() - 0.1
    mask = (torch.arange(width) < torch.randint(1, width + 1, (count, 1), generator=generator)).long()
    advantages = torch.randn(count, 1, generator=generator, dtype=torch.float64)
    sampler = old + normal(spread)
    sampler[torch.rand(count, width, generator=generator) < 0.1] = torch.nan
    return Tokens(old + normal(0.1), old, advantages, mask), sampler


def plain(correction: Any, old: list[float], new: list[float], sampler: list[float], advantage: float) -> list[float]:
    """The weights of a row's tokens, as the formulas read."""
    x = [0.0 if math.isnan(other) else ours - other for ours, other in zip(old, sampler, strict=True)]
    w, product = [math.exp(each) for each in x], math.exp(sum(x))
    match correction.kind:
        case "token":
            return [min(each, correction.cap) for each in w]
        case "icepop":
            return [each if correction.low <= each <= correction.high else 0.0 for each in w]
        case "sequence":
            return [min(product, correction.cap)] * len(w)
        case "mis":
            return [product if product <= correction.cap else 0.0] * len(w)
        case "geometric":
            return [float(correction.low <= math.exp(sum(x) / len(x)) <= correction.high)] * len(w)
        case "opsm":
            gaps = [0.0 if math.isnan(other) else other - ours for ours, other in zip(new, sampler, strict=True)]
            return [float(not (advantage < 0 and sum(gaps) / len(gaps) > correction.delta))] * len(w)
    raise AssertionError(correction.kind)


@KINDS
def test_the_formula(correction: Correction) -> None:
    tokens, sampler = rows()
    weights, cut = correction.weights(tokens, sampler)
    assert weights.shape == cut.shape == sampler.shape
    unlimited = [{"cap": 1e6}, {"low": 0.0, "high": 1e6}, {"delta": 1e6}]
    free = correction.replace(**next(each for each in unlimited if set(each) <= set(type(correction).model_fields)))
    seen = set()
    for row, length in enumerate(tokens.mask.sum(dim=1).tolist()):
        part = slice(0, length)
        values = [each[row, part].tolist() for each in (tokens.old_log_probs, tokens.log_probs, sampler)]
        expected = plain(correction, *values, float(tokens.advantages[row, 0]))
        assert weights[row, part].tolist() == pytest.approx(expected, rel=1e-12)
        whole = plain(free, *values, float(tokens.advantages[row, 0]))
        changed = [abs(a - b) > 1e-9 for a, b in zip(expected, whole, strict=True)]
        assert cut[row, part].tolist() == changed
        seen |= set(changed)
    assert seen == {True, False}


@KINDS
def test_a_sampler_that_is_the_policy_has_weight_one(correction: Correction) -> None:
    tokens, _ = rows()
    tokens = replace(tokens, log_probs=tokens.old_log_probs)
    weights, cut = correction.weights(tokens, tokens.old_log_probs)
    assert torch.equal(weights, torch.ones_like(weights)) and not cut.any()


@KINDS
def test_order_and_padding_of_rows_change_nothing(correction: Correction) -> None:
    tokens, sampler = rows()
    weights, cut = correction.weights(tokens, sampler)
    order = torch.randperm(len(weights), generator=torch.Generator().manual_seed(1))
    moved = Tokens(*(getattr(tokens, name)[order] for name in ("log_probs", "old_log_probs", "advantages", "mask")))
    assert torch.equal(correction.weights(moved, sampler[order])[0], weights[order])
    garbage = torch.where(tokens.mask.bool(), 0.0, torch.tensor([50.0, -50.0, math.inf]).repeat(3))
    other = replace(tokens, old_log_probs=tokens.old_log_probs + garbage, log_probs=tokens.log_probs - garbage)
    found = correction.weights(other, sampler)
    valid = tokens.mask.bool()
    assert torch.equal(found[0][valid], weights[valid]) and torch.equal(found[1][valid], cut[valid])


@KINDS
@pytest.mark.parametrize("size", [60.0, -60.0, math.inf, -math.inf])
def test_long_rows_and_hostile_tokens_have_finite_weights(correction: Correction, size: float) -> None:
    """A product of 2000 tokens at e^60, zeros, and a product of 0 and infinity."""
    old = torch.full((2, 2000), -1.0)
    sampler = old - size
    sampler[1, ::2] += 2 * size
    tokens = Tokens(old, old, torch.tensor([[-1.0], [1.0]]), torch.ones_like(old))
    weights, _ = correction.weights(tokens, sampler)
    assert weights.isfinite().all() and (weights >= 0).all() and weights.dtype == torch.float32


def test_a_small_mismatch_of_a_long_row_is_measured_exactly() -> None:
    """0.012 a token over 100 tokens is a ratio of 3.3: out at a cap of 3, in at 3.4."""
    old = torch.full((1, 100), -1.0)
    tokens = Tokens(old, old, torch.ones(1, 1), torch.ones_like(old))
    sampler = old.double() - 0.012
    assert MaskedSequence(cap=3.0).weights(tokens, sampler)[0].eq(0).all()
    kept, _ = MaskedSequence(cap=3.4).weights(tokens, sampler)
    assert kept[0, 0].item() == pytest.approx(math.exp(1.2), rel=1e-7)


# --- TRL -----------------------------------------------------------------------------------------------------------


def trl_ratios(mode: str, low: float | None, high: float, tokens: Tokens, sampler: Tensor) -> Tensor:
    """TRL's `importance_sampling_ratio` by its own statements, which are inside of its generation."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(GRPOTrainer._generate_and_score_completions)))
    target = "vllm_importance_sampling_ratio"
    # The outermost, since ast.walk goes level by level.
    block = next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and any(isinstance(each, ast.Assign) and getattr(each.targets[0], "id", "") == target for each in node.body)
    )
    trainer = SimpleNamespace(
        use_vllm=True,
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_min=low,
        vllm_importance_sampling_clip_max=high,
    )
    names: dict[str, Any] = {
        "torch": torch,
        "math": math,
        "self": trainer,
        "completion_mask": tokens.mask,
        "tool_mask": None,
        "old_per_token_logps": tokens.old_log_probs,
        "sampling_per_token_logps": sampler,
    }
    exec(compile(ast.Module([block], []), "trl", "exec"), names)  # noqa: S102
    return names[target].expand_as(sampler)


@pytest.mark.parametrize(
    ("mode", "low", "high", "correction"),
    [
        ("token_truncate", None, 2.0, TokenCorrection(cap=2.0)),
        ("token_mask", 0.5, 5.0, IcePop(low=0.5, high=5.0)),
        ("token_mask", None, 3.0, IcePop(low=0.0, high=3.0)),
        ("sequence_truncate", None, 3.0, SequenceCorrection(cap=3.0)),
        ("sequence_mask", None, 3.0, MaskedSequence(cap=3.0)),
    ],
)
def test_the_modes_of_trl(mode: str, low: float | None, high: float, correction: Correction) -> None:
    tokens, sampler = rows(seed=2)
    valid = tokens.mask.bool()
    weights, cut = correction.weights(tokens, sampler)
    torch.testing.assert_close(weights[valid], trl_ratios(mode, low, high, tokens, sampler)[valid])
    assert 0 < cut[valid].double().mean() < 1


def test_the_off_policy_sequence_mask_of_trl() -> None:
    tokens, sampler = rows(seed=3)
    weights, _ = OffPolicySequenceMask(delta=0.1).weights(tokens, sampler)
    theirs = GRPOTrainer.get_off_policy_mask(tokens.advantages, tokens.log_probs, sampler, tokens.mask, 0.1)
    assert torch.equal(weights, theirs.expand_as(weights).to(weights.dtype)) and set(weights.unique().tolist()) == {
        0,
        1,
    }
