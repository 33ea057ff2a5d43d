"""Score a rollout before its first update: the method's inputs and advantages."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.method import Method
from rlvr_cli.training.forward import PolicyForward
from rlvr_cli.training.packing import TensorRows, pad_rows, pad_values, policy_mask
from rlvr_cli.training.rollouts import RolloutBatch, RolloutSource


class Scoring:
    """Computes the inputs of a method for a rollout, from its sampler or by forward passes, and its advantages.

    Args:
        forward: forward passes of the policy.
        several_steps: whether a rollout has several optimizer steps.
        correct_above: a completion without a verdict is correct if its judged value is above this.
        compare_sampler: whether updates compare the sampler's log-probs with the policy's.
        trust_sampler_log_probs: whether a sampler's log-probs and entropies are used as the policy's.

    Attributes:
        initial_entropy: mean token entropy of the untrained model, nats; None until it is measured.
    """

    def __init__(
        self,
        method: Method,
        forward: PolicyForward,
        *,
        group_size: int,
        several_steps: bool,
        correct_above: float,
        compare_sampler: bool,
        trust_sampler_log_probs: bool,
    ) -> None:
        self.method, self.forward, self.group_size, self.several_steps = method, forward, group_size, several_steps
        self.correct_above, self.trust_sampler_log_probs = correct_above, trust_sampler_log_probs
        self.compare_sampler = compare_sampler
        self.initial_entropy: float | None = None

    def compute_columns(
        self, own: TensorRows, batch: RolloutBatch | None, model: Any, reference: Callable[[TensorRows], Tensor]
    ) -> TensorRows:
        """Return the method's further columns for this process's rows, before the first update.

        Args:
            batch: the collected rollout; None = TRL's generation, without log-probs and entropies.
            reference: log-probs (n, T) under the reference policy.
        """
        method, mask = self.method, own["completion_mask"]
        measured = {"ref_log_probs": reference(own)} if method.needs_reference else {}
        first_entropy = method.needs_initial_entropy and self.initial_entropy is None
        entropies_needed = method.needs_rollout_entropies or first_entropy
        old_needed = method.needs_rollout_log_probs
        if batch is not None and self.compare_sampler:
            measured["sampler_log_probs"] = pad_values(batch.log_probs, mask)
        if batch is not None and self.trust_sampler_log_probs:
            # Lopti's first pass can skip untrained tokens only if the old log-probs are known before it.
            if old_needed or method.passes.chooses_by_old_log_probs or self.several_steps:
                measured["old_log_probs"], old_needed = pad_values(batch.log_probs, mask), False
            if entropies_needed and batch.entropies is not None:
                measured["entropies"], entropies_needed = pad_values(batch.entropies, mask), False
        if entropies_needed or old_needed or self.forward.value_head is not None:
            # The first step's log-probs are its own.
            old_known = "old_log_probs" in measured or not (self.several_steps or old_needed)
            outputs = self.forward.infer(
                model, own, entropies=entropies_needed, values_only=old_known and not entropies_needed
            )
            if not old_known:
                measured["old_log_probs"] = outputs.log_probs
            if outputs.entropies is not None:
                measured["entropies"] = outputs.entropies
            if outputs.values is not None:
                measured["values"] = outputs.values
        if batch is not None and method.advantage.needs_correct:
            measured["correct"] = torch.tensor([int(is_correct) for is_correct in batch.correct], device=mask.device)
        return measured

    def measure_initial_entropy(self, rollouts: RolloutSource, samples: int, model: Any, pad_id: int) -> float:
        """Token mean of the entropy over one completion of each of the first ``samples`` problems, of all processes."""
        accelerator = self.forward.accelerator
        share = range(accelerator.process_index, samples, accelerator.num_processes)
        # Collective: a process without a share samples a dummy problem.
        batch = rollouts.sample_before_training(list(share) or [0])
        if batch.entropies is not None and self.trust_sampler_log_probs:
            sums = [math.fsum(of_row) for of_row in batch.entropies]
        else:
            rows = pad_rows(batch.prompt_ids, batch.completion_ids, pad_id)
            rows = {key: value.to(accelerator.device) for key, value in rows.items()}
            with eval_mode(model):
                entropies = self.forward.infer(model, rows, entropies=True).entropies
            assert entropies is not None
            sums = (entropies * rows["completion_mask"]).double().sum(dim=1).tolist()
        own = [math.fsum(sums), sum(map(len, batch.completion_ids))] if share else [0.0, 0]
        totals = torch.tensor(own, dtype=torch.float64, device=accelerator.device)
        entropy, tokens = accelerator.reduce(totals, reduction="sum").tolist()
        self.initial_entropy = float(entropy / max(tokens, 1.0))
        return self.initial_entropy

    def score(self, rows: TensorRows, rewards: Tensor, judged: Tensor | None = None) -> tuple[Rollout, TensorRows]:
        """Return the method's rollout, and the rows of all processes with their advantages.

        Args:
            rewards: (N,); NaN excludes a row from training.
            judged: (N,) the values that decide correctness without verdicts; None = the rewards.
        """
        rollout = self._rollout(rows, rewards, rewards if judged is None else judged)
        estimated, advantages = (_in_place(rows, values) for values in self.method.rollout_advantages(rollout))
        scored_rows = {key: value for key, value in rows.items() if key not in ("entropies", "correct")}
        # An excluded row has no tokens, so it counts in no KL, statistic or divisor.
        scored_rows |= {"completion_mask": rows["completion_mask"] * ~rewards.isnan().unsqueeze(1)}
        scored_rows |= {"advantages": advantages, "estimated": estimated}
        threshold = self.method.passes.threshold(rollout)
        if threshold is not None:
            scored_rows["low_threshold"] = torch.full((len(advantages), 1), threshold, device=advantages.device)
        if rollout.values is not None:
            returns = self.method.advantage.returns(rollout).to(rollout.values.dtype)
            scored_rows["returns"] = _in_place(rows, returns)
        return rollout, scored_rows

    def _rollout(self, rows: TensorRows, rewards: Tensor, judged: Tensor) -> Rollout:
        side_by_side = _compact_rows(rows)
        mask = side_by_side["completion_mask"] * ~rewards.isnan().unsqueeze(1)
        rollout = Rollout(
            rewards=rewards,
            group_size=self.group_size,
            token_ids=side_by_side["completion_ids"],
            mask=mask,
            old_log_probs=side_by_side.get("old_log_probs"),
            entropies=side_by_side.get("entropies"),
            ref_log_probs=side_by_side.get("ref_log_probs"),
            values=side_by_side.get("values"),
            correct=rows["correct"].bool() if "correct" in rows else judged > self.correct_above,
        )
        if self.method.needs_initial_entropy and self.initial_entropy is None and mask.any():
            assert rollout.entropies is not None
            self.initial_entropy = float(rollout.entropies[mask.bool()].double().mean())
        # Unknown only if no token depends on it.
        initial = 0.0 if self.initial_entropy is None else self.initial_entropy
        rollout = dataclasses.replace(rollout, initial_entropy=initial)
        return dataclasses.replace(rollout, rewards=self.method.reward.rewards(rollout))


_OF_TOKENS = ("completion_ids", "old_log_probs", "entropies", "ref_log_probs", "values")


def _compact_rows(rows: TensorRows) -> TensorRows:
    """Compact the policy's tokens of each row, without those of tools and environments between them.

    Recursive estimators (discounts, runs of shared tokens) need contiguous tokens: gamma and lambda of PPO and
    REINFORCE++ count the policy's tokens.
    """
    if "tool_mask" not in rows:
        return rows
    order = _policy_tokens_first(rows)
    moved = {key: rows[key].gather(1, order) for key in _OF_TOKENS if key in rows}
    return {**rows, **moved, "completion_mask": policy_mask(rows).gather(1, order)}


def _in_place(rows: TensorRows, values: Tensor) -> Tensor:
    """Scatter values (n, T) of compacted tokens back to their positions in ``rows``; leave (n, 1) unchanged."""
    if "tool_mask" not in rows or values.shape[1] == 1:
        return values
    return torch.zeros_like(values).scatter(1, _policy_tokens_first(rows), values)


def _policy_tokens_first(rows: TensorRows) -> Tensor:
    """Return (n, T) positions: first of the policy's tokens, in order, then of the others."""
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
