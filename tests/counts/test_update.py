"""The update computes what its gradient needs: rows with an advantage, tokens and not padding, logits that are read."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks.peers import disagreement, divided, method_named, our_trainer, their_trainer
from benchmarks.scripted import Rollout, Script
from tests.counts.counting import PLACE, Counted, model, ours, script, theirs

pytestmark = pytest.mark.counts

ROLLOUT = Rollout(rows=64, group=8, prompt=16, mean=32, longest=96, part=16)
HALF = replace(ROLLOUT, zero=0.5)
# Positions beyond the tokens: rows of one forward pass are padded to the longest of them.
PADDING = 1.35


def lengths(rollout: Rollout, *, learned_from: bool) -> tuple[int, int]:
    """Tokens of prompts with completions, and of completions; of all rows or of those with an advantage."""
    rows: Script = script(rollout)
    groups = [rows.rewards[first : first + rollout.group] for first in range(0, rollout.rows, rollout.group)]
    used = [not learned_from or len(set(group)) > 1 for group in groups for _ in group]
    prompts = sum(len(ids) for ids, use in zip(rows.prompts, used, strict=True) if use)
    completions = sum(len(ids) for ids, use in zip(rows.completions, used, strict=True) if use)
    return prompts + completions, completions


@cache
def update(rollout: Rollout, name: str, *overrides: str) -> Counted:
    method = divided(method_named(name, rollout, *overrides), model(), script(rollout))
    with TemporaryDirectory() as folder:
        return ours(Path(folder), rollout, method)


@cache
def of_trl(rollout: Rollout, passes: int = 1) -> Counted:
    with TemporaryDirectory() as folder:
        return theirs(Path(folder), rollout, passes)


def test_an_update_needs_a_fraction_of_the_flops_of_trl() -> None:
    assert update(ROLLOUT, "grpo").flops <= 0.6 * of_trl(ROLLOUT).flops
    assert update(HALF, "grpo").flops <= 0.35 * of_trl(HALF).flops
    lopti = update(ROLLOUT, "grpo+lopti")
    assert lopti.flops <= 0.55 * of_trl(ROLLOUT, passes=2).flops
    assert lopti.flops <= 1.9 * update(ROLLOUT, "grpo").flops


@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_only_rows_with_an_advantage_are_computed(name: str) -> None:
    found = update(HALF, name)
    tokens, completions = lengths(HALF, learned_from=True)
    assert found.with_gradient <= PADDING * tokens
    assert found.without_gradient == found.reference == 0
    assert found.logits == completions


def test_the_kl_term_and_the_value_head_need_every_row() -> None:
    """A row without advantage is still drawn to the reference policy, and teaches the value head."""
    tokens, completions = lengths(HALF, learned_from=False)
    for name, overrides in (("grpo", ["kl.beta=0.1"]), ("ppo", [])):
        found = update(HALF, name, *overrides)
        assert completions < found.with_gradient <= PADDING * tokens
        looked_at = found.reference if name == "grpo" else found.without_gradient
        assert completions < looked_at <= PADDING * tokens
    assert found.reference == 0
    assert found.logits == completions, "values need no logits"


def test_lopti_makes_the_logits_of_each_pass_for_its_own_tokens() -> None:
    found = update(ROLLOUT, "grpo+lopti")
    tokens, completions = lengths(ROLLOUT, learned_from=True)
    assert found.with_gradient <= 2 * PADDING * tokens
    assert found.logits == completions, "each token in one of the two passes"


def test_old_log_probs_are_those_that_the_sampler_told() -> None:
    """TRL looks at every row before the first of several updates."""
    rollout = replace(HALF, updates=4)
    assert update(rollout, "grpo").without_gradient == 0
    assert of_trl(rollout).without_gradient > 0


def test_long_prompts_are_computed_once_for_several_completions() -> None:
    rollout = replace(ROLLOUT, prompt=96)
    tokens, _ = lengths(rollout, learned_from=True)
    assert update(rollout, "grpo").with_gradient < 0.8 * tokens


def test_what_is_counted_makes_the_gradient_of_trl(tmp_path: Path) -> None:
    """Else a count would say nothing."""
    for name, passes in (("grpo", 1), ("grpo+lopti", 2)):
        overrides = ("aggregation=constant_length", "advantage.scale=none")
        method = divided(method_named(name, HALF, *overrides), model(), script(HALF))
        native = their_trainer(tmp_path / "theirs", model(), HALF, script(HALF), PLACE, passes)
        mine = our_trainer(tmp_path / name, model(), HALF, script(HALF), PLACE, method)
        assert disagreement(native, mine) < 1e-5
