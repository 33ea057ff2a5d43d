"""Score a rollout before its first update: the method's inputs and advantages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.method import Method
from rlvr_cli.training.objective import length_extremes
from rlvr_cli.training.packing import TensorRows, pad_rows, pad_values, policy_mask
from rlvr_cli.training.rollouts import RolloutBatch


class Scoring:
    """Computes the method's inputs for a rollout, from the sampler's outputs or by forward passes, and its advantages.

    Args:
        trainer: the :class:`~rlvr_cli.training.trainer.PolicyTrainer`.
        compare_sampler: whether updates compare the sampler's log-probs with the policy's.
        trust_sampler_log_probs: whether the sampler's log-probs and entropies are used as the policy's.

    Attributes:
        initial_entropy: mean token entropy of the untrained model in nats; None until measured.
    """

    def __init__(self, trainer: Any, *, compare_sampler: bool, trust_sampler_log_probs: bool) -> None:
        self.trainer, self.compare_sampler = trainer, compare_sampler
        self.trust_sampler_log_probs = trust_sampler_log_probs
        self.method: Method = trainer.method
        self.initial_entropy: float | None = None

    def compute_columns(self, rows: TensorRows, batch: RolloutBatch | None) -> TensorRows:
        """Compute the method's columns for this process's ``rows``, before the first update.

        ``batch``: the collected rollout; None = TRL's generation, without log-probs and entropies.
        """
        method, mask = self.method, rows["completion_mask"]
        several_steps = self.trainer.steps_per_rollout > 1
        columns = {"ref_log_probs": self.trainer.reference_log_probs(rows)} if method.needs_reference else {}
        if method.advantage.needs_teacher:
            columns["teacher_log_probs"] = self.trainer.teacher_log_probs(rows)
        needs_initial = method.needs_initial_entropy and self.initial_entropy is None
        needs_entropies = method.needs_rollout_entropies or needs_initial
        needs_old = method.needs_rollout_log_probs
        if batch is not None and self.compare_sampler:
            columns["sampler_log_probs"] = pad_values(batch.log_probs, mask)
        if batch is not None and self.trust_sampler_log_probs:
            # Lopti's first pass can skip untrained tokens only if the old log-probs are known before it.
            if needs_old or method.passes.chooses_by_old_log_probs or several_steps:
                columns["old_log_probs"], needs_old = pad_values(batch.log_probs, mask), False
            if needs_entropies and batch.entropies is not None:
                columns["entropies"], needs_entropies = pad_values(batch.entropies, mask), False
        if needs_entropies or needs_old or self.trainer.value_head is not None:
            # A single step computes its old log-probs in its update.
            has_old = "old_log_probs" in columns or not (several_steps or needs_old)
            outputs = self.trainer.forward.infer(
                self.trainer.model, rows, entropies=needs_entropies, values_only=has_old and not needs_entropies
            )
            if not has_old:
                columns["old_log_probs"] = outputs.log_probs
            computed = {"entropies": outputs.entropies, "values": outputs.values}
            columns |= {name: values for name, values in computed.items() if values is not None}
        if batch is not None and method.needs_correct:
            columns["correct"] = torch.tensor(batch.correct, dtype=torch.int64, device=mask.device)
        return columns

    def measure_initial_entropy(self, samples: int) -> float:
        """Return the token mean of the entropy (nats) over ``samples`` completions; a collective operation."""
        trainer, accelerator = self.trainer, self.trainer.accelerator
        problems = range(accelerator.process_index, samples, accelerator.num_processes)
        # A process without problems must take part in the collective calls.
        batch = trainer.rollouts.sample_before_training(list(problems) or [0])
        if batch.entropies is not None and self.trust_sampler_log_probs:
            sums = [math.fsum(row) for row in batch.entropies]
        else:
            rows = pad_rows(batch.prompt_ids, batch.completion_ids, trainer.pad_token_id)
            rows = {key: value.to(accelerator.device) for key, value in rows.items()}
            with eval_mode(trainer.model):
                entropies = trainer.forward.infer(trainer.model, rows, entropies=True).entropies
            sums = (entropies * rows["completion_mask"]).double().sum(dim=1).tolist()
        local = [math.fsum(sums), sum(map(len, batch.completion_ids))] if problems else [0.0, 0]
        totals = torch.tensor(local, dtype=torch.float64, device=accelerator.device)
        entropy, tokens = accelerator.reduce(totals, reduction="sum").tolist()
        self.initial_entropy = float(entropy / max(tokens, 1.0))
        return self.initial_entropy

    def score(
        self, rows: TensorRows, rewards: Tensor, judged: Tensor | None = None, **inputs: Any
    ) -> tuple[Rollout, TensorRows]:
        """Return the method's view of the rollout, and the rows of all processes with their advantages.

        ``rewards``: (N,); NaN excludes a row from training. ``judged``: (N,) values that are compared with
        ``trainer.correct_above`` without verdicts; None = the rewards. ``inputs``: further fields of :class:`Rollout`,
        of all processes: the parts of the rewards, the rewards of greedy completions.
        """
        judged = rewards if judged is None else judged
        correct = rows["correct"].bool() if "correct" in rows else judged > self.trainer.correct_above
        rollout = self._make_rollout(rows, rewards, correct=correct, **inputs)
        raw_advantages, advantages = (_scatter_back(rows, values) for values in self.method.rollout_advantages(rollout))
        scored_rows = {key: value for key, value in rows.items() if key not in _OF_ROLLOUTS}
        # An excluded row has no tokens, so no KL, statistic or divisor counts it.
        scored_rows |= {"completion_mask": rows["completion_mask"] * ~rewards.isnan().unsqueeze(1)}
        scored_rows |= {"advantages": advantages, "estimated": raw_advantages}
        if "sampler_log_probs" in rows:
            scored_rows["is_short"], scored_rows["is_long"] = length_extremes(policy_mask(scored_rows))
        threshold = self.method.passes.threshold(rollout)
        if threshold is not None:
            scored_rows["low_threshold"] = torch.full((len(advantages), 1), threshold, device=advantages.device)
        if rollout.values is not None:
            returns = self.method.advantage.returns(rollout).to(rollout.values.dtype)
            scored_rows["returns"] = _scatter_back(rows, returns)
        return rollout, scored_rows

    def _make_rollout(self, rows: TensorRows, rewards: Tensor, **inputs: Any) -> Rollout:
        compact = _compact_rows(rows)
        mask = compact["completion_mask"] * ~rewards.isnan().unsqueeze(1)
        if self.method.needs_initial_entropy and self.initial_entropy is None and mask.any():
            self.initial_entropy = float(compact["entropies"][mask.bool()].double().mean())
        rollout = Rollout(
            rewards,
            self.trainer.group_size,
            compact["completion_ids"],
            mask,
            # None only if no token depends on it.
            initial_entropy=0.0 if self.initial_entropy is None else self.initial_entropy,
            **{name: compact.get(name) for name in _TOKEN_COLUMNS},
            **inputs,
        )
        return self.method.reward.shape(rollout)


_TOKEN_COLUMNS = ("old_log_probs", "entropies", "ref_log_probs", "values", "teacher_log_probs")
# Columns that no update reads.
_OF_ROLLOUTS = ("entropies", "correct", "teacher_log_probs")


def _compact_rows(rows: TensorRows) -> TensorRows:
    """Move the policy's tokens of each row to its front, before those of tools and environments.

    Recursive estimators need contiguous tokens: gamma and lambda of PPO and REINFORCE++ count the policy's tokens.
    """
    if "tool_mask" not in rows:
        return rows
    order = _policy_first_order(rows)
    moved = {key: rows[key].gather(1, order) for key in ("completion_ids", *_TOKEN_COLUMNS) if key in rows}
    return {**rows, **moved, "completion_mask": policy_mask(rows).gather(1, order)}


def _scatter_back(rows: TensorRows, values: Tensor) -> Tensor:
    """Undo :func:`_compact_rows` for values (n, T); (n, 1) is unchanged."""
    if "tool_mask" not in rows or values.shape[1] == 1:
        return values
    return torch.zeros_like(values).scatter(1, _policy_first_order(rows), values)


def _policy_first_order(rows: TensorRows) -> Tensor:
    """Return (n, T) positions: the policy's tokens in order, then the others."""
    return (policy_mask(rows) == 0).int().sort(dim=1, stable=True).indices


@contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """Set ``model`` to evaluation mode inside the context."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
