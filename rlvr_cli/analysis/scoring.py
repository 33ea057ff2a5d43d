"""Score a saved rollout: log-probs and entropies of its tokens under any policy of its run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlvr_cli.analysis.loaded_policy import LoadedPolicy, load_policy, padded
from rlvr_cli.analysis.method_step import Scored
from rlvr_cli.analysis.saved_rollout import SavedRollout, read_rollout
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.method import Method


@dataclass(frozen=True)
class ScoredRun:
    """A rollout of a run, ready to be compared on.

    Attributes:
        scored: the rollout under the old and the current policy.
        tokenizer: of the model.
        sampling_gap: mean over tokens of |log-prob under ``old`` - log-prob at sampling|, from the rows' sums: how
            far the old policy is from the one that sampled.
    """

    scored: Scored
    tokenizer: Any
    sampling_gap: float


def score(saved: SavedRollout, methods: Sequence[Method], old: LoadedPolicy | None = None) -> ScoredRun:
    """Run the policies that ``methods`` need over the rollout.

    Args:
        old: ``saved.old``, where it is in memory already.

    Raises:
        UserError: a method needs what no saved rollout holds, or a policy cannot be loaded.
    """
    _check(methods)
    rows = saved.rows
    sampled_by = old or load_policy(saved, saved.old)
    tokenizer = sampled_by.tokenizer
    old_log_probs, old_entropies = sampled_by.score(rows)
    del sampled_by  # one model in memory at a time
    if saved.current == saved.old:
        log_probs, entropies = old_log_probs, old_entropies
    else:
        log_probs, entropies = load_policy(saved, saved.current).score(rows)
    reference, initial = _of_the_base(saved, methods)
    ids, mask = padded([row["token_ids"] for row in rows])
    rollout = Rollout(
        rewards=_rewards(saved),
        group_size=saved.config.rollout.group_size,
        token_ids=ids,
        mask=mask * learned_from(rows, saved.config),
        old_log_probs=old_log_probs,
        entropies=old_entropies,
        ref_log_probs=reference,
        initial_entropy=initial,
        correct=torch.tensor([row["correct"] for row in rows]),
    )
    sums = torch.tensor([row["log_prob"] for row in rows], dtype=torch.float64)
    gap = float(((old_log_probs * mask).sum(dim=1) - sums).abs().sum() / mask.sum().clamp(min=1))
    return ScoredRun(Scored(rollout, old_log_probs, log_probs, entropies), tokenizer, gap)


def _check(methods: Sequence[Method]) -> None:
    problems = [
        f"{method.name}: its advantages come from a value head, whose predictions of each token no rollout file holds; "
        "compare its weight with `rlvr methods plot`."
        for method in methods
        if method.advantage.needs_values
    ]
    if problems:
        raise UserError(problems)


def _rewards(saved: SavedRollout) -> Tensor:
    """(N,) the verifier's rewards; NaN for a row without one."""
    values = [row["clean_reward"] for row in saved.rows]
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)


def learned_from(rows: Sequence[dict[str, Any]], config: Config) -> Tensor:
    """(N, 1) 0 on the rows that ``rollout.drop_truncated`` keeps out of the update."""
    dropped = [bool(row["truncated"]) and config.rollout.drop_truncated for row in rows]
    return 1 - torch.tensor(dropped, dtype=torch.int64).unsqueeze(1)


def _of_the_base(saved: SavedRollout, methods: Sequence[Method]) -> tuple[Tensor | None, float | None]:
    """Reference log-probs and initial entropy, each where a method needs it."""
    reference = any(method.needs_reference for method in methods)
    initial = any(method.needs_initial_entropy for method in methods)
    if not reference and not initial:
        return None, None
    base = load_policy(saved, saved.base)
    return base.score(saved.rows)[0] if reference else None, _initial_entropy(saved, base, methods) if initial else None


def _initial_entropy(saved: SavedRollout, base: LoadedPolicy, methods: Sequence[Method]) -> float:
    """Mean token entropy of the model before training: as the run measured it, or on its first rollout.

    Raises UserError where a method measures it on problems and the run did not.
    """
    asking = [method for method in methods if method.initial_entropy_samples is not None]
    if asking:
        known = saved.run.read_manifest().get("initial_entropy")
        if known is None:
            raise UserError(
                f"{asking[0].name}: measures the entropy before training on {asking[0].initial_entropy_samples} "
                "problems, and this run did not. Set method.shaping.entropy_filter.samples=null for its first rollout."
            )
        return float(known)
    rows = read_rollout(saved.run, 0)
    _, entropies = base.score(rows)
    tokens = sum(len(row["token_ids"]) for row in rows)
    return float(entropies.sum() / max(tokens, 1))
