"""Where in its rollouts a trainer is, from the number of micro-batches behind it."""

from __future__ import annotations

from typing import Any

from rlvr_cli.methods.method import Method


class Position:
    """The counters of a trainer that makes several optimizer steps from each rollout.

    Mixed in before TRL's trainer, whose ``_step`` counts micro-batches and whose ``num_iterations`` counts passes.
    """

    method: Method
    args: Any
    num_iterations: int
    _step: int

    @property
    def micro_batches_per_rollout(self) -> int:
        """Micro-batches that each rollout is trained on, all passes counted."""
        return int(self.args.steps_per_generation * self.num_iterations)

    @property
    def steps_per_rollout(self) -> int:
        """Optimizer steps made from each rollout, all passes counted."""
        return int(self.micro_batches_per_rollout // self.args.gradient_accumulation_steps)

    @property
    def rollout_index(self) -> int:
        """The rollout that the next (or current) micro-batch belongs to, from 0."""
        return int(self._step // self.micro_batches_per_rollout)

    @property
    def step_in_rollout(self) -> int:
        """The optimizer step of the current rollout that the next (or current) micro-batch belongs to, from 0."""
        return int(self._step % self.micro_batches_per_rollout // self.args.gradient_accumulation_steps)

    @property
    def current_pass(self) -> str:
        """Which tokens the next (or current) micro-batch is trained on: a pass of the method's schedule."""
        return self._pass_of(self._step)

    @property
    def finished_pass(self) -> str:
        """The pass that the micro-batch before the next one belonged to."""
        return self._pass_of(self._step - 1)

    def _pass_of(self, micro_batch: int) -> str:
        passes = self.method.schedule.passes
        return str(passes[micro_batch // self.args.steps_per_generation % self.num_iterations % len(passes)])
