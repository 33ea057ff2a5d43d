"""Where in its rollouts a trainer is, from the number of optimizer steps behind it."""

from __future__ import annotations

from typing import Any

from rlvr_cli.methods.method import Method


class Position:
    """The counters of a trainer that makes several optimizer steps from each rollout.

    Mixed in before TRL's trainer, whose ``_step`` counts optimizer steps and whose ``num_iterations`` counts passes.
    """

    method: Method
    args: Any
    num_iterations: int
    _step: int

    @property
    def steps_per_rollout(self) -> int:
        """Optimizer steps made from each rollout, all passes counted."""
        return int(self.args.steps_per_generation * self.num_iterations)

    @property
    def rollout_index(self) -> int:
        """The rollout that the next (or current) step belongs to, from 0."""
        return int(self._step // self.steps_per_rollout)

    @property
    def step_in_rollout(self) -> int:
        """The next (or current) step among those of its rollout, from 0."""
        return int(self._step % self.steps_per_rollout)

    @property
    def current_pass(self) -> str:
        """Which tokens the next (or current) step is trained on: a pass of the method's schedule."""
        return self._pass_of(self._step)

    @property
    def finished_pass(self) -> str:
        """The pass that the step before the next one belonged to."""
        return self._pass_of(self._step - 1)

    def _pass_of(self, step: int) -> str:
        passes = self.method.schedule.passes
        return str(passes[step // self.args.steps_per_generation % self.num_iterations % len(passes)])
